// A run that was stopped and went on has the bits of one that was not.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <ostream>

#include "engine/io/safetensors.h"
#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

struct Case {
  const char* name;
  std::vector<std::string> common, first, second;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

class Resume : public testing::TestWithParam<Case> {};

TEST_P(Resume, AfterASignal) {
  const Workspace w;
  const Case& c = GetParam();
  w.trained("whole", joined(c.common, c.first));
  Child child(w.train_arguments("parts", joined(c.common, c.first)));
  ASSERT_TRUE(child.read_until("step      3/12"));
  child.send(SIGTERM);
  const Outcome stopped = child.finish();
  ASSERT_EQ(stopped.code, 75) << stopped.err << stopped.out;
  const size_t said = stopped.out.find("Stopped at step ");
  ASSERT_NE(said, std::string::npos) << stopped.out;
  const int step = std::stoi(stopped.out.substr(said + 16));
  ASSERT_GE(step, 3);
  ASSERT_LT(step, 12) << "the child cannot run ahead of the reader";
  const std::string checkpoint = "parts/checkpoint-" + std::to_string(step);
  EXPECT_TRUE(exists(w.path(checkpoint + "/COMPLETE")));
  EXPECT_EQ(w.json(checkpoint + "/snug_state.json")["global_step"], step);
  EXPECT_NE(stopped.out.find("snug train " + w.path("parts") + "\n"), std::string::npos);
  EXPECT_EQ(w.json("parts/memory.json")["finished"], false);
  EXPECT_EQ(w.json("parts/memory.json")["allocations_after_start"], no_allocations());
  EXPECT_FALSE(exists(w.path("parts/final")));

  const Outcome resumed = run(joined(
      {"train", "--config", w.path("parts/config.resolved.yaml"), "resume=latest"}, c.second));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.out.find("resumed from " + w.path(checkpoint)), std::string::npos);
  expect_same_run(w, "whole", "parts");
  expect_planned_is_measured(w, "parts");
}

// Logging windows of 3 steps and a checkpoint at step 5: the window spans the interruption.
TEST_P(Resume, AfterLosingPower) {
  const Workspace w;
  const Case& c = GetParam();
  const std::vector<std::string> steps = {"logging_steps=3", "save_steps=5", "eval_steps=4"};
  w.trained("whole", joined(joined(c.common, c.first), steps));
  lose_power_after(w, "whole", "parts", 5);
  ASSERT_NE(w.curve("parts").find("\"step\":12"), std::string::npos) << "beyond the checkpoint";
  w.trained("parts",
            joined(joined(joined(c.common, c.first), steps), joined({"resume=latest"}, c.second)));
  expect_same_run(w, "whole", "parts");
  std::vector<int> logged;
  for (const Json& line : w.metrics("parts"))
    if (line.contains("loss")) logged.push_back(line["step"].get<int>());
  EXPECT_EQ(logged, (std::vector<int>{3, 6, 9, 12}));
  expect_planned_is_measured(w, "parts");
}

const std::vector<Case>& cases() {
  static const std::vector<Case> list = {
      {"plain", {}, {}, {}},
      {"budget", {}, {}, {"memory=1GiB"}},
      {"bf16", {"precision=bf16"}, {"recompute=norms"}, {"recompute=block", "memory=40MiB"}},
      {"offload",
       {"per_device_train_batch_size=3"},
       {"recompute=norms", "offload=block"},
       {"recompute=block", "offload=none"}},
      {"fp16",
       {"precision=fp16", "init_scale=33554432", "growth_interval=3",
        "per_device_train_batch_size=3"},
       {"recompute=block"},
       {"recompute=none"}},
      {"eight_bits",
       {"precision=bf16", "host_memory=256MiB"},
       {"optim=adamw_8bit", "offload_optimizer=none"},
       {"optim=paged_adamw_8bit", "offload_optimizer=cpu"}},
      {"no_master",
       {"precision=bf16", "allow=[no_master]", "optim=adamw_bf16", "host_memory=256MiB"},
       {"offload_optimizer=cpu", "offload_params=cpu", "recompute=block"},
       {"offload_optimizer=none", "offload_params=none"}},
      {"frozen",
       {"precision=bf16", "freeze=.", "unfreeze=h.1.|ln_f"},
       {"recompute=block"},
       {"recompute=none"}}};
  return list;
}

