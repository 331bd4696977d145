#include "optim/kahan.h"

#include <string>

#include "optim/checks.h"

namespace snug {

bool compensates(const OptimizerConfig& c) {
  for (const auto& [name, value] : c.args)
    if (name == kKahanArgument) return value != 0;
  return false;
}

void check_compensation(const OptimizerConfig& c, OptimReach reach, bool keeps_others) {
  for (const auto& [name, value] : c.args)
    if (name == kKahanArgument) check_flag(kKahanArgument, value);
  if (!compensates(c)) return;
  if ((reach != OptimReach::element && reach != OptimReach::parameter) || keeps_others)
    refuse("an optimizer without matrices and averages for use_kahan_summation", "optim: " + c.name,
           "optim=adamw_bf16, or optim_args without it");
  if (c.state != StateForm::bf16)
    refuse("states in bf16 for use_kahan_summation, whose compensation rests with them",
           "optim: " + c.name + ", states in " + to_string(c.state), "optim=" + c.name + "_bf16");
}

void split_for_kahan(const float* x, int64_t n, bf16* p, float* c) {
  for (int64_t i = 0; i < n; ++i) {
    p[i] = from_f32<bf16>(x[i]);
    c[i] = to_f32(from_f32<bf16>(x[i] - to_f32(p[i])));
  }
}

}  // namespace snug
