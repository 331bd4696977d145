// The gradient of a weight that is wider than tall is computed as its transpose where that packs
// less. The bits are those of the product as it is, which a finishing op keeps it to, and of the
// reference; nothing beside C is touched and scratch has exactly the size asked for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "engine/blas/matmul_blocking.h"
#include "engine/blas/matmul_cpu.h"
#include "engine/core/isa.h"
#include "tests/engine/blas/matmul_case.h"

namespace snug {
namespace {

using namespace matmul_test;

struct Wide {
  int64_t M, N, K;
  DType t;
  int64_t pad;  // columns between rows of C
  bool accumulate;
  float alpha;
};

// The old C, between guard bytes.
struct Room {
  Room(const Wide& k, uint32_t state) : ldc(k.N + k.pad) {
    bytes.assign(static_cast<size_t>(k.M * ldc * 4) + 2 * kGuardBytes, kGuard);
    for (int64_t i = 0; i < k.M; ++i)
      for (int64_t j = 0; j < k.N; ++j) write(c(), DType::f32, i * ldc + j, value(state));
  }
  unsigned char* c() { return bytes.data() + kGuardBytes; }
  const unsigned char* row(int64_t i) const { return bytes.data() + kGuardBytes + i * ldc * 4; }
  int64_t ldc;
  std::vector<unsigned char> bytes;
};

void multiply(MatmulProblem p, MatmulKernel kernel, int threads) {
  const auto bytes = static_cast<size_t>(
      matmul_scratch_bytes(p.M, p.N, p.K, p.a.dtype, p.b.dtype, p.c_dtype, kernel, threads));
  std::vector<unsigned char> scratch(bytes + kGuardBytes, kGuard);
  matmul_cpu(p, kernel, scratch.data(), threads);
  EXPECT_TRUE(std::all_of(scratch.begin() + static_cast<int64_t>(bytes), scratch.end(),
                          [](unsigned char byte) { return byte == kGuard; }))
      << "behind scratch";
}

void check(const Wide& k, MatmulKernel kernel, bool turns = true) {
  SCOPED_TRACE(std::string(to_string(kernel)) + " M=" + std::to_string(k.M) +
               " N=" + std::to_string(k.N) + " K=" + std::to_string(k.K) + " alpha " +
               std::to_string(k.alpha) + (k.accumulate ? " accumulate" : ""));
  uint32_t state = 5;
  const Operand a(k.M, k.K, k.t, Layout::transposed, 0, state);
  const Operand b(k.K, k.N, k.t, Layout::row_major, 0, state);
  MatmulProblem p;
  p.M = k.M, p.N = k.N, p.K = k.K;
  p.a = a.view(), p.b = b.view();
  p.accumulate = k.accumulate;
  p.alpha = k.alpha;
  if (!matmul_supports(p, kernel)) return;
  ASSERT_EQ(blas::turning_pays(k.M, k.N, k.K, *blas::tile_kernel(kernel), 2), turns);

  Room as_is(k, state);
  p.ldc = as_is.ldc;
  p.c = as_is.c();
  struct Store {
    unsigned char* c;
    int64_t ldc;
  } store{as_is.c(), as_is.ldc};
  p.finish.context = &store;
  p.finish.tile = [](const void* context, const float* v, int64_t ld, int64_t m0, int64_t n0,
                     int64_t rows, int64_t cols) {
    const auto* s = static_cast<const Store*>(context);
    for (int64_t i = 0; i < rows; ++i)
      std::memcpy(s->c + ((m0 + i) * s->ldc + n0) * 4, v + i * ld, static_cast<size_t>(cols) * 4);
  };
  multiply(p, kernel, 2);
  p.finish = {};

  for (const int threads : {1, 2, 3}) {
    Room turned(k, state);
    p.c = turned.c();
    multiply(p, kernel, threads);
    int64_t different = 0;
    for (int64_t i = 0; i < k.M; ++i)
      different += std::memcmp(turned.row(i), as_is.row(i), static_cast<size_t>(k.N) * 4) != 0;
    EXPECT_EQ(different, 0) << "rows that differ, threads " << threads;
    EXPECT_TRUE(turned.bytes == as_is.bytes) << "beside C, threads " << threads;
  }
  if (blas::tile_kernel(kernel)->pairs) return;
  // A few rows from either end, by the plain loops.
  for (const int64_t m : {int64_t{0}, k.M - 3}) {
    Room plain(k, state);
    MatmulProblem few = p;
    few.M = 3;
    few.a.data = static_cast<const char*>(p.a.data) + m * size_of(k.t);
    few.c = plain.c() + m * plain.ldc * 4;
    multiply(few, MatmulKernel::reference, 2);
    for (int64_t i = m; i < m + 3; ++i)
      EXPECT_EQ(std::memcmp(plain.row(i), as_is.row(i), static_cast<size_t>(k.N) * 4), 0) << i;
  }
}

TEST(MatmulTurned, HasTheBitsOfTheProductAsItIs) {
  check({621, 1613, 1031, DType::f32, 3, true, -0.37f}, MatmulKernel::avx512);
  check({620, 1610, 1030, DType::bf16, 1, false, 1.0f}, MatmulKernel::avx512);
  for (const MatmulKernel kernel : {MatmulKernel::avx512_bf16, MatmulKernel::amx_bf16})
    check({621, 1613, 2061, DType::bf16, 3, true, -0.37f}, kernel);
}

TEST(MatmulTurned, HasThemWithoutAvx512) {
  const WithoutAvx512 narrow;
  check({621, 1613, 1031, DType::f32, 3, true, -0.37f}, MatmulKernel::avx2);
}

TEST(SlowMatmulTurned, HasThemOnTilesInPlainCode) {
  check({621, 1613, 2061, DType::bf16, 3, true, -0.37f}, MatmulKernel::amx_bf16_emulated);
}

// Sums of few k, a C that is taller than wide, one whose blocks are as good as they are.
TEST(MatmulTurned, OnlyWhereItPacksLess) {
  const blas::TileKernel& kernel = *blas::tile_kernel(MatmulKernel::avx2);
  EXPECT_TRUE(blas::turning_pays(768, 3072, 4096, kernel, 2));
  EXPECT_FALSE(blas::turning_pays(3072, 768, 4096, kernel, 2));
  EXPECT_FALSE(blas::turning_pays(768, 3072, 1000, kernel, 2));
  EXPECT_FALSE(blas::turning_pays(768, 1024, 4096, kernel, 2));
  check({300, 700, 1030, DType::f32, 1, true, 1.0f}, MatmulKernel::avx2, false);
}

}  // namespace
}  // namespace snug
