#include "tools/session/step_parts.h"

#include "tools/session/session.h"

namespace snug {

bool graphs_for(const Decisions& d) {
  // Ranks meet on the host at each collective.
  return d.ranks == 1 && d.offload.none() && !d.offload_optimizer && !d.states_on_disk &&
         !d.offload_params && !d.offload_gradients && !d.update_in_backward;
}

bool sums_in_backward(const Decisions& d) {
  return d.ranks > 1 && d.zero <= 1 && !d.update_in_backward && (!d.in_turn || d.offload_gradients);
}

std::vector<StepPart> step_parts(const Schedule& s, int64_t accumulation) {
  std::vector<StepPart> parts;
  if (s.find("micro_first") < 0) return parts;
  const auto add = [&](const char* name, int64_t runs) {
    if (const int program = s.find(name); program >= 0 && runs > 0)
      parts.push_back({program, runs});
  };
  // Where gradients are summed over ranks in backward, the last one does that.
  const bool sums = s.find("micro_last") >= 0;
  if (sums && accumulation <= 1) {
    add("micro_only", 1);
  } else {
    add("micro_first", 1);
    add("micro_next", accumulation - (sums ? 2 : 1));
    if (sums) add("micro_last", 1);
  }
  add("update", 1);
  return parts;
}

void Session::record_micro_steps() {
  micro(true, false);
  micro(false, false);
  if (micro_last_ < 0) return;
  micro(true, true);
  micro(false, true);
}

}  // namespace snug
