// On the CPU and in the emulator against the formula in double and its complex steps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "layers/ops/softcap_simt.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"
#include "tests/support/gradient.h"
#include "tests/support/reference/softcap.h"

namespace snug::test {
namespace {

struct Variant {
  int64_t n;
  double cap, sd;
  DType dtype = DType::f32;
  bool in_place = false, shifted = false;
  int threads = 64;
};

auto body_of(const Variant& v, const Values& x, const Values& dy) {
  return [&v, &x, &dy](auto& c) {
    const auto cap = static_cast<float>(v.cap);
    const View from =
        v.in_place ? c.inout("y", {v.n}, DType::f32, x) : c.input("x", {v.n}, DType::f32, x);
    const View y = v.in_place ? from : c.output("y", {v.n}, DType::f32);
    const View gradient =
        v.in_place ? c.inout("dx", {v.n}, v.dtype, dy) : c.input("dy", {v.n}, v.dtype, dy);
    const View dx = v.in_place ? gradient : c.output("dx", {v.n}, v.dtype);
    if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
      softcap_forward_on(c.queue(), y, from, cap, v.threads);
      softcap_backward_on(c.queue(), dx, gradient, y, cap, v.threads);
    } else {
      softcap_forward(c.ctx(), y, from, cap);
      softcap_backward(c.ctx(), dx, gradient, y, cap);
    }
  };
}

TEST(Softcap, MatchesTheFormulaOnBothPlaces) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const Variant& v : {Variant{.n = 1, .cap = 3, .sd = 1},
                             {.n = 37, .cap = 2.5, .sd = 0.1},
                             {.n = 1000, .cap = 30, .sd = 20, .in_place = true},
                             {.n = 263, .cap = 1, .sd = 4, .shifted = true, .threads = 128},
                             {.n = 40000, .cap = 50, .sd = 300},
                             {.n = 0, .cap = 1, .sd = 1}}) {
      Variant of = v;
      of.dtype = t;
      SCOPED_TRACE(fmt::format("n{} cap {} sd {} {}", of.n, of.cap, of.sd, to_string(t)));
      const Values x = normal_values(of.n, 1, DType::f32, of.sd), dy = normal_values(of.n, 2, t);
      const Values y = softcap_reference(x, of.cap);
      Values dx(x.size());
      for (size_t i = 0; i < x.size(); ++i)
        dx[i] = dy[i] *
                softcap_reference(std::vector<Complex>{Complex(x[i], kComplexStep)}, of.cap)
                    .front()
                    .imag() /
                kComplexStep;
      const auto body = body_of(of, x, dy);
      const Outputs out = run_in_all_modes(body);
      for (const Outputs& o : {out, run_in_all_schedules(body, of.shifted)}) {
        EXPECT_TRUE(close(o["y"], y, 1e-6));
        // 1 - t^2 of a t that errs by 3e-7: as much of dy.
        EXPECT_TRUE(close(o["dx"], dx, 2e-6 + tolerance(t, 1)));
      }
      EXPECT_EQ(out.ops, (std::vector<std::string>{"softcap_forward", "softcap_backward"}));
      EXPECT_EQ(out.bytes_moved, of.n * (12 + 2 * size_of(t)));
    }
}

// Small values keep their digits, large ones end at the cap, and what is no number stays none.
TEST(Softcap, Extremes) {
  const double infinite = std::numeric_limits<double>::infinity();
  const Values x{1e-6, -1e-6, 1e30, -1e30, infinite, -infinite, std::nan("")}, dy(7, 1.0);
  const Variant v{.n = 7, .cap = 30, .sd = 1};
  const auto body = body_of(v, x, dy);
  for (const Outputs& out : {run_in_all_modes(body), run_in_all_schedules(body)}) {
    const Values y = out["y"], dx = out["dx"];
    EXPECT_NEAR(y[0], 1e-6, 1e-12);
    EXPECT_NEAR(y[1], -1e-6, 1e-12);
    for (const size_t i : {2, 4}) {
      EXPECT_EQ(y[i], 30);
      EXPECT_EQ(y[i + 1], -30);
      EXPECT_NEAR(dx[i], 0, 1e-6);
    }
    EXPECT_TRUE(std::isnan(y[6]));
    EXPECT_TRUE(std::isnan(dx[6]));
  }
}

TEST(Softcap, RefusesWhatDoesNotFit) {
  const auto call = [](float cap, int64_t n, DType dtype) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      softcap_forward(c.ctx(), c.output("y", {n}, DType::f32), c.output("x", {4}, dtype), cap);
    });
  };
  expect_error(ErrorCode::usage, {"a soft cap above 0", "0", "leave the soft cap out"},
               [&] { call(0, 4, DType::f32); });
  expect_error(ErrorCode::shape, {"y of the shape of x", "y (5) f32, where x is x (4) f32"},
               [&] { call(1, 5, DType::f32); });
  expect_error(ErrorCode::unsupported, {"x of dtype f32", "x (4) bf16"},
               [&] { call(1, 4, DType::bf16); });
}

}  // namespace
}  // namespace snug::test
