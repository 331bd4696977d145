#include "layers/adapters/input_dropout.h"

#include "engine/core/error.h"
#include "engine/kernels/kernels.h"

namespace snug {
namespace {

// Sites of adapters: apart from those of the blocks, which count from 0.
constexpr uint32_t kFirstSite = 0x6c000000u;

}  // namespace

InputDropout::InputDropout(const Wiring& w, float p, const std::string& own)
    : dropped_(join(w.name, own + "_x")), dx_(join(w.name, own + "_dx")) {
  require(w.body.stages().size() < 16, "dropout sites of adapters that differ from layer to layer");
  spec_ = {p, kFirstSite + static_cast<uint32_t>(w.part + 1) * 16u +
                  static_cast<uint32_t>(w.body.stages().size())};
}

View InputDropout::forward(Context& ctx, const Pass& p, const View& x, Tensor& made) const {
  if (none() || p.mode() == PassMode::inference) return x;
  made = ctx.tensor(dropped_, x.shape, x.dtype, Category::workspace);
  const Dims n = p.dims().of(x.shape[0]);
  dropout_forward(ctx, made, x, n.B, n.T, spec_, p.environment<Runtime>().state);
  return made.view();
}

GradView InputDropout::open(Context& ctx, const GradView& dx, Tensor& made) const {
  if (none()) return dx;
  if (dx.add) made = ctx.tensor(dx_, dx.view.shape, dx.view.dtype, Category::workspace);
  return {dx.add ? made.view() : dx.view, false};
}

void InputDropout::close(Context& ctx, const Pass& p, const GradView& dx,
                         const GradView& written) const {
  if (none()) return;
  const Dims n = p.dims().of(written.view.shape[0]);
  dropout_backward(ctx, written.view, written.view, n.B, n.T, spec_,
                   p.environment<Runtime>().state);
  if (dx.add) add(ctx, dx.view, written.view);
}

}  // namespace snug
