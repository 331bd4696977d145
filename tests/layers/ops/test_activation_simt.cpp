// The kernels in the emulator against the formula in double and against the CPU op.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "layers/ops/activation_simt.h"
#include "tests/layers/ops/activation_case.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"
#include "tests/support/gradient.h"

namespace snug::test {
namespace {

auto body_of(Activation kind, const Values& x, const Values& dy, DType t, bool in_place,
             int threads) {
  return [=, &x, &dy](auto& c) {
    const auto n = static_cast<int64_t>(x.size());
    const View vx = c.input("x", {n}, t, x);
    const View vdy = in_place ? c.inout("dx", {n}, t, dy) : c.input("dy", {n}, t, dy);
    const View vy = in_place ? c.inout("y", {n}, t, x) : c.output("y", {n}, t);
    const View vdx = in_place ? vdy : c.output("dx", {n}, t);
    if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
      activation_forward_on(c.queue(), vy, in_place ? vy : vx, kind, threads);
      activation_backward_on(c.queue(), vdx, vdy, vx, kind, threads);
    } else {
      activation_forward(c.ctx(), vy, in_place ? vy : vx, kind);
      activation_backward(c.ctx(), vdx, vdy, vx, kind);
    }
  };
}

void check(Activation kind, int64_t n, DType t, bool in_place, int threads, bool shifted,
           double sd = 2) {
  SCOPED_TRACE(fmt::format("{} n {} {} in_place {} threads {} shifted {}", to_string(kind), n,
                           to_string(t), in_place, threads, shifted));
  const Values x = normal_values(n, 1, t, sd), dy = normal_values(n, 2, t);
  const auto body = body_of(kind, x, dy, t, in_place, threads);
  const Outputs out = run_in_all_schedules(body, shifted), cpu = run_on_plan_and_cpu({}, body);
  Values y, dx;
  for (size_t i = 0; i < x.size(); ++i) {
    y.push_back(reference(kind, x[i]));
    dx.push_back(reference(kind, Complex(x[i], kComplexStep)).imag() / kComplexStep * dy[i]);
  }
  // A dozen roundings; exp and erf err by 2 ulp, which a factor of at most |u e^-u| < 1 takes on.
  const double allowed = tolerance(t, 1);
  EXPECT_TRUE(close(out["y"], y, allowed));
  EXPECT_TRUE(close(out["dx"], dx, allowed));
  // The CPU's polynomials err by 7e-7, and both round to the dtype.
  EXPECT_TRUE(close(out["y"], cpu["y"], 2 * allowed + 7e-7));
  EXPECT_TRUE(close(out["dx"], cpu["dx"], 2 * allowed + 7e-7));
}

TEST(ActivationSimt, MatchesTheFormulaAndTheCpu) {
  for (const Activation kind : kKinds)
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
      for (const int64_t n : {1, 7, 8, 257, 1031}) check(kind, n, t, false, 64, false);
      for (const int threads : kBlockSizes) check(kind, 1031, t, true, threads, true);
      check(kind, 100, t, false, 32, false, 30);
    }
  for (const Activation kind : kKinds) check(kind, 77, DType::f16, false, 32, false);
}

TEST(ActivationSimt, Extremes) {
  const float big = std::numeric_limits<float>::max();
  const Values x{big, -big, 1e15, -1e15, 50, -50, 0, INFINITY, std::nan(""), -0.0};
  const Values ones(x.size(), 1.0);
  for (const Activation kind : kKinds) {
    SCOPED_TRACE(to_string(kind));
    const Outputs out = run_in_all_schedules(body_of(kind, x, ones, DType::f32, false, 32));
    const Values y = out["y"], dx = out["dx"];
    const bool bounded = kind == Activation::tanh;
    for (const size_t i : {0, 2, 4}) {
      EXPECT_FLOAT_EQ(y[i], bounded ? 1 : x[i]);
      EXPECT_NEAR(dx[i], bounded ? 0 : 1, 1e-6);
      EXPECT_NEAR(y[i + 1], bounded ? -1 : 0, 1e-6);
      EXPECT_NEAR(dx[i + 1], 0, 1e-6);
    }
    EXPECT_EQ(y[6], 0);
    EXPECT_EQ(dx[6], kind == Activation::relu ? 0 : bounded ? 1 : 0.5);
    EXPECT_EQ(y[7], bounded ? 1 : INFINITY);
    EXPECT_TRUE(std::isnan(y[8]) && std::isnan(dx[8]));
    if (kind == Activation::relu) {
      EXPECT_TRUE(y[9] == 0 && std::signbit(y[9]));
    }
  }
}

TEST(ActivationSimt, RefusesWhatItDoesNotKnow) {
  EmuCase c({}, false);
  const View x = c.output("x", {5}, DType::f32), i = c.output("i", {5}, DType::i64);
  expect_error(ErrorCode::unsupported, {"gelu_tanh, gelu_erf, relu, silu or tanh", "number 9"},
               [&] { activation_forward_on(c.queue(), x, x, static_cast<Activation>(9)); });
  expect_error(ErrorCode::unsupported, {"x of dtype f32|bf16|f16", "i (5) i64"},
               [&] { activation_backward_on(c.queue(), i, i, i, Activation::relu); });
}

}  // namespace
}  // namespace snug::test
