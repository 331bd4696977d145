// plan=FILE: the run follows the decisions of a plan and comes out as the plan, by its hash.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> planned(const Workspace& w, const std::vector<std::string>& keys) {
  std::vector<std::string> words = w.train_arguments("planned", keys);
  words[0] = "plan";
  words.emplace_back("--json");
  return words;
}

// `snug plan --json > name`.
Json plan_into(const Workspace& w, const std::string& name, const std::vector<std::string>& keys) {
  const Outcome made = run(planned(w, keys));
  EXPECT_EQ(made.code, 0) << made.err;
  spill(w.path(name), made.out);
  return Json::parse(made.out);
}

void expect_same_decisions(const Json& a, const Json& b) {
  EXPECT_EQ(a["hash"], b["hash"]);
  EXPECT_EQ(a["decisions"], b["decisions"]);
  EXPECT_EQ(a["engine_bytes"], b["engine_bytes"]);
  EXPECT_EQ(a["host_bytes"], b["host_bytes"]);
  EXPECT_EQ(a["made_for"], b["made_for"]);
}

struct Choice {
  const char* name;
  std::vector<std::string> keys;
};
void PrintTo(const Choice& c, std::ostream* out) {
  *out << c.name;
}

class PlanFile : public testing::TestWithParam<Choice> {};

// Whatever the keys decided, the file decides again without them: the same plan and the same bits.
TEST_P(PlanFile, IsFollowedWithoutTheKeysThatMadeIt) {
  const Workspace w;
  const std::vector<std::string> common = {"max_steps=3"};
  const Json plan = plan_into(w, "p.json", joined(common, GetParam().keys));
  w.trained("keys", joined(common, GetParam().keys));
  // A key that is left to the planner contradicts nothing.
  const Outcome followed =
      w.trained("followed", joined(common, {"plan=" + w.path("p.json"), "recompute=auto",
                                            "packed_weights=auto", "head_rows=auto"}));
  EXPECT_NE(followed.out.find("every decision is that of the plan " + w.path("p.json")),
            std::string::npos)
      << followed.out;
  expect_same_decisions(w.json("followed/plan.json"), plan);
  expect_planned_is_measured(w, "followed");
  EXPECT_EQ(w.curve("keys"), w.curve("followed"));
  EXPECT_TRUE(slurp(w.path("keys/final/model.safetensors")) ==
              slurp(w.path("followed/final/model.safetensors")));
  w.trained("free", common);
  EXPECT_NE(w.json("free/plan.json")["hash"], plan["hash"]) << "the keys decide something";
  // The run's own plan.json, laid out in other lines, with the keys said again.
  spill(w.path("again.json"), w.json("followed/plan.json").dump());
  w.trained("again", joined(joined(common, GetParam().keys), {"plan=" + w.path("again.json")}));
  expect_same_decisions(w.json("again/plan.json"), plan);
  // And snug plan prints it.
  const Outcome shown = run(planned(w, joined(common, {"plan=" + w.path("p.json")})));
  EXPECT_EQ(shown.code, 0) << shown.err;
  expect_same_decisions(Json::parse(shown.out), plan);
}

INSTANTIATE_TEST_SUITE_P(
    Decisions, PlanFile,
    testing::Values(
        Choice{"MicroBatchAndRecompute", {"per_device_train_batch_size=2", "recompute=block"}},
        Choice{"LayersAndChunks", {"recompute={0: norms+mlp}", "head_rows=24"}},
        Choice{"Offload", {"offload=attention", "recompute=mlp", "offload_optimizer=cpu"}},
        Choice{"Gradients", {"offload_gradients=cpu", "per_device_train_batch_size=2"}},
        Choice{"CopiesAndEvaluation", {"packed_weights=both", "per_device_eval_batch_size=9"}}),
    [](const auto& c) { return std::string(c.param.name); });

