#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/simt/dot.h"
#include "engine/simt/reduce.h"
#include "engine/simt/simt.h"
#include "layers/ops/int8_linear_simt.h"
#include "layers/ops/int8_row.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

struct Int8Rows {
  uint8_t* codes;
  float* scales;
  int32_t *beyond, *counts;  // null without outliers
};

// A warp a row.
template <class X>
__global__ void int8_rows_kernel(Int8Rows to, const X* x, int64_t N, int64_t K, int64_t width,
                                 float threshold) {
  const int64_t n = block() * warps() + warp();
  if (n >= N) return;
  const auto half = [&](int64_t k) { return to_f32(from_f32<f16>(to_f32(x[n * K + k]))); };
  const auto outlier = [&](float h) {
    return threshold > 0 && (h >= threshold || -h >= threshold);
  };
  uint32_t largest = 0;
  for (int64_t k = lane(); k < K; k += kWarp)
    if (const float h = half(k); !outlier(h) && magnitude_bits(h) > largest)
      largest = magnitude_bits(h);
  largest = warp_largest(largest);
  const float factor = int8_factor(largest);
  int count = 0;
  for (int64_t first = 0; first < width; first += kWarp) {
    const int64_t k = first + lane();
    const float h = k < K ? half(k) : 0.0f;
    const bool apart = outlier(h);
    const float code = apart || factor == 0 ? 0.0f : int8_code(h * factor);
    to.codes[n * width + k] = static_cast<uint8_t>(static_cast<int8_t>(code));
    const uint32_t marks = ballot(apart);
    count += count_bits(marks);
    if (to.beyond && lane() == 0)
      to.beyond[(n * width + first) / kWarp] = static_cast<int32_t>(marks);
  }
  if (lane() != 0) return;
  to.scales[n] = int8_scale(largest);
  if (to.counts) to.counts[n] = count;
}

constexpr int kTile = 64, kWords = 8, kSide = 16, kEach = kTile / kSide;

struct Int8Operands {
  const uint8_t* x;  // codes (N, width)
  const float* x_scales;
  const int32_t *beyond, *counts;
  const uint8_t* w;  // (rows, K)
  const float* w_scales;
  int64_t N, K, width, rows;
  bool x_words, w_words;  // whose rows begin at multiples of 4 bytes
};

// Four codes of a row, of which `left` are left; 0 behind its end.
__device__ int word_of(const uint8_t* p, int64_t left, bool words) {
  uint32_t word = 0;
  if (left <= 0) return 0;
  if (words) {
    const auto four = Pack<uint8_t, 4>::load(p);
    for (int i = 3; i >= 0; --i) word = word << 8 | four[i];
  } else {
    for (int i = 3; i >= 0; --i) word = word << 8 | (i < left ? p[i] : 0);
  }
  return static_cast<int>(word);
}

__device__ int weight_word(const Int8Operands& o, int64_t row, int64_t k) {
  return row < o.rows ? word_of(o.w + row * o.K + k, o.K - k, o.w_words) : 0;
}

__device__ int input_word(const Int8Operands& o, int64_t n, int64_t k) {
  return n < o.N ? word_of(o.x + n * o.width + k, o.width - k, o.x_words) : 0;
}

