// The norm of all gradients and the check that they are finite: what clipping, loss scaling and a
// skipped step are decided by. Nothing is written to the gradients.
#pragma once

#include <span>
#include <vector>

#include "engine/memory/step_state.h"
#include "engine/seams/state_store.h"

namespace snug {

// Recorded ops: one that resets, then sum_of_squares_and_finite of kernels.h for every run of spans
// without a gap between them.
// Sets, whatever they held before:
//   grad_square_sum    sum of squares over the elements of `spans`, divided by loss_scale^2
//   found_inf          1 if one of them is not finite, else 0
//   first_bad_element  the lowest index in `gradients` of such an element, or -1
// gradients: flat, f32 or bf16. Squares and sums are in double, by fixed chunks in order: the bits
// do not depend on threads. Elements outside the spans are not read. Throws shape if a span leaves
// them.
void gradient_norm(Context& ctx, const View& gradients, const std::vector<StateSpan>& spans,
                   const View& state);

// What is one op: neighbours together; or every span by itself, empty ones too, so that ranks whose spans
// differ do as many.
enum class NormOps : uint8_t { of_runs, of_spans };

// The two halves, where gradients come part by part: the reset, and the sums of one part, whose
// `gradients` begin with element `first` of the flat range.
void gradient_norm_reset(Context& ctx, const View& state);
void gradient_norm_add(Context& ctx, const View& gradients, int64_t first,
                       std::span<const StateSpan> spans, const View& state,
                       NormOps ops = NormOps::of_runs);

// The sums of a part ahead of the others': gradient_norm_slots sets those of its runs, each in a slot
// of its own, and gradient_norm_join adds them to `state`, with the bits that gradient_norm_add has
// there. slots: (gradient_norm_ops(spans), bytes of a StepState) u8, of which nothing else counts.
void gradient_norm_slots(Context& ctx, const View& gradients, int64_t first,
                         std::span<const StateSpan> spans, const View& slots,
                         NormOps ops = NormOps::of_runs);
void gradient_norm_join(Context& ctx, const View& slots, const View& state);
int64_t gradient_norm_ops(std::span<const StateSpan> spans, NormOps ops = NormOps::of_runs);

// The norm of the unscaled gradients before clipping, for logs.
double gradient_norm_of(const StepState& state);

}  // namespace snug
