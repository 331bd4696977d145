#include "optim/percentile.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/core/error.h"
#include "engine/kernels/kernel_queue.h"
#include "optim/checks.h"
#include "optim/chunk_map.h"
#include "optim/elementwise.h"
#include "optim/percentile_simt.h"

namespace snug {
namespace {

template <class Gradient>
double sum_of_chunk(const Gradient* gradient, int64_t n) {
  double lanes[kNormLanes] = {};
  for (int64_t i = 0; i < n; i += kNormLanes) {
    const int64_t count = std::min<int64_t>(kNormLanes, n - i);
    for (int64_t j = 0; j < count; ++j) {
      const double g = to_f32(gradient[i + j]);
      lanes[j] += g * g;
    }
  }
  for (int half = kNormLanes / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  return lanes[0];
}

}  // namespace

int clip_percentile(const OptimizerConfig& c) {
  for (const auto& [name, value] : c.args)
    if (name == kPercentileArgument && value >= 0 && value < kNoPercentile)
      return static_cast<int>(value);
  return kNoPercentile;
}

void check_percentile(const OptimizerConfig& c, OptimReach reach) {
  for (const auto& [name, value] : c.args)
    if (name == kPercentileArgument &&
        !(value >= 0 && value <= kNoPercentile && value == std::floor(value)))
      refuse("percentile_clipping of optim_args as a whole number from 0 to 100",
             setting(kPercentileArgument, value), "optim_args=percentile_clipping=5");
  if (clips_by_percentile(c) && reach != OptimReach::element && reach != OptimReach::parameter)
    refuse("an optimizer whose steps are not made of matrices for percentile_clipping",
           "optim: " + c.name, "optim=adamw, or optim_args without it");
}

float percentile_factor(float* ring, float square, int64_t updates, int percentile) {
  if (updates == 0)
    std::fill_n(ring, kRingNorms, square);
  else
    ring[(updates + 1) % kRingNorms] = square;
  float sorted[kRingNorms];
  std::copy_n(ring, kRingNorms, sorted);
  std::nth_element(sorted, sorted + percentile, sorted + kRingNorms);
  const float limit = std::sqrt(sorted[percentile]), norm = std::sqrt(square);
  return norm > limit ? limit / norm : 1.0f;
}

Tensor ElementwiseOptimizer::percentile_factors(Context& ctx, const UpdateTargets& t,
                                                StateStore& store, std::span<const StateSpan> spans,
                                                const ChunkMap& map, const View& state) const {
  static const Name factors_name("clip_factors"), sums_name("clip_sums");
  const int ring = count(), percentile = clip_percentile(config());
  const auto parameters = static_cast<int64_t>(spans.size());
  Tensor factors = ctx.tensor(factors_name, {parameters}, DType::f32, Category::workspace);
  const Tensor sums =
      ctx.tensor(sums_name, {std::max<int64_t>(map.chunks(), 1)}, DType::f64, Category::workspace);
  for (const StateSpan& span : spans)
    expect(store.acquire(ctx, ring, span), "gradient norms",
           {{"elements", store.numbers(ring, span)}});
  {
    Op op(ctx, "percentile_clip",
          {.flops = 2 * map.elements(),
           .bytes = size_of(t.gradients.dtype) * map.elements() + 8 * kRingNorms * parameters});
    if (op.run() && ctx.by_kernels()) {
      struct List {
        Context& ctx;
        const UpdateTargets& targets;
        StateStore& store;
        std::span<const StateSpan> spans;
        int ring;
      };
      const List list{ctx, t, store, spans, ring};
      const auto at = [](const void* p, size_t i) {
        const List& l = *static_cast<const List*>(p);
        const StateSpan& s = l.spans[i];
        return ClippedSpan{l.targets.gradients.rows(s.offset - l.targets.first, s.elements),
                           l.store.acquire(l.ctx, l.ring, s)};
      };
      for (const StateSpan& span : spans)
        if (t.gate) t.gate->pass(span.param);
      on_queue(ctx, [&](auto& queue) {
        percentile_factors_on(queue, {spans.size(), at, &list}, percentile, factors.view(),
                              sums.view(), state);
      });
    } else if (op.run() && !step_state(state)->found_inf) {
      const StepState& s = *step_state(state);
      auto* const of_chunks = sums.view().as<double>();
      map.for_each(ctx.threads(), [&](int64_t c, const ChunkMap::Chunk& chunk) {
        const int64_t at = chunk.begin - t.first, n = chunk.end - chunk.begin;
        of_chunks[c] = t.gradients.dtype == DType::f32
                           ? sum_of_chunk(t.gradients.as<const float>() + at, n)
                           : sum_of_chunk(t.gradients.as<const bf16>() + at, n);
      });
      const double factor = static_cast<float>(double{s.clip_factor} / double{s.loss_scale});
      int64_t c = 0;
      for (int64_t i = 0; i < parameters; ++i) {
        const StateSpan& span = spans[static_cast<size_t>(i)];
        if (span.elements == 0) continue;
        double sum = 0;
        for (int64_t last = c + ceil_div(span.elements, kChunkElements); c < last; ++c)
          sum += of_chunks[c];
        if (t.gate) t.gate->pass(span.param);
        factors.view().as<float>()[i] =
            percentile_factor(store.acquire(ctx, ring, span).as<float>(),
                              static_cast<float>(sum * (factor * factor)), s.updates, percentile);
      }
    }
  }
  for (const StateSpan& span : spans) store.release(ctx, ring, span);
  return factors;
}

}  // namespace snug