const std::vector<Case>& more_cases() {
  static const std::vector<std::string> away = {"offload_optimizer=cpu"},
                                        here = {"offload_optimizer=none"};
  static const std::vector<Case> list = {
      {"recompute", {"per_device_train_batch_size=3"}, {"recompute=block"}, {"recompute=none"}},
      {"offload_later",
       {"per_device_train_batch_size=3", "precision=bf16"},
       {"recompute=none"},
       {"recompute=block", "offload=inputs"}},
      {"sgd",
       {"optim=sgd", "sgd_momentum=0.9", "sgd_nesterov=true", "lr_scheduler_type=constant"},
       {},
       {}},
      {"lion", {"optim=lion", "precision=bf16"}, away, here},
      {"rmsprop",
       {"optim=rmsprop", "optim_args=momentum=0.9,centered=1", "precision=bf16"},
       away,
       here},
      {"four_bits",
       {"host_memory=256MiB"},
       {"optim=paged_ademamix_4bit", "offload_optimizer=cpu"},
       {"optim=ademamix_4bit", "offload_optimizer=none"}},
      {"bf16_states",
       {"optim=adamw", "optim_state=bf16", "host_memory=256MiB"},
       {"offload_optimizer=none"},
       {"offload_optimizer=cpu"}},
      {"eight_bits_in_backward",
       {"optim=lion_8bit", "optim_args=percentile_clipping=50", "max_grad_norm=0",
        "per_device_train_batch_size=6", "global_batch_size=6"},
       {},
       {"recompute=block"}},
      {"lamb", {"optim=lamb_8bit", "precision=bf16", "host_memory=256MiB"}, away, here},
      {"percentile",
       {"precision=bf16", "host_memory=256MiB", "optim_args=percentile_clipping=5"},
       {"optim=adamw_8bit", "offload_optimizer=none"},
       {"optim=paged_adamw_8bit", "offload_optimizer=cpu"}},
      {"lars",
       {"optim=lars", "sgd_momentum=0.9", "weight_decay=0.1", "precision=bf16", "allow=[no_master]",
        "host_memory=256MiB"},
       {"offload_optimizer=none"},
       {"offload_optimizer=cpu", "offload_params=cpu"}},
      {"adafactor", {"optim=adafactor", "precision=bf16", "host_memory=256MiB"}, away, here},
      {"muon", {"optim=muon", "precision=bf16", "host_memory=256MiB"}, away, here},
      {"muon_no_master",
       {"optim=muon", "optim_args=ns_bf16=1", "precision=bf16", "allow=[no_master]",
        "host_memory=256MiB"},
       here,
       {"offload_optimizer=cpu", "offload_params=cpu"}},
      {"adam_mini", {"optim=adam_mini", "precision=bf16", "host_memory=256MiB"}, here, away},
      {"adagrad", {"optim=adagrad", "learning_rate=0.01"}, {}, {"recompute=block"}},
      {"ademamix",
       {"optim=ademamix", "optim_args=t_alpha=9,t_beta3=10"},
       {"offload_optimizer=none"},
       {"offload_optimizer=cpu"}},
      {"frozen_streamed",
       {"precision=bf16", "freeze=wte|h.0-0.", "host_memory=256MiB"},
       {"offload_params=none", "offload_optimizer=none"},
       {"offload_params=cpu", "offload_optimizer=cpu", "packed_weights=none"}},
      {"samples", {"sample_prompt=the cat", "sample_tokens=5", "eval_steps=2"}, {}, {}},
      {"epochs", {"max_steps=null", "num_train_epochs=0.35"}, {}, {}}};
  return list;
}

