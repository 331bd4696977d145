#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "layers/ops/activation.h"
#include "tests/layers/ops/activation_case.h"
#include "tests/support/case.h"
#include "tests/support/errors.h"
#include "tests/support/gradient.h"

namespace snug::test {
namespace {

// Outputs in float against double: erf errs by up to 7e-7 in float.
double allowed(DType t) {
  return tolerance(t, 1) + 7e-7;
}

void check(Activation kind, Shape shape, DType t, bool in_place, double sd) {
  SCOPED_TRACE(fmt::format("{} {} {}", to_string(kind), to_string(shape), to_string(t)));
  const Values x = normal_values(shape.elements(), 1, t, sd);
  const Values dy = normal_values(shape.elements(), 2, t);
  const Outputs out = run_in_all_modes([&](Case& c) {
    const View vx = c.input("x", shape, t, x);
    const View vdy = in_place ? c.inout("dx", shape, t, dy) : c.input("dy", shape, t, dy);
    const View vy = in_place ? c.inout("y", shape, t, x) : c.output("y", shape, t);
    activation_forward(c.ctx(), vy, in_place ? vy : vx, kind);
    const View vdx = in_place ? vdy : c.output("dx", shape, t);
    activation_backward(c.ctx(), vdx, vdy, vx, kind);
  });
  Values y, dx;
  for (size_t i = 0; i < x.size(); ++i) {
    y.push_back(reference(kind, x[i]));
    dx.push_back(reference(kind, Complex(x[i], kComplexStep)).imag() / kComplexStep * dy[i]);
  }
  EXPECT_TRUE(close(out["y"], y, allowed(t)));
  EXPECT_TRUE(close(out["dx"], dx, allowed(t)));
  EXPECT_EQ(out.ops, (std::vector<std::string>{"activation_forward", "activation_backward"}));
  EXPECT_EQ(out.bytes_moved, 5 * shape.elements() * size_of(t)) << "x to y; x and dy to dx";
}

TEST(Activation, MatchesTheFormula) {
  for (const Activation kind : kKinds)
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
      for (const int64_t n : {1, 17})
        for (const int64_t c : {1, 3, 31, 33, 768}) check(kind, {n, c}, t, false, 2);
      check(kind, {3, 17 * 1024}, t, false, 3);  // more than one task
      check(kind, {5, 33}, t, true, 2);
      check(kind, {2, 3, 5}, t, false, 30);
    }
  check(Activation::gelu_tanh, {5, 33}, DType::f16, false, 2);
}

// The tail of large arguments: no overflow inside, NaN stays NaN.
TEST(Activation, Extremes) {
  const float big = std::numeric_limits<float>::max();
  const Values x{big, -big, 1e15, -1e15, 50, -50, 0};
  for (const Activation kind : kKinds) {
    SCOPED_TRACE(to_string(kind));
    const auto body = [&](const Values& at) {
      return [&at, kind](Case& c) {
        const auto n = static_cast<int64_t>(at.size());
        const View vx = c.input("x", {n}, DType::f32, at);
        activation_forward(c.ctx(), c.output("y", {n}, DType::f32), vx, kind);
        activation_backward(c.ctx(), c.output("dx", {n}, DType::f32),
                            c.input("dy", {n}, DType::f32, Values(at.size(), 1.0)), vx, kind);
      };
    };
    const Outputs out = run_in_all_modes(body(x));
    const Values y = out["y"], dx = out["dx"];
    const bool bounded = kind == Activation::tanh;
    for (const size_t i : {0, 2, 4}) {
      EXPECT_FLOAT_EQ(y[i], bounded ? 1 : x[i]);
      EXPECT_NEAR(dx[i], bounded ? 0 : 1, 1e-6);
      EXPECT_NEAR(y[i + 1], bounded ? -1 : 0, 1e-6);
      EXPECT_NEAR(dx[i + 1], 0, 1e-6);
    }
    EXPECT_EQ(y[6], 0);
    if (kind == Activation::relu) {
      const Values zero = run_on_plan_and_cpu({}, body({-0.0}))["y"];
      EXPECT_TRUE(zero[0] == 0 && std::signbit(zero[0]));
    }
    EXPECT_EQ(dx[6], kind == Activation::relu ? 0 : bounded ? 1 : 0.5);
    // On its own: which NaN it becomes depends on the instructions.
    const Values nan{std::nan("")};
    const Outputs no_number = run_on_plan_and_cpu({}, body(nan));
    EXPECT_TRUE(std::isnan(no_number["y"][0]));
    EXPECT_TRUE(std::isnan(no_number["dx"][0]));
  }
}

// What the contract says of every argument, where the slope's own cancellations are largest.
TEST(Activation, ErrsByLessThanAMillionth) {
  const int64_t n = 40001;
  Values x(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    x[static_cast<size_t>(i)] = static_cast<float>(static_cast<double>(i - n / 2) / 1000.0);
  for (const Activation kind : kKinds) {
    const Outputs out = run_in_all_modes([&](Case& c) {
      const View vx = c.input("x", {n}, DType::f32, x);
      activation_forward(c.ctx(), c.output("y", {n}, DType::f32), vx, kind);
      activation_backward(c.ctx(), c.output("dx", {n}, DType::f32),
                          c.input("dy", {n}, DType::f32, Values(x.size(), 1.0)), vx, kind);
    });
    const Values y = out["y"], dx = out["dx"];
    double worst = 0;
    // However small x is, tanh keeps its digits: there is no 1 - e^x in it.
    if (kind == Activation::tanh) {
      const Values small{1e-3, -1e-6, 1e-20, 1e-38, 3e-42};
      const Values of_small = run_in_all_modes([&](Case& c) {
        activation_forward(c.ctx(), c.output("y", {5}, DType::f32),
                           c.input("x", {5}, DType::f32, small), kind);
      })["y"];
      for (size_t i = 0; i < small.size(); ++i) {
        const double at = rounded(small[i], DType::f32);
        EXPECT_NEAR(of_small[i], std::tanh(at), 1e-6 * std::fabs(at)) << at;
      }
    }
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i] == 0) continue;  // relu
      const double slope = reference(kind, Complex(x[i], kComplexStep)).imag() / kComplexStep;
      worst = std::max({worst, std::fabs(y[i] - reference(kind, x[i])) / std::fabs(x[i]),
                        std::fabs(dx[i] - slope)});
    }
    EXPECT_LT(worst, 1e-6) << to_string(kind);
  }
}

