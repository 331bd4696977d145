// An optimizer that keeps other weights than it trains (schedule_free_*): evaluation and what is saved
// are of the kept ones, and no step sees that they were there.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/tools/session_case.h"
#include "tools/session/warm_up.h"

namespace snug {
namespace {

const test::Tiny kModel{.V = 97, .P = 32, .C = 32, .L = 2, .H = 2, .F = 64};

test::RunOptions options_of(const std::string& optimizer) {
  test::RunOptions o;
  o.decisions.T = 32;
  o.decisions.micro_batch = 2;
  o.decisions.head_rows = 24;
  o.decisions.eval_batch = 2;
  o.decisions.max_grad_norm = 1.0;
  o.decisions.loss_scaling.init_scale = 64;  // a step that is skipped would show nothing
  o.optimizer.name = optimizer;
  o.optimizer.learning_rate = 1e-2;
  o.optimizer.weight_decay = 0.1;
  o.optimizer.args = {{"warmup_steps", 3}};
  o.global_batch = 4;
  return o;
}

struct Home {
  const char* name;
  void (*set)(test::RunOptions&);
};
const Home kHomes[] = {
    {"device", [](test::RunOptions&) {}},
    {"packed", [](test::RunOptions& o) { o.decisions.packed_weights = WeightPacking::both; }},
    {"states with the host", [](test::RunOptions& o) { o.decisions.offload_optimizer = true; }},
    {"weights with the host",
     [](test::RunOptions& o) {
       o.decisions.offload_optimizer = o.decisions.offload_params = true;
     }},
    {"gradients with the host", [](test::RunOptions& o) { o.decisions.offload_gradients = true; }},
    {"the emulator", [](test::RunOptions& o) { o.settings.target = Place::emu; }},
};

// What two runs leave that differ in whether weights are kept between the steps.
struct Left {
  std::vector<double> losses, evaluations;
  std::vector<float> kept;
};

Left left_by(const Model& model, const test::RunOptions& o, bool each_step) {
  test::SessionRun run(model, o);
  Session& s = run.session();
  Left left;
  for (int64_t step = 0; step < 4; ++step) {
    left.losses.push_back(run.train_step(step));
    if (!each_step) continue;
    const std::vector<float> trained = run.weights();
    // Whatever the step found, and once for all.
    s.state().found_inf = 1;
    const StepState before = s.state();
    s.keep_weights();
    const std::vector<float> kept = run.weights();
    s.keep_weights();
    EXPECT_TRUE(test::same_bits(run.weights(), kept));
    EXPECT_EQ(s.state().found_inf, 1);
    EXPECT_EQ(s.state().updates, before.updates);
    s.state().found_inf = 0;
    // By hand, x = y - (1 / beta - 1) (z - y), which after one step are the same.
    const auto ratio = static_cast<float>(1.0 / 0.9 - 1.0);
    size_t at = 0, apart = 0, wrong = 0;
    for (int i = 0; i < model.params().size(); ++i) {
      const ParamInfo& p = model.params()[i];
      const float* const d = s.optimizer_state().stored(0, p.offset).as<const float>();
      for (int64_t j = 0; j < p.real_elements(); ++j, ++at) {
        const float away = ratio * d[j];
        wrong += kept[at] != trained[at] - away;
        apart += kept[at] != trained[at];
      }
    }
    EXPECT_EQ(wrong, 0u) << "step " << step;
    EXPECT_EQ(apart == 0, step == 0) << "step " << step;
    left.evaluations.push_back(run.evaluate());
  }
  s.keep_weights();
  left.kept = run.weights();
  left.evaluations.push_back(run.evaluate());
  return left;
}

TEST(KeptWeights, AreThoseOfTheAverageAndNoStepSeesThem) {
  for (const char* optimizer : {"schedule_free_adamw", "schedule_free_sgd"})
    for (const char* precision : {"fp32", "bf16", "fp16"}) {
      const Model model(test::tiny_spec(kModel), parse_precision(precision));
      const Left plain = left_by(model, options_of(optimizer), false);
      for (const Home& home : kHomes) {
        SCOPED_TRACE(std::string(optimizer) + " " + precision + " " + home.name);
        test::RunOptions o = options_of(optimizer);
        home.set(o);
        if (o.settings.target == Place::emu && std::string_view(precision) != "fp32") continue;
        const Left each = left_by(model, o, true);
        if (o.settings.target == Place::emu) continue;  // whose sums have an order of their own
        EXPECT_TRUE(test::same_bits(each.losses, plain.losses));
        EXPECT_TRUE(test::same_bits(each.kept, plain.kept));
        EXPECT_EQ(each.evaluations.back(), plain.evaluations.back());
      }
    }
}

// What ran before weights were loaded shows in none of them.
TEST(KeptWeights, ALoadedSessionHasThem) {
  const Model model(test::tiny_spec(kModel), parse_precision("fp32"));
  test::SessionRun run(model, options_of("schedule_free_adamw"));
  Session& s = run.session();
  for (int64_t step = 0; step < 3; ++step) run.train_step(step);
  s.keep_weights();
  const std::vector<float> kept = run.weights();
  const StepState before = s.state();
  std::vector<float> all(static_cast<size_t>(s.master().elements()));
  std::memcpy(all.data(), s.master().data, all.size() * sizeof(float));
  warm_up(s);
  std::memcpy(s.master().data, all.data(), all.size() * sizeof(float));
  s.state() = before;
  s.load();
  s.keep_weights();
  EXPECT_TRUE(test::same_bits(run.weights(), kept));
}

// In backward too, where the update is done before the step ends.
TEST(KeptWeights, AreKeptWhereBlocksAreUpdatedInBackward) {
  const Model model(test::tiny_spec(kModel), parse_precision("bf16"));
  test::RunOptions o = options_of("schedule_free_adamw");
  o.decisions.micro_batch = o.global_batch;
  o.decisions.max_grad_norm = 0;
  const Left behind = left_by(model, o, false);
  o.decisions.update_in_backward = true;
  const Left within = left_by(model, o, true);
  EXPECT_TRUE(test::same_bits(within.losses, behind.losses));
  EXPECT_TRUE(test::same_bits(within.kept, behind.kept));
}

}  // namespace
}  // namespace snug