std::string case_name(const testing::TestParamInfo<Case>& c) {
  return c.param.name;
}

INSTANTIATE_TEST_SUITE_P(Cases, Resume, testing::ValuesIn(cases()), case_name);
INSTANTIATE_TEST_SUITE_P(SlowCases, Resume, testing::ValuesIn(more_cases()), case_name);

TEST(ResumeChoice, TheNewestCompleteCheckpointIsUsed) {
  const Workspace w;
  w.trained("whole", {"save_steps=4"});
  for (const char* name : {"4", "8", "12"})
    EXPECT_TRUE(exists(w.path(std::string("whole/checkpoint-") + name + "/COMPLETE"))) << name;
  lose_power_after(w, "whole", "torn", 8);
  fs::remove(w.path("torn/checkpoint-8/COMPLETE"));
  fs::create_directory(w.path("torn/checkpoint-best"));   // no step: not one of ours
  fs::create_directory(w.path("torn/checkpoint-9.tmp"));  // a write that power ended
  const Outcome resumed = w.trained("torn", {"save_steps=4", "resume=latest"});
  EXPECT_NE(resumed.out.find("Skipped torn checkpoints: " + w.path("torn/checkpoint-8")),
            std::string::npos)
      << resumed.out;
  EXPECT_NE(resumed.out.find("resumed from " + w.path("torn/checkpoint-4")), std::string::npos);
  expect_same_run(w, "whole", "torn");
  EXPECT_TRUE(exists(w.path("torn/checkpoint-8/COMPLETE"))) << "written anew";

  lose_power_after(w, "whole", "named", 12);
  w.trained("named", {"save_steps=4", "resume=" + w.path("named/checkpoint-4")});
  expect_same_run(w, "whole", "named");

  lose_power_after(w, "whole", "only", 4);
  fs::remove(w.path("only/checkpoint-4/COMPLETE"));
  const Outcome none = w.train("only", {"resume=latest"});
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("only torn ones: " + w.path("only/checkpoint-4")), std::string::npos);
}

TEST(ResumeChoice, OldCheckpointsGoBeyondTheLimit) {
  const Workspace w;
  w.trained("run", {"save_steps=2", "save_total_limit=3"});
  std::vector<std::string> kept;
  for (const auto& entry : fs::directory_iterator(w.path("run")))
    if (entry.path().filename().string().rfind("checkpoint-", 0) == 0)
      kept.push_back(entry.path().filename().string());
  std::sort(kept.begin(), kept.end());
  EXPECT_EQ(kept, (std::vector<std::string>{"checkpoint-10", "checkpoint-12", "checkpoint-8"}));
}

// A torn last line of metrics.jsonl goes; a finished run resumed has nothing to do and says so by
// writing the same again.
TEST(ResumeChoice, TornMetricsAndFinishedRuns) {
  const Workspace w;
  w.trained("whole", {"save_steps=4"});
  lose_power_after(w, "whole", "parts", 8);
  const std::string lines = slurp(w.path("parts/metrics.jsonl"));
  spill(w.path("parts/metrics.jsonl"), lines.substr(0, lines.size() - 20));
  w.trained("parts", {"save_steps=4", "resume=latest"});
  expect_same_run(w, "whole", "parts");
  const std::string weights = slurp(w.path("parts/final/model.safetensors"));
  w.trained("parts", {"save_steps=4", "resume=latest"});
  EXPECT_TRUE(slurp(w.path("parts/final/model.safetensors")) == weights);
  EXPECT_EQ(w.curve("whole"), w.curve("parts"));
}

// A run may be made longer: the schedule is that of the new length, the steps go on.
TEST(ResumeChoice, ALongerRun) {
  const Workspace w;
  w.trained("run", {"lr_scheduler_type=constant"});
  w.trained("long", {"lr_scheduler_type=constant", "max_steps=20"});
  w.trained("run", {"lr_scheduler_type=constant", "max_steps=20", "resume=latest"});
  EXPECT_EQ(w.losses("run"), w.losses("long"));
}

