// The kernel in the emulator against the CPU: the same bits, step after step.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "optim/adamw_simt.h"
#include "tests/optim/optim_case.h"
#include "tests/support/emu.h"

namespace snug::test {
namespace {

struct Variant {
  int64_t n;
  DType weights = DType::f32;
  int64_t updates = 0;
  int group = kGroupDecay;
  int threads = 64;
  bool shifted = false;
  bool found_inf = false;
  DType gradient = DType::f32;
};

void check(const Variant& v) {
  SCOPED_TRACE(fmt::format("n {} weights {} updates {} group {} threads {} shifted {}", v.n,
                           to_string(v.weights), v.updates, v.group, v.threads, v.shifted));
  UpdateCase u;
  u.config.name = "adamw";
  u.config.adam_beta2 = 0.95;
  u.config.weight_decay = 0.1;
  u.spans = {{0, v.group, 0, v.n}};
  u.master = normal_values(v.n, 1);
  u.gradients = normal_values(v.n, 2, v.gradient, 50);
  u.gradient = v.gradient;
  u.states = {normal_values(v.n, 3), normal_values(v.n, 4)};
  for (double& x : u.states[1]) x *= x;
  u.states[1] = as_f32(u.states[1]);
  // Before the first update the moments hold anything.
  if (v.updates == 0) u.states[0].assign(u.states[0].size(), std::nan(""));
  u.weights = v.weights;
  u.state = plain_state(0.0123);
  u.state.learning_rate[kGroupNoDecay] = 0.5f;
  u.state.updates = v.updates;
  u.state.loss_scale = 128;
  u.state.clip_factor = 0.3f;
  u.state.found_inf = v.found_inf;
  const Outputs cpu = run_on_plan_and_cpu({}, u.body());
  const Outputs out = run_in_all_schedules(
      [&](EmuCase& c) {
        AdamwSpan span;
        span.master = c.inout("master", {v.n}, DType::f32, u.master);
        span.gradient = c.inout("gradients", {v.n}, v.gradient, u.gradients);
        if (v.weights != DType::f32)
          span.weights = c.inout("weights", {v.n}, v.weights, Values(u.master.size(), 7.0));
        span.exp_avg = c.inout("exp_avg", {v.n}, DType::f32, u.states[0]);
        span.exp_avg_sq = c.inout("exp_avg_sq", {v.n}, DType::f32, u.states[1]);
        span.group = v.group;
        StepState s = u.state;
        make_optimizer(u.config)->prepare_step(s);
        adamw_update_on(c.queue(), u.config, span, c.step_state(s), v.threads);
      },
      v.shifted);
  for (const char* name : {"master", "gradients", "weights", "exp_avg", "exp_avg_sq"}) {
    if (v.weights == DType::f32 && std::string(name) == "weights") continue;
    const Values a = out[name], b = cpu[name];
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(double)), 0) << name;
  }
}

TEST(AdamwSimt, SameBitsAsTheCpu) {
  for (const DType weights : {DType::f32, DType::bf16, DType::f16})
    for (const int64_t n : {1, 3, 4, 130, 5003}) {
      check({.n = n, .weights = weights});
      check({.n = n, .weights = weights, .updates = 9});
      check({.n = n, .weights = weights, .updates = 9, .gradient = DType::bf16});
    }
  for (const int threads : kBlockSizes)
    for (const bool shifted : {false, true})
      check({.n = 3001,
             .weights = DType::bf16,
             .updates = 3,
             .group = kGroupNoDecay,
             .threads = threads,
             .shifted = shifted});
  check({.n = 100, .weights = DType::bf16, .updates = 3, .found_inf = true});
}

TEST(AdamwSimt, RefusesOtherGradients) {
  EmuCase c({}, false);
  AdamwSpan span;
  span.master = c.output("m", {4}, DType::f32);
  span.gradient = c.output("g", {4}, DType::f16);
  expect_error(ErrorCode::unsupported, {"gradient of dtype f32|bf16", "g (4) f16"},
               [&] { adamw_update_on(c.queue(), {}, span, c.step_state(plain_state())); });
}

TEST(AdamwSimt, RefusesOtherWeights) {
  EmuCase c({}, false);
  AdamwSpan span;
  span.master = c.output("m", {4}, DType::f32);
  span.weights = c.output("w", {4}, DType::f32);
  expect_error(ErrorCode::unsupported, {"weights of dtype bf16 or f16", "w (4) f32"},
               [&] { adamw_update_on(c.queue(), {}, span, c.step_state(plain_state())); });
}

}  // namespace
}  // namespace snug::test
