// The kernels in the emulator against the CPU: updates with the same bits, step after step; the
// norm to the rounding of its sum.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "optim/clip_simt.h"
#include "optim/update_simt.h"
#include "tests/optim/optim_case.h"
#include "tests/support/emu.h"

namespace snug::test {
namespace {

struct Variant {
  std::vector<int64_t> sizes;  // of the parameters; every third is not decayed
  std::string name = "adamw";
  DType weights = DType::f32;
  int64_t updates = 0;
  int threads = 64;
  bool shifted = false;
  bool found_inf = false;
  double momentum = 0.9;
  bool nesterov = false;
  double dampening = 0;
};

UpdateCase case_of(const Variant& v) {
  const ParamTable table = table_of(v.sizes);
  UpdateCase u;
  u.config.name = v.name;
  u.config.weight_decay = 0.1;
  if (v.name == "sgd") {
    u.config.sgd_momentum = v.momentum;
    u.config.sgd_nesterov = v.nesterov;
    u.config.sgd_dampening = v.dampening;
  } else {
    u.config.adam_beta2 = 0.95;
  }
  u.spans = whole_parameter_spans(table);
  const int64_t n = table.flat_elements();
  u.master = normal_values(n, 1);
  u.gradients = normal_values(n, 2, DType::f32, 50);
  u.states = {normal_values(n, 3), normal_values(n, 4)};
  for (double& x : u.states[1]) x *= x;
  u.states[1] = as_f32(u.states[1]);
  u.states.resize(make_optimizer(u.config)->state_names().size());
  // Before the first update the states hold anything.
  if (v.updates == 0)
    for (Values& s : u.states) s.assign(s.size(), std::nan(""));
  u.weights = v.weights;
  u.state = plain_state(0.0123);
  u.state.learning_rate[kGroupNoDecay] = 0.5f;
  u.state.updates = v.updates;
  u.state.loss_scale = 128;
  u.state.clip_factor = 0.3f;
  u.state.found_inf = v.found_inf;
  return u;
}

void check(const Variant& v) {
  SCOPED_TRACE(fmt::format("{} of {} tensors weights {} updates {} threads {} shifted {}", v.name,
                           v.sizes.size(), to_string(v.weights), v.updates, v.threads, v.shifted));
  const UpdateCase u = case_of(v);
  const auto optimizer = make_optimizer(u.config);
  const auto n = static_cast<int64_t>(u.master.size());
  const Outputs cpu = run_on_plan_and_cpu({}, u.body());
  // The op on the place emu finds the same kernels.
  expect_equal_bits(run_on_emu(u.body()), cpu);
  const Outputs out = run_in_all_schedules(
      [&](EmuCase& c) {
        const View master = c.inout("master", {n}, DType::f32, u.master);
        const View gradients = c.inout("gradients", {n}, DType::f32, u.gradients);
        View weights;
        if (v.weights != DType::f32)
          weights = c.inout("weights", {n}, v.weights, Values(u.master.size(), 7.0));
        std::vector<View> states;
        for (size_t k = 0; k < u.states.size(); ++k)
          states.push_back(
              c.inout(optimizer->state_names()[k].c_str(), {n}, DType::f32, u.states[k]));
        std::vector<UpdateSpan> spans;
        for (const StateSpan& s : u.spans) {
          const auto at = [&](const View& flat) { return flat.rows(s.offset, s.elements); };
          UpdateSpan span{at(master), at(gradients), {}, {}, s.group};
          if (weights.defined()) span.weights = at(weights);
          for (size_t k = 0; k < states.size(); ++k) span.states[k] = at(states[k]);
          spans.push_back(span);
        }
        StepState s = u.state;
        optimizer->prepare_step(s);
        optimizer_update_on(c.queue(), u.config, spans, c.step_state(s), v.threads);
      },
      v.shifted);
  ASSERT_EQ(out.all.size(), cpu.all.size());
  for (const Output& o : cpu.all) {
    const Values a = out[o.name], b = cpu[o.name];
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(double)), 0) << o.name;
  }
}

TEST(UpdateSimt, SameBitsAsTheCpu) {
  for (const char* name : {"adamw", "adam", "sgd"})
    for (const DType weights : {DType::f32, DType::bf16, DType::f16}) {
      for (const int64_t updates : {0, 9}) {
        check({.sizes = {130}, .name = name, .weights = weights, .updates = updates});
        check({.sizes = {1, 3, 4, 7}, .name = name, .weights = weights, .updates = updates});
      }
      check(
          {.sizes = {300, 2051, 5}, .name = name, .weights = weights, .updates = 3, .threads = 32});
    }
  for (const int threads : kBlockSizes)
    for (const bool shifted : {false, true})
      check({.sizes = {1001},
             .weights = DType::bf16,
             .updates = 3,
             .threads = threads,
             .shifted = shifted});
  for (const int64_t updates : {0, 2}) {
    check({.sizes = {70, 5}, .name = "sgd", .updates = updates, .momentum = 0});
    check({.sizes = {70, 5}, .name = "sgd", .updates = updates, .nesterov = true});
    check({.sizes = {70, 5}, .name = "sgd", .updates = updates, .dampening = 0.3});
  }
  for (const char* name : {"adamw", "adam", "sgd"})
    check({.sizes = {100}, .name = name, .weights = DType::bf16, .updates = 3, .found_inf = true});
}

