#include <algorithm>

#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/memory/step_state.h"
#include "engine/simt/random.h"
#include "engine/simt/reduce.h"
#include "quant/block.h"
#include "quant/quantise_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// What a launch knows of its codec besides the book.
struct Rule {
  explicit Rule(const CodeSpec& spec)
      : rule(spec.codec->rule),
        peak(spec.codec->peak),
        has_book(spec.codec->has_book()),
        block(spec.block) {}
  ScaleRule rule;
  float peak;
  bool has_book;
  int64_t block;
};

// A book by the entries of a block of threads; `own`: of the data, else null.
struct BlockBook {
  Shared<int32_t> bounds;
  Shared<float> sorted;
  int size;
};
__device__ inline int nearest(const BlockBook& book, int32_t key) {
  int entry = 0;
  for (int step = kMaxCodes / 2; step > 0; step /= 2)
    if (key > book.bounds[entry + step - 1]) entry += step;
  return entry;
}
// The lower of two neighbours or the upper, as drawn_entry of quant/block.h.
__device__ inline int drawn(const BlockBook& book, int nearest_one, float v, float u) {
  const int lower = v < book.sorted[nearest_one] ? nearest_one - 1 : nearest_one;
  if (lower < 0) return 0;
  if (lower + 1 >= book.size) return book.size - 1;
  const float at = book.sorted[lower], gap = book.sorted[lower + 1] - at;
  return u * gap < v - at ? lower + 1 : lower;
}

// Numbers of stochastic rounding; negative without.
struct Draw {
  uint32_t k0, k1;
  bool on;
  int64_t first;
  __device__ float at(int64_t i) const {
    if (!on) return -1.0f;
    const int64_t element = first + i, block = element / 4;
    const RandomWords u = random_words(static_cast<uint32_t>(block),
                                       static_cast<uint32_t>(block >> 32), 0, 0, k0, k1);
    return static_cast<float>(u.w[element % 4] >> 8) * 0x1p-24f;
  }
};

// A warp a block of the codec, a lane every 32nd byte of its codes. `offset` is taken from x first.
template <int kBits, class X>
__global__ void quantise_kernel(uint8_t* codes, float* scales, const X* x, const float* offset,
                                int64_t n, Rule rule, const float* own,
                                const __grid_constant__ Constant<CodeBook> given,
                                const StepState* state, uint32_t site, int64_t first) {
  SHARED_ARRAY(int32_t, bounds, kMaxCodes);
  SHARED_ARRAY(float, sorted, kMaxCodes);
  SHARED_ARRAY(int32_t, names, kMaxCodes);
  for (int k = thread(); k < kMaxCodes; k += threads()) {
    const bool last = k + 1 == kMaxCodes;
    bounds[k] = own == nullptr ? given->bounds[k]
                               : (last ? kNoBound : float_key((own[k] + own[k + 1]) / 2));
    sorted[k] = own == nullptr ? given->sorted[k] : own[k];
    names[k] = own == nullptr ? given->codes[k] : k;
  }
  sync_threads();
  const BlockBook book{bounds, sorted, own == nullptr ? given->size : kMaxCodes};
  const int nan = own == nullptr ? given->nan : kMaxCodes - 1;
  const float less = offset == nullptr ? 0.0f : offset[0];
  Draw draw{0, 0, state != nullptr, first};
  if (state != nullptr) {
    const RandomWords key = random_key_words(state->seed, static_cast<uint64_t>(state->step), site);
    draw.k0 = key.w[0];
    draw.k1 = key.w[1];
  }
  constexpr int kEach = 8 / kBits;  // elements of a byte
  const bool two = rule.rule == ScaleRule::min_max;
  const int64_t count = (n + rule.block - 1) / rule.block;
  for (int64_t b = block() * warps() + warp(); b < count; b += blocks() * warps()) {
    const int64_t begin = b * rule.block;
    const int64_t end = begin + rule.block < n ? begin + rule.block : n;
    const auto load = [&](int64_t i) {
      const float v = to_f32(x[i]);
      return offset == nullptr ? v : v - less;
    };
    BlockExtremes e;
    for (int64_t i = begin + lane(); i < end; i += kWarp) e.add(load(i));
    e.largest = warp_largest(e.largest);
    e.high = warp_largest(e.high);
    e.low = ~warp_largest(~e.low);  // ~ turns the order of integers round
    const BlockScale s = scale_of(rule.rule, rule.peak, e);
    if (lane() == 0) {
      scales[two ? 2 * b : b] = s.scale;
      if (two) scales[2 * b + 1] = s.zero;
    }
    const auto code_of = [&](int64_t i) -> int {
      const float v = scaled(rule.rule, s, load(i));
      if (!rule.has_book) return whole_code(rule.rule, s, v, draw.at(i));
      if (v != v) return nan;
      int entry = nearest(book, float_key(v));
      if (draw.on) entry = drawn(book, entry, v, draw.at(i));
      return names[entry];
    };
    for (int64_t at = begin + lane() * kEach; at < end; at += kWarp * kEach) {
      int byte = code_of(at);
      if constexpr (kBits == 4)
        byte = byte << 4 | (at + 1 < end ? code_of(at + 1) : int{given->zero});
      codes[at / kEach] = static_cast<uint8_t>(byte);
    }
  }
}

