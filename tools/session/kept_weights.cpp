// Weights of two kinds: those that are trained, and those that an optimizer keeps of them, which are
// evaluated and saved.
#include "tools/session/session.h"

namespace snug {

void Session::train_weights() {
  if (!kept_ || ctx_.planning()) return;
  if (to_trained_ >= 0) move_weights(WeightsMove::to_trained);
  kept_ = false;
}

void Session::keep_weights() {
  if (!kept_ && to_kept_ >= 0) move_weights(WeightsMove::to_kept);
  kept_ = true;
}

// Whatever the last step found: the state of steps is as it was when this is done.
void Session::move_weights(WeightsMove where) {
  StepState saved{};
  if (!ctx_.planning()) {
    saved = state();
    state().found_inf = 0;
    send_state();
  }
  ctx_.program(schedule_, where == WeightsMove::to_kept ? to_kept_ : to_trained_, [&] {
    optimizer_->move(ctx_, stores_->targets(), stores_->states(), update_state(), where);
    stores_->share(ctx_);
    if (packed_) packed_->pack(ctx_, stores_->weights(), false);
  });
  if (!ctx_.planning()) state() = saved;
}

}  // namespace snug
