// What a run says of itself: report_to, the watchdog, early stopping.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

int event_files(const Workspace& w, const std::string& name) {
  int n = 0;
  if (!exists(w.path(name + "/runs"))) return 0;
  for (const auto& entry : fs::directory_iterator(w.path(name + "/runs")))
    n += entry.path().filename().string().find("tfevents") != std::string::npos;
  return n;
}

TEST(Watching, ReportToSaysWhichFilesThereAre) {
  const Workspace w;
  const struct {
    const char *value, *name;
    bool csv, events;
  } rows[] = {{"report_to=all", "a", true, true},
              {"report_to=none", "b", false, false},
              {"report_to=csv", "c", true, false},
              {"report_to=[tensorboard]", "d", false, true},
              {"report_to=[tensorboard, csv]", "e", true, true},
              {"seed=42", "f", true, true}};
  for (const auto& row : rows) {
    w.trained(row.name, {row.value, "max_steps=2"});
    EXPECT_EQ(exists(w.path(std::string(row.name) + "/metrics.csv")), row.csv) << row.value;
    EXPECT_EQ(event_files(w, row.name), row.events ? 1 : 0) << row.value;
    EXPECT_TRUE(exists(w.path(std::string(row.name) + "/trainer_state.json")));
    expect_planned_is_measured(w, row.name);
  }
  // A second run in the same folder begins them anew.
  w.trained("a", {"max_steps=2", "overwrite=true"});
  EXPECT_EQ(event_files(w, "a"), 1);
  EXPECT_EQ(w.metrics("a").size(), 4u);  // evaluations at 0 and 2
}

TEST(Watching, TrainerStateIsThatOfTheTrainer) {
  const Workspace w;
  w.trained("run", {"max_steps=6", "eval_steps=3", "save_steps=3"});
  for (const auto& [folder, step] : {std::pair("run", 6), std::pair("run/checkpoint-3", 3)}) {
    const Json state = w.json(std::string(folder) + "/trainer_state.json");
    EXPECT_EQ(state["global_step"], step);
    EXPECT_EQ(state["max_steps"], 6);
    EXPECT_EQ(state["num_input_tokens_seen"], step * 6 * 32);
    const std::vector<Json> lines = w.metrics("run");
    size_t kept = 0;
    double best = 1e9;
    for (const Json& line : lines) {
      if (line["step"] > step) continue;
      EXPECT_EQ(state["log_history"][kept++], line);
      if (line.contains("eval_loss")) best = std::min(best, line["eval_loss"].get<double>());
    }
    EXPECT_EQ(state["log_history"].size(), kept);
    EXPECT_NEAR(state["best_metric"].get<double>(), best, 1e-8 * best);
    EXPECT_NEAR(state["epoch"].get<double>(), lines.back()["epoch"].get<double>() * step / 6, 1e-6);
  }
}

// A run that learned, gone on from with a rate far too high: the median the watchdog compares with
// is of before the interruption.
TEST(Watching, ADivergingLossIsSaidAndMayEndTheRun) {
  const Workspace w;
  const std::vector<std::string> common = {"lr_scheduler_type=constant", "eval_steps=0",
                                           "logging_steps=10"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), common.begin(), common.end());
    return more;
  };
  w.trained("run", with({"max_steps=60"}));
  for (const char* name : {"warn", "off", "stop"})
    fs::copy(w.path("run"), w.path(name), fs::copy_options::recursive);
  const auto go_on = [&](const std::string& name) {
    return w.train(name, with({"max_steps=130", "resume=latest", "learning_rate=0.7",
                               "max_grad_norm=0", "loss_watchdog=" + name}));
  };
  const Outcome warn = go_on("warn");
  EXPECT_EQ(warn.code, 0) << warn.err;
  const size_t said = warn.out.find("the loss diverges: the median of the last 32 steps is ");
  ASSERT_NE(said, std::string::npos) << warn.out;
  const size_t when = warn.out.find(", at step ", said);
  ASSERT_NE(when, std::string::npos);
  EXPECT_LE(std::stoi(warn.out.substr(when + 10)), 70) << warn.out.substr(said, 120);
  EXPECT_NE(warn.out.find("the gradient norm is "), std::string::npos) << warn.out;
  EXPECT_TRUE(exists(w.path("warn/final")));
  expect_planned_is_measured(w, "warn");

  const Outcome off = go_on("off");
  EXPECT_EQ(off.code, 0);
  EXPECT_EQ(off.out.find("warning: step"), std::string::npos) << off.out;

  const Outcome stop = go_on("stop");
  EXPECT_EQ(stop.code, 1) << stop.out;
  EXPECT_NE(stop.err.find("diverged: expected a loss that does not diverge (loss_watchdog: stop)"),
            std::string::npos)
      << stop.err;
  EXPECT_NE(stop.err.find("the loss diverges: the median"), std::string::npos) << stop.err;
  EXPECT_NE(stop.err.find("resume=latest goes on from " + w.path("stop/checkpoint-60")),
            std::string::npos)
      << stop.err;
  EXPECT_TRUE(exists(w.path("stop/final"))) << "of the run before, which is left";
  EXPECT_FALSE(exists(w.path("stop/checkpoint-130")));
  const size_t failed = stop.out.find("Training failed at step ");
  ASSERT_NE(failed, std::string::npos) << stop.out;
  EXPECT_EQ(
      warn.out.find("warning: step " + std::to_string(std::stoi(stop.out.substr(failed + 24))) +
                    ": the loss diverges") != std::string::npos,
      true)
      << "both see it at the same step";
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Before the first step, every eval_steps and at the end.
TEST(Watching, TextIsSampledWithDataToEvaluateAndWithout) {
  const Workspace w;
  const std::vector<std::string> keys = {"sample_prompt=the", "sample_tokens=4", "eval_steps=5",
                                         "save_steps=4"};
  for (const char* share : {"0", "0.1"}) {
    std::vector<std::string> all = keys;
    all.push_back(std::string("eval_fraction=") + share);
    all.emplace_back("overwrite=true");
    const Outcome o = w.trained("run", all);
    EXPECT_EQ(count_of(o.out, "\n  sample: the"), 4) << o.out;
    EXPECT_EQ(count_of(o.out, "  validation loss "), share[1] == 0 ? 0 : 4) << o.out;
    expect_planned_is_measured(w, "run");
    w.trained("silent", {std::string("eval_fraction=") + share, "overwrite=true"});
    EXPECT_EQ(w.losses("run"), w.losses("silent")) << "a sample is nothing to what is learned";
  }
  // More than the model has positions for is none, and takes no memory: the old run is gone by
  // then.
  const Outcome huge = w.trained(
      "run", {"sample_prompt=the", "sample_tokens=9000000000000000000", "overwrite=true"});
  EXPECT_EQ(count_of(huge.out, "\n  sample: the"), 2) << huge.out;
}

