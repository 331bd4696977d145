// What an op may fuse behind a product: every sum comes once to `tile`, with the bits the plain
// store would have rounded, and every row once to `rows`, after its tiles.
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "tests/engine/blas/matmul_case.h"

namespace snug {
namespace {

using namespace matmul_test;

// Takes what is handed over and counts it.
struct Taken {
  int64_t M, N;
  std::vector<float> v;
  std::vector<std::atomic<int>> elements, rows;
  std::atomic<int> early{0}, outside{0};

  Taken(int64_t m, int64_t n)
      : M(m),
        N(n),
        v(static_cast<size_t>(m * n)),
        elements(static_cast<size_t>(m * n)),
        rows(static_cast<size_t>(m)) {}

  static Taken& of(const void* context) { return *static_cast<Taken*>(const_cast<void*>(context)); }
  static void tile(const void* context, const float* v, int64_t ld, int64_t m0, int64_t n0,
                   int64_t rows, int64_t cols) {
    Taken& t = of(context);
    if (m0 < 0 || n0 < 0 || rows < 1 || cols < 1 || m0 + rows > t.M || n0 + cols > t.N || ld < cols)
      return static_cast<void>(++t.outside);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) {
        const auto at = static_cast<size_t>((m0 + i) * t.N + n0 + j);
        t.v[at] = v[i * ld + j];
        ++t.elements[at];
      }
  }
  static void finish_rows(const void* context, int64_t m0, int64_t rows) {
    Taken& t = of(context);
    if (m0 < 0 || rows < 1 || m0 + rows > t.M) return static_cast<void>(++t.outside);
    for (int64_t i = m0; i < m0 + rows; ++i) {
      ++t.rows[static_cast<size_t>(i)];
      for (int64_t j = 0; j < t.N; ++j)
        if (t.elements[static_cast<size_t>(i * t.N + j)] != 1) ++t.early;
    }
  }

  void check(bool has_rows) const {
    EXPECT_EQ(outside, 0) << "a corner or an extent outside C";
    EXPECT_EQ(early, 0) << "elements not there when their row was called finished";
    const auto is = [](int n) { return [n](const std::atomic<int>& count) { return count == n; }; };
    EXPECT_TRUE(std::all_of(elements.begin(), elements.end(), is(1))) << "an element not once";
    EXPECT_TRUE(std::all_of(rows.begin(), rows.end(), is(has_rows ? 1 : 0))) << "a row not once";
  }
};

// C as the plain store leaves it, from the values handed over.
std::vector<unsigned char> rounded(const Prepared& t, const Taken& taken) {
  std::vector<unsigned char> out = t.old_c;
  for (int64_t i = 0; i < t.k.M; ++i)
    for (int64_t j = 0; j < t.k.N; ++j)
      write(out.data(), t.k.c, i * t.ldc + j, taken.v[static_cast<size_t>(i * t.k.N + j)]);
  return out;
}

void check_finish(const Case& c, uint32_t seed) {
  SCOPED_TRACE(c.text());
  const Prepared t(c, seed);
  for (const MatmulKernel kernel : kMatmulKernels) {
    SCOPED_TRACE(to_string(kernel));
    if (!matmul_supports(t.problem(nullptr), kernel)) continue;
    const auto plain = t.run(kernel, 1);
    for (const bool packed : {false, true}) {
      if (packed && matmul_packed_bytes(c.K, c.N, kernel) == 0) continue;
      for (const int threads : {1, 2, 5})
        for (const bool with_rows : {false, true}) {
          if (!with_rows && threads != 2) continue;
          SCOPED_TRACE(std::string(packed ? "packed, " : "") + std::to_string(threads) +
                       " threads" + (with_rows ? ", rows" : ""));
          Taken taken(c.M, c.N);
          const MatmulFinish finish{Taken::tile, with_rows ? Taken::finish_rows : nullptr, &taken};
          EXPECT_EQ(t.run(kernel, threads, packed, finish), t.old_c) << "C was written";
          taken.check(with_rows);
          // f32 C is what was handed over, so this compares all bits.
          EXPECT_EQ(rounded(t, taken), plain);
        }
    }
    // Rows alone: the plain store stays, and stands when a row is called finished.
    struct Seen {
      std::vector<std::atomic<int>> rows;
      static void finish_rows(const void* context, int64_t m0, int64_t rows) {
        auto* seen = static_cast<Seen*>(const_cast<void*>(context));
        for (int64_t i = m0; i < m0 + rows; ++i) ++seen->rows[static_cast<size_t>(i)];
      }
    } seen{std::vector<std::atomic<int>>(static_cast<size_t>(c.M))};
    EXPECT_EQ(t.run(kernel, 3, false, {nullptr, Seen::finish_rows, &seen}), plain);
    for (const auto& count : seen.rows) EXPECT_EQ(count, 1);
  }
}

TEST(SlowMatmulFinish, EveryElementAndRowOnce) {
  uint32_t seed = 21;
  // Few rows, tails on every side, several chunks of rows; then several column blocks (N beyond
  // 1536 with K in blocks), several depth blocks, both in units of pairs too.
  const struct {
    int64_t m, n, k;
  } shapes[] = {{1, 1, 1},      {1, 300, 20},   {5, 33, 64},     {28, 65, 33},  {64, 64, 17},
                {65, 70, 40},   {150, 97, 31},  {431, 40, 8},    {40, 1600, 5}, {3, 40, 4200},
                {70, 40, 1100}, {66, 35, 2100}, {30, 1600, 1030}};
  for (const auto& s : shapes)
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
      Case c{s.m, s.n, s.k, t, t, next(seed) % 2 != 0 ? DType::f32 : t};
      c.lb = next(seed) % 3 != 0 ? Layout::transposed : Layout::row_major;
      c.la = next(seed) % 3 == 0 ? Layout::transposed : Layout::row_major;
      c.accumulate = (next(seed) >> 8) % 2 != 0;
      c.bias = (next(seed) >> 8) % 2 != 0;
      c.alpha = (next(seed) >> 8) % 2 != 0 ? 0.75f : 1.0f;
      check_finish(c, next(seed));
    }
}

