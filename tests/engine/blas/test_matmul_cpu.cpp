// The product against a sum in double, over shapes, dtypes, layouts and kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/blas/matmul_blocking.h"
#include "engine/blas/matmul_cpu.h"
#include "engine/core/error.h"
#include "engine/core/isa.h"
#include "tests/engine/blas/matmul_case.h"
#include "tests/support/grid.h"

namespace snug {
namespace {

using namespace matmul_test;

void check_case(const Case& c, uint32_t seed) {
  SCOPED_TRACE(c.text());
  const Prepared t(c, seed);
  std::vector<unsigned char> chain;  // the bits that reference, avx2 and avx512 share
  std::vector<unsigned char> tiles;  // the bits that amx_bf16 and its emulation share
  for (const MatmulKernel kernel : kMatmulKernels) {
    SCOPED_TRACE(to_string(kernel));
    if (!matmul_supports(t.problem(nullptr), kernel)) continue;
    const auto out = t.run(kernel, 2);
    for (int64_t i = 0; i < c.M; ++i)
      for (int64_t j = 0; j < c.N; ++j) {
        const double got = read(out.data(), c.c, i * t.ldc + j);
        const auto at = static_cast<size_t>(i * c.N + j);
        if (!(std::abs(got - t.exact[at]) <= t.bound[at])) {
          ADD_FAILURE() << "C[" << i << "," << j << "] = " << got << ", exact " << t.exact[at]
                        << ", allowed " << t.bound[at];
          return;
        }
      }
    // The reference is slow, and is the same loop for large and small.
    const bool again = kernel != MatmulKernel::reference || c.M * c.N * c.K < 1'000'000;
    if (again) {
      EXPECT_EQ(out, t.run(kernel, 2)) << "a second run differs";
    }
    if (again) {
      EXPECT_EQ(out, t.run(kernel, 1)) << "one thread differs from two";
    }
    if (again && seed % 7 == 0) {
      EXPECT_EQ(out, t.run(kernel, 3)) << "three threads differ from two";
    }
    if (kernel == MatmulKernel::avx2 || (again && seed % 3 == 0)) {
      const WithoutAvx512 narrow;
      EXPECT_EQ(out, t.run(kernel, 2)) << "packing and storing without AVX-512 differ";
    }
    if (matmul_packed_bytes(c.K, c.N, kernel) > 0) {
      EXPECT_EQ(out, t.run(kernel, 2, true)) << "a packed B differs";
      if (seed % 7 == 0) {
        EXPECT_EQ(out, t.run(kernel, 3, true)) << "a packed B differs with three threads";
      }
    }
    if (kernel == MatmulKernel::amx_bf16 || kernel == MatmulKernel::amx_bf16_emulated) {
      if (tiles.empty())
        tiles = out;
      else
        EXPECT_EQ(out, tiles) << "the instructions differ from their emulation";
    }
    if (kernel != MatmulKernel::reference && kernel != MatmulKernel::avx2 &&
        kernel != MatmulKernel::avx512)
      continue;
    if (chain.empty())
      chain = out;
    else
      EXPECT_EQ(out, chain) << "not the bits of the reference";
  }
}

TEST(MatmulCpu, SmallShapesAgreeWithDouble) {
  uint32_t seed = 1;
  const int64_t sizes[] = {1, 2, 3, 7, 15, 16, 17, 31, 33};
  for (const int64_t m : sizes)
    for (const int64_t n : sizes)
      for (const int64_t k : {int64_t{1}, int64_t{2}, int64_t{17}, int64_t{33}}) {
        Case c{m, n, k};
        // The case table walks through dtypes and layouts as the shapes go by.
        const uint32_t w = next(seed) >> 8;
        c.a = static_cast<DType>(w % 3), c.b = w / 3 % 2 != 0 ? c.a : static_cast<DType>(w / 6 % 3);
        c.c = static_cast<DType>(w / 18 % 3);
        c.la = static_cast<Layout>(w / 54 % 3), c.lb = static_cast<Layout>(w / 162 % 3);
        c.pad = w / 486 % 4;
        check_case(c, seed);
      }
}

TEST(MatmulCpu, LayoutsAndDtypesAgreeWithDouble) {
  uint32_t seed = 2;
  const struct { int64_t m, n, k; } shapes[] = {{33, 65, 31}, {64, 100, 129}, {5, 70, 40}};
  for (const auto& s : shapes)
    for (int la = 0; la < 4; ++la)
      for (int lb = 0; lb < 4; ++lb)
        for (int t = 0; t < 9; t += s.m == 64 ? 4 : 1) {
          Case c{s.m, s.n, s.k, static_cast<DType>(t % 3), static_cast<DType>(t / 3)};
          c.c = static_cast<DType>((t + la + lb) % 3);
          c.la = static_cast<Layout>(la), c.lb = static_cast<Layout>(lb);
          c.pad = (la * 4 + lb) % 5;
          check_case(c, next(seed));
        }
}

TEST(MatmulCpu, BiasAlphaAndAccumulateAgreeWithDouble) {
  uint32_t seed = 3;
  for (const int64_t m : {3, 30, 129})
    for (int t = 0; t < 3; ++t)
      for (int out = 0; out < 3; ++out)
        for (int options = 1; options < 8; ++options) {
          Case c{m, 47, 29, static_cast<DType>(t), static_cast<DType>(t), static_cast<DType>(out)};
          c.accumulate = (options & 1) != 0;
          c.bias = (options & 2) != 0;
          c.bias_dtype = static_cast<DType>((options + t + out) % 3);
          c.alpha = (options & 4) != 0 ? -0.37f : 1.0f;
          c.pad = options % 2;
          check_case(c, next(seed));
        }
}

// Sizes beyond one block of K, N and M, the GPT-2 forms among them; the sum in double is slow, so
// the middle of the matrix is left out by making one extent small.
TEST(SlowMatmulCpu, SeveralBlocksAgreeWithDouble) {
  uint32_t seed = 4;
  const struct {
    int64_t m, n, k;
  } shapes[] = {{29, 33, 1700},  {2, 40, 9000},  {64, 2100, 33}, {1, 2100, 255},
                {29, 1057, 770}, {1, 768, 768},  {255, 64, 7},   {1100, 40, 790},
                {14, 33, 4200},  {2300, 33, 15}, {100, 70, 600}};
  for (const auto& s : shapes)
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      for (int form = 0; form < 3; ++form) {  // x W^T, dy W, dy^T x
        if (s.m * s.n * s.k > 20e6 && form == 1) continue;
        Case c{s.m, s.n, s.k, t, t, form == 2 ? DType::f32 : t};
        c.la = form == 2 ? Layout::transposed : Layout::row_major;
        c.lb = form == 0 ? Layout::transposed : Layout::row_major;
        c.accumulate = form == 2;
        check_case(c, next(seed));
      }
}

// The written-out loop of a full tile takes two k a turn and its turns in fourteen parts: every
// depth around the first ones with all parts, odd ones and those with turns left over among them.
TEST(MatmulCpu, EveryDepthOfAFullTileAgreesWithDouble) {
  uint32_t seed = 5;
  for (int64_t k = 24; k < 90; ++k) {
    Case c{43, 70, k};
    c.lb = k % 3 == 0 ? Layout::transposed : Layout::row_major;
    c.accumulate = k % 2 == 0;
    c.pad = k % 5;
    check_case(c, next(seed));
  }
  for (const int64_t k : {1023, 1025, 2061, 3073}) {  // and where sums wait for more of K
    Case c{43, 70, k};
    c.la = Layout::transposed;
    check_case(c, next(seed));
  }
}

// Tiles of one column that a kernel takes together: of two steps of k, the least, of three, and of
// several pieces and blocks of K; an even and an odd number of tiles, with and without a tail; one
// column, several, and several pieces of them. Every row has the bits that it has alone.
TEST(MatmulCpu, ColumnsOfTilesAgreeWithDoubleAndWithRowsAlone) {
  uint32_t seed = 6;
  const struct {
    int64_t m, n, k;
  } shapes[] = {{96, 33, 33},   {128, 70, 64}, {129, 96, 65},   {160, 40, 96},
                {97, 100, 530}, {70, 65, 770}, {131, 34, 1030}, {100, 66, 2100}};
  for (const auto& s : test::grid(shapes))
    for (const DType out : {DType::f32, DType::bf16}) {
      Case c{s.m, s.n, s.k, DType::bf16, DType::bf16, out};
      c.la = out == DType::f32 ? Layout::transposed : Layout::row_major;
      c.accumulate = out == DType::f32;
      c.bias = out == DType::bf16;
      const uint32_t here = next(seed);
      check_case(c, here);
      for (const MatmulKernel kernel : {MatmulKernel::amx_bf16, MatmulKernel::amx_bf16_emulated}) {
        const Prepared t(c, here);
        MatmulProblem p = t.problem(nullptr);
        if (!matmul_supports(p, kernel)) continue;
        const auto all = t.run(kernel, 2);
        const auto row_bytes = static_cast<size_t>(t.ldc * size_of(out));
        for (const int64_t row : {int64_t{0}, int64_t{31}, int64_t{32}, int64_t{63}, s.m - 1}) {
          const size_t at = static_cast<size_t>(row) * row_bytes;
          std::vector<unsigned char> one(
              t.old_c.begin() + static_cast<std::ptrdiff_t>(at),
              t.old_c.begin() + static_cast<std::ptrdiff_t>(at + row_bytes));
          p.c = one.data();
          p.M = 1;
          p.a.data = static_cast<const bf16*>(t.problem(nullptr).a.data) + row * p.a.row_stride;
          std::vector<unsigned char> scratch(
              static_cast<size_t>(matmul_scratch_bytes(1, s.n, s.k, c.a, c.b, c.c, kernel, 1)));
          matmul_cpu(p, kernel, scratch.data(), 1);
          EXPECT_EQ(std::memcmp(one.data(), all.data() + at, row_bytes), 0)
              << c.text() << ", row " << row << ", " << to_string(kernel);
        }
      }
    }
}

// Rows of a result against the sum in double.
void check_rows(const Prepared& t, const std::vector<unsigned char>& out) {
  const Case& c = t.k;
  for (const int64_t i : {int64_t{0}, c.M / 2 + 1, c.M - 1})
    for (int64_t j = 0; j < c.N; ++j) {
      const auto at = static_cast<size_t>(i * c.N + j);
      ASSERT_LE(std::abs(read(out.data(), c.c, i * t.ldc + j) - t.exact[at]), t.bound[at])
          << c.text() << ", row " << i << ", column " << j;
    }
}

// Three ways through a B that needs several blocks of K: packed as a whole into scratch, for which
// sixteen threads leave no room, block by block for all, and packed by the caller. With the
// neighbours of B along n and along k.
TEST(MatmulCpu, WholeCopiesAndBlocksOfBAgree) {
  for (const MatmulKernel kernel : {MatmulKernel::amx_bf16, MatmulKernel::amx_bf16_emulated})
    for (const Layout along : {Layout::row_major, Layout::transposed}) {
      Case c{70, 1151, 1030, DType::bf16, DType::bf16, DType::f32, Layout::transposed, along};
      c.accumulate = true;
      const Prepared t(c, 12);
      if (!matmul_supports(t.problem(nullptr), kernel)) continue;
      const auto bytes = [&](int threads, bool packed) {
        return matmul_scratch_bytes(c.M, c.N, c.K, c.a, c.b, c.c, kernel, threads, packed);
      };
      EXPECT_GT(bytes(1, false), bytes(1, true) + c.N * c.K * 2) << "no whole copy of B";
      EXPECT_LT(bytes(16, false), bytes(16, true) + c.N * c.K * 2) << "a whole copy of B";
      const auto out = t.run(kernel, 1);
      check_rows(t, out);
      EXPECT_EQ(out, t.run(kernel, 16)) << c.text();
      EXPECT_EQ(out, t.run(kernel, 2, true)) << c.text();
    }
}

// So many rows that two threads take blocks of less depth, three where one thread takes two.
TEST(MatmulCpu, BlocksOfLessDepthKeepTheBits) {
  const Case c{1024, 33, 2048, DType::bf16, DType::bf16, DType::bf16};
  const Prepared t(c, 15);
  const MatmulKernel kernel = matmul_available(MatmulKernel::amx_bf16)
                                  ? MatmulKernel::amx_bf16
                                  : MatmulKernel::amx_bf16_emulated;
  const auto blocks = [&](int threads) {
    return blas::make_blocking(c.M, c.N, c.K, true, false, *blas::tile_kernel(kernel), threads)
        .depth_blocks;
  };
  EXPECT_EQ(blocks(1), 2);
  EXPECT_EQ(blocks(2), 3);
  const auto out = t.run(kernel, 2);
  check_rows(t, out);
  EXPECT_EQ(out, t.run(kernel, 1));
  EXPECT_EQ(out, t.run(kernel, 2, true));
}

// A row of C is the same bits whatever rows stand beside it: decoding one token equals the batch.
TEST(MatmulCpu, RowsDoNotDependOnTheBatch) {
  for (const MatmulKernel kernel :
       {MatmulKernel::avx2, MatmulKernel::avx512, MatmulKernel::avx512_bf16, MatmulKernel::amx_bf16,
        MatmulKernel::amx_bf16_emulated}) {
    Case many{130, 100, 901, DType::bf16, DType::bf16, DType::f32};
    many.lb = Layout::transposed;
    const Prepared t(many, 9);
    MatmulProblem p = t.problem(nullptr);
    if (!matmul_supports(p, kernel)) continue;
    const auto all = t.run(kernel, 2);
    for (const int64_t row : {0, 57, 129}) {
      std::vector<float> one(100);
      p.c = one.data();
      p.M = 1;
      p.a.data = static_cast<const bf16*>(t.problem(nullptr).a.data) + row * p.a.row_stride;
      std::vector<unsigned char> scratch(static_cast<size_t>(
          matmul_scratch_bytes(1, 100, 901, many.a, many.b, many.c, kernel, 1)));
      matmul_cpu(p, kernel, scratch.data(), 1);
      EXPECT_EQ(std::memcmp(one.data(), all.data() + row * 400, 400), 0) << to_string(kernel);
    }
  }
}

TEST(MatmulCpu, EmptyExtents) {
  for (const MatmulKernel kernel : kMatmulKernels) {
    Case c{5, 40, 0, DType::bf16, DType::bf16, DType::f32};
    c.accumulate = c.bias = true;
    if (!matmul_supports(Prepared(c, 5).problem(nullptr), kernel)) continue;
    const Prepared t(c, 5);
    const auto out = t.run(kernel, 2);
    for (int64_t i = 0; i < c.M; ++i)
      for (int64_t j = 0; j < c.N; ++j) {
        const float sum = static_cast<float>(read(t.bias.data(), DType::f32, j)) +
                          static_cast<float>(read(t.old_c.data(), DType::f32, i * t.ldc + j));
        EXPECT_EQ(read(out.data(), DType::f32, i * t.ldc + j), sum);
      }
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{0, 4}, {4, 0}, {0, 0}}) {
      MatmulProblem p;
      p.M = m, p.N = n, p.K = 3, p.ldc = n;
      p.a.row_stride = 3, p.b.row_stride = n;
      p.a.dtype = p.b.dtype = DType::bf16;
      EXPECT_EQ(matmul_scratch_bytes(m, n, 3, DType::bf16, DType::bf16, DType::f32, kernel, 2), 0);
      EXPECT_NO_THROW(matmul_cpu(p, kernel, nullptr, 2));
    }
  }
}

