// PlainGradSink: gradients of all trained parameters in one flat tensor, summed over the
// micro-steps of a window. In bf16 every contribution is computed in fp32, added to what is there,
// widened, and rounded once.
#pragma once

#include <vector>

#include "engine/seams/grad_sink.h"

namespace snug {

class PlainGradSink final : public GradSink {
 public:
  // Call inside the root program. dtype: f32 or bf16.
  PlainGradSink(Context& ctx, const ParamTable& table, DType dtype = DType::f32);
  // Before a micro-step: the first of a window assigns, later ones add.
  void begin(bool first_of_window);
  bool wants(int param) const override { return table_[param].trainable; }
  GradView open(Context& ctx, int param) override;
  void close(Context&, int) override {}
  const View& flat() const { return flat_; }

 private:
  const ParamTable& table_;
  Tensor flat_;
  std::vector<char> written_;  // by this window, per parameter
};

}  // namespace snug
