#include "layers/ops/rope.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "layers/ops/rope_simt.h"
#include "layers/ops/row_loops.h"
#include "layers/ops/row_positions.h"
#include "layers/ops/row_tasks.h"

namespace snug {
namespace {

constexpr int64_t kMostPositions = int64_t{1} << 22;

void check_spec(const RopeSpec& s) {
  const auto pairs = static_cast<int64_t>(s.inverse_frequencies.size());
  if (s.H < 1 || s.G < 0 || s.D < 1 || pairs < 1 || 2 * pairs > s.D || pairs > kMostRopePairs)
    fail(ErrorCode::usage,
         fmt::format("heads, and R/2 of 1 to D/2 and {} inverse frequencies", kMostRopePairs),
         fmt::format("H={} G={} D={} R/2={}", s.H, s.G, s.D, pairs),
         "check the head width and the rotary part in the model's config");
  for (const float f : s.inverse_frequencies)
    if (!(f >= 0.0f && f <= 1.0f))
      fail(ErrorCode::usage, "inverse frequencies of 0 to 1", fmt::format("{}", f),
           "theta^(-2i/R), with theta of 1 or more");
}

void check_positions(int64_t first, int64_t T) {
  if (first < 0 || first + T > kMostPositions)
    fail(ErrorCode::data, fmt::format("positions of [0,{})", kMostPositions),
         fmt::format("positions {} to {}", first, first + T - 1), "lower max_length");
}

// direction: 1 forward, -1 backward.
void rotate(Context& ctx, const char* name, const View& y, const char* y_argument, const View& qkv,
            const char* argument, int64_t B, int64_t T, const RopeSpec& spec, float direction,
            const View& state, const View& document_start) {
  check_spec(spec);
  const int64_t n = B * T, rotated = spec.H + spec.G, d = spec.D, width = (rotated + spec.G) * d;
  const auto half = static_cast<int64_t>(spec.inverse_frequencies.size());
  for (const auto& [view, what] : {std::pair{&y, y_argument}, std::pair{&qkv, argument}})
    expect(*view, what, {{"N", n}, {"(H+2G)D", width}});
  expect_dtype(y, y_argument, {qkv.dtype});
  expect_positions(state, document_start, B, T);
  dispatch_float(qkv, argument, [&](auto tag) {
    using E = decltype(tag);
    // On plan there are no bytes to compare: one tensor has one name.
    const int64_t moved =
        y.name == qkv.name ? n * rotated * 2 * half * size_of(y.dtype) : y.bytes();
    Op op(ctx, name, {.flops = n * half * (6 * rotated + 30), .bytes = 2 * moved});
    if (!op.run()) return;
    if (ctx.host_reads()) {
      check_positions(first_position(state), T);
      if (document_start.defined()) check_document_start(document_start, B, T);
    }
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) {
        rope_on(queue, y, qkv, T, spec, direction, state, document_start);
      });
    const RowPositions position(first_position(state), T, document_start);
    const RopeLoops<E> loops = rope_loops<E>();
    const float factor = spec.attention_factor;
    const float* frequencies = spec.inverse_frequencies.data();
    E* const to = y.as<E>();
    const E* const from = qkv.as<E>();
    const bool copies = to != from;
    parallel_chunks(ctx.threads(), n, row_grain(width), [=](int64_t begin, int64_t end) {
      float cos[kMostRopePairs], sin[kMostRopePairs];
      for (int64_t row = begin; row < end; ++row) {
        E* const y_n = to + row * width;
        const E* const x_n = from + row * width;
        loops.angles(cos, sin, frequencies, static_cast<float>(position(row)), factor,
                     direction * factor, half);
        loops.rotate(y_n, x_n, cos, sin, rotated, d, half);
        if (!copies) continue;
        for (int64_t h = 0; h < rotated && 2 * half < d; ++h)
          std::copy_n(x_n + h * d + 2 * half, d - 2 * half, y_n + h * d + 2 * half);
        std::copy_n(x_n + rotated * d, width - rotated * d, y_n + rotated * d);
      }
    });
  });
}

}  // namespace

void rope_forward(Context& ctx, const View& y, const View& qkv, int64_t B, int64_t T,
                  const RopeSpec& spec, const View& state, const View& document_start) {
  rotate(ctx, "rope_forward", y, "y", qkv, "qkv", B, T, spec, 1.0f, state, document_start);
}

void rope_backward(Context& ctx, const View& dqkv, const View& dy, int64_t B, int64_t T,
                   const RopeSpec& spec, const View& state, const View& document_start) {
  rotate(ctx, "rope_backward", dqkv, "dqkv", dy, "dy", B, T, spec, -1.0f, state, document_start);
}

}  // namespace snug
