// The recorded op: what it adds to the kernels is shapes, transposes by view, planned scratch and
// the record. The kernels' own numerics are tested in test_matmul_cpu.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "engine/blas/matmul.h"
#include "engine/core/error.h"
#include "engine/core/rng.h"

namespace snug {
namespace {

struct Result {
  std::vector<float> c;
  std::vector<double> expected;
  std::vector<double> magnitude;  // sum of |a b|, for the error bound
  int64_t flops = 0;
  size_t ops = 0;
};

// C (M,N) = op(A) op(B) + bias (+ C) with small integers plus fractions, run on plan and then on
// cpu.
Result run(int64_t M, int64_t N, int64_t K, bool ta, bool tb, bool bias, bool add) {
  Result r;
  Schedule schedule;
  const int root = schedule.add(Name("root"), -1, true);
  const int program = schedule.add(Name("product"), root, false);
  for (const Place place : {Place::plan, Place::cpu}) {
    Context ctx(place, {.threads = 2, .guard_bytes = 64, .poison = true});
    if (place == Place::cpu) {
      schedule.pack();
      ctx.reserve(schedule);
    }
    Tensor a, b, c, v;
    ctx.program(schedule, root, [&] {
      a = ctx.tensor(Name("a"), ta ? Shape{K, M} : Shape{M, K}, DType::f32, Category::weights);
      b = ctx.tensor(Name("b"), tb ? Shape{N, K} : Shape{K, N}, DType::f32, Category::weights);
      c = ctx.tensor(Name("c"), {M, N}, DType::f32, Category::weights);
      v = ctx.tensor(Name("v"), {N}, DType::f32, Category::weights);
    });
    if (place == Place::cpu)
      for (const Tensor* t : {&a, &b, &c, &v})
        for (int64_t i = 0; i < t->view().elements(); ++i)
          t->view().as<float>()[i] =
              uniform_from(static_cast<uint32_t>(mix64(static_cast<uint64_t>(i) * 7 + 1))) - 0.5f;
    std::vector<float> before;
    if (place == Place::cpu) before.assign(c.view().as<float>(), c.view().as<float>() + M * N);
    ctx.program(schedule, program, [&] {
      MatmulOptions o{.transpose_a = ta, .transpose_b = tb, .add = add};
      if (bias) o.bias = v;
      matmul(ctx, c, a, b, o);
    });
    if (place == Place::plan) continue;
    r.c.assign(c.view().as<float>(), c.view().as<float>() + M * N);
    for (int64_t m = 0; m < M; ++m)
      for (int64_t n = 0; n < N; ++n) {
        double sum = 0, magnitude = 0;
        for (int64_t k = 0; k < K; ++k) {
          const double x = static_cast<double>(a.view().as<float>()[ta ? k * M + m : m * K + k]);
          const double y = static_cast<double>(b.view().as<float>()[tb ? n * K + k : k * N + n]);
          sum += x * y;
          magnitude += std::fabs(x * y);
        }
        if (bias) sum += static_cast<double>(v.view().as<float>()[n]);
        if (add) sum += static_cast<double>(before[static_cast<size_t>(m * N + n)]);
        r.expected.push_back(sum);
        r.magnitude.push_back(magnitude + 2.0);
      }
  }
  r.flops = schedule.at(program).flops();
  r.ops = schedule.at(program).ops.size();
  return r;
}

TEST(MatmulOp, EveryFormMatchesADoubleSum) {
  for (const int64_t K : {1, 5, 64})
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        for (const bool bias : {false, true})
          for (const bool add : {false, true}) {
            const Result r = run(7, 19, K, ta, tb, bias, add);
            EXPECT_EQ(r.ops, 1u);
            EXPECT_EQ(r.flops, 2 * 7 * 19 * K);
            for (size_t i = 0; i < r.c.size(); ++i)
              ASSERT_NEAR(static_cast<double>(r.c[i]), r.expected[i],
                          r.magnitude[i] * static_cast<double>(K + 2) * 0x1p-24)
                  << K << ta << tb << bias << add << " element " << i;
          }
}

// The packed copy is a planned tensor like any other; the product from it has the same bits and
// reads nothing of B.
TEST(MatmulOp, PackedOperandGivesTheSameBits) {
  const int64_t M = 70, N = 83, K = 130;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const bool tb : {false, true}) {
      Schedule schedule;
      const int root = schedule.add(Name("root"), -1, true);
      const int program = schedule.add(Name("product"), root, false);
      std::vector<float> plain, packed;
      for (const Place place : {Place::plan, Place::cpu}) {
        Context ctx(place, {.threads = 2, .guard_bytes = 64, .poison = true});
        if (place == Place::cpu) {
          schedule.pack();
          ctx.reserve(schedule);
        }
        Tensor a, b, c, d, copy;
        ctx.program(schedule, root, [&] {
          a = ctx.tensor(Name("a"), {M, K}, dtype, Category::weights);
          b = ctx.tensor(Name("b"), tb ? Shape{N, K} : Shape{K, N}, dtype, Category::weights);
          c = ctx.tensor(Name("c"), {M, N}, DType::f32, Category::weights);
          d = ctx.tensor(Name("d"), {M, N}, DType::f32, Category::weights);
          const int64_t bytes = matmul_packed_bytes(b, tb, dtype);
          EXPECT_GE(bytes, N * K * size_of(dtype));
          EXPECT_LE(bytes, 96 * 160 * 4);
          copy = ctx.tensor(Name("copy"), {bytes}, DType::u8, Category::weights);
        });
        if (place == Place::cpu)
          for (const Tensor* t : {&a, &b})
            for (int64_t i = 0; i < t->view().elements(); ++i) {
              const float v =
                  uniform_from(static_cast<uint32_t>(mix64(static_cast<uint64_t>(i) + 3))) - 0.5f;
              if (dtype == DType::f32)
                t->view().as<float>()[i] = v;
              else if (dtype == DType::bf16)
                t->view().as<bf16>()[i] = from_f32<bf16>(v);
              else
                t->view().as<f16>()[i] = from_f32<f16>(v);
            }
        ctx.program(schedule, program, [&] {
          matmul(ctx, c, a, b, {.transpose_b = tb});
          matmul_pack(ctx, copy, b, tb, dtype);
          View no_storage = b;
          no_storage.data = nullptr;
          matmul(ctx, d, a, no_storage, {.transpose_b = tb, .b_packed = copy});
        });
        if (place == Place::plan) continue;
        plain.assign(c.view().as<float>(), c.view().as<float>() + M * N);
        packed.assign(d.view().as<float>(), d.view().as<float>() + M * N);
      }
      EXPECT_EQ(plain, packed);
      const auto& ops = schedule.at(program).ops;
      ASSERT_EQ(ops.size(), 3u);
    }
}

TEST(MatmulOp, RefusesABiasOfAnotherLength) {
  Schedule schedule;
  const int root = schedule.add(Name("root"), -1, true);
  Context ctx(Place::plan, {});
  const int product = schedule.add(Name("product"), root, false);
  ctx.program(schedule, root, [&] {});
  ctx.program(schedule, product, [&] {
    const Tensor a = ctx.tensor(Name("a"), {3, 40}, DType::f32, Category::weights);
    const Tensor b = ctx.tensor(Name("b"), {40, 50}, DType::f32, Category::weights);
    const Tensor c = ctx.tensor(Name("c"), {3, 50}, DType::f32, Category::weights);
    for (const int64_t n : {49, 51, 3, 40}) {
      const Tensor bias = ctx.tensor(Name("bias"), {n}, DType::f32, Category::weights);
      try {
        matmul(ctx, c, a, b, {.bias = bias});
        ADD_FAILURE() << "accepted " << n;
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::shape);
        EXPECT_NE(std::string(e.what()).find("bias"), std::string::npos) << e.what();
      }
    }
  });
}

