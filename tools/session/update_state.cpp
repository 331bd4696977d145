// What crosses for an update that is the host's, beside gradients and weights: the numbers of the step.
#include "tools/session/session.h"

namespace snug {

View Session::update_state() {
  if (!decisions_.update_on_host) return state_;
  ctx_.wait_event(kToHost, ctx_.record_event(kCompute));
  ctx_.copy_to_host(host_.state, state_);
  ctx_.wait_event(kCompute, ctx_.record_event(kToHost));
  return host_.state;
}

}  // namespace snug
