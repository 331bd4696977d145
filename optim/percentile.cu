#include "engine/core/units.h"
#include "engine/memory/step_state.h"
#include "engine/simt/simt.h"
#include "optim/percentile_simt.h"
#include "optim/whole.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

struct ClippedPart {
  const float* gradient;
  float* ring;
  int64_t elements;
  int32_t first_block;
};
struct ClippedParts {
  ClippedPart at[kClippedSpansOfALaunch];
  int count;
};

// A block works on one chunk, its threads are the lanes of whole.h.
__global__ void clipped_sums_kernel(const __grid_constant__ Constant<ClippedParts> parts,
                                    const StepState* state, double* sums) {
  if (state->found_inf) return;  // all blocks, before any barrier
  int mine = 0;
  for (int end = parts->count; end - mine > 1;) {
    const int middle = (mine + end) / 2;
    if (parts->at[middle].first_block <= block())
      mine = middle;
    else
      end = middle;
  }
  const ClippedPart part = parts->at[mine];
  SHARED_ARRAY(double, lanes, kNormLanes);
  const int64_t begin = (block() - part.first_block) * kChunkElements,
                last =
                    begin + kChunkElements < part.elements ? begin + kChunkElements : part.elements;
  double sum = 0;
  for (int64_t i = begin + thread(); i < last; i += kNormLanes) {
    const double g = part.gradient[i];
    sum += g * g;
  }
  lanes[thread()] = sum;
  for (int half = kNormLanes / 2; half > 0; half /= 2) {
    sync_threads();
    if (thread() < half) lanes[thread()] = lanes[thread()] + lanes[thread() + half];
  }
  sync_threads();
  if (thread() == 0) sums[block()] = lanes[0];
}

// A block works on one ring, a thread on one of its numbers.
__global__ void ring_kernel(const __grid_constant__ Constant<ClippedParts> parts,
                            const StepState* state, int percentile, const double* sums,
                            float* factors) {
  if (state->found_inf) return;
  const ClippedPart part = parts->at[block()];
  if (part.elements == 0) return;  // all threads of the block
  SHARED_ARRAY(float, ring, kRingNorms);
  SHARED_ARRAY(float, square, 1);
  if (thread() == 0) {
    const int64_t chunks = ceil_div(part.elements, kChunkElements);
    double sum = 0;
    for (int64_t c = 0; c < chunks; ++c) sum += sums[part.first_block + c];
    const double factor =
        static_cast<float>(double{state->clip_factor} / double{state->loss_scale});
    square[0] = static_cast<float>(sum * (factor * factor));
  }
  sync_threads();
  const int i = thread();
  if (i < kRingNorms) {
    if (state->updates == 0 || (state->updates + 1) % kRingNorms == i) part.ring[i] = square[0];
    ring[i] = part.ring[i];
  }
  sync_threads();
  if (i >= kRingNorms) return;
  const float own = ring[i];
  int before = 0;
  for (int j = 0; j < kRingNorms; ++j) {
    const float other = ring[j];
    before += other < own || (other == own && j < i) ? 1 : 0;
  }
  if (before != percentile) return;  // one thread goes on
  const float limit = ::sqrtf(own), norm = ::sqrtf(square[0]);
  factors[block()] = norm > limit ? limit / norm : 1.0f;
}

}  // namespace

template <class Queue>
void percentile_factors_on(Queue& queue, const ClippedSpans& spans, int percentile,
                           const View& factors, const View& sums, const View& state) {
  const auto* s = static_cast<const StepState*>(step_state(state));
  auto* next_factor = factors.as<float>();
  auto* next_sum = sums.as<double>();
  ClippedParts parts;
  for (size_t done = 0; done < spans.count; done += kClippedSpansOfALaunch) {
    int64_t chunks = 0;
    parts.count = 0;
    for (size_t i = done; i < spans.count && parts.count < kClippedSpansOfALaunch; ++i) {
      const ClippedSpan span = spans.at(spans.list, i);
      const int64_t n = span.gradient.elements();
      parts.at[parts.count++] = {span.gradient.as<const float>(), span.ring.as<float>(), n,
                                 static_cast<int32_t>(chunks)};
      chunks += ceil_div(n, kChunkElements);
    }
    launch(queue, {.blocks = chunks, .threads = kNormLanes}, "percentile_sums", clipped_sums_kernel,
           parts, s, next_sum);
    launch(queue, {.blocks = parts.count, .threads = 128}, "percentile_rings", ring_kernel, parts,
           s, percentile, static_cast<const double*>(next_sum), next_factor);
    next_sum += chunks;
    next_factor += parts.count;
  }
}

template void percentile_factors_on(simt::Queue&, const ClippedSpans&, int, const View&,
                                    const View&, const View&);

}  // namespace snug