// A thread a chunk, its scales in order.
__global__ void scale_sums_kernel(double* sums, const float* absmax, int64_t count,
                                  int64_t chunks) {
  const int64_t chunk = block() * threads() + thread();
  if (chunk >= chunks) return;
  double total = 0;
  for (int64_t b = chunk * kScaleChunk; b < (chunk + 1) * kScaleChunk && b < count; ++b)
    total += static_cast<double>(absmax[b]);
  sums[chunk] = total;
}

__global__ void scale_mean_kernel(float* offset, const double* sums, int64_t chunks,
                                  int64_t count) {
  if (thread() != 0) return;
  double total = 0;
  for (int64_t k = 0; k < chunks; ++k) total += sums[k];
  offset[0] = static_cast<float>(total / static_cast<double>(count > 0 ? count : 1));
}

// What the scale of a block is, doubled or not.
struct Scales {
  const float* scales;
  const uint8_t* codes;  // null: not doubled
  const float* offset;
};

// A thread a byte of codes.
template <int kBits, class Y>
__global__ void dequantise_kernel(Y* y, const uint8_t* codes, Scales from, int64_t n, Rule rule,
                                  const float* own,
                                  const __grid_constant__ Constant<CodeBook> given,
                                  const __grid_constant__ Constant<CodeBook> scale_book) {
  SHARED_ARRAY(float, values, kMaxCodes);
  SHARED_ARRAY(float, scale_values, kMaxCodes);
  for (int k = thread(); k < kMaxCodes; k += threads()) {
    values[k] = own == nullptr ? given->values[k] : own[k];
    scale_values[k] = scale_book->values[k];
  }
  sync_threads();
  constexpr int kEach = 8 / kBits;
  const bool two = rule.rule == ScaleRule::min_max;
  const float unit = 1.0f / rule.peak, offset = from.codes == nullptr ? 0.0f : from.offset[0];
  const int64_t stride = blocks() * threads() * kEach;
  for (int64_t at = (block() * threads() + thread()) * kEach; at < n; at += stride) {
    const int64_t b = at / rule.block;
    const float scale = from.codes == nullptr
                            ? from.scales[two ? 2 * b : b]
                            : scale_values[from.codes[b]] * from.scales[b / kDoubledBlock] + offset;
    const int byte = codes[at / kEach];
    if constexpr (kBits == 4) {
      y[at] = from_f32<Y>(values[byte >> 4] * scale);
      if (at + 1 < n) y[at + 1] = from_f32<Y>(values[byte & 15] * scale);
    } else {
      const float zero = two ? from.scales[2 * b + 1] : 0.0f;
      y[at] = from_f32<Y>(
          rule.has_book ? values[byte] * scale
                        : value_of_whole(rule.rule, scale, zero, unit, static_cast<uint8_t>(byte)));
    }
  }
}

