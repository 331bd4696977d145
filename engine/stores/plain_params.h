// PlainParamStore: all weights in one flat tensor of a resident program. Frozen tables of rows may
// rest with the host instead (engine/seams/parameter.h), where the device reads what it wants.
#pragma once

#include <vector>

#include "engine/seams/param_store.h"

namespace snug {

class PlainParamStore final : public ParamStore {
 public:
  // Call inside the root program.
  PlainParamStore(Context& ctx, const ParamTable& table, DType dtype,
                  bool tables_with_host = false);
  const ParamTable& table() const override { return table_; }
  View acquire(Context& ctx, int param) override;
  void release(Context&, int) override {}
  // All, but for tables with the host.
  const View& flat() const { return flat_; }
  const Tensor& whole() const { return flat_; }
  // Where what is frozen rests: the elements of the flat range from `trained` on.
  std::vector<RestingWeights::Piece> frozen() const;

 private:
  const ParamTable& table_;
  Tensor flat_, tables_;
};

}  // namespace snug
