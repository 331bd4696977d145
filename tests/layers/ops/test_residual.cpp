#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/core/isa.h"
#include "layers/ops/dropout_mask.h"
#include "layers/ops/residual.h"
#include "tests/support/case.h"
#include "tests/support/errors.h"
#include "tests/support/reference/dropout.h"

namespace snug::test {
namespace {

struct Sizes {
  int64_t b, t, c;
};
constexpr Sizes kSizes[] = {{1, 1, 1},  {5, 1, 3},   {1, 17, 31}, {2, 65, 33},
                            {2, 3, 64}, {1, 5, 768}, {1, 3, 150}, {2, 1, 300}};

StepState some_state(int64_t first_sample = 3) {
  StepState s{};
  s.seed = 0x123456789abcdefull;
  s.step = 1234567890123;
  s.first_sample = first_sample;
  return s;
}

Values factors(const Sizes& s, const DropoutSpec& spec, const StepState& state) {
  return dropout_factors_reference(s.b, s.t, s.c, spec.p, state.seed,
                                   static_cast<uint64_t>(state.step), spec.site,
                                   static_cast<uint64_t>(state.first_sample));
}

void check_dropout_op(const Sizes& s, DType t, float p, bool in_place) {
  SCOPED_TRACE(fmt::format("C{}_{}_p{}", s.c, to_string(t), p));
  const int64_t n = s.b * s.t;
  const StepState state = some_state();
  const DropoutSpec spec{p, 11};
  const Values x = normal_values(n * s.c, 1, t), dy = normal_values(n * s.c, 2, t);
  const Outputs out = run_in_all_modes([&](Case& c) {
    const View vstate = c.step_state(state);
    const View vx = in_place ? c.inout("y", {n, s.c}, t, x) : c.input("x", {n, s.c}, t, x);
    const View vdy = in_place ? c.inout("dx", {n, s.c}, t, dy) : c.input("dy", {n, s.c}, t, dy);
    const View vy = in_place ? vx : c.output("y", {n, s.c}, t);
    const View vdx = in_place ? vdy : c.output("dx", {n, s.c}, t);
    dropout_forward(c.ctx(), vy, vx, s.b, s.t, spec, vstate);
    dropout_backward(c.ctx(), vdx, vdy, s.b, s.t, spec, vstate);
  });
  Values y = factors(s, spec, state), dx = y;
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] *= x[i];
    dx[i] *= dy[i];
  }
  EXPECT_TRUE(close(out["y"], y, tolerance(t, 1)));
  EXPECT_TRUE(close(out["dx"], dx, tolerance(t, 1)));
  EXPECT_EQ(out.flops, 2 * n * s.c);
  EXPECT_EQ(out.bytes_moved, 4 * n * s.c * size_of(t)) << "x to y, dy to dx";
}

// A channel whose number equals p is kept, and dropped for the next larger p: numbers below and
// above a half, where the floats between two of the 2^24 numbers are many, and none.
TEST(Dropout, TheThresholdIsExact) {
  const StepState state = some_state();
  const RandomKey key = random_key(state.seed, static_cast<uint64_t>(state.step), 11);
  constexpr uint32_t kChannels = 600;  // several calls of the generator, and a part of one
  std::vector<uint32_t> channels = {63, 64, 127, 128, 131, 255, 256, 383, 511, 512, 599};
  for (uint32_t c = 0; c < 40; ++c) channels.push_back(c);
  int small = 0, large = 0;
  for (const uint32_t channel : channels) {
    const float u = channel_uniform(key, 3, 0, channel);
    ++(u < 0.5f ? small : large);
    for (const bool above : {false, true}) {
      const float p = above ? std::nextafter(u, 1.0f) : u;
      const DropoutMask mask({p, 11}, state);
      std::vector<DropLoops<float>> all = {drop_loops_avx2<float>()};
      if (use_avx512()) all.push_back(drop_loops_avx512<float>());
      for (const auto& loops : all) {
        const std::vector<float> x(kChannels, 1.0f);
        std::vector<float> y(kChannels);
        loops.drop(y.data(), x.data(), mask.row(0, 0), kChannels);
        EXPECT_EQ(y[channel] != 0, !above) << channel << " " << u;
        for (uint32_t c = 0; c < kChannels; ++c)
          EXPECT_EQ(y[c] != 0, channel_uniform(key, 3, 0, c) >= p) << c << " " << p;
      }
    }
  }
  EXPECT_GT(small, 5);
  EXPECT_GT(large, 5);
}

