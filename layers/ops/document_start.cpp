#include "layers/ops/document_start.h"

#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/kernel_queue.h"
#include "layers/ops/document_start_simt.h"

namespace snug {
namespace {

// f(t, end of the document of t) for the positions of a sequence, the last first.
template <class F>
void each_end(const int32_t* starts, int64_t T, F&& f) {
  int64_t end = T;
  for (int64_t t = T - 1; t >= 0; --t) {
    if (t + 1 < T && starts[t + 1] != starts[t]) end = t + 1;
    f(t, static_cast<int32_t>(end));
  }
}

}  // namespace

void expect_document_start(const View& starts, int64_t B, int64_t T) {
  expect(starts, "document_start", {{"B", B}, {"T", T}});
  expect_dtype(starts, "document_start", {DType::i32});
}

void expect_document_end(const View& ends, int64_t B, int64_t T) {
  expect(ends, "document_end", {{"B", B}, {"T", T}});
  expect_dtype(ends, "document_end", {DType::i32});
}

void check_document_start(const View& starts, int64_t B, int64_t T) {
  const auto* p = starts.as<int32_t>();
  for (int64_t b = 0; b < B; ++b, p += T)
    for (int64_t t = 0; t < T; ++t)
      if (p[t] != t && (t == 0 || p[t] != p[t - 1]))
        fail(ErrorCode::data,
             fmt::format("document_start {} at position {} of sequence {}",
                         t == 0 ? "0" : fmt::format("{} or {}", p[t - 1], t), t, b),
             fmt::format("{}", p[t]),
             "give each position the position of its document's first token");
}

void check_document_end(const View& ends, const View& starts, int64_t B, int64_t T) {
  for (int64_t b = 0; b < B; ++b) {
    const int32_t* const p = ends.as<int32_t>() + b * T;
    each_end(starts.as<int32_t>() + b * T, T, [&](int64_t t, int32_t end) {
      if (p[t] != end)
        fail(ErrorCode::data,
             fmt::format("document_end {} at position {} of sequence {}", end, t, b),
             fmt::format("{}", p[t]), "make it of document_start, with document_end()");
    });
  }
}

void document_end(Context& ctx, const View& ends, const View& starts, int64_t B, int64_t T) {
  if (B < 1 || T < 1)
    fail(ErrorCode::shape, "positive sizes of a batch", fmt::format("B={} T={}", B, T),
         "give at least one sequence of one token");
  expect_document_start(starts, B, T);
  expect_document_end(ends, B, T);
  Op op(ctx, "document_end", {.flops = 0, .bytes = ends.bytes() + starts.bytes()});
  if (!op.run()) return;
  if (ctx.host_reads()) check_document_start(starts, B, T);
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) { document_end_on(queue, ends, starts); });
  parallel_for(ctx.threads(), B, [&](int64_t b) {
    int32_t* const to = ends.as<int32_t>() + b * T;
    each_end(starts.as<int32_t>() + b * T, T, [&](int64_t t, int32_t end) { to[t] = end; });
  });
}

}  // namespace snug
