// On the CPU and in the emulator against the formula of TRL in double, with complex-step slopes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "layers/ops/reward_loss_simt.h"
#include "layers/ops/reward_loss_value.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"
#include "tests/support/gradient.h"
#include "tests/support/reference/pair_loss.h"

namespace snug::test {
namespace {

struct Variant {
  int64_t pairs = 7;
  double center = 0, size = 1;
  DType gradient = DType::f32;
  int threads = 64;
  bool shifted = false;
};

// trl/trainer/reward_trainer.py, compute_loss, of a pair.
template <class T>
T reward_loss_reference(const T& chosen, const T& rejected, double margin, double center) {
  const T sum = chosen + rejected;
  return -log_sigmoid_reference(chosen - rejected - margin) + center * sum * sum;
}

// Every fifth pair is none, every third has a margin.
struct Data {
  explicit Data(const Variant& v) : rewards(normal_values(2 * v.pairs, 1, DType::f32, v.size)) {
    state.inverse_tokens = 1.0f / 7;
    state.loss_scale = 4;
    state.loss_sum = loss_sum = 2.5;
    state.loss_tokens = loss_tokens = 3;
    const double factor = double{state.inverse_tokens} * state.loss_scale;
    for (size_t p = 0; p < static_cast<size_t>(v.pairs); ++p) {
      const bool none = p % 5 == 4;
      const double margin = p % 3 == 1 ? 0.75 : 0;
      margins.push_back(none ? std::numeric_limits<double>::quiet_NaN() : margin);
      margins.push_back(13);  // not read
      const auto f = [&](const auto& x) {
        return reward_loss_reference(x[0], x[1], margin, v.center);
      };
      const Values x{rewards[2 * p], rewards[2 * p + 1]};
      loss.push_back(none ? 0 : f(x));
      loss_sum += loss.back();
      loss_tokens += none ? 0 : 1;
      const Values slope = none ? Values{0, 0} : complex_step_gradient(f, x);
      for (const double s : slope) drewards.push_back(s * factor);
    }
  }
  Values rewards, margins, loss, drewards;
  StepState state{};
  double loss_sum;
  int64_t loss_tokens;
};

auto body_of(const Variant& v, const Data& d) {
  return [&](auto& c) {
    const View state = c.step_state(d.state);
    const View rewards = c.input("rewards", {2 * v.pairs, 1}, DType::f32, d.rewards);
    const View margins = c.input("margins", {2 * v.pairs, 1}, DType::f32, d.margins);
    const View loss = c.output("loss", {v.pairs}, DType::f32);
    const View drewards = c.output("drewards", {2 * v.pairs, 1}, v.gradient);
    const RewardLoss kind{v.center};
    if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
      reward_loss_forward_on(c.queue(), loss, rewards, margins, kind, state, v.threads);
      reward_loss_backward_on(c.queue(), drewards, rewards, margins, kind, state, v.threads);
    } else {
      reward_loss_forward(c.ctx(), loss, rewards, margins, kind, state);
      reward_loss_backward(c.ctx(), drewards, rewards, margins, kind, state);
    }
  };
}

void check(const Variant& v) {
  SCOPED_TRACE(fmt::format("pairs {} center {} {} threads {}", v.pairs, v.center,
                           to_string(v.gradient), v.threads));
  const Data d(v);
  const auto body = body_of(v, d);
  const Outputs cpu = run_in_all_modes(body), emu = run_in_all_schedules(body, v.shifted),
                place = run_on_emu(body);
  for (const Outputs* out : {&cpu, &emu, &place}) {
    EXPECT_TRUE(close((*out)["loss"], d.loss, tolerance(DType::f32, 1)));
    EXPECT_TRUE(
        close((*out)["drewards"], d.drewards, tolerance(DType::f32, 1) + tolerance(v.gradient, 1)));
    const StepState s = out->state();
    EXPECT_NEAR(s.loss_sum, d.loss_sum, d.loss_sum * tolerance(DType::f32, 1));
    EXPECT_EQ(s.loss_tokens, d.loss_tokens);
  }
  EXPECT_EQ(cpu.ops, (std::vector<std::string>{"reward_loss_forward", "reward_loss_backward"}));
}

TEST(RewardLoss, MatchesTrlOnBothPlaces) {
  for (const double center : {0.0, 0.01, 0.5})
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      for (const int64_t pairs : {1, 7, 300})
        check({.pairs = pairs, .center = center, .size = 3, .gradient = t});
  for (const int threads : kBlockSizes)
    check({.pairs = 71, .center = 0.1, .threads = threads, .shifted = true});
}

// No overflow inside, and a NaN is not hidden.
TEST(RewardLoss, Extremes) {
  for (const double c : {-1e4, 1e4}) {
    const RewardValue v = reward_loss_value(c, -c, 0, 1);
    EXPECT_EQ(v.loss, c < 0 ? 2e4 : 0);
    EXPECT_EQ(v.chosen, c < 0 ? -1 : 0);
    EXPECT_EQ(v.rejected, c < 0 ? 1 : 0);
  }
  EXPECT_TRUE(std::isnan(reward_loss_value(std::nan(""), 1, 0, 0).loss));
  EXPECT_TRUE(std::isnan(reward_loss_value(1, std::nan(""), 0, 0).chosen));
}

TEST(RewardLoss, RefusesWhatDoesNotFit) {
  const auto run = [](int64_t rows, int64_t width, double margin) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      const View rewards = c.input("rewards", {rows, width}, DType::f32,
                                   Values(static_cast<size_t>(rows * width), 0.5));
      const View margins = c.input("margins", {rows, width}, DType::f32,
                                   Values(static_cast<size_t>(rows * width), margin));
      reward_loss_forward(c.ctx(), c.output("loss", {rows / 2}, DType::f32), rewards, margins, {},
                          c.step_state(StepState{}));
    });
  };
  run(4, 1, 0.5);
  EXPECT_ERROR(run(3, 1, 0), ErrorCode::shape, "rewards of shape (2P,1)", "rewards",
               "check the pairs of the batch");
  EXPECT_ERROR(run(2, 1, std::numeric_limits<double>::infinity()), ErrorCode::data,
               "margins that are numbers", "of pair 0 of margins", "check the margins of the data");
}

}  // namespace
}  // namespace snug::test