// What a run writes into the folder of its texts is no text of it.
TEST(SlowResumeChoice, ARunInsideItsData) {
  const Workspace w;
  fs::create_directories(w.path("texts/held"));
  fs::rename(w.path("text.txt"), w.path("texts/text.txt"));
  spill(w.path("texts/held/more.txt"), sentences(100, 2));
  for (const std::string& data : {w.path("texts"), w.path("texts") + "/**"}) {
    const std::vector<std::string> keys = {"train_data=" + data, "save_steps=6", "overwrite=true"};
    w.trained("texts/whole", keys);
    w.trained("texts/whole", keys);
    fs::rename(w.path("texts/whole"), w.path("whole"));
    w.trained("texts/run", keys);
    fs::remove_all(w.path("texts/run/checkpoint-12"));
    w.trained("texts/run", {"train_data=" + data, "save_steps=6", "resume=latest"});
    EXPECT_EQ(w.curve("texts/run"), w.curve("whole"));
    fs::remove_all(w.path("texts/run"));
    fs::remove_all(w.path("whole"));
  }
}

TEST(ResumePins, WhatChangesNumbersIsRefused) {
  const Workspace w;
  w.trained("run", {"save_steps=5"});
  const std::string curve = w.curve("run");
  const struct {
    std::vector<std::string> change;
    const char* says;
  } rows[] = {
      {{"precision=bf16"}, "precision as in "},
      {{"seed=7"}, "seed as in "},
      {{"optim=adam"}, "optim as in "},
      {{"model.n_layer=3"}, "model as in "},
      {{"model.attn_pdrop=0.2"}, "model as in "},
      {{"model.activation_function=gelu"}, "model as in "},
      {{"max_length=16"}, "max_length as in "},
      {{"global_batch_size=12"}, "global_batch_size as in "},
      {{"per_device_train_batch_size=2"}, "per_device_train_batch_size as in "},
      {{"head_rows=64"}, "head_rows as in "},
      {{"data_seed=7"}, "data_seed as in "},
      {{"train_data=" + w.path("other.txt")}, "the training data of "},
  };
  spill(w.path("other.txt"), sentences(300, 9));
  for (const auto& row : rows) {
    const Outcome refused = w.train("run", joined({"resume=latest"}, row.change));
    EXPECT_EQ(refused.code, 2) << row.says << refused.err;
    EXPECT_NE(refused.err.find(row.says), std::string::npos) << row.says << refused.err;
    EXPECT_NE(refused.err.find("\n  try:   "), std::string::npos);
    EXPECT_EQ(w.curve("run"), curve) << "the run stays as it was";
  }
}

TEST(ResumePins, APermissionUnpinsTheMicroBatch) {
  const Workspace w;
  const std::vector<std::string> base = {"global_batch_size=32", "recompute=none", "head_rows=64"};
  w.trained("run", joined(base, {"save_steps=5"}));
  ASSERT_EQ(w.json("run/plan.json")["decisions"]["micro_batch"], 32);
  lose_power_after(w, "run", "tight", 5);
  // Enough for micro-batches of 8, and for nothing larger.
  const Json eight = w.plan(joined(base, {"per_device_train_batch_size=8"}));
  const std::vector<std::string> resume =
      joined(base, {"save_steps=5", "resume=latest",
                    "memory=" + std::to_string(eight["engine_bytes"].get<int64_t>() +
                                               eight["runtime_bytes"].get<int64_t>())});
  const std::string curve = w.curve("tight");
  const Outcome refused = w.train("tight", resume);
  EXPECT_EQ(refused.code, 3) << refused.err;
  EXPECT_NE(refused.err.find("micro-batches of 32"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("allow=[micro_batch"), std::string::npos) << refused.err;
  EXPECT_EQ(w.curve("tight"), curve);
  w.trained("tight", joined(resume, {"allow=[micro_batch]"}));
  EXPECT_EQ(w.json("tight/plan.json")["decisions"]["micro_batch"], 8);
  expect_planned_is_measured(w, "tight");
  // The same training up to the order of sums.
  const std::vector<double> a = w.losses("run"), b = w.losses("tight");
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-4 * a[i]) << i;
}

