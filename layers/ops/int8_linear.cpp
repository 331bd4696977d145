#include "layers/ops/int8_linear.h"

#include <algorithm>
#include <cstring>

#include "engine/core/error.h"
#include "engine/core/isa.h"
#include "engine/core/parallel.h"
#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/kernels/loops.h"
#include "layers/ops/int8_linear_simt.h"
#include "layers/ops/int8_loops.h"
#include "layers/ops/int8_row.h"

namespace snug {

Int8Loops int8_loops() {
  static const bool vnni = __builtin_cpu_supports("avx512vnni") != 0;
  return vnni && use_avx512() ? int8_loops_vnni_avx512() : int8_loops_avx2();
}

void int8_pack(uint8_t* block, const uint8_t* codes, int64_t rows, int64_t K, int64_t width,
               uint8_t flip) {
  const uint32_t flips = 0x01010101u * flip;
  for (int64_t m = 0; m < kInt8Columns; ++m) {
    const uint8_t* const row = codes + m * K;
    for (int64_t k = 0; k < width; k += 4) {
      uint32_t word = 0;
      if (m < rows && k < K)
        std::memcpy(&word, row + k, static_cast<size_t>(std::min(K - k, int64_t{4})));
      word ^= flips;
      std::memcpy(block + k * kInt8Columns + 4 * m, &word, sizeof word);
    }
  }
}

namespace {

constexpr int64_t kPiece = 1024;     // of a row, on a thread's stack; a multiple of kInt8Step
constexpr int64_t kRowsOfTask = 96;  // of x

// A row of x as f16 holds it, a piece at a time: f(first, h, count).
template <class T, class F>
void each_piece(const T* x, int64_t K, F&& f) {
  float values[kPiece];
  f16 halves[kPiece];
  for (int64_t k = 0; k < K; k += kPiece) {
    const int64_t count = std::min(kPiece, K - k);
    if constexpr (std::is_same_v<T, float>) {
      pair_loops<f16, float>().cast(halves, x + k, count);
    } else if constexpr (std::is_same_v<T, f16>) {
      std::memcpy(halves, x + k, static_cast<size_t>(count) * sizeof(f16));
    } else {
      pair_loops<float, T>().cast(values, x + k, count);
      pair_loops<f16, float>().cast(halves, values, count);
    }
    pair_loops<float, f16>().cast(values, halves, count);
    f(k, values, count);
  }
}

struct RowTo {
  uint8_t* codes;  // int8_width(K)
  float* scale;
  int32_t *beyond, *count;  // null: no outliers
};

template <class T>
void code_row(const RowTo& to, const T* x, int64_t K, float threshold) {
  // Magnitudes are ordered as integers; a NaN is above every threshold's, and is no outlier.
  const uint32_t limit = to.count ? magnitude_bits(threshold) : 0xffffffffu;
  constexpr uint32_t kInfinity = 0x7f800000u;
  uint32_t largest = 0;
  each_piece(x, K, [&](int64_t, const float* h, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = magnitude_bits(h[i]);
      const uint32_t kept = bits >= limit && bits <= kInfinity ? 0 : bits;
      largest = kept > largest ? kept : largest;
    }
  });
  const float factor = int8_factor(largest);
  *to.scale = int8_scale(largest);
  std::memset(to.codes + K, 0, static_cast<size_t>(int8_width(K) - K));
  int32_t outliers = 0;
  each_piece(x, K, [&](int64_t first, const float* h, int64_t count) {
    int8_t* const codes = reinterpret_cast<int8_t*>(to.codes) + first;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = magnitude_bits(h[i]);
      const float scaled = (bits >= limit && bits <= kInfinity) || factor == 0 ? 0 : h[i] * factor;
      codes[i] = static_cast<int8_t>(static_cast<int32_t>(int8_code(scaled)));
    }
    if (!to.count) return;
    for (int64_t i = 0; i < count; i += kInt8Step) {
      uint32_t marks = 0;
      for (int64_t j = 0; j < std::min(kInt8Step, count - i); ++j) {
        const uint32_t bits = magnitude_bits(h[i + j]);
        marks |= static_cast<uint32_t>(bits >= limit && bits <= kInfinity) << j;
      }
      to.beyond[(first + i) / kInt8Step] = static_cast<int32_t>(marks);
      outliers += __builtin_popcount(marks);
    }
  });
  if (to.count) *to.count = outliers;
}

// Of a block of the weight: what the sums of rows of x become.
struct Block {
  const uint8_t* packed;
  int64_t first, columns;  // of y
  float scales[kInt8Columns];
};

