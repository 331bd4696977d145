// Kahan summation of bf16 weights without a master, beside rounding at random: a weight is the sum of two
// bf16 numbers, what layers read and a compensation, which a step takes and gives as one float:
//   p, c = nearest bf16 of x, nearest bf16 of x - p        x = p + c, before a step and after it
// About 16 bits of a weight, without a draw. The compensation is one state more behind an optimizer's own;
// states rest in bf16 with it, so that AdamW has 2 + 2 + 2 bytes of them a parameter. With
// optim_args=use_kahan_summation=true, as Hugging Face spells it.
// Kahan, "Further remarks on reducing truncation errors" (1965); transformers' AnyPrecisionAdamW.
#pragma once

#include "optim/optimizer.h"

namespace snug {

inline constexpr const char* kKahanArgument = "use_kahan_summation";
inline constexpr const char* kCompensation = "compensation";  // the state

bool compensates(const OptimizerConfig& c);
// Throws usage where the states are no bf16, or the optimizer has matrices, or weights to keep.
void check_compensation(const OptimizerConfig& c, OptimReach reach, bool keeps_others);

// n numbers; c: as floats that bf16 holds.
void split_for_kahan(const float* x, int64_t n, bf16* p, float* c);

}  // namespace snug