// Pinned is what the chunks came to: a key that allows more than there are rows goes on.
TEST(ResumePins, HeadRowsOfMoreThanThereAre) {
  const Workspace w;
  const std::vector<std::string> base = {"per_device_train_batch_size=3", "head_rows=1024",
                                         "save_steps=5"};
  w.trained("run", base);
  ASSERT_EQ(w.json("run/checkpoint-5/snug_state.json")["pinned"]["head_rows"], 3 * 32);
  lose_power_after(w, "run", "again", 5);
  w.trained("again", joined(base, {"resume=latest"}));
  EXPECT_EQ(w.curve("again"), w.curve("run"));
  // More rows to evaluate are no reason either; other chunks of training's are.
  lose_power_after(w, "run", "wide", 5);
  w.trained("wide", joined(base, {"resume=latest", "per_device_eval_batch_size=5"}));
  lose_power_after(w, "run", "other", 5);
  const Outcome other = w.train("other", joined(base, {"resume=latest", "head_rows=64"}));
  EXPECT_EQ(other.code, 2) << other.err;
  EXPECT_NE(
      other.err.find("head_rows as in " + w.path("other/checkpoint-5") + ": 96\n  found: 64\n"),
      std::string::npos)
      << other.err;
}

// Gradients in bf16 are pinned by what was used, not by what was allowed.
TEST(ResumePins, TheDtypeOfGradients) {
  const Workspace w;
  const std::vector<std::string> base = {"per_device_train_batch_size=3", "recompute=none",
                                         "head_rows=64", "save_steps=5"};
  const std::vector<std::string> allowed = joined(base, {"allow=[bf16_gradients]"});
  const auto gradients = [&](const std::string& run) {
    return w.json(run + "/plan.json")["decisions"]["gradients"].get<std::string>();
  };
  w.trained("wide", base);
  // The smallest memory is that of half the bytes.
  w.trained("run",
            joined(allowed,
                   {"memory=" + std::to_string(w.plan(allowed)["minimum_bytes"].get<int64_t>())}));
  ASSERT_EQ(gradients("wide"), "f32");
  ASSERT_EQ(gradients("run"), "bf16");
  expect_planned_is_measured(w, "run");
  EXPECT_NE(w.curve("run"), w.curve("wide"));
  EXPECT_EQ(w.json("run/checkpoint-5/snug_state.json")["pinned"]["gradients"], "bf16");

  // Bit by bit the same on another budget.
  lose_power_after(w, "run", "again", 5);
  w.trained("again", joined(allowed, {"resume=latest"}));
  EXPECT_EQ(gradients("again"), "bf16");
  EXPECT_EQ(w.curve("again"), w.curve("run"));
  EXPECT_TRUE(slurp(w.path("again/final/model.safetensors")) ==
              slurp(w.path("run/final/model.safetensors")));

  // Without the permission it is refused, and `gradients` unpins.
  lose_power_after(w, "run", "less", 5);
  const std::string curve = w.curve("less");
  const Outcome refused = w.train("less", joined(base, {"resume=latest"}));
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_NE(refused.err.find("whose gradients are in bf16: bf16_gradients"), std::string::npos)
      << refused.err;
  EXPECT_NE(refused.err.find("found: allow: []"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("allow=[bf16_gradients], or allow=[gradients] to go on with them in "
                             "f32"),
            std::string::npos)
      << refused.err;
  const Outcome beside =
      w.train("less", joined(base, {"resume=latest", "allow=[micro_batch,head_rows]"}));
  EXPECT_NE(beside.err.find("allow=[micro_batch,head_rows,bf16_gradients], or "
                            "allow=[micro_batch,head_rows,gradients] to go on with them in f32"),
            std::string::npos)
      << beside.err;
  EXPECT_EQ(w.curve("less"), curve);
  w.trained("less", joined(base, {"resume=latest", "allow=[gradients]"}));
  EXPECT_EQ(gradients("less"), "f32");

  // A run in f32 stays so where the permission comes later, even if it then does not fit.
  lose_power_after(w, "wide", "more", 5);
  const std::string tight =
      "memory=" + std::to_string(w.plan(allowed)["minimum_bytes"].get<int64_t>());
  const Outcome full = w.train("more", joined(allowed, {"resume=latest", tight}));
  EXPECT_EQ(full.code, 3) << full.err;
  EXPECT_NE(full.err.find("allow=[bf16_gradients,gradients] (then memory of "), std::string::npos)
      << full.err;
  // Nor does a plan change it.
  const std::string bf16_plan = w.path("run/plan.json");
  const Outcome other = w.train("more", joined(allowed, {"resume=latest", "plan=" + bf16_plan}));
  EXPECT_EQ(other.code, 2) << other.err;
  EXPECT_NE(other.err.find("found: gradients in bf16 as in the plan " + bf16_plan),
            std::string::npos)
      << other.err;
  EXPECT_NE(
      other.err.find(
          "another plan, or allow=[bf16_gradients,gradients] to go on with those of the plan"),
      std::string::npos)
      << other.err;
  w.trained("more", joined(allowed, {"resume=latest"}));
  EXPECT_EQ(gradients("more"), "f32");
  EXPECT_EQ(w.curve("more"), w.curve("wide"));
}

// Weights without a master: 2 bytes of weights, 2 of gradients and 4 of states a parameter, in
// checkpoints too; nothing of it depends on where it is, and neither kind of run goes on as the other.
TEST(ResumePins, TheMasterOfTheWeights) {
  const Workspace w;
  const std::vector<std::string> base = {"precision=bf16", "per_device_train_batch_size=3",
                                         "save_steps=5", "optim=adamw_bf16", "max_grad_norm=0"};
  const std::vector<std::string> allowed = joined(base, {"allow=[no_master]"});
  w.trained("master", base);
  w.trained("run", allowed);
  expect_planned_is_measured(w, "run");
  EXPECT_NE(w.curve("run"), w.curve("master"));
  const Json plan = w.json("run/plan.json"), with = w.json("master/plan.json");
  EXPECT_EQ(plan["decisions"]["no_master"], true);
  EXPECT_EQ(with["decisions"]["no_master"], false);
  EXPECT_NE(
      plan["sentence"].get<std::string>().find("bf16 weights without a master, rounded at random"),
      std::string::npos);
  EXPECT_EQ(plan["categories"]["weights"], with["categories"]["weights"]);
  EXPECT_EQ(plan["categories"]["optimizer"], with["categories"]["optimizer"]);
  EXPECT_EQ(plan["categories"].value("master", 0), 0);
  // Two bytes a parameter, in final/ and in a checkpoint, and the same ones.
  EXPECT_EQ(w.json("run/final/config.json")["torch_dtype"], "bfloat16");
  const auto size = [&](const char* file) {
    return static_cast<int64_t>(fs::file_size(w.path(file)));
  };
  EXPECT_NEAR(2 * size("run/final/model.safetensors"), size("master/final/model.safetensors"), 8192)
      << "but for the header";
  EXPECT_TRUE(slurp(w.path("run/final/model.safetensors")) ==
              slurp(w.path("run/checkpoint-12/model.safetensors")));
  EXPECT_EQ(w.json("run/checkpoint-5/snug_state.json")["pinned"]["precision"],
            "bf16 without a master");

  // The same bits from run to run, with one thread and two, and updated in backward and behind it.
  w.trained("again", joined(allowed, {"threads=2", "recompute=block"}));
  EXPECT_EQ(w.losses("again"), w.losses("run"));
  EXPECT_TRUE(slurp(w.path("again/final/model.safetensors")) ==
              slurp(w.path("run/final/model.safetensors")));

  lose_power_after(w, "run", "less", 5);
  const Outcome without = w.train("less", joined(base, {"resume=latest"}));
  EXPECT_EQ(without.code, 2) << without.err;
  EXPECT_NE(without.err.find("whose weights have no master: no_master"), std::string::npos)
      << without.err;
  EXPECT_NE(without.err.find("found: precision: bf16, allow: []"), std::string::npos)
      << without.err;
  EXPECT_NE(without.err.find("precision=bf16 allow=[no_master], or a new run from model="),
            std::string::npos)
      << without.err;
  lose_power_after(w, "master", "more", 5);
  const Outcome beside = w.train("more", joined(allowed, {"resume=latest"}));
  EXPECT_EQ(beside.code, 2) << beside.err;
  EXPECT_NE(beside.err.find("weights with an fp32 master as in"), std::string::npos) << beside.err;
  EXPECT_NE(beside.err.find("leave no_master out of allow, or a new run from model="),
            std::string::npos)
      << beside.err;
}

// Checksums that fit: one who edits a checkpoint and knows how it is made. tests/tools has every
// value that is refused, and what is not as it was written.
TEST(ResumePins, ForeignAndBrokenCheckpoints) {
  const Workspace w;
  w.trained("run", {"save_steps=5"});
  const Json state = w.json("run/checkpoint-5/snug_state.json");
  const auto refused = [&](const std::string& content, const std::vector<const char*>& says,
                           const char* file = "snug_state.json") {
    fs::remove_all(w.path("bad"));
    lose_power_after(w, "run", "bad", 5);
    spill(w.path("bad/checkpoint-5/") + file, content);
    reseal(w.path("bad/checkpoint-5"));
    const std::vector<std::string> before = listing(w.path("bad"));
    const Outcome outcome = w.train("bad", {"resume=latest"});
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    for (const char* part : says)
      EXPECT_NE(outcome.err.find(part), std::string::npos) << part << "\nin " << outcome.err;
    EXPECT_EQ(listing(w.path("bad")), before);
    EXPECT_EQ(w.curve("bad"), w.curve("run"));
  };
  refused("{\"snug_version\": 1, \"global", {"checkpoint-5/snug_state.json"});
  refused("[]", {"checkpoint-5/snug_state.json"});
  Json other = state;
  other["loss_watch"]["losses"].erase(3);
  refused(other.dump(), {"128 numbers for losses", "/ loss_watch"});
  other = state;
  other["global_step"] = "five";
  refused(other.dump(), {"global_step", "five"});
  other = state;
  other["pinned"]["micro_batch"] = int64_t{1} << 40;
  refused(other.dump(), {"micro_batch"});
  const std::string optimizer = slurp(w.path("run/checkpoint-5/optimizer.safetensors"));
  refused(optimizer.substr(0, 2000), {"optimizer.safetensors"}, "optimizer.safetensors");
  refused("", {"optimizer.safetensors"}, "optimizer.safetensors");
  refused(slurp(w.path("run/checkpoint-5/model.safetensors")), {"exp_avg"},
          "optimizer.safetensors");
  refused("{}", {"model.safetensors"}, "model.safetensors");
  // Another file of weights in the folder changes nothing: it was not written by the run.
  fs::remove_all(w.path("bad"));
  lose_power_after(w, "run", "bad", 5);
  spill(w.path("bad/checkpoint-5/model.safetensors.index.json"), "{}");
  w.trained("bad", {"save_steps=5", "resume=latest"});
  expect_same_run(w, "run", "bad");
  // A checkpoint of before: COMPLETE said the step alone.
  other = state;
  other["snug_version"] = 2;
  fs::remove_all(w.path("bad"));
  lose_power_after(w, "run", "bad", 5);
  spill(w.path("bad/checkpoint-5/snug_state.json"), other.dump());
  spill(w.path("bad/checkpoint-5/COMPLETE"), "5\n");
  const Outcome old = w.train("bad", {"resume=latest"});
  EXPECT_EQ(old.code, 2);
  EXPECT_NE(old.err.find("expected a checkpoint of version 4"), std::string::npos) << old.err;
  EXPECT_NE(old.err.find("found: version 2"), std::string::npos) << old.err;
}

// One flipped bit: `latest` goes on from the one before and says so; the named one is refused.
TEST(ResumeChoice, DamagedCheckpointsAreNotUsed) {
  const Workspace w;
  w.trained("whole", {"save_steps=4"});
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "snug_state.json",
                           "tokenizer.json", "config.json", "COMPLETE"}) {
    fs::remove_all(w.path("parts"));
    lose_power_after(w, "whole", "parts", 8);
    const std::string path = w.path(std::string("parts/checkpoint-8/") + file);
    flip_bit(path, -30);
    const std::vector<std::string> before = listing(w.path("parts"));
    const Outcome refused =
        w.train("parts", {"save_steps=4", "resume=" + w.path("parts/checkpoint-8")});
    EXPECT_EQ(refused.code, 2);
    EXPECT_NE(refused.err.find("expected " + path + " as it was written: "), std::string::npos)
        << refused.err;
    EXPECT_NE(refused.err.find("it was changed, or the disk gives back other bytes"),
              std::string::npos);
    EXPECT_EQ(listing(w.path("parts")), before);
    const Outcome resumed = w.trained("parts", {"save_steps=4", "resume=latest"});
    EXPECT_NE(resumed.out.find("Skipped damaged checkpoints: " + path + ": "), std::string::npos)
        << resumed.out;
    EXPECT_NE(resumed.out.find("resumed from " + w.path("parts/checkpoint-4")), std::string::npos);
    EXPECT_TRUE(exists(w.path("parts/checkpoint-8.damaged/COMPLETE")));
    expect_same_run(w, "whole", "parts");
  }
  // What was kept aside stays with the run, and goes with it.
  w.trained("parts", {"resume=latest", "max_steps=13"});
  EXPECT_TRUE(exists(w.path("parts/checkpoint-8.damaged")));
  w.trained("parts", {"overwrite=true"});
  EXPECT_FALSE(exists(w.path("parts/checkpoint-8.damaged")));
  // Only damaged ones: nothing to go on from.
  fs::remove_all(w.path("parts"));
  lose_power_after(w, "whole", "parts", 4);
  flip_bit(w.path("parts/checkpoint-4/model.safetensors"), 5000);
  const Outcome none = w.train("parts", {"resume=latest"});
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("that is as it was written\n  found: " +
                          w.path("parts/checkpoint-4/model.safetensors")),
            std::string::npos)
      << none.err;
  EXPECT_NE(none.err.find("overwrite=true, without resume, to start"), std::string::npos);
}

