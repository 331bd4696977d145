// GradSink: where a layer puts parameter gradients. `open` gives the view to write and whether to
// assign or to add; `close` comes after the last contribution of the pass, tied ones included. A
// parameter the sink does not want (frozen) is never opened, and then neither its gradient nor the
// input saved for it exists.
#pragma once

#include <vector>

#include "engine/memory/context.h"
#include "engine/seams/parameter.h"

namespace snug {

// Throws unless kernels for gradients of this dtype exist where the context will run.
void expect_gradients_here(const Context& ctx, DType dtype);

class GradSink {
 public:
  virtual ~GradSink() = default;
  virtual bool wants(int param) const = 0;
  virtual GradView open(Context& ctx, int param) = 0;
  virtual void close(Context& ctx, int param) = 0;
  // The gradients of a part of the table (ParamInfo::part) are opened next: a sink that has sums of
  // them elsewhere begins to bring them.
  virtual void fetch_part(Context&, int /*part*/) {}
  // They are complete, and the weights of the part are not read again in this pass.
  virtual void part_done(Context&, int /*part*/) {}
};

// Gradients of all parameters in one flat tensor, summed over the micro-steps of a window. In bf16
// every contribution is computed in fp32, added to what is there, widened, and rounded once.
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
