// PlainParamStore: all weights in one flat tensor of a resident program.
#pragma once

#include "engine/seams/param_store.h"

namespace snug {

class PlainParamStore final : public ParamStore {
 public:
  // Call inside the root program.
  PlainParamStore(Context& ctx, const ParamTable& table, DType dtype);
  const ParamTable& table() const override { return table_; }
  View acquire(Context& ctx, int param) override;
  void release(Context&, int) override {}
  const View& flat() const { return flat_; }
  const Tensor& whole() const { return flat_; }

 private:
  const ParamTable& table_;
  Tensor flat_;
};

}  // namespace snug
