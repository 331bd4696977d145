#include "layers/ops/cache_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/memory/step_state.h"
#include "layers/ops/cache_rows_simt.h"

namespace snug {
namespace {

// Threads cannot throw, so all sources are looked at before the work is shared.
void check_sources(const int32_t* source, int64_t B) {
  for (int64_t b = 0; b < B; ++b) {
    const int64_t from = source[2 * b], first = source[2 * b + 1];
    if (from < 0 || from >= B || first < 0)
      fail(ErrorCode::usage, fmt::format("a source row of [0,B)=[0,{}) and a first position", B),
           fmt::format("row {} from position {} on for row {}", from, first, b),
           "let a row that stays name itself");
    if (source[2 * from] != from)
      fail(ErrorCode::usage, "sources that keep their own values",
           fmt::format("row {} continues from row {}, which continues from row {}", b, from,
                       source[2 * from]),
           "let one continuation of a row stay in it");
  }
}

}  // namespace

void cache_rows_copy(Context& ctx, const View& cache_k, const View& cache_v, const View& source,
                     const View& state, bool ring) {
  if (cache_k.shape.rank() != 4)
    fail(ErrorCode::shape, "cache_k of shape (B,P,G,D)", describe(cache_k), "check the cache");
  const int64_t B = cache_k.shape[0], P = cache_k.shape[1], G = cache_k.shape[2],
                D = cache_k.shape[3];
  if (B < 1 || P < 1)
    fail(ErrorCode::shape, "cache_k of shape (B,P,G,D) with B and P above 0", describe(cache_k),
         "plan a cache for at least one row and token");
  expect(cache_v, "cache_v", {{"B", B}, {"P", P}, {"G", G}, {"D", D}});
  expect_dtype(cache_v, "cache_v", {cache_k.dtype});
  expect(source, "source", {{"B", B}, {"2", 2}});
  expect_dtype(source, "source", {DType::i32});
  expect(state, "state", {{"bytes", step_state_shape()[0]}});
  const int64_t row = cache_k.bytes() / B, cell = row / P;  // bytes
  Op op(ctx, "cache_rows_copy", {.flops = 0, .bytes = 4 * (B - 1) * row});
  if (!op.run()) return;
  const bool host = ctx.host_reads();
  const int64_t position = host ? step_state(state)->position : 0;
  if (position < 0 || (position > P && !ring))
    fail(ErrorCode::usage, fmt::format("at most P={} tokens in the key/value cache", P),
         fmt::format("{}", position), "generate fewer tokens or plan a longer cache");
  const int32_t* from = source.as<int32_t>();
  if (host) check_sources(from, B);
  if (ctx.by_kernels())
    return on_queue(
        ctx, [&](auto& queue) { cache_rows_copy_on(queue, cache_k, cache_v, source, state); });
  auto* k = static_cast<std::byte*>(cache_k.data);
  auto* v = static_cast<std::byte*>(cache_v.data);
  parallel_for(ctx.threads(), 2 * B, [&](int64_t i) {
    const int64_t b = i / 2, s = from[2 * b], first = from[2 * b + 1];
    if (s == b) return;
    std::byte* const cache = i % 2 == 0 ? k : v;
    // As far as the ring's end, then from its beginning.
    for (int64_t p = std::max(first, position - P); p < position;) {
      const int64_t count = std::min(position - p, P - p % P), at = p % P * cell;
      std::memcpy(cache + b * row + at, cache + s * row + at, static_cast<size_t>(count * cell));
      p += count;
    }
  });
}

}  // namespace snug
