// The loss scale against torch.amp.GradScaler, and what a skipped step leaves alone.
#include <cmath>
#include <limits>

#include "optim/loss_scaling.h"
#include "tests/optim/optim_case.h"
#include "tests/support/folders.h"

namespace snug::test {
namespace {

nlohmann::json golden() {
  const std::string path = source_folder() + "/tests/golden/grad_scaler.json";
  return parse_json_file(path);
}

LossScaling scaling_of(const nlohmann::json& settings) {
  LossScaling s;
  s.init_scale = settings.at("init_scale");
  s.growth_factor = settings.at("growth_factor");
  s.backoff_factor = settings.at("backoff_factor");
  s.growth_interval = settings.at("growth_interval");
  s.min_scale = 0x1p-100;  // PyTorch has no smallest scale
  return s;
}

// A whole step as a session runs it, on one parameter whose gradient may overflow.
struct Step {
  Values master{1, -2, 3}, m{0, 0, 0}, v{0, 0, 0};
  StepState state = plain_state();

  void run(const LossScaling& scaling, bool overflow, bool all_modes) {
    const ParamTable table = table_of({3});
    const auto spans = whole_parameter_spans(table);
    const auto flat = static_cast<size_t>(table.flat_elements());
    OptimizerConfig config;
    config.name = "adamw";
    Values gradients(flat, 0.0);
    for (size_t i = 0; i < 3; ++i)
      gradients[i] = as_f32({0.25 * static_cast<double>(i + 1) *
                             std::min(1e30, static_cast<double>(state.loss_scale))})[0];
    if (overflow) gradients[2] = std::numeric_limits<double>::infinity();
    const auto padded = [&](Values x) {
      x.resize(flat, 0.0);
      return x;
    };
    const Body body = [&](Case& c) {
      const auto optimizer = make_optimizer(config);
      const auto n = static_cast<int64_t>(flat);
      UpdateTargets t;
      t.master = c.inout("master", {n}, DType::f32, padded(master));
      t.gradients = c.inout("gradients", {n}, DType::f32, gradients);
      const View a = c.inout("m", {n}, DType::f32, padded(m));
      const View b = c.inout("v", {n}, DType::f32, padded(v));
      StepState s = state;
      optimizer->prepare_step(s);
      const View view = c.step_state(s);
      CaseStore store(spans, {a, b});
      gradient_norm(c.ctx(), t.gradients, spans, view);
      clip(c.ctx(), view, 1.0);
      optimizer->update(c.ctx(), t, store, view);
      update_loss_scale(c.ctx(), view, scaling);
    };
    const Outputs out = all_modes ? run_in_all_modes(body) : run_on_plan_and_cpu({}, body);
    master = out["master"];
    m = out["m"];
    v = out["v"];
    for (Values* x : {&master, &m, &v}) x->resize(3);
    state = out.state();
    EXPECT_EQ(state.found_inf, overflow);
    if (!state.found_inf) ++state.updates;
  }
};

TEST(LossScaling, TheScalesOfPyTorch) {
  const nlohmann::json cases = golden();
  ASSERT_EQ(cases.size(), 4u);
  for (const auto& [name, c] : cases.items()) {
    SCOPED_TRACE(name);
    const LossScaling scaling = scaling_of(c.at("settings"));
    const auto overflow = c.at("overflow").get<std::vector<bool>>();
    const auto scales = c.at("scales").get<std::vector<double>>();
    const auto trackers = c.at("trackers").get<std::vector<int64_t>>();
    const auto updates = c.at("updates").get<std::vector<int64_t>>();
    ASSERT_GE(overflow.size(), 60u);
    Step step;
    step.state.loss_scale = scaling.first_scale();
    for (size_t i = 0; i < overflow.size(); ++i) {
      const Values master = step.master, m = step.m, v = step.v;
      step.run(scaling, overflow[i], i % 8 == 0);
      ASSERT_EQ(static_cast<double>(step.state.loss_scale), scales[i]) << "step " << i;
      ASSERT_EQ(step.state.growth_tracker, trackers[i]) << "step " << i;
      ASSERT_EQ(step.state.updates, updates[i]) << "step " << i;
      // A skipped step leaves every bit; any other moves them.
      ASSERT_EQ(step.master == master && step.m == m && step.v == v, overflow[i]) << "step " << i;
    }
  }
}

// Skipped steps do not count for the bias correction: with them or without, the weights are those
// of the good steps. Scales are powers of two, so that they leave no rounding.
TEST(LossScaling, ASkippedStepIsAsIfItHadNotBeen) {
  LossScaling scaling;
  scaling.init_scale = 0x1p40;
  scaling.growth_interval = 3;
  Step some, all;
  some.state.loss_scale = all.state.loss_scale = scaling.first_scale();
  for (int i = 0; i < 12; ++i) {
    const bool overflow = i < 4 || i == 7;
    some.run(scaling, overflow, false);
    if (!overflow) all.run(scaling, false, false);
  }
  EXPECT_EQ(some.state.updates, 7);
  EXPECT_EQ(some.master, all.master);
  EXPECT_EQ(some.m, all.m);
  EXPECT_EQ(some.v, all.v);
  EXPECT_LT(some.state.loss_scale, all.state.loss_scale);
}

TEST(LossScaling, TheScaleEndsAtItsSmallest) {
  LossScaling scaling;
  scaling.init_scale = 8;
  scaling.min_scale = 3;
  Step step;
  step.state.loss_scale = scaling.first_scale();
  step.run(scaling, true, false);
  EXPECT_EQ(step.state.loss_scale, 4.0f);
  EXPECT_FALSE(scaling.exhausted(step.state.loss_scale));
  step.run(scaling, true, false);
  EXPECT_EQ(step.state.loss_scale, 3.0f);
  EXPECT_TRUE(scaling.exhausted(step.state.loss_scale));
}

TEST(LossScaling, AFixedScaleStays) {
  LossScaling scaling;
  scaling.fixed_scale = 48;
  scaling.growth_interval = 1;
  EXPECT_EQ(scaling.first_scale(), 48.0f);
  EXPECT_TRUE(scaling.exhausted(48.0f));
  Step step;
  step.state.loss_scale = scaling.first_scale();
  step.run(scaling, false, true);
  step.run(scaling, true, true);
  EXPECT_EQ(step.state.loss_scale, 48.0f);
  EXPECT_EQ(step.state.growth_tracker, 0);
}

TEST(LossScaling, ErrorTexts) {
  const auto refused = [](auto change, std::initializer_list<const char*> parts) {
    LossScaling s;
    change(s);
    expect_error(ErrorCode::usage, parts, [&] { check_loss_scaling(s); });
  };
  EXPECT_NO_THROW(check_loss_scaling({}));
  for (const double scale : {-1.0, 1e300, 1e-300, std::nan("")})
    refused([&](LossScaling& s) { s.fixed_scale = scale; },
            {"loss_scale of 0, or a finite one above 0", "loss_scale=0"});
  refused([](LossScaling& s) { s.init_scale = 0; },
          {"init_scale above 0 and finite", "init_scale: 0", "init_scale=65536"});
  refused([](LossScaling& s) { s.min_scale = 0; }, {"min_loss_scale above 0 and finite"});
  refused([](LossScaling& s) { s.growth_factor = 1; },
          {"growth_factor above 1", "growth_factor: 1", "growth_factor=2"});
  refused([](LossScaling& s) { s.backoff_factor = 1; },
          {"backoff_factor in (0, 1)", "backoff_factor: 1", "backoff_factor=0.5"});
  refused([](LossScaling& s) { s.growth_interval = 0; },
          {"growth_interval of 1 to 2^31 - 1", "growth_interval: 0", "growth_interval=2000"});
  refused([](LossScaling& s) { s.min_scale = 131072; },
          {"min_loss_scale of at most init_scale", "min_loss_scale: 131072, init_scale: 65536"});
}

}  // namespace
}  // namespace snug::test
