// Fused products against the ops they stand for: bit for bit. The truth of the parts is in their
// own tests.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/blas/matmul.h"
#include "layers/ops/layernorm.h"
#include "layers/ops/linear.h"
#include "layers/ops/residual.h"
#include "tests/support/case.h"
#include "tests/support/errors.h"

namespace snug::test {
namespace {

// One row, tails of the tiles (14 x 32, 6 x 16), several slabs of rows, several blocks of columns,
// several blocks of k.
struct Sizes {
  int64_t b, t, k, m;
};
constexpr Sizes kSizes[] = {{1, 1, 5, 3},    {1, 1, 64, 96},     {2, 7, 16, 32},   {1, 29, 33, 31},
                            {3, 57, 40, 97}, {2, 150, 24, 1100}, {1, 65, 1700, 64}};
constexpr Activation kKinds[] = {Activation::gelu_tanh, Activation::gelu_erf, Activation::relu,
                                 Activation::silu};

void expect_same(const Outputs& out, const std::string& a, const std::string& b) {
  const Values x = out[a], y = out[b];
  ASSERT_EQ(x.size(), y.size());
  size_t differ = 0;
  for (size_t i = 0; i < x.size(); ++i) differ += !(x[i] == y[i]);
  EXPECT_EQ(differ, 0u) << a << " is not " << b;
}

struct Product {
  Product(Case& c, const Sizes& s, DType t, bool with_bias)
      : x(c.input("x", {s.b * s.t, s.k}, t, normal_values(s.b * s.t * s.k, 1, t))),
        w(c.input("w", {s.m, s.k}, t, normal_values(s.m * s.k, 2, t, 0.3))) {
    if (!with_bias) return;
    bias = c.input("bias", {s.m}, t, normal_values(s.m, 3, t));
    // A packed copy for some of the sizes; the parts read the weight itself.
    const int64_t bytes = s.k % 2 == 0 ? matmul_packed_bytes(w, true, t) : 0;
    if (bytes == 0) return;
    packed = c.output("packed", {bytes}, DType::u8);
    matmul_pack(c.ctx(), packed, w, true, t);
  }
  MatmulOptions options() const { return {.transpose_b = true, .bias = bias}; }
  View x, w, bias, packed;
};

Settings two_threads() {
  Settings settings;
  settings.threads = 2;
  return settings;
}

void check_activation(const Sizes& s, DType t, Activation kind, bool bias, bool store,
                      bool all_modes = true) {
  SCOPED_TRACE(fmt::format("N{} K{} M{} {} {} bias {} pre {}", s.b * s.t, s.k, s.m, to_string(t),
                           to_string(kind), bias, store));
  const Shape shape{s.b * s.t, s.m};
  const auto body = [&](Case& c) {
    const Product p(c, s, t, bias);
    const View want_pre = c.output("want_pre", shape, t), want = c.output("want", shape, t);
    const View pre = store ? c.output("pre", shape, t) : View(), act = c.output("act", shape, t);
    matmul(c.ctx(), want_pre, p.x, p.w, p.options());
    activation_forward(c.ctx(), want, want_pre, kind);
    linear_activation_forward(c.ctx(), act, pre, p.x, {p.w, p.bias, p.packed}, kind);
  };
  const Outputs out = all_modes ? run_in_all_modes(body) : run_on_plan_and_cpu(two_threads(), body);
  expect_same(out, "act", "want");
  if (store) expect_same(out, "pre", "want_pre");
  EXPECT_EQ(std::count(out.ops.begin(), out.ops.end(), "matmul"), 1);
  EXPECT_EQ(out.ops.back(), "linear_activation_forward");
}

TEST(LinearActivation, IsTheProductAndTheActivation) {
  for (const Sizes& s : kSizes)
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      for (const bool store : {true, false})
        check_activation(s, t, Activation::gelu_tanh, true, store);
  for (const Activation kind : kKinds)
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      for (const bool store : {true, false})
        check_activation(kSizes[3], t, kind, kind == Activation::silu, store);
}

// Large enough to be written past the caches; 1024 columns are whole lines, 1000 are not.
TEST(LinearActivation, StreamsLargeMatrices) {
  for (const int64_t m : {1000, 1024})
    check_activation({1, 2150, 2, m}, DType::f32, Activation::relu, true, true, false);
  check_activation({1, 2150, 2, 2048}, DType::bf16, Activation::relu, true, true, false);
}

StepState some_state() {
  StepState s{};
  s.seed = 0x123456789abcdefull;
  s.step = 77;
  s.first_sample = 5;
  return s;
}

void check_residual(const Sizes& s, DType t, DType norm_dtype, float p, bool norm, bool shift) {
  SCOPED_TRACE(fmt::format("N{} K{} M{} {} {} p {} norm {}", s.b * s.t, s.k, s.m, to_string(t),
                           to_string(norm_dtype), p, norm));
  const int64_t n = s.b * s.t;
  const Shape shape{n, s.m};
  const Outputs out = run_in_all_modes([&](Case& c) {
    const Product product(c, s, t, true);
    const View state = p > 0 ? c.step_state(some_state()) : View();
    const View residual = c.input("residual", shape, t, normal_values(n * s.m, 4, t));
    const View scale = c.input("scale", {s.m}, norm_dtype, normal_values(s.m, 5, norm_dtype));
    const View offset =
        shift ? c.input("shift", {s.m}, norm_dtype, normal_values(s.m, 6, norm_dtype)) : View();
    const ResidualInput in{residual, s.b, s.t, {p, 9}, state};
    const View branch = c.output("branch", shape, t), want = c.output("want", shape, t);
    matmul(c.ctx(), branch, product.x, product.w, product.options());
    residual_forward(c.ctx(), want, residual, branch, s.b, s.t, in.dropout, state);
    const View sum = c.output("out", shape, t);
    if (!norm) {
      linear_residual_forward(c.ctx(), sum, in, product.x,
                              {product.w, product.bias, product.packed});
      return;
    }
    const auto norm_output = [&](const char* y, const char* mean, const char* rstd) {
      return NormOutput{c.output(y, shape, t),
                        c.output(mean, {n}, DType::f32),
                        c.output(rstd, {n}, DType::f32),
                        scale,
                        offset,
                        1e-5f};
    };
    const NormOutput truth = norm_output("want_y", "want_mean", "want_rstd");
    layernorm_forward(c.ctx(), truth.y, truth.mean, truth.rstd, want, scale, offset, truth.eps);
    const NormOutput made = norm_output("y", "mean", "rstd");
    linear_residual_norm_forward(c.ctx(), made, sum, in, product.x,
                                 {product.w, product.bias, product.packed});
  });
  expect_same(out, "out", "want");
  if (norm)
    for (const char* name : {"y", "mean", "rstd"})
      expect_same(out, name, std::string("want_") + name);
  EXPECT_EQ(out.ops.back(), std::string(p > 0 ? "linear_dropout_residual" : "linear_residual") +
                                (norm ? "_norm_forward" : "_forward"));
}

TEST(LinearResidual, IsTheProductTheDropoutAndTheSum) {
  for (const Sizes& s : kSizes)
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      for (const float p : {0.0f, 0.3f}) check_residual(s, t, t, p, false, true);
  for (const DType t : {DType::bf16, DType::f16})
    for (const float p : {0.0f, 0.3f}) check_residual(kSizes[4], t, t, p, false, true);
}

TEST(LinearResidualNorm, IsTheSumAndItsNorm) {
  for (const Sizes& s : kSizes)
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      for (const float p : {0.0f, 0.3f}) check_residual(s, t, t, p, true, true);
  for (const DType norm : {DType::bf16, DType::f32})
    for (const bool shift : {false, true})
      check_residual(kSizes[4], DType::bf16, norm, 0.3f, true, shift);
}

// What the record says: the parts, less what is no longer moved.
TEST(Linear, Costs) {
  const int64_t n = 4, k = 8, m = 16;
  const auto outputs = [&](int what) {
    return run_on_plan_and_cpu({}, [&](Case& c) {
      const Product p(c, {1, n, k, m}, DType::f32, false);
      const View a = c.output("a", {n, m}, DType::f32), b = c.output("b", {n, m}, DType::f32);
      const View r = c.input("r", {n, m}, DType::f32, Values(n * m, 1.0));
      const View g = c.input("g", {m}, DType::f32, Values(m, 1.0));
      const View s = c.output("s", {n}, DType::f32), s2 = c.output("s2", {n}, DType::f32);
      const ResidualInput in{r, 1, n, {}, {}};
      if (what == 0) linear_activation_forward(c.ctx(), a, b, p.x, {p.w, {}, {}}, Activation::relu);
      if (what == 1)
        linear_activation_forward(c.ctx(), a, {}, p.x, {p.w, {}, {}}, Activation::relu);
      if (what == 2) linear_residual_forward(c.ctx(), a, in, p.x, {p.w, {}, {}});
      if (what == 3)
        linear_residual_norm_forward(c.ctx(), {b, s, s2, g, {}, 1e-5f}, a, in, p.x, {p.w, {}, {}});
    });
  };
  const int64_t flops = 2 * n * k * m, bytes = 4 * (n * k + k * m + n * m), matrix = 4 * n * m;
  EXPECT_EQ(outputs(0).flops, flops + n * m);
  EXPECT_EQ(outputs(0).bytes_moved, bytes + matrix);
  EXPECT_EQ(outputs(1).flops, flops + n * m);
  EXPECT_EQ(outputs(1).bytes_moved, bytes);
  EXPECT_EQ(outputs(2).flops, flops + n * m);
  EXPECT_EQ(outputs(2).bytes_moved, bytes + matrix);
  EXPECT_EQ(outputs(3).flops, flops + 9 * n * m);
  EXPECT_EQ(outputs(3).bytes_moved, bytes + 2 * matrix + 8 * n);
}

TEST(Linear, RefusesWhatDoesNotFit) {
  const DType f32 = DType::f32;
  const auto run = [&](Shape pre, Shape residual, Shape mean, float p) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      const Product product(c, {2, 3, 4, 5}, f32, false);
      const View out = c.output("out", {6, 5}, f32);
      linear_activation_forward(c.ctx(), out, c.output("pre", pre, f32), product.x,
                                {product.w, {}, {}}, Activation::relu);
      const ResidualInput in{
          c.input("residual", residual, f32, Values(residual.elements(), 1.0)), 2, 3, {p, 0}, {}};
      const NormOutput norm{c.output("y", {6, 5}, f32),
                            c.output("mean", mean, f32),
                            c.output("rstd", {6}, f32),
                            c.input("g", {5}, f32, Values(5, 1.0)),
                            {},
                            1e-5f};
      linear_residual_norm_forward(c.ctx(), norm, out, in, product.x, {product.w, {}, {}});
    });
  };
  run({6, 5}, {6, 5}, {6}, 0);
  expect_error(ErrorCode::shape, {"pre of the shape and dtype of act", "pre (6,4)", "act is out"},
               [&] {
                 run({6, 4}, {6, 5}, {6}, 0);
               });
  expect_error(ErrorCode::shape, {"out of shape (N=B*T,C)=(6,4)"}, [&] {
    run({6, 5}, {6, 4}, {6}, 0);
  });
  expect_error(ErrorCode::shape, {"mean of shape (N)=(6)", "mean (5)"}, [&] {
    run({6, 5}, {6, 5}, {5}, 0);
  });
  expect_error(ErrorCode::usage, {"a dropout probability of [0,1)", "p = 1"}, [&] {
    run({6, 5}, {6, 5}, {6}, 1);
  });
}