// Non-finite values reach exactly the row and column they belong to, in every dtype of C; a NaN
// whose payload is all ones does not round over into a number.
TEST(MatmulCpu, NonFiniteValuesPropagate) {
  for (const MatmulKernel kernel : kMatmulKernels)
    for (const int64_t m : {3, 45})
      for (const DType t : {DType::f32, DType::bf16, DType::f16})
        for (const DType out_type : {DType::f32, DType::bf16, DType::f16}) {
          const Case c{m, 43, 41, t, t, out_type};
          Prepared p(c, 6);
          if (!matmul_supports(p.problem(nullptr), kernel)) continue;
          p.a.set(1, 40, std::numeric_limits<float>::quiet_NaN());
          if (t == DType::f32) p.a.set(1, 40, std::bit_cast<float>(0x7fffffffu));
          p.a.set(2, 7, std::numeric_limits<float>::infinity());
          p.b.set(3, 42, -std::numeric_limits<float>::infinity());
          const auto out = p.run(kernel, 2);
          for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < c.N; ++j) {
              const double v = read(out.data(), c.c, i * p.ldc + j);
              const bool nan = i == 1 || (i == 2 && j == 42 && p.a.get(2, 3) * p.b.get(7, 42) > 0);
              SCOPED_TRACE(std::string(to_string(kernel)) + " " + std::to_string(i) + "," +
                           std::to_string(j));
              EXPECT_EQ(std::isnan(v), nan);
              if (!nan) {
                EXPECT_EQ(std::isinf(v), i == 2 || j == 42);
              }
            }
        }
}

