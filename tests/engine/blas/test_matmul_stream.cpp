// A large C that is only written goes past the caches. It has the bits of the same product made in
// slices of rows, each small enough for plain stores, and nothing beside its rows is touched.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "engine/blas/matmul_cpu.h"
#include "engine/blas/matmul_tile.h"
#include "engine/core/isa.h"
#include "tests/engine/blas/matmul_case.h"

namespace snug {
namespace {

using namespace matmul_test;

struct Large {
  int64_t M, N, K;
  DType t, c;
  int64_t pad;  // columns between rows of C: rows of whole lines
  bool bias;
  float alpha;
};

// C between guard bytes, `shift` bytes off a line.
struct Room {
  Room(const Large& k, int64_t shift)
      : bytes(static_cast<size_t>(k.M * (k.N + k.pad) * size_of(k.c) + 256), kGuard),
        c(bytes.data() + 128 - reinterpret_cast<uintptr_t>(bytes.data()) % 64 + shift) {}
  std::vector<unsigned char> bytes;
  unsigned char* c;
};

void multiply(MatmulProblem p, MatmulKernel kernel, std::vector<unsigned char>& scratch) {
  const auto bytes = static_cast<size_t>(
      matmul_scratch_bytes(p.M, p.N, p.K, p.a.dtype, p.b.dtype, p.c_dtype, kernel, 2));
  scratch.resize(std::max(scratch.size(), bytes));
  matmul_cpu(p, kernel, scratch.data(), 2);
}

void check_large(const Large& k, MatmulKernel kernel) {
  SCOPED_TRACE(std::string(to_string(kernel)) + " C " + to_string(k.c) + " M=" +
               std::to_string(k.M) + " N=" + std::to_string(k.N) + " K=" + std::to_string(k.K));
  uint32_t state = 11;
  const Operand a(k.M, k.K, k.t, Layout::row_major, 0, state);
  const Operand b(k.K, k.N, k.t, Layout::transposed, 0, state);
  std::vector<float> bias(static_cast<size_t>(k.N));
  for (float& v : bias) v = value(state);
  MatmulProblem p;
  p.M = k.M, p.N = k.N, p.K = k.K;
  p.a = a.view(), p.b = b.view();
  p.c_dtype = k.c, p.ldc = k.N + k.pad;
  p.alpha = k.alpha;
  p.bias = k.bias ? bias.data() : nullptr;
  if (!matmul_supports(p, kernel)) return;

  std::vector<unsigned char> scratch;
  Room slices(k, 0);
  const int64_t size = size_of(k.c), rows = 500;
  for (int64_t m = 0; m < k.M; m += rows) {
    MatmulProblem part = p;
    part.M = std::min(rows, k.M - m);
    part.a.data = static_cast<const char*>(p.a.data) + m * k.K * size_of(k.t);
    part.c = slices.c + m * p.ldc * size;
    ASSERT_FALSE(blas::streams_c(part)) << "the slices are to be stored plainly";
    multiply(part, kernel, scratch);
  }
  // Aligned, where it streams; and off a line by an element, where it cannot.
  for (const int64_t shift : {int64_t{0}, size}) {
    Room whole(k, shift);
    p.c = whole.c;
    EXPECT_EQ(blas::streams_c(p), shift == 0 && (use_avx512() || k.c == DType::f32));
    multiply(p, kernel, scratch);
    int64_t different = 0;
    for (int64_t i = 0; i < k.M; ++i)
      different += std::memcmp(whole.c + i * p.ldc * size, slices.c + i * p.ldc * size,
                               static_cast<size_t>(k.N * size)) != 0;
    EXPECT_EQ(different, 0) << "rows that differ, shift " << shift;
    int64_t touched = 0;
    for (int64_t i = 0; i < k.M; ++i)
      touched += std::any_of(whole.c + (i * p.ldc + k.N) * size, whole.c + (i + 1) * p.ldc * size,
                             [](unsigned char byte) { return byte != kGuard; });
    EXPECT_EQ(touched, 0) << "rows whose padding was written, shift " << shift;
    EXPECT_TRUE(std::all_of(whole.bytes.data(), whole.c, [](unsigned char byte) {
      return byte == kGuard;
    })) << "before C";
    EXPECT_TRUE(std::all_of(whole.c + k.M * p.ldc * size, whole.bytes.data() + whole.bytes.size(),
                            [](unsigned char byte) { return byte == kGuard; }))
        << "after C";
  }
}

constexpr MatmulKernel kBf16[] = {MatmulKernel::avx512_bf16, MatmulKernel::amx_bf16,
                                  MatmulKernel::amx_bf16_emulated};

TEST(MatmulStream, FloatsHaveTheBitsOfPlainStores) {
  const Large f32{2051, 2050, 2, DType::f32, DType::f32, 30, false, 1.0f};
  Large bf16 = f32;
  bf16.t = DType::bf16;
  for (const MatmulKernel kernel : {MatmulKernel::avx2, MatmulKernel::avx512})
    check_large(f32, kernel);
  for (const MatmulKernel kernel : kBf16) check_large(bf16, kernel);
  const WithoutAvx512 narrow;
  check_large(f32, MatmulKernel::avx2);
}

TEST(MatmulStream, BfloatsHaveTheBitsOfPlainStores) {
  const Large k{4100, 2050, 2, DType::bf16, DType::bf16, 30, false, 1.0f};
  for (const MatmulKernel kernel : {MatmulKernel::avx2, MatmulKernel::avx512})
    check_large(k, kernel);
  for (const MatmulKernel kernel : kBf16) check_large(k, kernel);
}

TEST(MatmulStream, BiasAndAlphaAreInTheStreamedTile) {
  for (const DType c : {DType::f32, DType::bf16}) {
    const Large k{4100, 2050, 3, DType::f32, c, 30, true, -0.37f};
    for (const MatmulKernel kernel : {MatmulKernel::avx2, MatmulKernel::avx512})
      check_large(k, kernel);
    const WithoutAvx512 narrow;
    check_large(k, MatmulKernel::avx2);
  }
}

// Sums below the smallest normal number are kept in a bf16 C, and what is not a number stays quiet:
// instructions that round to bf16 have ideas of their own. Whole tiles, where they are used.
TEST(MatmulStream, SubnormalSumsAreRoundedLikeOthers) {
  const int64_t M = 40, N = 96;
  std::vector<float> a(static_cast<size_t>(M)), b(static_cast<size_t>(N));
  for (size_t i = 0; i < a.size(); ++i)
    a[i] = std::ldexp(1.0f + static_cast<float>(i) / 64.0f, -70 - static_cast<int>(i % 8));
  for (size_t j = 0; j < b.size(); ++j)
    b[j] = std::ldexp(j % 3 != 0 ? -1.37f : 1.01f, j % 32 < 28 || j < 32 ? -50 : -60);
  b[70] = std::bit_cast<float>(0x7f800001u);  // signalling
  MatmulProblem p;
  p.M = M, p.N = N, p.K = 1;
  p.a = {a.data(), DType::f32, 1, 1};
  p.b = {b.data(), DType::f32, N, 1};
  p.c_dtype = DType::bf16, p.ldc = N;
  std::vector<unsigned char> scratch;
  std::vector<std::vector<bf16>> results;
  for (const MatmulKernel kernel :
       {MatmulKernel::reference, MatmulKernel::avx2, MatmulKernel::avx512}) {
    std::vector<bf16> c(static_cast<size_t>(M * N));
    p.c = c.data();
    if (!matmul_supports(p, kernel)) continue;
    multiply(p, kernel, scratch);
    int64_t subnormal = 0;
    for (size_t i = 0; i < c.size(); ++i) {
      if (i % 96 == 70)
        EXPECT_TRUE(std::isnan(to_f32(c[i])));
      else
        EXPECT_EQ(to_f32(c[i]), to_f32(from_f32<bf16>(a[i / 96] * b[i % 96]))) << i;
      subnormal += std::fpclassify(to_f32(c[i])) == FP_SUBNORMAL;
    }
    EXPECT_GT(subnormal, 100);
    results.push_back(c);
    EXPECT_EQ(std::memcmp(c.data(), results[0].data(), c.size() * 2), 0) << to_string(kernel);
  }
}

// What streaming leaves out: sums into C, rows that are no whole lines, f16, a small C.
TEST(MatmulStream, OnlyALargeAlignedCThatIsOnlyWritten) {
  MatmulProblem p;
  p.M = p.N = p.ldc = 2048;
  p.K = 1;
  alignas(64) static float corner[16];  // never read or written
  p.c = corner;
  EXPECT_TRUE(blas::streams_c(p));
  MatmulProblem other = p;
  other.c_dtype = DType::bf16;
  other.M = 2 * p.M;  // sixteen columns of bf16 are half a line
  EXPECT_EQ(blas::streams_c(other), use_avx512());
  {
    const WithoutAvx512 narrow;
    EXPECT_TRUE(blas::streams_c(p));
    EXPECT_FALSE(blas::streams_c(other));
  }
  other = p;
  other.accumulate = true;
  EXPECT_FALSE(blas::streams_c(other));
  other = p;
  other.ldc = 2050;
  EXPECT_FALSE(blas::streams_c(other));
  other = p;
  other.c_dtype = DType::f16;
  EXPECT_FALSE(blas::streams_c(other));
  other = p;
  other.M = 2047;
  EXPECT_FALSE(blas::streams_c(other));
  other = p;
  other.finish.rows = [](const void*, int64_t, int64_t) {};
  EXPECT_FALSE(blas::streams_c(other));
}

}  // namespace
}  // namespace snug