TEST(PlanFileRuns, ASmallBudgetsPlanHoldsUnderALargeOne) {
  const Workspace w;
  const std::vector<std::string> keys = {"global_batch_size=32", "max_steps=2"};
  const Json wide = plan_into(w, "wide.json", keys);
  const std::string least = std::to_string(wide["minimum_bytes"].get<int64_t>());
  const Json tight = plan_into(w, "tight.json", joined(keys, {"memory=" + least}));
  ASSERT_NE(tight["hash"], wide["hash"]);
  w.trained("run", joined(keys, {"plan=" + w.path("tight.json")}));
  expect_same_decisions(w.json("run/plan.json"), tight);
  EXPECT_EQ(w.json("run/plan.json")["budget_bytes"], 64 << 20);
  // What the plan needs is the minimum of a run that follows it.
  const int64_t needs = wide["engine_bytes"].get<int64_t>() + wide["runtime_bytes"].get<int64_t>();
  const std::vector<std::string> follow = joined(keys, {"plan=" + w.path("wide.json")});
  w.trained("exact", joined(follow, {"memory=" + std::to_string(needs)}));
  EXPECT_EQ(w.json("exact/plan.json")["minimum_bytes"], needs);
  const Outcome below = w.train("below", joined(follow, {"memory=" + std::to_string(needs - 1)}));
  EXPECT_EQ(below.code, 3);
  EXPECT_NE(below.err.find("try:   memory=" + std::to_string(needs) + " ("), std::string::npos)
      << below.err;
  EXPECT_NE(below.err.find("), or plan=null to plan anew"), std::string::npos) << below.err;
}

TEST(PlanFileRuns, ResumeAndExplainGoOn) {
  const Workspace w;
  const std::vector<std::string> keys = {"max_steps=4", "save_steps=2", "eval_steps=2",
                                         "lr_scheduler_type=constant"};
  plan_into(w, "p.json",
            joined(keys, {"per_device_train_batch_size=3", "recompute=norms", "offload=inputs"}));
  const std::vector<std::string> follow = joined(keys, {"plan=" + w.path("p.json")});
  w.trained("whole", follow);
  w.trained("run", joined(follow, {"max_steps=2"}));
  const std::string resolved = w.path("run/config.resolved.yaml");
  EXPECT_NE(slurp(resolved).find("plan: " + w.path("p.json")), std::string::npos);
  const Outcome resumed = run({"train", "--config", resolved, "resume=latest", "max_steps=4"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(w.json("run/plan.json")["hash"], w.json("whole/plan.json")["hash"]);
  expect_same_run(w, "whole", "run", 4);
  // explain reads the run's own plan.
  fs::remove(w.path("p.json"));
  const Outcome peak = run({"explain", "--run", w.path("run"), "--peak"});
  EXPECT_EQ(peak.code, 0) << peak.err;
  // A benchmark has fewer programs, and the same decisions.
  const Json bench =
      Json::parse(run({"bench", "--config", resolved, "plan=" + w.path("run/plan.json"), "--steps",
                       "1", "--json", "--no-roofs"})
                      .out);
  EXPECT_TRUE(bench["roofs"].is_null());
  EXPECT_LE(bench["engine_bytes"], w.json("run/plan.json")["engine_bytes"]);
  EXPECT_LT(bench["engine_bytes"], w.plan(keys)["engine_bytes"]);
}

// Kernels that a calibration chose are part of the plan: it is followed where the calibration is
// gone.
TEST(SlowPlanFileRuns, KernelsAreFollowed) {
  const Workspace w;
  const Outcome measured = run({"calibrate", "--threads", "1", "--seconds", "0", "--json"});
  ASSERT_EQ(measured.code, 0) << measured.err;
  Json c = Json::parse(measured.out);
  for (Json& product : c["products"]) product["kernel"] = "reference";
  spill(c["path"].get<std::string>(), c.dump());
  const std::vector<std::string> keys = {"precision=bf16", "max_steps=3"};
  const Json plan = plan_into(w, "p.json", keys);
  w.trained("calibrated", keys);
  fs::remove(c["path"].get<std::string>());
  ASSERT_NE(w.plan(keys)["decisions"]["kernels"], plan["decisions"]["kernels"]);
  w.trained("followed", joined(keys, {"plan=" + w.path("p.json")}));
  expect_same_decisions(w.json("followed/plan.json"), plan);
  EXPECT_EQ(w.curve("calibrated"), w.curve("followed"));
}

}  // namespace
}  // namespace snug::e2e