// Many threads leave little scratch each: where a piece must be whole rows, the columns of a packed
// B then go in groups.
TEST(MatmulCpu, PackedColumnsInGroups) {
  for (const MatmulKernel kernel :
       {MatmulKernel::avx2, MatmulKernel::avx512, MatmulKernel::avx512_bf16}) {
    const DType t = kernel == MatmulKernel::avx512_bf16 ? DType::bf16 : DType::f32;
    const Prepared p(Case{100, 800, t == DType::bf16 ? 2060 : 1030, t, t}, 8);
    if (!matmul_supports(p.problem(nullptr), kernel)) continue;
    const MatmulFinish rows{nullptr, [](const void*, int64_t, int64_t) {}, nullptr};
    EXPECT_EQ(p.run(kernel, 32, true, rows), p.run(kernel, 1)) << to_string(kernel);
  }
}

TEST(MatmulCpu, ScratchIsBoundedAndDependsOnArgumentsOnly) {
  for (const MatmulKernel kernel :
       {MatmulKernel::avx2, MatmulKernel::avx512, MatmulKernel::amx_bf16_emulated})
    for (const int64_t m : {1, 28, 29, 1024, 1051, 50304})
      for (const int64_t n : {1, 1024, 1025, 3072, 50304})
        for (const int64_t k : {1, 768, 1025, 100000})
          for (const int threads : {1, 2, 16})
            for (const bool packed : {false, true}) {
              const DType t = kernel == MatmulKernel::amx_bf16_emulated ? DType::bf16 : DType::f32;
              const int64_t bytes =
                  matmul_scratch_bytes(m, n, k, t, t, DType::f32, kernel, threads, packed);
              EXPECT_GT(bytes, 0);
              const int64_t own = kernel == MatmulKernel::amx_bf16_emulated ? 12 : 7;  // tenths
              EXPECT_LE(bytes, ((91 + own * threads) << 20) / 10)
                  << m << " " << n << " " << k << " " << threads << " " << packed;
            }
}

