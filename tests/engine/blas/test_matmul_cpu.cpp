// The product against a sum in double, over shapes, dtypes, layouts and kernels. C and scratch
// stand between guard bytes, scratch has exactly the size asked for and an odd address.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "engine/blas/matmul_cpu.h"
#include "engine/core/error.h"

namespace snug {
namespace {

constexpr MatmulKernel kKernels[] = {MatmulKernel::reference, MatmulKernel::avx2,
                                     MatmulKernel::avx512, MatmulKernel::avx512_bf16,
                                     MatmulKernel::library};
constexpr unsigned char kGuard = 0xa5;
constexpr size_t kGuardBytes = 256;

double read(const unsigned char* data, DType t, int64_t i) {
  if (t == DType::f32) {
    float v;
    std::memcpy(&v, data + i * 4, 4);
    return v;
  }
  uint16_t bits;
  std::memcpy(&bits, data + i * 2, 2);
  return t == DType::bf16 ? to_f32(bf16{bits}) : to_f32(f16{bits});
}

void write(unsigned char* data, DType t, int64_t i, float v) {
  if (t == DType::f32) return static_cast<void>(std::memcpy(data + i * 4, &v, 4));
  const uint16_t bits = t == DType::bf16 ? from_f32<bf16>(v).bits : from_f32<f16>(v).bits;
  std::memcpy(data + i * 2, &bits, 2);
}

uint32_t next(uint32_t& state) {
  return state = state * 1664525u + 1013904223u;
}

// Values of either sign, |v| in [2^-4, 2): far from the subnormals of every dtype.
float value(uint32_t& state) {
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

  // C's bytes after the product; checks every guard byte around C and scratch.
  std::vector<unsigned char> run(MatmulKernel kernel, int threads) const {
    std::vector<unsigned char> c(old_c.size() + 2 * kGuardBytes, kGuard);
    std::copy(old_c.begin(), old_c.end(), c.begin() + kGuardBytes);
    const auto need =
        static_cast<size_t>(matmul_scratch_bytes(k.M, k.N, k.K, k.a, k.b, k.c, kernel, threads));
    const size_t odd = 20;  // 4-byte aligned, not more
    std::vector<unsigned char> scratch(need + odd + 2 * kGuardBytes, kGuard);
    unsigned char* at = scratch.data() + kGuardBytes + odd;
    std::memset(at, 0xff, need);  // NaN: reading what was not written shows
    matmul_cpu(problem(c.data() + kGuardBytes), kernel, at, threads);
    const auto intact = [](const unsigned char* from, size_t n) {
      return std::all_of(from, from + n, [](unsigned char byte) { return byte == kGuard; });
    };
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

void check_case(const Case& c, uint32_t seed) {
  SCOPED_TRACE(c.text());
  const Prepared t(c, seed);
  std::vector<unsigned char> chain;  // the bits that reference, avx2 and avx512 share
  for (const MatmulKernel kernel : kKernels) {
    SCOPED_TRACE(to_string(kernel));
    if (!matmul_supports(t.problem(nullptr), kernel)) continue;
    if (!matmul_prepare(t.problem(nullptr), kernel, 2)) continue;
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
    EXPECT_EQ(out, t.run(kernel, 2)) << "a second run differs";
    if (kernel == MatmulKernel::library) continue;
    EXPECT_EQ(out, t.run(kernel, 1)) << "one thread differs from two";
    if (seed % 7 == 0) {
      EXPECT_EQ(out, t.run(kernel, 3)) << "three threads differ from two";
    }
    if (kernel == MatmulKernel::avx512_bf16) continue;
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
TEST(MatmulCpu, SeveralBlocksAgreeWithDouble) {
  uint32_t seed = 4;
  const struct {
    int64_t m, n, k;
  } shapes[] = {{29, 33, 1700}, {2, 40, 9000}, {64, 2100, 33},  {1, 2100, 255}, {29, 1057, 770},
                {1, 768, 768},  {255, 64, 7},  {1100, 40, 790}, {14, 33, 4200}, {2300, 33, 15}};
  for (const auto& s : shapes)
    for (const DType t : {DType::f32, DType::bf16})
      for (int form = 0; form < 3; ++form) {  // x W^T, dy W, dy^T x
        if (s.m * s.n * s.k > 20e6 && form == 1) continue;
        Case c{s.m, s.n, s.k, t, t, form == 2 ? DType::f32 : t};
        c.la = form == 2 ? Layout::transposed : Layout::row_major;
        c.lb = form == 0 ? Layout::transposed : Layout::row_major;
        c.accumulate = form == 2;
        check_case(c, next(seed));
      }
}

// A row of C is the same bits whatever rows stand beside it: decoding one token equals the batch.
TEST(MatmulCpu, RowsDoNotDependOnTheBatch) {
  for (const MatmulKernel kernel :
       {MatmulKernel::avx2, MatmulKernel::avx512, MatmulKernel::avx512_bf16}) {
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
  for (const MatmulKernel kernel : kKernels) {
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

// Non-finite values reach exactly the row and column they belong to.
TEST(MatmulCpu, NonFiniteValuesPropagate) {
  for (const MatmulKernel kernel : kKernels)
    for (const int64_t m : {3, 45})
      for (const DType t : {DType::f32, DType::bf16}) {
        const Case c{m, 43, 41, t, t, DType::f32};
        Prepared p(c, 6);
        if (!matmul_supports(p.problem(nullptr), kernel)) continue;
        p.a.set(1, 40, std::numeric_limits<float>::quiet_NaN());
        p.a.set(2, 7, std::numeric_limits<float>::infinity());
        p.b.set(3, 42, -std::numeric_limits<float>::infinity());
        const auto out = p.run(kernel, 2);
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < c.N; ++j) {
            const double v = read(out.data(), DType::f32, i * p.ldc + j);
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

TEST(MatmulCpu, ScratchIsBoundedAndDependsOnArgumentsOnly) {
  for (const MatmulKernel kernel : {MatmulKernel::avx2, MatmulKernel::avx512})
    for (const int64_t m : {1, 28, 29, 1024, 1051, 50304})
      for (const int64_t n : {1, 1024, 1025, 50304})
        for (const int64_t k : {1, 768, 769, 100000})
          for (const int threads : {1, 2, 16}) {
            const int64_t bytes =
                matmul_scratch_bytes(m, n, k, DType::f32, DType::f32, DType::f32, kernel, threads);
            EXPECT_GT(bytes, 0);
            EXPECT_LE(bytes, (int64_t{72} << 20) / 10 + (int64_t{1} << 19) * threads)
                << m << " " << n << " " << k << " " << threads;
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
    EXPECT_TRUE(matmul_prepare(p, best, 2));
    EXPECT_NE(best, MatmulKernel::reference) << "AVX2 is the least we build for";
  }
}

// The library refuses, rather than approximates, what it does not do as promised.
TEST(MatmulCpu, LibraryRefusesWhatItDoesNotKeep) {
  const auto supports = [](Case c) {
    return matmul_supports(Prepared(c, 8).problem(nullptr), MatmulKernel::library);
  };
  EXPECT_TRUE(supports({8, 8, 8}));
  Case c{8, 8, 8};
  c.alpha = 2;
  EXPECT_FALSE(supports(c));
  c = {8, 8, 8};
  c.la = Layout::strided;
  EXPECT_FALSE(supports(c));
  EXPECT_FALSE(supports({8, 8, 8, DType::f16, DType::f16}));
  EXPECT_FALSE(supports({8, 8, 8, DType::f32, DType::bf16}));
  EXPECT_FALSE(supports({8, 8, 8, DType::f32, DType::f32, DType::bf16}));
  c = {8, 8, 8, DType::bf16, DType::bf16, DType::bf16};
  c.accumulate = true;
  EXPECT_FALSE(supports(c));
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
  has(error_of(good, kernel, scratch.data(), 0), "threads=0");
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
  EXPECT_THROW(matmul_scratch_bytes(4, 4, 4, DType::f32, DType::bf16, DType::f32,
                                    MatmulKernel::avx512_bf16, 1),
               Error);
}

TEST(MatmulCpu, KernelNames) {
  EXPECT_STREQ(to_string(MatmulKernel::reference), "reference");
  EXPECT_STREQ(to_string(MatmulKernel::avx2), "avx2");
  EXPECT_STREQ(to_string(MatmulKernel::avx512), "avx512");
  EXPECT_STREQ(to_string(MatmulKernel::avx512_bf16), "avx512_bf16");
  EXPECT_STREQ(to_string(MatmulKernel::library), "library");
}

}  // namespace
}  // namespace snug
