#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "layers/ops/gated_activation_simt.h"
#include "tests/layers/ops/activation_case.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"
#include "tests/support/gradient.h"
#include "tests/support/reference/gated_activation.h"

namespace snug::test {
namespace {

auto body_of(Activation kind, int64_t n, int64_t f, DType t, bool in_place, const Values& x,
             const Values& dy, int threads) {
  return [=, &x, &dy](auto& c) {
    const View vx = in_place ? c.inout("dx", {n, 2 * f}, t, x) : c.input("x", {n, 2 * f}, t, x);
    const View vdy = c.input("dy", {n, f}, t, dy), y = c.output("y", {n, f}, t);
    const View dx = in_place ? vx : c.output("dx", {n, 2 * f}, t);
    if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
      gated_activation_forward_on(c.queue(), y, vx, kind, threads);
      gated_activation_backward_on(c.queue(), dx, vdy, vx, kind, threads);
    } else {
      gated_activation_forward(c.ctx(), y, vx, kind);
      gated_activation_backward(c.ctx(), dx, vdy, vx, kind);
    }
  };
}

void check(Activation kind, int64_t n, int64_t f, DType t, bool in_place, bool shifted,
           int threads = 64) {
  SCOPED_TRACE(fmt::format("{} N{} F{} {}{}{}", to_string(kind), n, f, to_string(t),
                           in_place ? " in place" : "", shifted ? " shifted" : ""));
  const Values x = normal_values(n * 2 * f, 1, t, 2), dy = normal_values(n * f, 2, t);
  const auto body = body_of(kind, n, f, t, in_place, x, dy, threads);
  const Outputs out = run_in_all_modes(body), emu = run_in_all_schedules(body, shifted);
  const auto act = [kind](auto z) { return reference(kind, z); };
  const auto width = static_cast<size_t>(f);
  // A sum over the outputs has one term for every element of x.
  Values dx(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t row = i / (2 * width), j = i % width;
    const double g = x[row * 2 * width + j], u = x[row * 2 * width + width + j];
    const bool gate = i % (2 * width) < width;
    const Complex y =
        gate ? act(Complex(g, kComplexStep)) * u : act(Complex(g)) * Complex(u, kComplexStep);
    dx[i] = y.imag() / kComplexStep * dy[row * width + j];
  }
  const Values y = gated_activation_reference(x, width, act);
  // act errs by 7e-7 of its argument on the CPU, which `up` and dy take on. The largest of their
  // products may be less than the largest of each by a factor of a few.
  double largest = 0, scale = 1e-3;
  for (size_t i = 0; i < y.size(); ++i) {
    const double g = x[i / width * 2 * width + i % width],
                 u = x[i / width * 2 * width + width + i % width];
    largest = std::max({largest, std::fabs(g * u), std::fabs(dy[i] * u), std::fabs(dy[i] * g)});
  }
  for (const double v : y) scale = std::max(scale, std::fabs(v));
  const double y_allowed = tolerance(t, 1) + 7e-7 * largest / scale;
  scale = 1e-3;
  for (const double v : dx) scale = std::max(scale, std::fabs(v));
  const double dx_allowed = tolerance(t, 1) + 7e-7 * largest / scale;
  for (const Outputs* o : {&out, &emu}) {
    EXPECT_TRUE(close((*o)["y"], y, y_allowed));
    EXPECT_TRUE(close((*o)["dx"], dx, dx_allowed));
  }
  EXPECT_EQ(out.ops,
            (std::vector<std::string>{"gated_activation_forward", "gated_activation_backward"}));
  EXPECT_EQ(out.bytes_moved, size_of(t) * 8 * n * f);
}

TEST(GatedActivation, MatchesTheFormulaOnBothPlaces) {
  for (const Activation kind : kKinds)
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
      for (const auto& [n, f] : {std::pair{1, 1}, {5, 3}, {2, 31}, {3, 33}, {3, 64}, {7, 344}})
        check(kind, n, f, t, false, false);
      check(kind, 5, 40, t, true, false);
      check(kind, 5, 40, t, true, true, 32);
      check(kind, 3, 35, t, true, false, 128);
    }
  check(Activation::silu, 3, 17 * 1024, DType::bf16, false, false);  // rows longer than a task
  check(Activation::silu, 300, 160, DType::f32, true, false);        // several tasks
  check(Activation::silu, 0, 16, DType::f32, false, false);
}