// More tensors than one launch takes; some without an element.
TEST(UpdateSimt, ManyTensors) {
  Variant v{.sizes = {}, .updates = 2, .threads = 32};
  for (int i = 0; i < 2 * kSpansOfALaunch + 3; ++i) v.sizes.push_back(i % 7 * 5);
  v.sizes[40] = 1500;
  check(v);
}

TEST(UpdateSimt, RefusesWhatItDoesNotKnow) {
  EmuCase c({}, false);
  UpdateSpan span;
  span.master = span.gradient = span.states[0] = span.states[1] = c.output("m", {4}, DType::f32);
  const View state = c.step_state(plain_state());
  OptimizerConfig unknown;
  unknown.name = "adagrad";
  expect_error(ErrorCode::unsupported,
               {"an optimizer with a kernel: adamw, adam or sgd", "adagrad"}, [&] {
                 optimizer_update_on(c.queue(), unknown, {&span, 1}, state);
               });
  span.weights = c.output("w", {4}, DType::i32);
  expect_error(ErrorCode::unsupported, {"weights of dtype f32, bf16 or f16", "w (4) i32"}, [&] {
    optimizer_update_on(c.queue(), {}, {&span, 1}, state);
  });
}

TEST(ClipSimt, NormAndFactor) {
  const std::vector<StateSpan> spans = {
      {0, 0, 0, 100}, {1, 0, 100, 30}, {2, 0, 256, 700}, {3, 0, 1024, 0}, {4, 0, 1100, 66000}};
  constexpr int64_t n = 67200;
  for (const double max_norm : {0.0, 1.0, 1e9})
    for (const int64_t bad : {-1, 130, 500}) {  // 130 is in a gap
      SCOPED_TRACE(fmt::format("max_norm {} bad {}", max_norm, bad));
      Values gradients = normal_values(n, 1, DType::f32, 3);
      if (bad >= 0) gradients[static_cast<size_t>(bad)] = INFINITY;
      StepState s = plain_state();
      s.loss_scale = 16;
      s.found_inf = 1;
      s.first_bad_element = 7;
      s.grad_square_sum = 5;
      s.clip_factor = 9;
      const auto body = [&](auto& c) {
        const View g = c.inout("gradients", {n}, DType::f32, gradients), state = c.step_state(s);
        if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
          const View partial = c.output("partial", {2 * square_chunks(n)}, DType::f64);
          gradient_norm_on(c.queue(), g, spans, partial, state, 64);
          clip_on(c.queue(), state, max_norm);
        } else {
          gradient_norm(c.ctx(), g, spans, state);
          clip(c.ctx(), state, max_norm);
        }
      };
      const StepState emu = run_in_all_schedules(body).state();
      const StepState cpu = run_on_plan_and_cpu({}, body).state();
      EXPECT_EQ(emu.found_inf, bad == 500);
      EXPECT_EQ(emu.first_bad_element, bad == 500 ? 500 : -1);
      EXPECT_EQ(cpu.first_bad_element, emu.first_bad_element);
      if (bad == 500) {
        EXPECT_FALSE(std::isfinite(emu.grad_square_sum));
        EXPECT_EQ(emu.clip_factor, 1.0f);
        continue;
      }
      // Two sums of n squares in double; the factor rounds once to float.
      EXPECT_NEAR(emu.grad_square_sum, cpu.grad_square_sum, 2 * n * 0x1p-53 * cpu.grad_square_sum);
      EXPECT_NEAR(emu.clip_factor, cpu.clip_factor, 0x1p-23 * cpu.clip_factor);
      EXPECT_EQ(emu.clip_factor == 1.0f, max_norm != 1.0);
    }
}

TEST(ClipSimt, TheNextLossScaleIsThatOfTheCpu) {
  LossScaling config;
  config.growth_interval = 3;
  config.min_scale = 4;
  for (const float scale : {1.0f, 4.0f, 6.0f, 65536.0f, 0x1p127f})
    for (const int32_t found_inf : {0, 1})
      for (const int32_t tracker : {0, 1, 2}) {
        StepState s = plain_state();
        s.loss_scale = scale;
        s.found_inf = found_inf;
        s.growth_tracker = tracker;
        const auto body = [&](Case& c) { update_loss_scale(c.ctx(), c.step_state(s), config); };
        expect_equal_bits(run_on_emu(body), run_on_plan_and_cpu({}, body));
      }
}

}  // namespace
}  // namespace snug::test
