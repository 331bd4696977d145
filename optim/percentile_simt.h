// The factors of optim/percentile.h for engine/simt, with the same bits.
//
// Launches  two for kClippedSpansOfALaunch spans: of the sums of chunks, and of the rings. Nothing is
//           written in a skipped step.
// Queue     simt::Queue of the side that is linked.
// Traffic   4 bytes an element.
#pragma once

#include "engine/core/view.h"
#include "optim/percentile.h"

namespace snug {

inline constexpr int kClippedSpansOfALaunch = 768;

struct ClippedSpan {
  View gradient, ring;  // f32; a parameter's, and its norms
};
// A list of spans that need not exist at once: `at` is called once for each, in order.
struct ClippedSpans {
  size_t count;
  ClippedSpan (*at)(const void* list, size_t i);
  const void* list;
};

// factors: f32, one a span; sums: f64, one a chunk of whole.h. Of a span without an element no factor is
// written.
template <class Queue>
void percentile_factors_on(Queue& queue, const ClippedSpans& spans, int percentile,
                           const View& factors, const View& sums, const View& state);

}  // namespace snug