// What a product of fewer rows, or of a sum over fewer, is cut into fits what was planned for more: a
// micro-batch of rows is seldom full.
TEST(MatmulCpu, ScratchIsEnoughForFewerRowsAndLessDepth) {
  std::mt19937_64 rng(7);
  const auto draw = [&](int64_t most) {  // small ones and large ones alike
    const double top = std::log(static_cast<double>(most));
    const double u = static_cast<double>(rng() % 100001) / 100000;
    return std::min(most, static_cast<int64_t>(std::exp(u * top)) + 1);
  };
  for (const MatmulKernel kernel : {MatmulKernel::avx2, MatmulKernel::avx512,
                                    MatmulKernel::avx512_bf16, MatmulKernel::amx_bf16_emulated}) {
    const blas::TileKernel& tiles = *blas::tile_kernel(kernel);
    const DType t = tiles.pairs ? DType::bf16 : DType::f32;
    for (int i = 0; i < 20000; ++i) {
      const int64_t M = draw(20000), N = draw(8000), K = draw(20000), m = draw(M), k = draw(K);
      const int threads = static_cast<int>(draw(32));
      const bool packed = rng() % 2 == 0;
      const auto planned = [&](int64_t rows, int64_t depth) {
        return matmul_scratch_bytes(rows, N, depth, t, t, DType::f32, kernel, threads, packed);
      };
      const auto needed = [&](int64_t rows, int64_t columns, int64_t depth, bool along_k) {
        const blas::Blocking s =
            blas::make_blocking(rows, columns, depth, along_k, packed, tiles, threads);
        return 4 * (blas::shared_floats(s) + s.threads * blas::thread_floats(s) + blas::kLine);
      };
      int64_t most = 0;
      for (const auto& [rows, depth] : {std::pair{M, K}, {m, K}, {M, k}, {m, k}}) {
        for (const bool along_k : {false, true})
          most = std::max(most, needed(rows, N, depth, along_k));
        if (!packed && blas::turning_pays(rows, N, depth, tiles, threads))
          most = std::max(most, needed(N, rows, depth, false));
        EXPECT_LE(planned(rows, depth), planned(M, K));
      }
      ASSERT_LE(most, planned(M, K)) << to_string(kernel) << " " << M << " " << N << " " << K
                                     << ", " << m << " " << k << ", " << threads << packed;
    }
  }
}

