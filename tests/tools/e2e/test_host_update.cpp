// offload_update: cpu as a user meets it: on the emulator, whose arena is closed to the host, the host's
// cores update; the run is the one without, and either goes on from the other's checkpoint.
#include <gtest/gtest.h>

#include "tests/tools/e2e/runs.h"
#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

using Keys = std::vector<std::string>;

const Keys kBase = {
    "model={type: gpt2, n_layer: 2, n_embd: 64, n_head: 2, n_positions: 24, resid_pdrop: 0.1}",
    "max_length=8",
    "lr_scheduler_type=constant",
    "global_batch_size=2",
    "per_device_train_batch_size=1",
    "eval_fraction=0.05",
    "max_eval_samples=2",
    "save_steps=2",
    "device=emu"};

struct Case {
  const char* name;
  Keys keys;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

class HostUpdate : public testing::TestWithParam<Case> {};

// Every form of states that there is, and weights of 16 bits with and without a master.
INSTANTIATE_TEST_SUITE_P(Some, HostUpdate, testing::Values(Case{"adamw_bf16", {"precision=bf16"}}),
                         [](const auto& i) { return std::string(i.param.name); });
INSTANTIATE_TEST_SUITE_P(
    Slow, HostUpdate,
    testing::Values(Case{"adamw_fp32", {}}, Case{"adamw_fp16", {"precision=fp16"}},
                    Case{"adamw_8bit", {"optim=adamw_8bit"}},
                    Case{"adamw_4bit", {"optim=adamw_4bit"}},
                    Case{"adamw_state_bf16", {"optim=adamw_bf16"}},
                    Case{"paged_lion_8bit", {"optim=paged_lion_8bit", "precision=bf16"}},
                    Case{"no_master", {"precision=bf16", "allow=[no_master]", "optim=adamw_bf16"}},
                    Case{"kahan",
                         {"precision=bf16", "allow=[no_master]", "optim=adamw_bf16",
                          "optim_args=use_kahan_summation=true"}},
                    Case{"adafactor", {"optim=adafactor"}}, Case{"lamb", {"optim=lamb"}},
                    Case{"adam_mini", {"optim=adam_mini"}},
                    Case{"schedule_free", {"optim=schedule_free_adamw", "precision=bf16"}},
                    Case{"sgd", {"optim=sgd"}}),
    [](const auto& i) { return std::string(i.param.name); });

TEST_P(HostUpdate, IsTheSameRunAndGoesOnFromTheOther) {
  const Workspace w;
  const Keys device = joined(kBase, GetParam().keys), host = joined(device, {"offload_update=cpu"});
  w.trained("device", joined(device, {"max_steps=4"}));
  const Outcome run = w.trained("host", joined(host, {"max_steps=4"}));
  expect_planned_is_measured(w, "host");
  const Json plan = w.json("host/plan.json");
  for (const char* key : {"offload_update", "offload_optimizer", "offload_gradients"})
    EXPECT_EQ(plan["decisions"][key], "cpu") << key;
  EXPECT_EQ(w.json("device/plan.json")["decisions"]["offload_update"], "gpu");
  EXPECT_EQ(w.json("device/plan.json")["host_update"], nullptr);
  EXPECT_GT(plan["host_update"]["seconds"].get<double>(), 0);
  EXPECT_NE(run.out.find("with the host, which updates them"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("the host updates: "), std::string::npos) << run.out;
  EXPECT_EQ(plan["host_bytes"], w.json("host/memory.json")["measured_host_bytes"]);
  EXPECT_EQ(w.curve("host"), w.curve("device"));
  w.trained("moved", joined(device, {"max_steps=2"}));
  w.trained("moved", joined(host, {"max_steps=4", "resume=latest"}));
  w.trained("back", joined(host, {"max_steps=2"}));
  w.trained("back", joined(device, {"max_steps=4", "resume=latest"}));
  for (const char* name : {"host", "moved", "back"})
    for (const char* file : {"/final/model.safetensors", "/checkpoint-4/model.safetensors",
                             "/checkpoint-4/optimizer.safetensors"})
      EXPECT_TRUE(slurp(w.path(std::string(name) + file)) ==
                  slurp(w.path(std::string("device") + file)))
          << name << file;
}

// A plan that says so is followed, and keys may repeat it, not contradict it.
TEST(SlowHostUpdate, APlanSaysIt) {
  const Workspace w;
  const Keys keys = joined(kBase, {"max_steps=2"});
  w.trained("host", joined(keys, {"offload_update=cpu"}));
  w.trained("again", joined(keys, {"plan=" + w.path("host/plan.json")}));
  EXPECT_EQ(w.json("again/plan.json")["decisions"], w.json("host/plan.json")["decisions"]);
  const Outcome other =
      w.train("other", joined(keys, {"plan=" + w.path("host/plan.json"), "offload_update=gpu"}));
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("offload_update as in the plan"), std::string::npos) << other.err;
}

}  // namespace
}  // namespace snug::e2e
