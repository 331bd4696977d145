#include "quant/quantise.h"

#include <algorithm>
#include <type_traits>

#include "engine/core/parallel.h"
#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/kernels/loops.h"
#include "engine/memory/step_state.h"
#include "quant/block.h"
#include "quant/quantise_simt.h"

namespace snug {
namespace {

constexpr int64_t kTile = 4096;        // floats on a thread's stack; even
constexpr int64_t kGrain = 32 * 1024;  // elements a task

const Codec& scale_codec() {
  static const Codec& c = codec("dynamic8");
  return c;
}

void check(const Coded& coded, int64_t n, const CodeSpec& spec) {
  const int64_t blocks = spec.blocks(n);
  expect(coded.codes, "codes", {{"bytes", spec.code_bytes(n)}});
  expect_dtype(coded.codes, "codes", {DType::u8});
  if (spec.doubled) {
    expect(coded.scale_codes, "scale_codes", {{"blocks", blocks}});
    expect_dtype(coded.scale_codes, "scale_codes", {DType::u8});
    expect(coded.offset, "offset", {{"one", 1}});
    expect_dtype(coded.offset, "offset", {DType::f32});
    expect(coded.scales, "scales", {{"blocks of scales", ceil_div(blocks, kDoubledBlock)}});
  } else if (spec.codec->scales() == 2) {
    expect(coded.scales, "scales", {{"blocks", blocks}, {"s and z", 2}});
  } else {
    expect(coded.scales, "scales", {{"blocks", blocks}});
  }
  expect_dtype(coded.scales, "scales", {DType::f32});
  if (spec.codec->book_of_data()) {
    expect(coded.book, "book", {{"codes", kMaxCodes}});
    expect_dtype(coded.book, "book", {DType::f32});
  }
}

int64_t bytes_of(const Coded& c) {
  return c.codes.bytes() + c.scales.bytes() + (c.scale_codes.defined() ? c.scale_codes.bytes() : 0);
}

// The codec's own book, or the tensor's in `made`.
const CodeBook& book_of(const CodeSpec& spec, const View& tensor, CodeBook& made) {
  if (!spec.codec->book_of_data()) return spec.codec->book != nullptr ? *spec.codec->book : made;
  return made = make_book(tensor.as<const float>(), nullptr, kMaxCodes);
}

// x[begin, end) as floats: itself, or in the buffer.
template <class X>
const float* as_floats(const X* x, int64_t begin, int64_t end, float* buffer) {
  if constexpr (std::is_same_v<X, float>) {
    return x + begin;
  } else {
    pair_loops<float, X>().cast(buffer, x + begin, end - begin);
    return buffer;
  }
}

template <class X>
void quantise_blocks(Context& ctx, const Coded& to, float* scales, const X* x, int64_t n,
                     const CodeSpec& spec, const Rounding& rounding) {
  const Codec& c = *spec.codec;
  CodeBook made;
  const CodeBook& book = book_of(spec, to.book, made);
  auto* codes = to.codes.as<uint8_t>();
  const StepState* state = rounding.state.defined() ? step_state(rounding.state) : nullptr;
  const RandomKey key =
      state == nullptr ? RandomKey{}
                       : random_key(state->seed, static_cast<uint64_t>(state->step), rounding.site);
  parallel_chunks(ctx.threads(), spec.blocks(n), std::max<int64_t>(1, kGrain / spec.block),
                  [&](int64_t first, int64_t last) {
                    float buffer[kTile];
                    for (int64_t b = first; b < last; ++b) {
                      const int64_t begin = b * spec.block, end = std::min(n, begin + spec.block);
                      BlockExtremes extremes;
                      for (int64_t at = begin; at < end; at += kTile) {
                        const int64_t stop = std::min(end, at + kTile);
                        add_extremes(extremes, as_floats(x, at, stop, buffer), stop - at);
                      }
                      const BlockScale s = scale_of(c.rule, c.peak, extremes);
                      scales[b * c.scales()] = s.scale;
                      if (c.scales() == 2) scales[b * 2 + 1] = s.zero;
                      for (int64_t at = begin; at < end; at += kTile) {
                        const int64_t stop = std::min(end, at + kTile);
                        const Draws draws{key, rounding.first + at};
                        encode_piece(c, book, s, as_floats(x, at, stop, buffer), stop - at,
                                     codes + (c.bits == 8 ? at : at / 2),
                                     state == nullptr ? nullptr : &draws);
                      }
                    }
                  });
}

void double_scales(Context& ctx, const Coded& to, const float* absmax, int64_t blocks,
                   const View& sums) {
  auto* sum = sums.as<double>();
  parallel_chunks(ctx.threads(), blocks, kScaleChunk, [=](int64_t begin, int64_t end) {
    double total = 0;
    for (int64_t b = begin; b < end; ++b) total += static_cast<double>(absmax[b]);
    sum[begin / kScaleChunk] = total;
  });
  double total = 0;
  for (int64_t k = 0; k < sums.elements(); ++k) total += sum[k];
  const auto offset = static_cast<float>(total / static_cast<double>(std::max<int64_t>(1, blocks)));
  to.offset.as<float>()[0] = offset;
  const CodeSpec spec(scale_codec(), kDoubledBlock);
  auto* codes = to.scale_codes.as<uint8_t>();
  auto* scales = to.scales.as<float>();
  parallel_chunks(ctx.threads(), blocks, kDoubledBlock, [=, &spec](int64_t begin, int64_t end) {
    float less[kDoubledBlock];
    for (int64_t b = begin; b < end; ++b) less[b - begin] = absmax[b] - offset;
    encode_block(spec, less, end - begin, codes + begin, scales + begin / kDoubledBlock);
  });
}

}  // namespace

void quantise(Context& ctx, const Coded& to, const View& x, const CodeSpec& spec,
              const Rounding& rounding) {
  const int64_t n = x.elements(), blocks = spec.blocks(n);
  check(to, n, spec);
  if (rounding.state.defined()) step_state(rounding.state);  // its shape
  dispatch_float(x, "quantise: x", [&](auto tag) {
    using X = decltype(tag);
    Tensor absmax, sums;
    if (spec.doubled) {
      absmax = ctx.tensor(Name("absmax"), {blocks}, DType::f32, Category::workspace);
      sums = ctx.tensor(Name("scale_sums"), {double_scale_chunks(blocks)}, DType::f64,
                        Category::workspace);
    }
    Op op(ctx, "quantise",
          {.flops = n * (spec.codec->bits + 4), .bytes = x.bytes() + bytes_of(to)});
    if (!op.run()) return;
    const View a = spec.doubled ? absmax.view() : View(), s = spec.doubled ? sums.view() : View();
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) { quantise_on(queue, to, x, spec, rounding, a, s); });
    auto* scales = spec.doubled ? a.as<float>() : to.scales.as<float>();
    quantise_blocks(ctx, to, scales, x.as<const X>(), n, spec, rounding);
    if (spec.doubled) double_scales(ctx, to, scales, blocks, s);
  });
}