constexpr int64_t kMostBlocks = 4096;  // of threads: the rest is strides

CodeBook given_book(const CodeSpec& spec) {
  return spec.codec->book == nullptr ? CodeBook{} : *spec.codec->book;
}
const float* own_book(const CodeSpec& spec, const View& book) {
  return spec.codec->book_of_data() ? book.as<const float>() : nullptr;
}

template <class Queue, class X>
void launch_quantise(Queue& queue, uint8_t* codes, float* scales, const X* x, const float* offset,
                     int64_t n, const CodeSpec& spec, const float* own, const Rounding& rounding,
                     int threads) {
  const auto kernel = spec.codec->bits == 4 ? quantise_kernel<4, X> : quantise_kernel<8, X>;
  const int64_t wanted = ceil_div(spec.blocks(n), int64_t{threads / kWarp});
  const StepState* state = rounding.state.defined() ? step_state(rounding.state) : nullptr;
  launch(queue, {.blocks = std::min(wanted, kMostBlocks), .threads = threads}, "quantise", kernel,
         codes, scales, x, offset, n, Rule(spec), own, given_book(spec), state, rounding.site,
         rounding.first);
}

}  // namespace

template <class Queue>
void quantise_on(Queue& queue, const Coded& to, const View& x, const CodeSpec& spec,
                 const Rounding& rounding, const View& absmax, const View& sums, int threads) {
  const int64_t n = x.elements(), count = spec.blocks(n);
  const View& scales = spec.doubled ? absmax : to.scales;
  const float* none = nullptr;
  dispatch_float(x, "x", [&](auto tag) {
    launch_quantise(queue, to.codes.as<uint8_t>(), scales.as<float>(), x.as<const decltype(tag)>(),
                    none, n, spec, own_book(spec, to.book), rounding, threads);
  });
  if (!spec.doubled) return;
  const int64_t chunks = double_scale_chunks(count);
  launch(queue, {.blocks = ceil_div(chunks, int64_t{threads}), .threads = threads}, "scale_sums",
         scale_sums_kernel, sums.as<double>(), absmax.as<const float>(), count, chunks);
  launch(queue, {.blocks = 1, .threads = kWarp}, "scale_mean", scale_mean_kernel,
         to.offset.as<float>(), sums.as<const double>(), chunks, count);
  launch_quantise(queue, to.scale_codes.as<uint8_t>(), to.scales.as<float>(),
                  absmax.as<const float>(), to.offset.as<const float>(), count,
                  CodeSpec(codec("dynamic8"), kDoubledBlock), none, {}, threads);
}

template <class Queue>
void dequantise_on(Queue& queue, const View& y, const Coded& from, const CodeSpec& spec,
                   int threads) {
  const int64_t n = y.elements();
  const Scales scales{from.scales.as<const float>(),
                      spec.doubled ? from.scale_codes.as<const uint8_t>() : nullptr,
                      spec.doubled ? from.offset.as<const float>() : nullptr};
  dispatch_float(y, "y", [&](auto tag) {
    using Y = decltype(tag);
    const auto kernel = spec.codec->bits == 4 ? dequantise_kernel<4, Y> : dequantise_kernel<8, Y>;
    const int64_t wanted = ceil_div(spec.code_bytes(n), int64_t{threads});
    launch(queue, {.blocks = std::min(wanted, kMostBlocks), .threads = threads}, "dequantise",
           kernel, y.as<Y>(), from.codes.as<const uint8_t>(), scales, n, Rule(spec),
           own_book(spec, from.book), given_book(spec), *codec("dynamic8").book);
  });
}

template void quantise_on(simt::Queue&, const Coded&, const View&, const CodeSpec&, const Rounding&,
                          const View&, const View&, int);
template void dequantise_on(simt::Queue&, const View&, const Coded&, const CodeSpec&, int);

}  // namespace snug
