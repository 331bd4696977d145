// What crosses for an update that is the host's, beside gradients and weights: the numbers of the step;
// and when it is one step late.
#include "tools/session/session.h"

namespace snug {

View Session::update_state() {
  if (!decisions_.update_on_host) return state_;
  ctx_.wait_event(kToHost, ctx_.record_event(kCompute));
  ctx_.copy_to_host(host_.state, state_);
  ctx_.wait_event(kCompute, ctx_.record_event(kToHost));
  return host_.state;
}

void Session::make_late_step() {
  host_.late = twin("host.late_step", state_);
  none_late();
}

void Session::none_late() {
  if (!host_.late.defined() || ctx_.planning()) return;
  late_step() = StepState{};
  late_step().loss_scale = late_step().clip_factor = 1.0f;
  late_step().found_inf = 1;
}

void Session::update_late() {
  {
    const Context::Beside beside(ctx_);
    optimizer_->update(ctx_, stores_->targets(), stores_->states(), host_.late);
  }
  ctx_.join_host();
}

void Session::send_late() {
  ctx_.wait_event(kToHost, ctx_.record_event(kCompute));
  ctx_.copy_to_host(host_.late, state_);
  ctx_.wait_event(kCompute, ctx_.record_event(kToHost));
  stores_->send_late(ctx_);
}

// Of a step that was skipped too: who reads the gradient that it left has to be done.
void Session::turn_late() {
  if (UpdateGate* gate = stores_->gate(); gate != nullptr && !ctx_.planning())
    for (int i = 0; i < model_.params().size(); ++i) gate->pass(i);
  stores_->turn();
}

void Session::apply_late() {
  if (late_ < 0) return;
  ctx_.program(schedule_, late_, [&] {
    ctx_.host_from_here();
    update_late();
    stores_->send_weights(ctx_);
    if (packed_) packed_->pack(ctx_, stores_->weights(), false);
  });
  none_late();
}

}  // namespace snug
