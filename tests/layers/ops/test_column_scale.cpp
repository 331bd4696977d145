// On the CPU and in the emulator: forward against the formula in double, backward against complex steps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/kernels/row_chunks.h"
#include "layers/ops/column_scale.h"
#include "layers/ops/column_scale_simt.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"
#include "tests/support/gradient.h"

namespace snug::test {
namespace {

template <class S>
std::vector<S> scaled(const std::vector<S>& v, const std::vector<S>& g, const Values& b) {
  std::vector<S> y(v.size());
  for (size_t i = 0; i < v.size(); ++i) {
    const size_t c = i % g.size();
    y[i] = g[c] * v[i];
    if (!b.empty()) y[i] += b[c];
  }
  return y;
}

struct ScaleVariant {
  int64_t N, C;
  bool bias;
};

const ScaleVariant kScaleVariants[] = {
    {1, 1, true}, {3, 7, false}, {33, 40, true}, {70, 96, false}, {600, 33, true}};

TEST(ColumnScale, MatchesTheFormulaAndItsSlopes) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const ScaleVariant& shape : kScaleVariants) {
      const int64_t N = shape.N, C = shape.C;
      SCOPED_TRACE(fmt::format("{}x{} {}", N, C, to_string(t)));
      const Values v = normal_values(N * C, 1, t), dy = normal_values(N * C, 2, t),
                   g = normal_values(C, 3), b = normal_values(C, 4, t);
      const auto objective = [&]<class S>(const std::vector<S>& x, const std::vector<S>& factors) {
        S sum = 0;
        const std::vector<S> y = scaled<S>(x, factors, {});
        for (size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
        return sum;
      };
      const auto some = sample_indices(v.size(), 60);
      const Values dv = complex_step_gradient(
          [&](const auto& x) { return objective(x, widen<Complex>(g)); }, v, some);
      const Values dg =
          complex_step_gradient([&](const auto& x) { return objective(widen<Complex>(v), x); }, g);
      const auto body = [&](auto& c) {
        const View of_v = c.input("v", {N, C}, t, v), of_g = c.input("g", {C}, DType::f32, g),
                   of_b = c.input("b", {C}, t, b), gradient = c.inout("dv", {N, C}, t, dy),
                   y = c.output("y", {N, C}, t), of_dg = c.output("dg", {C}, DType::f32);
        const View added = shape.bias ? of_b : View();
        if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
          const View partial = c.output("partial", {row_chunks(N), C}, DType::f32);
          column_scale_on(c.queue(), y, of_v, of_g, added, 64);
          column_scale_sum_on(c.queue(), of_dg, partial, gradient, of_v, 64);
          column_scale_on(c.queue(), gradient, gradient, of_g, View(), 64);
        } else {
          column_scale_forward(c.ctx(), y, of_v, of_g, added);
          column_scale_backward(c.ctx(), gradient, of_dg, gradient, of_v, of_g);
        }
      };
      const Outputs out = run_in_all_modes(body);
      for (const Outputs& o : {out, run_in_all_schedules(body)}) {
        EXPECT_TRUE(close(o["y"], scaled(v, g, shape.bias ? b : Values()), tolerance(t, 2)));
        EXPECT_TRUE(close(pick(o["dv"], some), dv, tolerance(t, 1)));
        EXPECT_TRUE(close(o["dg"], dg, tolerance(DType::f32, N)));
      }
    }
}

TEST(ColumnScale, RefusesOtherShapes) {
  const auto call = [](Shape y, Shape g, DType of_g) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      column_scale_forward(c.ctx(), c.output("y", y, DType::f32), c.output("v", {4, 3}, DType::f32),
                           c.output("g", g, of_g), {});
    });
  };
  expect_error(ErrorCode::shape, {"y", "(4,4)"}, [&] { call({4, 4}, {3}, DType::f32); });
  expect_error(ErrorCode::shape, {"g", "(4)"}, [&] { call({4, 3}, {4}, DType::f32); });
  expect_error(ErrorCode::unsupported, {"g", "bf16"}, [&] { call({4, 3}, {3}, DType::bf16); });
}

}  // namespace
}  // namespace snug::test