TEST(MatmulCpu, BestKernelTakesTheProblem) {
  for (int t = 0; t < 27; ++t) {
    Case c{40,
           50,
           60,
           static_cast<DType>(t % 3),
           static_cast<DType>(t / 3 % 3),
           static_cast<DType>(t / 9)};
    c.accumulate = t % 2 != 0;
    c.lb = t % 4 == 0 ? Layout::strided : Layout::transposed;
    const MatmulProblem p = Prepared(c, 7).problem(nullptr);
    const MatmulKernel best = matmul_best(p);
    EXPECT_TRUE(matmul_supports(p, best));
    EXPECT_NE(best, MatmulKernel::reference) << "AVX2 is the least we build for";
    EXPECT_NE(best, MatmulKernel::amx_bf16_emulated);
    EXPECT_EQ(best, matmul_best(c.a, c.b)) << "the dtypes alone decide";
  }
}

std::string error_of(const MatmulProblem& p, MatmulKernel kernel, void* scratch, int threads) {
  try {
    matmul_cpu(p, kernel, scratch, threads);
  } catch (const Error& e) {
    EXPECT_FALSE(e.expected().empty());
    EXPECT_FALSE(e.found().empty());
    EXPECT_FALSE(e.advice().empty());
    return e.what();
  }
  return "no error";
}