TEST(Dropout, DropsByTheKey) {
  for (const Sizes& s : kSizes)
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      for (const float p : {0.1f, 0.75f}) check_dropout_op(s, t, p, false);
  check_dropout_op(kSizes[3], DType::f32, 0.5f, true);
  check_dropout_op(kSizes[3], DType::bf16, 0.5f, true);
  check_dropout_op(kSizes[3], DType::f16, 0.5f, true);
}

Values dropped_ones(const Sizes& s, const DropoutSpec& spec, const StepState& state) {
  const int64_t n = s.b * s.t;
  return run_on_plan_and_cpu({}, [&](Case& c) {
    dropout_forward(c.ctx(), c.output("y", {n, s.c}, DType::f32),
                    c.input("x", {n, s.c}, DType::f32, Values(n * s.c, 1.0)), s.b, s.t, spec,
                    c.step_state(state));
  })["y"];
}

TEST(Dropout, MaskIsTheSameUnderAnySplitOfTheBatch) {
  const DropoutSpec spec{0.3f, 5};
  const Values whole = dropped_ones({4, 7, 37}, spec, some_state(0));
  Values parts = dropped_ones({2, 7, 37}, spec, some_state(0));
  const Values second = dropped_ones({2, 7, 37}, spec, some_state(2));
  EXPECT_NE(parts, second);
  parts.insert(parts.end(), second.begin(), second.end());
  EXPECT_EQ(whole, parts);
}

TEST(Dropout, MaskDependsOnEveryPartOfTheKey) {
  const Sizes s{1, 2, 64};
  const Values base = dropped_ones(s, {0.5f, 5}, some_state());
  EXPECT_EQ(base, dropped_ones(s, {0.5f, 5}, some_state()));
  StepState other = some_state();
  other.step += 1;
  EXPECT_NE(base, dropped_ones(s, {0.5f, 5}, other));
  other = some_state();
  other.seed += 1;
  EXPECT_NE(base, dropped_ones(s, {0.5f, 5}, other));
  EXPECT_NE(base, dropped_ones(s, {0.5f, 6}, some_state()));
  EXPECT_NE(Values(base.begin(), base.begin() + 64), Values(base.begin() + 64, base.end()));
}

// The share kept is binomial: within five standard deviations of 1 - p.
TEST(Dropout, KeepsTheRightShare) {
  for (const float p : {0.1f, 0.5f, 0.9f}) {
    const Sizes s{2, 50, 1000};
    double kept = 0;
    for (const double v : dropped_ones(s, {p, 1}, some_state())) kept += v != 0;
    const double n = static_cast<double>(s.b * s.t * s.c);
    EXPECT_NEAR(kept / n, 1 - p, 5 * std::sqrt(p * (1 - p) / n)) << p;
  }
}

TEST(Dropout, DropsWhatIsNotFinite) {
  const Outputs out = run_in_all_modes([&](Case& c) {
    dropout_forward(
        c.ctx(), c.output("y", {1, 64}, DType::f32),
        c.input("x", {1, 64}, DType::f32, Values(64, std::numeric_limits<double>::infinity())), 1,
        1, {0.5f, 0}, c.step_state(some_state()));
  });
  for (const double v : out["y"]) EXPECT_TRUE(v == 0 || std::isinf(v));
}

