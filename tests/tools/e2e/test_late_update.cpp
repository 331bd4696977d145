// Updates by the host one step late, as a user meets them: named and permitted, planned to the byte, the
// same after a stop at any step, and never begun or ended by a resume that does not say so.
#include <gtest/gtest.h>

#include "tests/tools/e2e/runs.h"
#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

using Keys = std::vector<std::string>;

// Of a rate that is another one in each step, whatever their number.
const Keys kModel = {
    "model={type: gpt2, n_layer: 2, n_embd: 64, n_head: 2, n_positions: 24, resid_pdrop: 0.1}",
    "max_length=8",
    "lr_scheduler_type=constant_with_warmup",
    "warmup_steps=4",
    "global_batch_size=2",
    "per_device_train_batch_size=1",
    "eval_fraction=0.05",
    "max_eval_samples=2",
    "eval_steps=1",
    "save_steps=1"};
const Keys kLate = {"offload_update=cpu", "allow=[stale_update]"};

struct Case {
  const char* name;
  Keys keys;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

class LateUpdate : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Some, LateUpdate,
                         testing::Values(Case{"emulated", {"device=emu", "precision=bf16"}},
                                         Case{"cpu", {"device=cpu", "optim=adamw_8bit"}}),
                         [](const auto& i) { return std::string(i.param.name); });
INSTANTIATE_TEST_SUITE_P(
    Slow, LateUpdate,
    testing::Values(Case{"fp16", {"device=emu", "precision=fp16", "init_scale=1048576"}},
                    Case{"bf16_gradients",
                         {"device=cpu", "precision=bf16", "allow=[stale_update,bf16_gradients]"}},
                    Case{"no_master",
                         {"device=cpu", "precision=bf16", "optim=adamw_bf16",
                          "allow=[stale_update,no_master]"}},
                    Case{"save_buffer", {"device=cpu", "save_buffer=64KiB"}}),
    [](const auto& i) { return std::string(i.param.name); });

// A key that is given twice counts as it was given last.
Keys with(Keys keys, const Keys& more) {
  for (const std::string& one : more) {
    const std::string name = one.substr(0, one.find('=') + 1);
    std::erase_if(keys, [&](const std::string& k) { return k.starts_with(name); });
    keys.push_back(one);
  }
  return keys;
}

TEST_P(LateUpdate, GoesOnToTheBitAndSaysWhatItIs) {
  const Workspace w;
  const Keys keys = with(joined(kModel, kLate), GetParam().keys);
  const Outcome run = w.trained("whole", joined(keys, {"max_steps=5"}));
  expect_planned_is_measured(w, "whole");
  const Json plan = w.json("whole/plan.json");
  EXPECT_EQ(plan["decisions"]["update_delay"], "one step late");
  EXPECT_EQ(plan["decisions"]["offload_update"], "cpu");
  EXPECT_EQ(plan["host_bytes"], w.json("whole/memory.json")["measured_host_bytes"]);
  for (const char* words :
       {"which updates them one step late, so that each step has weights one update older",
        "that changes numbers (allow: stale_update)", "final/ has that of step 5 too"})
    EXPECT_NE(run.out.find(words), std::string::npos) << words << "\n" << run.out;

  // Ended, and so with what was pending in final/, and gone on with.
  w.trained("parts", joined(keys, {"max_steps=3"}));
  w.trained("parts", joined(keys, {"max_steps=4", "resume=latest"}));
  w.trained("parts", joined(keys, {"max_steps=5", "resume=latest"}));
  EXPECT_EQ(w.curve("parts"), w.curve("whole"));
  for (const char* file :
       {"/final/model.safetensors", "/checkpoint-5/model.safetensors",
        "/checkpoint-5/optimizer.safetensors", "/checkpoint-4/model.safetensors"})
    EXPECT_TRUE(slurp(w.path(std::string("parts") + file)) ==
                slurp(w.path(std::string("whole") + file)))
        << file;
  // What is still to come at the end is in final/ alone.
  EXPECT_FALSE(slurp(w.path("whole/final/model.safetensors")) ==
               slurp(w.path("whole/checkpoint-5/model.safetensors")));
}

TEST(SlowLateUpdate, AResumeHoldsToIt) {
  const Workspace w;
  const Keys plain = joined(kModel, {"device=emu"}), late = joined(plain, kLate);
  w.trained("late", joined(late, {"max_steps=2"}));
  w.trained("at_once", joined(plain, {"max_steps=2"}));
  const auto refused = [&](const char* name, const Keys& keys, const std::string& text) {
    const Outcome o = w.train(name, joined(keys, {"max_steps=4", "resume=latest"}));
    EXPECT_EQ(o.code, 2) << o.err;
    EXPECT_NE(o.err.find(text), std::string::npos) << o.err;
  };
  refused("late", plain, "whose updates one step late: stale_update");
  refused("late", plain,
          "allow=[stale_update], or allow=[update_delay] to go on with them at once");
  refused("late", with(late, {"offload_update=gpu"}),
          "offload_update: auto or cpu for updates by the host one step late");
  // It is the host's though no key says so.
  const Outcome on =
      w.trained("late", joined(plain, {"max_steps=3", "resume=latest", "allow=[stale_update]"}));
  EXPECT_EQ(w.json("late/plan.json")["decisions"]["update_delay"], "one step late") << on.out;
  // What is pending is left out where it is to end, which is said.
  const Outcome off =
      w.trained("late", joined(plain, {"max_steps=4", "resume=latest", "allow=[update_delay]"}));
  EXPECT_EQ(w.json("late/plan.json")["decisions"]["update_delay"], "at once");
  EXPECT_NE(off.out.find("the update of step 3 that is pending"), std::string::npos) << off.out;
  // And one at once stays so with the permission, unless it is to begin.
  w.trained("at_once", joined(late, {"max_steps=3", "resume=latest"}));
  EXPECT_EQ(w.json("at_once/plan.json")["decisions"]["update_delay"], "at once");
  w.trained("at_once", joined(with(late, {"allow=[stale_update,update_delay]"}),
                              {"max_steps=4", "resume=latest"}));
  EXPECT_EQ(w.json("at_once/plan.json")["decisions"]["update_delay"], "one step late");
}

// The best checkpoint's weights are those that were evaluated.
TEST(SlowLateUpdate, TheBestModelIsWhatWasEvaluated) {
  const Workspace w;
  const Keys keys =
      joined(kModel, joined(kLate, {"device=cpu", "max_steps=4", "load_best_model_at_end=true"}));
  w.trained("best", keys);
  const int64_t step = w.json("best/final/snug.json").value("step", int64_t{-1});
  EXPECT_TRUE(slurp(w.path("best/final/model.safetensors")) ==
              slurp(w.path("best/checkpoint-" + std::to_string(step) + "/model.safetensors")))
      << step;
}

}  // namespace
}  // namespace snug::e2e