TEST(MatmulCpu, ErrorsSayWhatIsWrong) {
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  Case c{40, 50, 60};
  const Prepared t(c, 10);
  std::vector<unsigned char> out(t.old_c.size()), scratch(1 << 20);
  const MatmulProblem good = t.problem(out.data());
  const auto kernel = MatmulKernel::avx2;
  EXPECT_EQ(error_of(good, kernel, scratch.data(), 1), "no error");
  MatmulProblem p = good;
  p.K = -1;
  has(error_of(p, kernel, scratch.data(), 1), "M=40 N=50 K=-1");
  const std::string none = error_of(good, kernel, scratch.data(), 0);
  has(none, "at least one thread for a matrix product");
  has(none, "threads=0");
  p = good;
  p.a.dtype = DType::i32;
  has(error_of(p, kernel, scratch.data(), 1), "A i32, B f32, C f32");
  p = good;
  p.ldc = 49;
  has(error_of(p, kernel, scratch.data(), 1), "ldc=49");
  has(error_of(good, MatmulKernel::avx512_bf16, scratch.data(), 1), "the kernel avx512_bf16 takes");
  p = good;
  p.b.data = nullptr;
  has(error_of(p, kernel, scratch.data(), 1), "a null pointer");
  has(error_of(good, kernel, nullptr, 1), "scratch of matmul_scratch_bytes bytes");
  try {
    matmul_scratch_bytes(4, 4, 4, DType::f32, DType::bf16, DType::f32, MatmulKernel::avx512_bf16,
                         1);
    ADD_FAILURE();
  } catch (const Error& e) {
    has(e.what(), "operand dtypes that the kernel avx512_bf16 takes");
    has(e.what(), "A f32, B bf16, C f32");
  }
}

