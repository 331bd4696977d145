#include <gtest/gtest.h>

#include "engine/core/parallel.h"
#include "tests/support/case.h"
#include "tests/support/errors.h"
#include "tests/support/gradient.h"

namespace snug::test {
namespace {

TEST(Support, RunsABodyOnPlanAndCpu) {
  int runs = 0;
  const Outputs out = run_in_all_modes([&](Case& c) {
    ++runs;
    const View x = c.input("x", {3, 5}, DType::bf16, normal_values(15, 1, DType::bf16));
    const View y = c.output("y", {3, 5}, DType::f32);
    Op op(c.ctx(), "widen", {.flops = 15, .bytes = 90});
    if (!op.run()) return;
    for (int64_t i = 0; i < 15; ++i) y.as<float>()[i] = to_f32(x.as<bf16>()[i]);
  });
  EXPECT_EQ(out["y"], normal_values(15, 1, DType::bf16));
  EXPECT_EQ(out.planned_bytes, 4096);
  EXPECT_EQ(out.flops, 15);
  EXPECT_EQ(out.bytes_moved, 90);
  EXPECT_EQ(out.ops, std::vector<std::string>{"widen"});
  EXPECT_EQ(runs, 2 * 6 + 1);  // six modes, one of them twice
}

// The harness must see each kind of fault.
TEST(Support, SeesAnUnwrittenOutput) {
  Settings poison;
  poison.poison = true;
  const Body lazy = [](Case& c) { c.output("y", {4}, DType::f32); };
  EXPECT_TRUE(std::isnan(run_on_plan_and_cpu(poison, lazy)["y"][3]));
  EXPECT_FALSE(close(run_on_plan_and_cpu(poison, lazy)["y"], {0, 0, 0, 0}, 1));
}

TEST(Support, SeesAWritePastTheEnd) {
  Settings guards;
  guards.guard_bytes = 256;
  expect_error(ErrorCode::internal, {"guard bytes were changed", "tensor y"}, [&] {
    run_on_plan_and_cpu(guards, [](Case& c) {
      const View y = c.output("y", {4}, DType::f32);
      Op op(c.ctx(), "too_far", {});
      if (op.run()) y.as<float>()[4] = 0;
    });
  });
}

TEST(Support, ComparesWithAFloor) {
  EXPECT_TRUE(close({1, 2}, {1, 2.0002}, 1.01e-4));
  EXPECT_FALSE(close({1, 2}, {1, 2.0002}, 0.99e-4));
  EXPECT_TRUE(close({1e-9}, {0}, 1.01e-6));
  EXPECT_FALSE(close({1e-9}, {0}, 0.99e-6));
  EXPECT_FALSE(close({1}, {1, 1}, 1));
  EXPECT_FALSE(close({std::nan("")}, {1}, 1));
}

TEST(Support, ComplexStepIsExact) {
  const Values x{0.3, -1.2};
  const Values g = complex_step_gradient(
      [](const std::vector<Complex>& z) { return std::exp(z[0]) * z[1] + error_function(z[1]); },
      x);
  const double pi = std::acos(-1.0);
  EXPECT_NEAR(g[0], std::exp(0.3) * -1.2, 1e-15);
  EXPECT_NEAR(g[1], std::exp(0.3) + 2 / std::sqrt(pi) * std::exp(-1.44), 1e-15);
  EXPECT_EQ(sample_indices(10, 4), (std::vector<size_t>{0, 3, 6, 9}));
  EXPECT_EQ(sample_indices(1, 4), (std::vector<size_t>{0}));
}

}  // namespace
}  // namespace snug::test