TEST(MatmulOp, RefusesAPackedOperandOfOtherSize) {
  Schedule schedule;
  const int root = schedule.add(Name("root"), -1, true);
  Context ctx(Place::plan, {});
  const int product = schedule.add(Name("product"), root, false);
  ctx.program(schedule, root, [&] {});
  ctx.program(schedule, product, [&] {
    const Tensor a = ctx.tensor(Name("a"), {3, 40}, DType::f32, Category::weights);
    const Tensor b = ctx.tensor(Name("weight"), {40, 50}, DType::f32, Category::weights);
    const Tensor c = ctx.tensor(Name("c"), {3, 50}, DType::f32, Category::weights);
    const int64_t bytes = matmul_packed_bytes(b, false, DType::f32);
    const Tensor small = ctx.tensor(Name("small"), {bytes - 1}, DType::u8, Category::weights);
    const Tensor floats = ctx.tensor(Name("floats"), {bytes}, DType::f32, Category::weights);
    for (const Tensor* wrong : {&small, &floats})
      for (const bool pack : {false, true}) try {
          if (pack)
            matmul_pack(ctx, *wrong, b, false, DType::f32);
          else
            matmul(ctx, c, a, b, {.b_packed = *wrong});
          FAIL() << "accepted";
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), wrong == &small ? ErrorCode::shape : ErrorCode::unsupported);
          EXPECT_NE(e.found().find(wrong == &small ? "small (" : "floats ("), std::string::npos)
              << e.what();
        }
    try {
      matmul_pack(ctx, small, b, false, DType::f32);
    } catch (const Error& e) {
      EXPECT_NE(e.expected().find(std::to_string(bytes) + " bytes of packed weight (40,50) f32"),
                std::string::npos)
          << e.what();
    }
  });
}

TEST(MatmulOp, RefusesOperandsThatDoNotFitAndNamesThem) {
  Schedule schedule;
  const int root = schedule.add(Name("root"), -1, true);
  Context ctx(Place::plan, {});
  const int product = schedule.add(Name("product"), root, false);
  ctx.program(schedule, root, [&] {});
  ctx.program(schedule, product, [&] {
    const Tensor a = ctx.tensor(Name("hidden"), {3, 4}, DType::f32, Category::weights);
    const Tensor b = ctx.tensor(Name("weight"), {5, 6}, DType::f32, Category::weights);
    const Tensor c = ctx.tensor(Name("out"), {3, 6}, DType::f32, Category::weights);
    try {
      matmul(ctx, c, a, b);
      FAIL() << "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::shape);
      EXPECT_NE(e.found().find("out (3,6) f32 = hidden (3,4) f32 weight (5,6) f32"),
                std::string::npos)
          << e.what();
    }
  });
}

}  // namespace
}  // namespace snug