// Panels of `cols` columns, each over all of K: what planning asks for and what is written.
TEST(MatmulCpu, PackedLayoutAndBytes) {
  EXPECT_EQ(matmul_packed_bytes(5, 33, MatmulKernel::avx512), 5 * 64 * 4);
  EXPECT_EQ(matmul_packed_bytes(5, 33, MatmulKernel::avx2), 5 * 48 * 4);
  EXPECT_EQ(matmul_packed_bytes(5, 33, MatmulKernel::avx512_bf16), 3 * 64 * 4);
  EXPECT_EQ(matmul_packed_bytes(33, 33, MatmulKernel::amx_bf16), 32 * 64 * 4);
  EXPECT_EQ(matmul_packed_bytes(768, 3072, MatmulKernel::amx_bf16), 768 * 3072 * 2);
  EXPECT_EQ(matmul_packed_bytes(5, 33, MatmulKernel::reference), 0);
  EXPECT_EQ(matmul_packed_bytes(0, 33, MatmulKernel::avx2), 0);
  EXPECT_EQ(matmul_packed_bytes(5, 0, MatmulKernel::avx2), 0);
  std::vector<float> b(5 * 33);
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i);
  for (const bool along_k : {false, true})
    for (const MatmulKernel kernel : {MatmulKernel::avx2, MatmulKernel::avx512}) {
      const int64_t cols = kernel == MatmulKernel::avx2 ? 16 : 32;
      std::vector<float> out(static_cast<size_t>(matmul_packed_bytes(5, 33, kernel) / 4), -1.0f);
      const MatrixView view{b.data(), DType::f32, along_k ? 1 : 33, along_k ? 5 : 1};
      matmul_pack(out.data(), view, 5, 33, kernel, 2);
      for (int64_t j = 0; j < static_cast<int64_t>(out.size()) / 5; ++j)
        for (int64_t k = 0; k < 5; ++k)
          EXPECT_EQ(
              out[static_cast<size_t>((j / cols * 5 + k) * cols + j % cols)],
              j < 33 ? b[static_cast<size_t>(k * view.row_stride + j * view.col_stride)] : 0.0f)
              << to_string(kernel) << along_k << " " << k << "," << j;
    }
}

TEST(MatmulCpu, PackErrorsSayWhatIsWrong) {
  std::vector<float> b(64), out(1024);
  const MatrixView good{b.data(), DType::f32, 8, 1};
  const auto error = [&](void* to, MatrixView v, int64_t K, MatmulKernel kernel, int threads) {
    try {
      matmul_pack(to, v, K, 8, kernel, threads);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const auto avx2 = MatmulKernel::avx2;
  EXPECT_EQ(error(out.data(), good, 8, avx2, 1), "no error");
  EXPECT_EQ(error(nullptr, {}, 0, avx2, 1), "no error");
  has(error(out.data(), good, -1, avx2, 1), "B f32 K=-1 N=8");
  has(error(out.data(), good, 8, avx2, 0), "at least one thread to pack a matrix");
  has(error(out.data(), good, 8, avx2, 0), "threads=0");
  has(error(out.data(), good, 8, MatmulKernel::reference, 1), "packed for the kernel reference");
  has(error(out.data(), good, 8, MatmulKernel::amx_bf16, 1), "packed for the kernel amx_bf16");
  has(error(out.data(), {b.data(), DType::i32, 8, 1}, 8, avx2, 1), "B i32");
  has(error(nullptr, good, 8, avx2, 1), "a null pointer");
  has(error(out.data(), {nullptr, DType::f32, 8, 1}, 8, avx2, 1), "a null pointer");
  // A product with a packed B takes no kernel that has no packed form.
  const Prepared t(Case{8, 8, 8}, 3);
  std::vector<unsigned char> c(t.old_c);
  MatmulProblem p = t.problem(c.data());
  p.b_packed = out.data();
  EXPECT_FALSE(matmul_supports(p, MatmulKernel::reference));
  has(error_of(p, MatmulKernel::reference, nullptr, 1), "C f32, B packed");
}

TEST(MatmulCpu, KernelNamesAreReadBack) {
  EXPECT_STREQ(to_string(MatmulKernel::amx_bf16_emulated), "amx_bf16_emulated");
  std::set<std::string> names;
  for (const MatmulKernel kernel : kMatmulKernels) {
    names.insert(to_string(kernel));
    EXPECT_EQ(parse_matmul_kernel(to_string(kernel)), kernel);
  }
  EXPECT_EQ(names, (std::set<std::string>{"reference", "avx2", "avx512", "avx512_bf16", "amx_bf16",
                                          "amx_bf16_emulated"}));
  for (const char* other : {"", "AVX2", "avx", "avx512 ", "?"})
    EXPECT_EQ(parse_matmul_kernel(other), std::nullopt) << other;
}

}  // namespace
}  // namespace snug