// The copy that layernorm_backward drops is dropout_backward of what it stored.
TEST(LayernormBackward, DropsACopyOnTheWay) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const bool in_dy : {false, true}) {
      const int64_t b = 3, rows = 40, n = b * rows, m = 97;
      const Outputs out = run_in_all_modes([&](Case& c) {
        const auto matrix = [&](const char* name, uint32_t seed) {
          return c.input(name, {n, m}, t, normal_values(n * m, seed, t));
        };
        const View x = matrix("x", 1), dy = matrix("dy", 2);
        const View dy2 = c.inout("dy2", {n, m}, t, normal_values(n * m, 2, t));
        const View weight = c.input("weight", {m}, t, normal_values(m, 3, t));
        const View mean = c.input("mean", {n}, DType::f32, normal_values(n, 4));
        const View rstd = c.input("rstd", {n}, DType::f32, Values(n, 0.9));
        const View dx = c.inout("dx", {n, m}, t, normal_values(n * m, 5, t));
        const View dx2 = c.inout("dx2", {n, m}, t, normal_values(n * m, 5, t));
        const View state = c.step_state(some_state());
        const View want = c.output("want", {n, m}, t);
        const View copy = in_dy ? dy2 : c.output("copy", {n, m}, t);
        const auto gradient = [&](const char* name) {
          return GradView{c.output(name, {m}, DType::f32), false};
        };
        layernorm_backward(c.ctx(), dx, true, gradient("dw"), gradient("db"), dy, x, weight, mean,
                           rstd);
        dropout_backward(c.ctx(), want, dx, b, rows, {0.4f, 6}, state);
        layernorm_backward(c.ctx(), dx2, true, gradient("dw2"), gradient("db2"), dy2, x, weight,
                           mean, rstd, {copy, b, rows, {0.4f, 6}, state});
      });
      expect_same(out, in_dy ? "dy2" : "copy", "want");
      expect_same(out, "dx2", "dx");
      expect_same(out, "dw2", "dw");
      expect_same(out, "db2", "db");
      EXPECT_EQ(out.ops, (std::vector<std::string>{"layernorm_backward", "dropout_backward",
                                                   "layernorm_dropout_backward"}));
    }
}

}  // namespace
}  // namespace snug::test