// sum[m] += x w[m][k] for an outlier of a row.
void add_outlier(float* sum, float x, const Block& block, int64_t k, uint8_t flip) {
  const uint8_t* const words = block.packed + k / 4 * 4 * kInt8Columns;
  const int shift = static_cast<int>(k % 4) * 8;
  for (int64_t m = 0; m < kInt8Columns; ++m) {
    uint32_t word;
    std::memcpy(&word, words + 4 * m, sizeof word);
    const auto code = static_cast<int8_t>(static_cast<uint8_t>(word >> shift) ^ flip);
    sum[m] += x * (static_cast<float>(code) * block.scales[m] * kInt8Unit);
  }
}

template <class T>
void finish_row(T* y, const int32_t* sums, float scale, const Block& block, const T* bias,
                const float* beyond) {
  float values[kInt8Columns];
  for (int64_t m = 0; m < kInt8Columns; ++m)
    values[m] = int8_value(sums[m], scale, block.scales[m]);
  if (bias)
    for (int64_t m = 0; m < block.columns; ++m) values[m] += to_f32(bias[block.first + m]);
  if (beyond)
    for (int64_t m = 0; m < kInt8Columns; ++m) values[m] += beyond[m];
  if constexpr (std::is_same_v<T, float>)
    std::memcpy(y + block.first, values, static_cast<size_t>(block.columns) * sizeof(float));
  else
    pair_loops<T, float>().cast(y + block.first, values, block.columns);
}

template <class T>
void product(Context& ctx, const View& y, const View& x, const Int8Input& input,
             const Int8Weight& weight, const View& packed, const View& bias) {
  const int64_t N = x.shape[0], K = x.shape[1], M = y.shape[1], width = int8_width(K);
  const Int8Loops loops = int8_loops();
  // Pieces begin at blocks of their own.
  int64_t blocks = 0;
  std::array<int64_t, 4> first_block{}, first_column{};
  int64_t column = 0;
  for (int i = 0; i < weight.count; ++i) {
    const auto at = static_cast<size_t>(i);
    first_block[at] = blocks;
    first_column[at] = column;
    blocks += ceil_div(weight.pieces[at].codes.shape[0], kInt8Columns);
    column += weight.pieces[at].codes.shape[0];
  }
  auto* const all = packed.as<uint8_t>();
  const auto block_at = [&](int64_t b) {
    auto at = static_cast<size_t>(weight.count - 1);
    while (first_block[at] > b) --at;
    const Int8Weight::Rows& piece = weight.pieces[at];
    const int64_t row = (b - first_block[at]) * kInt8Columns;
    Block block{all + b * kInt8Columns * width,
                first_column[at] + row,
                std::min(kInt8Columns, piece.codes.shape[0] - row),
                {}};
    std::memcpy(block.scales, piece.scales.as<const float>() + row,
                static_cast<size_t>(block.columns) * sizeof(float));
    return std::pair{block, piece.codes.as<const uint8_t>() + row * K};
  };
  parallel_for(ctx.threads(), blocks, [&](int64_t b) {
    const auto [block, codes] = block_at(b);
    int8_pack(all + b * kInt8Columns * width, codes, block.columns, K, width, loops.flip);
  });
  const auto* const codes = input.codes.as<const uint8_t>();
  const auto* const scales = input.scales.as<const float>();
  const auto* const counts = input.counts.defined() ? input.counts.as<const int32_t>() : nullptr;
  const auto* const beyond = input.beyond.defined() ? input.beyond.as<const int32_t>() : nullptr;
  const T *const from = x.as<const T>(), *const added =
                                             bias.defined() ? bias.as<const T>() : nullptr;
  T* const to = y.as<T>();
  const int64_t tasks = ceil_div(N, kRowsOfTask);
  parallel_for(ctx.threads(), blocks * tasks, [&](int64_t task) {
    const Block block = block_at(task / tasks).first;
    const int64_t begin = task % tasks * kRowsOfTask, end = std::min(N, begin + kRowsOfTask);
    int32_t sums[kInt8Rows * kInt8Columns];
    for (int64_t n = begin; n < end; n += kInt8Rows) {
      const int64_t rows = std::min(kInt8Rows, end - n);
      loops.product(sums, codes + n * width, rows, block.packed, width);
      for (int64_t r = n; r < n + rows; ++r) {
        float apart[kInt8Columns] = {};
        const bool some = counts && counts[r] > 0;
        for (int64_t word = 0; some && word < width / kInt8Step; ++word)
          for (auto marks = static_cast<uint32_t>(beyond[r * (width / kInt8Step) + word]);
               marks != 0; marks &= marks - 1) {
            const int64_t k = word * kInt8Step + __builtin_ctz(marks);
            add_outlier(apart, to_f32(from[r * K + k]), block, k, loops.flip);
          }
        finish_row(to + r * M, sums + (r - n) * kInt8Columns, scales[r], block, added,
                   some ? apart : nullptr);
      }
    }
  });
}