void dequantise(Context& ctx, const View& y, const Coded& from, const CodeSpec& spec) {
  const int64_t n = y.elements();
  check(from, n, spec);
  dispatch_float(y, "dequantise: y", [&](auto tag) {
    using Y = decltype(tag);
    Op op(ctx, "dequantise", {.flops = n, .bytes = y.bytes() + bytes_of(from)});
    if (!op.run()) return;
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) { dequantise_on(queue, y, from, spec); });
    const Codec& c = *spec.codec;
    CodeBook made;
    const CodeBook& book = book_of(spec, from.book, made);
    const CodeBook& scale_book = *scale_codec().book;
    const auto* codes = from.codes.as<const uint8_t>();
    const auto* scales = from.scales.as<const float>();
    const auto* scale_codes = spec.doubled ? from.scale_codes.as<const uint8_t>() : nullptr;
    const float offset = spec.doubled ? from.offset.as<const float>()[0] : 0.0f;
    Y* to = y.as<Y>();
    parallel_chunks(ctx.threads(), spec.blocks(n), std::max<int64_t>(1, kGrain / spec.block),
                    [&](int64_t first, int64_t last) {
                      float buffer[kTile];
                      for (int64_t b = first; b < last; ++b) {
                        const float scale = spec.doubled ? scale_book.values[scale_codes[b]] *
                                                                   scales[b / kDoubledBlock] +
                                                               offset
                                                         : scales[b * c.scales()];
                        const float zero = c.scales() == 2 ? scales[b * 2 + 1] : 0.0f;
                        const int64_t end = std::min(n, (b + 1) * spec.block);
                        for (int64_t at = b * spec.block; at < end; at += kTile) {
                          const int64_t count = std::min(kTile, end - at);
                          const uint8_t* piece = codes + (c.bits == 8 ? at : at / 2);
                          if constexpr (std::is_same_v<Y, float>) {
                            decode_piece(c, book, scale, zero, to + at, piece, count);
                          } else {
                            decode_piece(c, book, scale, zero, buffer, piece, count);
                            pair_loops<Y, float>().cast(to + at, buffer, count);
                          }
                        }
                      }
                    });
  });
}

}  // namespace snug