// The sums handed over are those before rounding: with a bf16 C they are finer than bf16.
TEST(MatmulFinish, SumsAreNotRounded) {
  const Prepared t(Case{20, 40, 50, DType::bf16, DType::bf16, DType::bf16}, 5);
  Taken taken(20, 40);
  t.run(matmul_best(DType::bf16, DType::bf16), 2, false, {Taken::tile, nullptr, &taken});
  int finer = 0;
  for (const float v : taken.v) finer += to_f32(from_f32<bf16>(v)) != v ? 1 : 0;
  EXPECT_GT(finer, 700) << "of 800";
}

TEST(MatmulFinish, EmptyDepthIsHandedOverToo) {
  for (const MatmulKernel kernel : kMatmulKernels) {
    Case c{40, 50, 0, DType::bf16, DType::bf16, DType::f32};
    c.bias = true;
    const Prepared t(c, 3);
    if (!matmul_supports(t.problem(nullptr), kernel)) continue;
    Taken taken(c.M, c.N);
    t.run(kernel, 2, false, {Taken::tile, Taken::finish_rows, &taken});
    taken.check(true);
    EXPECT_EQ(rounded(t, taken), t.run(kernel, 2));
  }
}

// With accumulate the old C is read; without it C may be nowhere.
TEST(MatmulFinish, NeedsNoC) {
  Prepared t(Case{40, 50, 60}, 4);
  Taken taken(40, 50);
  MatmulProblem p = t.problem(nullptr);
  p.finish = {Taken::tile, Taken::finish_rows, &taken};
  const MatmulKernel kernel = MatmulKernel::avx2;
  std::vector<float> scratch(static_cast<size_t>(
      matmul_scratch_bytes(40, 50, 60, DType::f32, DType::f32, DType::f32, kernel, 2) / 4));
  matmul_cpu(p, kernel, scratch.data(), 2);
  taken.check(true);
  EXPECT_EQ(rounded(t, taken), t.run(kernel, 2));
  p.accumulate = true;
  EXPECT_ANY_THROW(matmul_cpu(p, kernel, scratch.data(), 2));
}

}  // namespace
}  // namespace snug
