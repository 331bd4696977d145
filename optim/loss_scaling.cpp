#include "optim/loss_scaling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/error.h"
#include "engine/kernels/kernel_queue.h"
#include "optim/checks.h"
#include "optim/clip_simt.h"

namespace snug {

void check_loss_scaling(const LossScaling& c) {
  const auto scale = [](const char* key, double value, bool zero, const char* advice) {
    const auto f = static_cast<float>(value);
    if (!std::isfinite(f) || value < 0 || (f == 0 && !(zero && value == 0)))
      refuse(std::string(key) + (zero ? " of 0, or a finite one above 0" : " above 0 and finite"),
             setting(key, value), advice);
  };
  scale("loss_scale", c.fixed_scale, true, "loss_scale=0, which is dynamic");
  scale("init_scale", c.init_scale, false, "init_scale=65536");
  scale("min_loss_scale", c.min_scale, false, "min_loss_scale=1");
  if (!(std::isfinite(c.growth_factor) && c.growth_factor > 1))
    refuse("growth_factor above 1", setting("growth_factor", c.growth_factor), "growth_factor=2");
  if (!(c.backoff_factor > 0 && c.backoff_factor < 1))
    refuse("backoff_factor in (0, 1)", setting("backoff_factor", c.backoff_factor),
           "backoff_factor=0.5");
  if (c.growth_interval < 1 || c.growth_interval > std::numeric_limits<int32_t>::max())
    refuse("growth_interval of 1 to 2^31 - 1",
           setting("growth_interval", static_cast<double>(c.growth_interval)),
           "growth_interval=2000");
  if (c.min_scale > c.init_scale)
    refuse("min_loss_scale of at most init_scale",
           setting("min_loss_scale", c.min_scale) + ", " + setting("init_scale", c.init_scale),
           "min_loss_scale=1");
}

void update_loss_scale(Context& ctx, const View& state, const LossScaling& config) {
  check_loss_scaling(config);
  expect(state, "state", {{"bytes", step_state_shape()[0]}});
  Op op(ctx, "update_loss_scale", {});
  if (!op.run() || !config.dynamic()) return;
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) { update_loss_scale_on(queue, state, config); });
  StepState& s = *step_state(state);
  const double scale = double{s.loss_scale};
  if (s.found_inf) {
    s.loss_scale = static_cast<float>(std::max(scale * config.backoff_factor, config.min_scale));
    s.growth_tracker = 0;
  } else if (++s.growth_tracker >= config.growth_interval) {
    const auto grown = static_cast<float>(scale * config.growth_factor);
    if (std::isfinite(grown)) s.loss_scale = grown;
    s.growth_tracker = 0;
  }
}

}  // namespace snug
