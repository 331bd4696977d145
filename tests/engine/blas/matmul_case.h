// A case of the product's tables: operands in any layout and dtype, the exact answer with the bound
// on its error, and a run in which C and scratch stand between guard bytes, scratch has exactly the
// size asked for and an odd address.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "engine/blas/matmul_cpu.h"

namespace snug::matmul_test {

inline constexpr unsigned char kGuard = 0xa5;
inline constexpr size_t kGuardBytes = 256;

inline double read(const unsigned char* data, DType t, int64_t i) {
  if (t == DType::f32) {
    float v;
    std::memcpy(&v, data + i * 4, 4);
    return v;
  }
  uint16_t bits;
  std::memcpy(&bits, data + i * 2, 2);
  return t == DType::bf16 ? to_f32(bf16{bits}) : to_f32(f16{bits});
}

inline void write(unsigned char* data, DType t, int64_t i, float v) {
  if (t == DType::f32) return static_cast<void>(std::memcpy(data + i * 4, &v, 4));
  const uint16_t bits = t == DType::bf16 ? from_f32<bf16>(v).bits : from_f32<f16>(v).bits;
  std::memcpy(data + i * 2, &bits, 2);
}

inline uint32_t next(uint32_t& state) {
  return state = state * 1664525u + 1013904223u;
}

// Values of either sign, |v| in [2^-4, 2): far from the subnormals of every dtype.
inline float value(uint32_t& state) {
  const float size = 0.0625f + 1.9f * static_cast<float>(next(state) >> 8) * 0x1p-24f;
  return (next(state) >> 31) != 0 ? -size : size;
}

enum class Layout { row_major, transposed, strided, reversed };

struct Operand {
  std::vector<unsigned char> bytes;
  DType dtype = DType::f32;
  int64_t origin = 0, row_stride = 0, col_stride = 1;

  Operand(int64_t rows, int64_t cols, DType t, Layout layout, int64_t pad, uint32_t& state)
      : dtype(t) {
    if (layout == Layout::row_major) row_stride = cols + pad, col_stride = 1;
    if (layout == Layout::transposed) row_stride = 1, col_stride = rows + pad;
    if (layout == Layout::strided) row_stride = 2 * cols + 1 + pad, col_stride = 2;
    int64_t span = rows * row_stride + cols * col_stride + 1;
    if (layout == Layout::reversed) {  // both strides negative, none of them one
      row_stride = -(3 * cols + pad), col_stride = -3;
      origin = -(rows * row_stride + cols * col_stride);
      span = origin + 1;
    }
    // What lies between the elements is NaN: reading it shows.
    bytes.assign(static_cast<size_t>(span * size_of(t)), 0xff);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) set(i, j, value(state));
  }
  int64_t index(int64_t i, int64_t j) const { return origin + i * row_stride + j * col_stride; }
  void set(int64_t i, int64_t j, float v) { write(bytes.data(), dtype, index(i, j), v); }
  double get(int64_t i, int64_t j) const { return read(bytes.data(), dtype, index(i, j)); }
  MatrixView view() const {
    return {bytes.data() + origin * size_of(dtype), dtype, row_stride, col_stride};
  }
};

struct Case {
  int64_t M, N, K;
  DType a = DType::f32, b = DType::f32, c = DType::f32;
  Layout la = Layout::row_major, lb = Layout::row_major;
  int64_t pad = 0;
  bool accumulate = false, bias = false;
  DType bias_dtype = DType::f32;
  float alpha = 1;

  std::string text() const {
    std::string s = "M=" + std::to_string(M) + " N=" + std::to_string(N) +
                    " K=" + std::to_string(K) + " " + to_string(a) + "," + to_string(b) + "," +
                    to_string(c) + " layouts " + std::to_string(static_cast<int>(la)) +
                    std::to_string(static_cast<int>(lb)) + " pad " + std::to_string(pad);
    if (accumulate) s += " accumulate";
    if (bias) s += std::string(" bias ") + to_string(bias_dtype);
    if (alpha != 1) s += " alpha " + std::to_string(alpha);
    return s;
  }
};

// Operands of a case, the old C, and the exact answer with the bound on its error.
struct Prepared {
  Case k;
  Operand a, b;
  std::vector<unsigned char> bias, old_c;
  int64_t ldc;
  std::vector<double> exact, bound;

  Prepared(const Case& c, uint32_t state)
      : k(c),
        a(c.M, c.K, c.a, c.la, c.pad, state),
        b(c.K, c.N, c.b, c.lb, c.pad, state),
        ldc(c.N + c.pad) {
    bias.resize(static_cast<size_t>(k.N * size_of(k.bias_dtype)));
    for (int64_t j = 0; j < k.N; ++j) write(bias.data(), k.bias_dtype, j, value(state));
    old_c.assign(static_cast<size_t>(k.M * ldc * size_of(k.c)), kGuard);
    for (int64_t i = 0; i < k.M; ++i)
      for (int64_t j = 0; j < k.N; ++j) write(old_c.data(), k.c, i * ldc + j, value(state));
    solve();
  }