// A block a tile of 64 rows and 64 columns of y, 32 of K at a time through shared memory; a thread 4 x 4
// of them, 16 apart.
template <class T>
__global__ void int8_product_kernel(T* y, int64_t M, int64_t first, const T* x, const T* bias,
                                    Int8Operands o) {
  SHARED_ARRAY(int32_t, left, kTile * (kWords + 1));
  SHARED_ARRAY(int32_t, right, kTile * (kWords + 1));
  const int64_t column = block() * kTile, row = block_y() * kTile;
  const int tx = thread() % kSide, ty = thread() / kSide;
  int sum[kEach][kEach] = {};
  for (int64_t k = 0; k < o.width; k += 4 * kWords) {
    for (int i = thread(); i < kTile * kWords; i += threads()) {
      const int at = i / kWords, word = i % kWords;
      left[at * (kWords + 1) + word] = input_word(o, row + at, k + 4 * word);
      right[at * (kWords + 1) + word] = weight_word(o, column + at, k + 4 * word);
    }
    sync_threads();
    for (int word = 0; word < kWords; ++word) {
      int a[kEach], b[kEach];
      for (int i = 0; i < kEach; ++i) {
        a[i] = left[(ty + kSide * i) * (kWords + 1) + word];
        b[i] = right[(tx + kSide * i) * (kWords + 1) + word];
      }
      for (int i = 0; i < kEach; ++i)
        for (int j = 0; j < kEach; ++j) sum[i][j] = dot4(a[i], b[j], sum[i][j]);
    }
    sync_threads();
  }
  for (int i = 0; i < kEach; ++i)
    for (int j = 0; j < kEach; ++j) {
      const int64_t n = row + ty + kSide * i, m = column + tx + kSide * j;
      if (n >= o.N || m >= o.rows) continue;
      float value = int8_value(sum[i][j], o.x_scales[n], o.w_scales[m]);
      if (bias) value = value + to_f32(bias[first + m]);
      if (o.counts && o.counts[n] > 0) {
        float beyond = 0;
        for (int64_t k = 0; k < o.K; ++k) {
          const auto marks = static_cast<uint32_t>(o.beyond[(n * o.width + k) / kWarp]);
          if ((marks >> (k % kWarp) & 1u) == 0) continue;
          const auto code = static_cast<float>(static_cast<int8_t>(o.w[m * o.K + k]));
          beyond = beyond + to_f32(x[n * o.K + k]) * (code * o.w_scales[m] * kInt8Unit);
        }
        value = value + beyond;
      }
      y[n * M + first + m] = from_f32<T>(value);
    }
}

bool at_word(const uint8_t* p) {
  return reinterpret_cast<uintptr_t>(p) % 4 == 0;
}

}  // namespace

template <class Queue>
void int8_rows_on(Queue& queue, const Int8Input& to, const View& x, float threshold, int threads) {
  const int64_t N = x.shape[0], K = x.shape[1];
  int32_t* const none = nullptr;
  const Int8Rows rows{to.codes.as<uint8_t>(), to.scales.as<float>(),
                      to.beyond.defined() ? to.beyond.as<int32_t>() : none,
                      to.counts.defined() ? to.counts.as<int32_t>() : none};
  dispatch_float(x, "int8_linear: x", [&](auto tag) {
    using X = decltype(tag);
    launch(queue, {.blocks = ceil_div(N, int64_t{threads / kWarp}), .threads = threads},
           "int8_rows", int8_rows_kernel<X>, rows, x.as<const X>(), N, K, int8_width(K), threshold);
  });
}

template <class Queue>
void int8_product_on(Queue& queue, const View& y, int64_t first, const Int8Input& input,
                     const View& x, const Int8Weight::Rows& weight, const View& bias) {
  const int64_t N = x.shape[0], K = x.shape[1], rows = weight.codes.shape[0];
  const int32_t* const none = nullptr;
  const auto* const codes = weight.codes.as<const uint8_t>();
  const Int8Operands operands{
      .x = input.codes.as<const uint8_t>(),
      .x_scales = input.scales.as<const float>(),
      .beyond = input.beyond.defined() ? input.beyond.as<const int32_t>() : none,
      .counts = input.counts.defined() ? input.counts.as<const int32_t>() : none,
      .w = codes,
      .w_scales = weight.scales.as<const float>(),
      .N = N,
      .K = K,
      .width = int8_width(K),
      .rows = rows,
      .x_words = at_word(input.codes.as<const uint8_t>()),
      .w_words = K % 4 == 0 && at_word(codes)};
  dispatch_float(x, "int8_linear: x", [&](auto tag) {
    using T = decltype(tag);
    launch(queue,
           {.blocks = ceil_div(rows, int64_t{kTile}),
            .threads = kSide * kSide,
            .blocks_y = ceil_div(N, int64_t{kTile})},
           "int8_product", int8_product_kernel<T>, y.as<T>(), y.shape[1], first, x.as<const T>(),
           bias.defined() ? bias.as<const T>() : static_cast<const T*>(nullptr), operands);
  });
}

template void int8_rows_on(simt::Queue&, const Int8Input&, const View&, float, int);
template void int8_product_on(simt::Queue&, const View&, int64_t, const Int8Input&, const View&,
                              const Int8Weight::Rows&, const View&);

}  // namespace snug