void check_residual(const Sizes& s, DType t, float p, int alias) {
  SCOPED_TRACE(fmt::format("C{}_{}_p{}", s.c, to_string(t), p));
  const int64_t n = s.b * s.t;
  const StepState state = some_state();
  const DropoutSpec spec{p, 2};
  const Values x = normal_values(n * s.c, 1, t), branch = normal_values(n * s.c, 2, t);
  const Outputs out = run_in_all_modes([&](Case& c) {
    const Shape shape{n, s.c};
    const View vx = alias == 1 ? c.inout("y", shape, t, x) : c.input("x", shape, t, x);
    const View vbranch =
        alias == 2 ? c.inout("y", shape, t, branch) : c.input("branch", shape, t, branch);
    const View vy = alias == 1 ? vx : alias == 2 ? vbranch : c.output("y", shape, t);
    residual_forward(c.ctx(), vy, vx, vbranch, s.b, s.t, spec,
                     p > 0 ? c.step_state(state) : View());
  });
  Values y = factors(s, spec, state);
  for (size_t i = 0; i < y.size(); ++i) y[i] = x[i] + branch[i] * (p > 0 ? y[i] : 1.0);
  EXPECT_TRUE(close(out["y"], y, tolerance(t, 1)));
  EXPECT_EQ(out.ops,
            std::vector<std::string>{p > 0 ? "dropout_residual_forward" : "residual_forward"});
}

TEST(Residual, AddsTheDroppedBranch) {
  for (const Sizes& s : kSizes)
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      for (const float p : {0.0f, 0.2f}) check_residual(s, t, p, 0);
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const float p : {0.0f, 0.2f})
      for (const int alias : {1, 2}) check_residual(kSizes[3], t, p, alias);
}

TEST(Residual, RefusesWhatDoesNotFit) {
  const DType f32 = DType::f32;
  const auto residual = [&](Shape y, Shape branch, int64_t b, float p, bool state) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      residual_forward(c.ctx(), c.output("y", y, f32), c.output("x", {6, 4}, f32),
                       c.output("branch", branch, f32), b, 3, {p, 0},
                       state ? c.step_state(some_state()) : View());
    });
  };
  expect_error(ErrorCode::shape, {"y of shape (N=B*T,C)=(6,4)", "y (6,5) f32"}, [&] {
    residual({6, 5}, {6, 4}, 2, 0, true);
  });
  expect_error(ErrorCode::shape, {"branch of shape (N=B*T,C)=(6,4)", "branch (5,4) f32"}, [&] {
    residual({6, 4}, {5, 4}, 2, 0, true);
  });
  expect_error(ErrorCode::shape, {"x of shape (N=B*T,C)=(9,4)", "x (6,4) f32"}, [&] {
    residual({6, 4}, {6, 4}, 3, 0, true);
  });
  expect_error(ErrorCode::shape, {"state of shape (bytes)"}, [&] {
    residual({6, 4}, {6, 4}, 2, 0.5f, false);
  });
  for (const float p : {1.0f, -0.1f, std::nanf("")})
    expect_error(ErrorCode::usage, {"a dropout probability of [0,1)", "p = ", "config"}, [&] {
      residual({6, 4}, {6, 4}, 2, p, true);
    });
  expect_error(ErrorCode::usage, {"dropout_backward with a probability above 0", "p = 0"}, [&] {
    run_on_plan_and_cpu({}, [&](Case& c) {
      const View x = c.output("x", {6, 4}, f32);
      dropout_backward(c.ctx(), x, x, 2, 3, {0.0f, 0}, c.step_state(some_state()));
    });
  });
  // What is added is of the stream's type.
  for (const auto& [x, branch] :
       {std::pair{f32, DType::bf16}, {DType::bf16, f32}, {DType::bf16, DType::f16}})
    expect_error(ErrorCode::unsupported, {"branch of dtype ", "branch (6,4) "},
                 [&, x = x, b = branch] {
                   run_on_plan_and_cpu({}, [&](Case& c) {
                     residual_forward(c.ctx(), c.output("y", {6, 4}, x), c.output("x", {6, 4}, x),
                                      c.output("branch", {6, 4}, b), 2, 3, {}, {});
                   });
                 });
  expect_error(ErrorCode::unsupported, {"x of dtype f32|bf16|f16", "x (6,4) u8"}, [&] {
    run_on_plan_and_cpu({}, [&](Case& c) {
      const View x = c.output("x", {6, 4}, DType::u8);
      residual_forward(c.ctx(), x, x, x, 2, 3, {}, {});
    });
  });
}

}  // namespace
}  // namespace snug::test