// Large results go past the caches: with the bits of small ones.
TEST(GatedActivation, LargeResultsHaveTheBitsOfSmallOnes) {
  const int64_t f = 64, part = 100;
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    const int64_t n = (4 << 20) / f / size_of(t);
    const Values x = normal_values(n * 2 * f, 1, t), dy = normal_values(n * f, 2, t);
    const auto run = [&](int64_t rows) {
      const Values some_x(x.begin(), x.begin() + rows * 2 * f),
          some(dy.begin(), dy.begin() + rows * f);
      return run_on_plan_and_cpu({.threads = 2},
                                 body_of(Activation::silu, rows, f, t, false, some_x, some, 0));
    };
    const Outputs large = run(n), small = run(part);
    for (const char* name : {"y", "dx"}) {
      const Values l = large[name], s = small[name];
      EXPECT_TRUE(std::equal(s.begin(), s.end(), l.begin())) << name << " " << to_string(t);
    }
  }
}

// Large gates: the product is the branch's or nothing, and no number comes of an overflow inside.
TEST(GatedActivation, Extremes) {
  const Values x{50, -50, 1e15, -1e15, 3, 3, 2, 2}, dy{1, 1, 1, 1};
  for (const Activation kind :
       {Activation::gelu_tanh, Activation::gelu_erf, Activation::relu, Activation::silu}) {
    SCOPED_TRACE(to_string(kind));
    const auto body = body_of(kind, 1, 4, DType::f32, false, x, dy, 32);
    for (const Outputs& out : {run_in_all_modes(body), run_in_all_schedules(body)}) {
      const Values y = out["y"], dx = out["dx"];
      for (const size_t i : {0, 2}) {
        EXPECT_FLOAT_EQ(y[i], x[i] * x[4 + i]);
        EXPECT_NEAR(y[i + 1], 0, 1e-6);
        EXPECT_NEAR(dx[i], x[4 + i], 1e-5);
        EXPECT_NEAR(dx[i + 1], 0, 1e-6);
        EXPECT_FLOAT_EQ(dx[4 + i], x[i]);
        EXPECT_NEAR(dx[5 + i], 0, 1e-6);
      }
    }
  }
}

TEST(GatedActivation, RefusesWhatDoesNotFit) {
  const auto run = [](Shape x, DType x_dtype, Shape y, DType y_dtype, Shape dx,
                      Activation kind = Activation::silu) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      const View vx = c.output("x", x, x_dtype), vy = c.output("y", y, y_dtype);
      if (dx.rank() == 0)
        gated_activation_forward(c.ctx(), vy, vx, kind);
      else
        gated_activation_backward(c.ctx(), c.output("dx", dx, x_dtype), vy, vx, kind);
    });
  };
  const DType f32 = DType::f32;
  expect_error(ErrorCode::shape, {"gate_up of shape (N,2F)", "x (2,5) f32", "beside each other"},
               [&] {
                 run({2, 5}, f32, {2, 2}, f32, {});
               });
  expect_error(ErrorCode::shape, {"gate_up of shape (N,2F)", "x (8) f32"},
               [&] { run({8}, f32, {4}, f32, {}); });
  expect_error(ErrorCode::shape, {"y of shape (N,F)=(2,3)", "y (2,6) f32"}, [&] {
    run({2, 6}, f32, {2, 6}, f32, {});
  });
  expect_error(ErrorCode::unsupported, {"y of dtype f32", "y (2,3) bf16"}, [&] {
    run({2, 6}, f32, {2, 3}, DType::bf16, {});
  });
  expect_error(ErrorCode::shape, {"dgate_up of shape (N,2F)=(2,6)", "dx (2,3) f32"}, [&] {
    run({2, 6}, f32, {2, 3}, f32, {2, 3});
  });
  expect_error(ErrorCode::shape, {"dy of shape (N,F)=(2,3)", "y (1,3) f32"}, [&] {
    run({2, 6}, f32, {1, 3}, f32, {2, 6});
  });
  expect_error(ErrorCode::unsupported, {"gate_up of dtype f32|bf16|f16", "x (2,6) i64"}, [&] {
    run({2, 6}, DType::i64, {2, 3}, DType::i64, {});
  });
  expect_error(ErrorCode::unsupported, {"relu, silu or tanh", "number 9"}, [&] {
    run({2, 6}, f32, {2, 3}, f32, {}, static_cast<Activation>(9));
  });
}

}  // namespace
}  // namespace snug::test