  // Rounding unit u = 2^-24. A chain of n additions errs by at most about n u sum|a b|; VDPBF16PS
  // may round each of its two products and sums, so K additions and K products are allowed for.
  // Alpha, bias and old C round once each, and the result once to its dtype (half a unit in the
  // last place).
  void solve() {
    exact.resize(static_cast<size_t>(k.M * k.N));
    bound.resize(exact.size());
    const double u = 0x1p-24;
    const double half_ulp = k.c == DType::f32 ? 0x1p-24 : k.c == DType::bf16 ? 0x1p-8 : 0x1p-11;
    std::vector<double> b_values(static_cast<size_t>(k.K * k.N));
    for (int64_t q = 0; q < k.K; ++q)
      for (int64_t j = 0; j < k.N; ++j) b_values[static_cast<size_t>(q * k.N + j)] = b.get(q, j);
    std::vector<double> sums(static_cast<size_t>(k.N)), sizes(sums.size());
    for (int64_t i = 0; i < k.M; ++i) {
      std::fill(sums.begin(), sums.end(), 0.0);
      std::fill(sizes.begin(), sizes.end(), 0.0);
      for (int64_t q = 0; q < k.K; ++q) {
        const double x = a.get(i, q);
        const double* row = b_values.data() + q * k.N;
        for (size_t j = 0; j < sums.size(); ++j) {
          sums[j] += x * row[j];
          sizes[j] += std::abs(x * row[j]);
        }
      }
      for (int64_t j = 0; j < k.N; ++j) {
        double sum = sums[static_cast<size_t>(j)];
        const double size = sizes[static_cast<size_t>(j)];
        double err = static_cast<double>(k.K + 1) * u * size * 1.01;
        sum *= k.alpha;
        err *= std::abs(k.alpha);
        double parts = size * std::abs(k.alpha);
        for (const bool on : {k.alpha != 1, k.bias, k.accumulate}) err += on ? u * parts : 0;
        if (k.bias) {
          const double v = read(bias.data(), k.bias_dtype, j);
          sum += v, parts += std::abs(v), err += 2 * u * parts;
        }
        if (k.accumulate) {
          const double v = read(old_c.data(), k.c, i * ldc + j);
          sum += v, parts += std::abs(v), err += 2 * u * parts;
        }
        err += half_ulp * (std::abs(sum) + err);
        if (k.c == DType::f16) err += 0x1p-25;  // subnormal results
        exact[static_cast<size_t>(i * k.N + j)] = sum;
        bound[static_cast<size_t>(i * k.N + j)] = err;
      }
    }
  }

  MatmulProblem problem(void* c) const {
    MatmulProblem p;
    p.M = k.M, p.N = k.N, p.K = k.K;
    p.a = a.view(), p.b = b.view();
    p.c = c, p.c_dtype = k.c, p.ldc = ldc;
    p.accumulate = k.accumulate, p.alpha = k.alpha;
    p.bias = k.bias ? bias.data() : nullptr;
    p.bias_dtype = k.bias_dtype;
    return p;
  }

  // C's bytes after the product; checks every guard byte around C, scratch and a packed B.
  std::vector<unsigned char> run(MatmulKernel kernel, int threads, bool packed = false,
                                 const MatmulFinish& finish = {}) const {
    const auto intact = [](const unsigned char* from, size_t n) {
      return std::all_of(from, from + n, [](unsigned char byte) { return byte == kGuard; });
    };
    std::vector<unsigned char> c(old_c.size() + 2 * kGuardBytes, kGuard);
    std::copy(old_c.begin(), old_c.end(), c.begin() + kGuardBytes);
    const auto need = static_cast<size_t>(
        matmul_scratch_bytes(k.M, k.N, k.K, k.a, k.b, k.c, kernel, threads, packed));
    const size_t odd = 20;  // 4-byte aligned, not more
    std::vector<unsigned char> scratch(need + odd + 2 * kGuardBytes, kGuard);
    unsigned char* at = scratch.data() + kGuardBytes + odd;
    std::memset(at, 0xff, need);  // NaN: reading what was not written shows
    MatmulProblem p = problem(c.data() + kGuardBytes);
    p.finish = finish;
    std::vector<unsigned char> b_packed;
    if (packed) {
      const auto bytes = static_cast<size_t>(matmul_packed_bytes(k.K, k.N, kernel));
      b_packed.assign(bytes + odd + 2 * kGuardBytes, kGuard);
      unsigned char* to = b_packed.data() + kGuardBytes + odd;
      std::memset(to, 0xff, bytes);
      matmul_pack(to, p.b, k.K, k.N, kernel, threads);
      EXPECT_TRUE(intact(to - kGuardBytes, kGuardBytes)) << "before packed B";
      EXPECT_TRUE(intact(to + bytes, kGuardBytes)) << "after packed B";
      p.b = {nullptr, p.b.dtype, 0, 0};
      p.b_packed = to;
    }
    matmul_cpu(p, kernel, at, threads);
    EXPECT_TRUE(intact(c.data(), kGuardBytes)) << "before C";
    EXPECT_TRUE(intact(c.data() + c.size() - kGuardBytes, kGuardBytes)) << "after C";
    EXPECT_TRUE(intact(at - kGuardBytes, kGuardBytes)) << "before scratch";
    EXPECT_TRUE(intact(at + need, kGuardBytes)) << "after scratch";
    std::vector<unsigned char> out(c.begin() + kGuardBytes, c.end() - kGuardBytes);
    bool padding = true;  // the padding of rows belongs to others
    const int64_t size = size_of(k.c);
    for (int64_t i = 0; i < k.M; ++i)
      padding &=
          intact(out.data() + (i * ldc + k.N) * size, static_cast<size_t>((ldc - k.N) * size));
    EXPECT_TRUE(padding) << "row padding of C";
    return out;
  }
};

}  // namespace snug::matmul_test