// A value has the same bits alone and inside a vector, so a split of the rows changes nothing.
TEST(Activation, EqualBitsAloneAndInAVector) {
  const int64_t n = 45;
  for (const Activation kind : kKinds)
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
      const Values x = normal_values(n, 1, t, 4), dy = normal_values(n, 2, t);
      const auto run = [&](int64_t piece) {
        return run_on_plan_and_cpu({}, [&](Case& c) {
          const View vx = c.input("x", {n}, t, x), vdy = c.input("dy", {n}, t, dy);
          const View vy = c.output("y", {n}, t), vdx = c.output("dx", {n}, t);
          for (int64_t i = 0; i < n; i += piece) {
            activation_forward(c.ctx(), vy.rows(i, piece), vx.rows(i, piece), kind);
            activation_backward(c.ctx(), vdx.rows(i, piece), vdy.rows(i, piece), vx.rows(i, piece),
                                kind);
          }
        });
      };
      const Outputs whole = run(n);
      for (const int64_t piece : {1, 9, 15})
        EXPECT_TRUE(run(piece) == whole) << to_string(kind) << " " << to_string(t) << " " << piece;
    }
}

// The names of transformers' ACT2FN.
TEST(Activation, ReadsTheNamesOfConfigs) {
  EXPECT_EQ(parse_activation("gelu_new"), Activation::gelu_tanh);
  EXPECT_EQ(parse_activation("gelu_pytorch_tanh"), Activation::gelu_tanh);
  EXPECT_EQ(parse_activation("gelu_fast"), Activation::gelu_tanh);
  EXPECT_EQ(parse_activation("gelu"), Activation::gelu_erf);
  EXPECT_EQ(parse_activation("relu"), Activation::relu);
  EXPECT_EQ(parse_activation("silu"), Activation::silu);
  EXPECT_EQ(parse_activation("swish"), Activation::silu);
  EXPECT_EQ(parse_activation("tanh"), Activation::tanh);
  expect_error(
      ErrorCode::unsupported,
      {"gelu_new, gelu_pytorch_tanh, gelu_fast, gelu, relu, silu, swish, tanh", "\"mish\""},
      [] { parse_activation("mish"); });
}

TEST(Activation, RefusesWhatDoesNotFit) {
  expect_error(ErrorCode::shape, {"y of the shape and dtype of x", "y (4) f32", "x (5) f32"}, [] {
    run_on_plan_and_cpu({}, [](Case& c) {
      activation_forward(c.ctx(), c.output("y", {4}, DType::f32), c.output("x", {5}, DType::f32),
                         Activation::relu);
    });
  });
  expect_error(ErrorCode::shape, {"dy of the shape and dtype of x", "dy (5) bf16"}, [] {
    run_on_plan_and_cpu({}, [](Case& c) {
      const View x = c.output("x", {5}, DType::f32);
      activation_backward(c.ctx(), x, c.output("dy", {5}, DType::bf16), x, Activation::relu);
    });
  });
  expect_error(ErrorCode::unsupported, {"x of dtype f32|bf16|f16", "x (5) i64"}, [] {
    run_on_plan_and_cpu({}, [](Case& c) {
      const View x = c.output("x", {5}, DType::i64);
      activation_forward(c.ctx(), x, x, Activation::relu);
    });
  });
  expect_error(ErrorCode::unsupported, {"gelu_tanh, gelu_erf, relu, silu or tanh", "number 9"}, [] {
    run_on_plan_and_cpu({}, [](Case& c) {
      const View x = c.output("x", {5}, DType::f32);
      activation_forward(c.ctx(), x, x, static_cast<Activation>(9));
    });
  });
}

}  // namespace
}  // namespace snug::test