// What a checkpoint has states of is what goes on to be trained.
TEST(Resume, WhatIsFrozenStaysSo) {
  const Workspace w;
  w.trained("run", {"freeze=h.0.", "save_steps=5"});
  const Outcome other =
      run(w.train_arguments("run", {"freeze=h.1.", "resume=latest", "max_steps=20"}));
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("freeze and unfreeze as in " + w.path("run/checkpoint-")),
            std::string::npos)
      << other.err;
  EXPECT_NE(other.err.find("found: freeze: h.1., unfreeze: null"), std::string::npos) << other.err;
  EXPECT_NE(other.err.find("or a new run from model=" + w.path("run/checkpoint-")),
            std::string::npos)
      << other.err;
  // The weights of the frozen block are those of the start, to the byte, and no others are.
  w.trained("short", {"freeze=h.0.", "max_steps=1"});
  const SafetensorsReader a(w.path("run/final/model.safetensors")),
      b(w.path("short/final/model.safetensors"));
  int frozen = 0;
  for (const SafeTensor& t : a.tensors()) {
    const bool same = std::memcmp(t.data, b.at(t.name).data, static_cast<size_t>(t.bytes)) == 0;
    EXPECT_EQ(same, t.name.find("h.0.") != std::string::npos) << t.name;
    frozen += same ? 1 : 0;
  }
  EXPECT_EQ(frozen, 12);
}

}  // namespace
}  // namespace snug::e2e
