// Schedules against transformers, and the errors of their settings.
#include <cmath>
#include <limits>

#include "optim/schedule.h"
#include "tests/optim/optim_case.h"

namespace snug::test {
namespace {

ScheduleConfig config_of(const nlohmann::json& j) {
  ScheduleConfig c;
  c.type = j.at("lr_scheduler_type").get<std::string>();
  c.warmup_steps = c.type == "constant" ? 0 : j.at("warmup_steps").get<int64_t>();
  c.total_steps = j.at("total_steps");
  c.learning_rate = 1.0;
  if (j.contains("min_lr_rate")) c.min_lr_ratio = j.at("min_lr_rate").get<double>();
  if (j.contains("min_lr_ratio")) c.min_lr_ratio = j.at("min_lr_ratio").get<double>();
  if (j.contains("lr_end")) c.min_lr_ratio = j.at("lr_end").get<double>();
  if (j.contains("num_stable_steps")) c.stable_steps = j.at("num_stable_steps").get<int64_t>();
  if (j.contains("num_decay_steps")) c.decay_steps = j.at("num_decay_steps").get<int64_t>();
  if (j.contains("decay_type")) c.decay_type = j.at("decay_type").get<std::string>();
  if (j.contains("num_cycles")) c.num_cycles = j.at("num_cycles").get<double>();
  if (j.contains("power")) c.power = j.at("power").get<double>();
  return c;
}

TEST(OptimSchedule, EqualsTransformers) {
  const Fixture fixture("optim_schedules");
  ASSERT_EQ(fixture.cases().size(), 13u);
  for (const auto& [name, description] : fixture.cases().items()) {
    SCOPED_TRACE(name);
    const LearningRateSchedule schedule(config_of(description));
    const Values want = fixture.values(name);
    ASSERT_EQ(want.size(), 61u);
    for (size_t t = 0; t < want.size(); ++t)
      EXPECT_NEAR(schedule.factor(static_cast<int64_t>(t)), want[t], 1e-15) << "step " << t;
  }
}

ScheduleConfig of_type(const char* type) {
  ScheduleConfig c;
  c.type = type;
  c.warmup_steps = 10;
  c.total_steps = 100;
  c.learning_rate = 1e-3;
  return c;
}

TEST(OptimSchedule, StaysDefinedAtTheEdges) {
  for (const std::string& name : schedule_names()) {
    SCOPED_TRACE(name);
    for (const int64_t warmup : {0, 10, 100, 200}) {
      ScheduleConfig c = of_type(name.c_str());
      const bool wsd = parse_schedule_type(name) == ScheduleType::warmup_stable_decay;
      if (name == "constant" ? warmup > 0 : wsd && warmup > 100) continue;
      c.warmup_steps = warmup;
      if (name == "cosine_with_min_lr") c.min_lr_ratio = 0.1;
      if (wsd) c.stable_steps = 0;
      const LearningRateSchedule s(c);
      for (const int64_t t : {0, 1, 9, 10, 99, 100, 101, 200, 1000}) {
        EXPECT_GE(s.factor(t), 0.0) << warmup << " " << t;
        EXPECT_LE(s.factor(t), 1.0) << warmup << " " << t;
      }
      if (warmup > 0) {
        EXPECT_EQ(s.factor(0), 0.0);
        EXPECT_NEAR(s.factor(warmup / 2), 0.5, 1e-15);
      }
    }
  }
}

// Beyond what the fixture's cases reach.
TEST(OptimSchedule, TakesItsDefaultsFromTransformers) {
  ScheduleConfig c = of_type("inverse_sqrt");
  EXPECT_NEAR(LearningRateSchedule(c).factor(40), 0.5, 1e-15);  // tau = w
  c.warmup_steps = 0;
  EXPECT_NEAR(LearningRateSchedule(c).factor(30'000), 0.5, 1e-15);  // tau = 10000
  c.timescale = 100;
  EXPECT_NEAR(LearningRateSchedule(c).factor(300), 0.5, 1e-15);

  c = of_type("polynomial");  // ends at 1e-7 of rate, whatever the base rate
  EXPECT_NEAR(LearningRateSchedule(c).factor(100), 1e-4, 1e-18);
  EXPECT_NEAR(LearningRateSchedule(c).factor(55), 0.5 * (1 + 1e-4), 1e-15);

  c = of_type("wsd");  // the stable part is what remains, the decay is a cosine
  c.decay_steps = 20;
  EXPECT_EQ(LearningRateSchedule(c).factor(79), 1.0);
  EXPECT_NEAR(LearningRateSchedule(c).factor(90), 0.5, 1e-15);
  EXPECT_EQ(LearningRateSchedule(c).factor(100), 0.0);
  c.decay_steps.reset();
  c.stable_steps = 70;
  EXPECT_NEAR(LearningRateSchedule(c).factor(90), 0.5, 1e-15);
}

void refused(const ScheduleConfig& c, std::initializer_list<const char*> words) {
  expect_error(ErrorCode::usage, words, [&] { LearningRateSchedule{c}; });
}

TEST(OptimScheduleErrors, NameTheNearestType) {
  refused(of_type("cosin"), {"one of linear, cosine, constant,", "lr_scheduler_type: cosin",
                             "did you mean lr_scheduler_type=cosine?"});
  refused(of_type("warmup-stable-decay"), {"did you mean lr_scheduler_type=warmup_stable_decay?"});
  refused(of_type("step"), {"lr_scheduler_type: step", "lr_scheduler_type=linear"});
  refused(of_type(""), {"lr_scheduler_type: "});
  ScheduleConfig c = of_type("wsd");
  c.decay_steps = 10;
  c.decay_type = "sqrt";
  refused(c,
          {"one of cosine, linear, 1-sqrt", "decay_type: sqrt", "did you mean decay_type=1-sqrt"});
}

TEST(OptimScheduleErrors, RefuseNumbersThatCannotBe) {
  ScheduleConfig c = of_type("constant");
  refused(c, {"constant without warm-up", "warmup_steps: 10", "constant_with_warmup"});
  c = of_type("linear");
  c.warmup_steps = -1;
  refused(c, {"warmup_steps of at least 0", "warmup_steps: -1", "warmup_steps=100"});
  c.warmup_steps = std::numeric_limits<int64_t>::max();
  refused(c, {"at most 1e15"});
  c = of_type("linear");
  c.total_steps = 0;
  refused(c, {"total_steps of at least 1", "total_steps: 0", "max_steps=1000"});
  c = of_type("cosine_with_min_lr");
  refused(c, {"min_lr_ratio for lr_scheduler_type cosine_with_min_lr", "no min_lr_ratio"});
  for (const double ratio : {-0.1, 1.5, std::nan("")}) {
    c.min_lr_ratio = ratio;
    refused(c, {"min_lr_ratio in [0, 1]", "min_lr_ratio: ", "min_lr_ratio=0.1"});
  }
  c = of_type("polynomial");
  c.learning_rate = 1e-8;
  refused(c, {"learning_rate above 1e-7", "learning_rate: 1e-08", "min_lr_ratio=0"});
  c = of_type("polynomial");
  c.power = 0;
  refused(c, {"power above 0", "power: 0", "power=1"});
  c = of_type("cosine");
  c.num_cycles = -1;
  refused(c, {"num_cycles above 0", "num_cycles: -1", "num_cycles=1"});
  c = of_type("inverse_sqrt");
  c.timescale = 0;
  refused(c, {"timescale of at least 1", "timescale: 0"});
  c = of_type("wsd");
  refused(c,
          {"decay_steps or stable_steps for lr_scheduler_type wsd", "neither", "decay_steps=20"});
  c.decay_steps = 91;
  refused(c, {"= total_steps = 100", "10 + -1 + 91", "leave stable_steps out"});
  c.decay_steps = 20;
  c.stable_steps = 69;
  refused(c, {"10 + 69 + 20"});
  c.stable_steps = -1;
  refused(c, {"stable_steps of at least 0"});
}

TEST(OptimScheduleErrors, RefuseWhatTheTypeWouldIgnore) {
  const auto with = [](const char* type, auto set) {
    ScheduleConfig c = of_type(type);
    set(c);
    return c;
  };
  refused(with("cosine", [](auto& c) { c.min_lr_ratio = 0.1; }),
          {"cosine without a least rate", "min_lr_ratio: 0.1", "cosine_with_min_lr"});
  refused(with("linear", [](auto& c) { c.min_lr_ratio = 0.1; }),
          {"only settings that lr_scheduler_type linear uses", "min_lr_ratio"});
  refused(with("linear", [](auto& c) { c.num_cycles = 2; }), {"num_cycles"});
  refused(with("cosine", [](auto& c) { c.power = 2; }), {"power"});
  refused(with("cosine", [](auto& c) { c.timescale = 2; }), {"timescale"});
  refused(with("cosine", [](auto& c) { c.stable_steps = 2; }), {"stable_steps"});
  refused(with("cosine", [](auto& c) { c.decay_steps = 2; }), {"decay_steps"});
  refused(with("cosine", [](auto& c) { c.decay_type = "linear"; }), {"decay_type"});
  refused(with("wsd",
               [](auto& c) {
                 c.decay_steps = 10;
                 c.decay_type = "linear";
                 c.num_cycles = 2;
               }),
          {"num_cycles"});
}

}  // namespace
}  // namespace snug::test