void check(const View& y, const View& x, const Int8Weight& weight, const View& bias) {
  if (x.shape.rank() != 2)
    fail(ErrorCode::shape, "int8_linear: x of shape (N,K)", describe(x),
         "reshape it to rows and columns");
  const int64_t K = x.shape[1];
  int64_t M = 0;
  require(weight.any(), "a weight in int8");
  for (int i = 0; i < weight.count; ++i) {
    const Int8Weight::Rows& piece = weight.pieces[static_cast<size_t>(i)];
    const int64_t rows = piece.codes.shape.rank() == 2 ? piece.codes.shape[0] : 0;
    expect(piece.codes, "int8_linear: codes", {{"rows", rows}, {"K", K}});
    expect_dtype(piece.codes, "int8_linear: codes", {DType::u8});
    expect(piece.scales, "int8_linear: scales", {{"rows", rows}});
    expect_dtype(piece.scales, "int8_linear: scales", {DType::f32});
    M += rows;
  }
  expect(y, "int8_linear: y", {{"N", x.shape[0]}, {"M", M}});
  expect_dtype(y, "int8_linear: y", {x.dtype});
  if (!bias.defined()) return;
  expect(bias, "int8_linear: bias", {{"M", M}});
  expect_dtype(bias, "int8_linear: bias", {x.dtype});
}

}  // namespace

void int8_linear_forward(Context& ctx, const View& y, const View& x, const Int8Weight& weight,
                         const View& bias) {
  check(y, x, weight, bias);
  const int64_t N = x.shape[0], K = x.shape[1], M = y.shape[1], width = int8_width(K);
  static const Name kCodes("int8.x"), kScales("int8.scales"), kBeyond("int8.beyond"),
      kCounts("int8.counts"), kWeight("int8.weight"),
      kVariant("int8");  // a product, to who predicts its time
  dispatch_float(x, "int8_linear: x", [&](auto tag) {
    using T = decltype(tag);
    const auto room = [&](const Name& name, Shape shape, DType dtype) {
      return ctx.tensor(name, shape, dtype, Category::workspace);
    };
    const Tensor codes = room(kCodes, {N, width}, DType::u8),
                 scales = room(kScales, {N}, DType::f32);
    Tensor beyond, counts, packed;
    if (weight.threshold > 0) {
      beyond = room(kBeyond, {N, width / kInt8Step}, DType::i32);
      counts = room(kCounts, {N}, DType::i32);
    }
    int64_t padded = 0;
    for (int i = 0; i < weight.count; ++i)
      padded += round_up(weight.pieces[static_cast<size_t>(i)].codes.shape[0], kInt8Columns);
    if (!ctx.by_kernels()) packed = room(kWeight, {padded, width}, DType::u8);
    Op op(ctx, "int8_linear_forward",
          {.flops = 2 * N * M * K + 4 * N * K + 4 * N * M,
           .bytes = x.bytes() + y.bytes() + M * K + 4 * M,
           .variant = kVariant});
    if (!op.run()) return;
    const Int8Input input{codes, scales, weight.threshold > 0 ? beyond.view() : View(),
                          weight.threshold > 0 ? counts.view() : View()};
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) {
        int8_rows_on(queue, input, x, weight.threshold);
        int64_t first = 0;
        for (int i = 0; i < weight.count; ++i) {
          const Int8Weight::Rows& piece = weight.pieces[static_cast<size_t>(i)];
          int8_product_on(queue, y, first, input, x, piece, bias);
          first += piece.codes.shape[0];
        }
      });
    const T* const from = x.as<const T>();
    parallel_chunks(ctx.threads(), N, std::max<int64_t>(1, 16384 / K), [&](int64_t n, int64_t end) {
      for (; n < end; ++n)
        code_row({codes.view().as<uint8_t>() + n * width, scales.view().as<float>() + n,
                  input.beyond.defined() ? input.beyond.as<int32_t>() + n * (width / kInt8Step)
                                         : nullptr,
                  input.counts.defined() ? input.counts.as<int32_t>() + n : nullptr},
                 from + n * K, K, weight.threshold);
    });
    product<T>(ctx, y, x, input, weight, packed, bias);
  });
}

}  // namespace snug
