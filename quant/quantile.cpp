#include "quant/quantile.h"

#include <algorithm>
#include <cmath>

#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "quant/block.h"

namespace snug {
namespace {

float quantile_of(const int32_t* ascending, int64_t n, double share) {
  const double place = static_cast<double>(n - 1) * share, below = std::floor(place);
  const auto k = static_cast<int64_t>(below);
  const double t = place - below, a = static_cast<double>(float_of_key(ascending[k])),
               b = static_cast<double>(float_of_key(ascending[std::min(k + 1, n - 1)]));
  const double between = t >= 0.5 ? b - (b - a) * (1 - t) : a + (b - a) * t;
  return static_cast<float>(between) + 0.0f;  // one zero, of either sign
}

}  // namespace

Codec quantile_row() {
  return {"quantile8", 8, 4096, true, true, ScaleRule::absmax, 1, nullptr};
}

void quantile_book(Context& ctx, const View& book, const View& x, const CodeSpec& spec) {
  refuse_by_kernels(ctx, "quantile_book");
  const int64_t n = x.elements();
  if (!spec.codec->book_of_data())
    fail(ErrorCode::unsupported, "a codec whose book comes with the data", spec.codec->name,
         "quantile8, or code with its own book");
  if (n < 1)
    fail(ErrorCode::shape, "quantile_book: x of one element or more", describe(x),
         "leave empty tensors in f32");
  expect(book, "book", {{"codes", kMaxCodes}});
  expect_dtype(book, "book", {DType::f32});
  dispatch_float(x, "quantile_book: x", [&](auto tag) {
    using X = decltype(tag);
    const Tensor sorted = ctx.tensor(Name("sorted"), {n}, DType::i32, Category::workspace);
    Op op(ctx, "quantile_book", {.flops = 0, .bytes = x.bytes() + 8 * n});
    if (!op.run()) return;
    const X* from = x.as<const X>();
    auto* keys = sorted.view().template as<int32_t>();
    parallel_for(ctx.threads(), spec.blocks(n), [=, &spec](int64_t b) {
      const int64_t begin = b * spec.block, end = std::min(n, begin + spec.block);
      BlockExtremes e;
      for (int64_t i = begin; i < end; ++i) e.add(to_f32(from[i]));
      const BlockScale s = scale_of(spec.codec->rule, spec.codec->peak, e);
      for (int64_t i = begin; i < end; ++i)
        keys[i] = float_key(scaled(spec.codec->rule, s, to_f32(from[i])));
    });
    std::sort(keys, keys + n);
    auto* to = book.as<float>();
    for (int i = 0; i < kMaxCodes; ++i) to[i] = quantile_of(keys, n, (i + 0.5) / kMaxCodes);
  });
}

}  // namespace snug