TEST(Watching, EarlyStopping) {
  const Workspace w;
  const std::vector<std::string> still = {"learning_rate=0", "min_lr=0", "eval_steps=2",
                                          "save_steps=3", "logging_steps=3"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), still.begin(), still.end());
    return more;
  };
  // Evaluations at 0, 2 and 4 are the same: the third is the second without a gain.
  const Outcome o = w.trained("whole", with({"early_stopping_patience=2"}));
  EXPECT_NE(o.out.find("Stopped early at step 4: 2 evaluations in a row without a validation loss "
                       "below "),
            std::string::npos)
      << o.out;
  EXPECT_TRUE(exists(w.path("whole/final/model.safetensors")));
  EXPECT_TRUE(exists(w.path("whole/checkpoint-4/COMPLETE")));
  EXPECT_EQ(w.json("whole/memory.json")["finished"], true);
  expect_planned_is_measured(w, "whole");
  std::vector<int> logged;
  for (const Json& line : w.metrics("whole"))
    if (line.contains("loss")) logged.push_back(line["step"].get<int>());
  EXPECT_EQ(logged, (std::vector<int>{3, 4})) << "the last line holds what was left";
  // Where nothing is left since the last line there is no other; the end of all steps is the same matter.
  const auto steps_of = [&](const char* name, const std::vector<std::string>& more) {
    std::vector<std::string> keys = still;
    keys.insert(keys.end(), more.begin(), more.end());
    w.trained(name, keys);
    std::vector<int> steps;
    for (const Json& line : w.metrics(name))
      if (line.contains("loss")) steps.push_back(line["step"].get<int>());
    return steps;
  };
  EXPECT_EQ(steps_of("even", {"early_stopping_patience=2", "logging_steps=2"}),
            (std::vector<int>{2, 4}));
  EXPECT_EQ(steps_of("five", {"max_steps=5"}), (std::vector<int>{3, 5}));
  EXPECT_EQ(steps_of("six", {"max_steps=6"}), (std::vector<int>{3, 6}));

  // The count of evaluations survives an interruption.
  fs::copy(w.path("whole"), w.path("parts"), fs::copy_options::recursive);
  fs::remove_all(w.path("parts/checkpoint-4"));
  fs::remove_all(w.path("parts/final"));
  const Outcome resumed = w.trained("parts", with({"early_stopping_patience=2", "resume=latest"}));
  EXPECT_NE(resumed.out.find("Stopped early at step 4"), std::string::npos) << resumed.out;
  EXPECT_EQ(w.curve("parts"), w.curve("whole"));
  // A run that stopped early has nothing left to do, and goes on with more patience.
  const Outcome again = w.trained("parts", with({"early_stopping_patience=2", "resume=latest"}));
  EXPECT_EQ(again.out.find("step      6"), std::string::npos) << again.out;
  EXPECT_EQ(w.curve("parts"), w.curve("whole"));
  const Outcome longer = w.trained("parts", with({"early_stopping_patience=4", "resume=latest"}));
  EXPECT_NE(longer.out.find("Stopped early at step 8"), std::string::npos) << longer.out;

  // While the loss falls the run goes on; a fall below the threshold is none.
  const Outcome falls = w.trained("falls", {"early_stopping_patience=1", "eval_steps=4"});
  EXPECT_EQ(falls.out.find("Stopped early"), std::string::npos) << falls.out;
  const Outcome little = w.trained(
      "little", {"early_stopping_patience=1", "early_stopping_threshold=100", "eval_steps=4"});
  EXPECT_NE(little.out.find("Stopped early at step 4: 1 evaluations in a row without a validation "
                            "loss below "),
            std::string::npos)
      << little.out;
}

}  // namespace
}  // namespace snug::e2e
