// The product in the emulator: against sums in double with the bound of the CPU's table, and bit
// for bit against the CPU's chain of fused products.
#include <gtest/gtest.h>

#include "engine/blas/matmul_simt.h"
#include "engine/simt/emu.h"
#include "tests/engine/blas/matmul_case.h"
#include "tests/support/errors.h"

namespace snug::matmul_test {
namespace {

using simt::emu::Queue;
using simt::emu::Schedule;

std::vector<unsigned char> run_emulated(const Prepared& p, const Schedule& schedule, int threads) {
  std::vector<unsigned char> c(p.old_c.size() + 2 * kGuardBytes, kGuard);
  std::copy(p.old_c.begin(), p.old_c.end(), c.begin() + kGuardBytes);
  Queue queue{schedule, {}};
  matmul_on(queue, p.problem(c.data() + kGuardBytes), threads);
  for (size_t i = 0; i < kGuardBytes; ++i)
    EXPECT_TRUE(c[i] == kGuard && c[c.size() - 1 - i] == kGuard) << "beside C";
  return {c.begin() + kGuardBytes, c.end() - kGuardBytes};
}

void check(const Case& k, int threads) {
  SCOPED_TRACE(k.text() + " threads " + std::to_string(threads));
  const Prepared p(k, 7);
  const std::vector<unsigned char> cpu = p.run(MatmulKernel::reference, 1);
  for (const Schedule& schedule : simt::emu::test_schedules()) {
    const std::vector<unsigned char> got = run_emulated(p, schedule, threads);
    EXPECT_TRUE(got == cpu) << to_string(schedule);
    for (int64_t i = 0; i < k.M; ++i)
      for (int64_t j = 0; j < k.N; ++j) {
        const auto at = static_cast<size_t>(i * k.N + j);
        ASSERT_NEAR(read(got.data(), k.c, i * p.ldc + j), p.exact[at], p.bound[at])
            << i << " " << j;
      }
  }
}

TEST(MatmulSimt, BitsOfTheCpuChain) {
  constexpr DType f32 = DType::f32, bf16 = DType::bf16, f16 = DType::f16;
  constexpr Layout kLayouts[] = {Layout::row_major, Layout::transposed, Layout::strided,
                                 Layout::reversed};
  for (const Layout la : kLayouts)
    for (const Layout lb : kLayouts)
      check({.M = 9, .N = 11, .K = 18, .la = la, .lb = lb, .pad = 3, .bias = true}, 64);
  for (const DType a : {f32, bf16, f16})
    for (const DType b : {f32, bf16, f16})
      for (const DType c : {f32, bf16, f16})
        check({.M = 5,
               .N = 7,
               .K = 17,
               .a = a,
               .b = b,
               .c = c,
               .accumulate = true,
               .bias = true,
               .bias_dtype = b,
               .alpha = 0.37f},
              32);
  for (const int threads : {32, 64, 128, 256})
    check({.M = 70,
           .N = 67,
           .K = 19,
           .a = bf16,
           .b = bf16,
           .lb = Layout::transposed,
           .accumulate = true},
          threads);
  check({.M = 1, .N = 130, .K = 33}, 128);
  check({.M = 130, .N = 1, .K = 16}, 64);
  check({.M = 3, .N = 5, .K = 0, .accumulate = true, .bias = true}, 64);
  check({.M = 0, .N = 5, .K = 4}, 64);
}

// A grid has 65535 blocks along y and z; rows of tiles may be more.
TEST(SlowMatmulSimt, MoreRowsOfTilesThanThat) {
  const int64_t M = int64_t{65536} * 64 + 1;
  std::vector<float> a(static_cast<size_t>(M)), c(static_cast<size_t>(M), -1.0f);
  for (int64_t i = 0; i < M; ++i) a[static_cast<size_t>(i)] = static_cast<float>(i % 1021);
  const float b = 3;
  MatmulProblem p;
  p.M = M;
  p.N = p.K = p.ldc = 1;
  p.a = {a.data(), DType::f32, 1, 1};
  p.b = {&b, DType::f32, 1, 1};
  p.c = c.data();
  Queue queue{simt::emu::test_schedules()[0], {}};
  matmul_on(queue, p, 32);
  for (int64_t i = 0; i < M; ++i)
    ASSERT_EQ(c[static_cast<size_t>(i)], 3 * static_cast<float>(i % 1021)) << i;
}

TEST(MatmulSimt, RefusesWhatItDoesNotDo) {
  const Prepared p({.M = 2, .N = 2, .K = 2}, 1);
  Queue queue;
  float c[4];
  MatmulProblem finished = p.problem(c), packed = p.problem(c);
  finished.finish.rows = [](const void*, int64_t, int64_t) {};
  packed.b_packed = c;
  test::expect_error(ErrorCode::unsupported, {"a plain product for a kernel", "finished tiles"},
                     [&] { matmul_on(queue, finished); });
  test::expect_error(ErrorCode::unsupported, {"a plain product for a kernel", "a packed B"},
                     [&] { matmul_on(queue, packed); });
  test::expect_error(ErrorCode::unsupported, {"32, 64, 128 or 256 threads for a product", "96"},
                     [&] { matmul_on(queue, p.problem(c), 96); });
}

}  // namespace
}  // namespace snug::matmul_test
