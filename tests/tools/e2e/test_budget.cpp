// A budget too small is refused with the smallest that works, and that one works.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/tools/e2e/runs.h"
#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

// N of "memory of at least N B".
int64_t named_minimum(const std::string& message) {
  const std::string before = "memory of at least ";
  const size_t at = message.find(before);
  return at == std::string::npos ? -1
                                 : std::strtoll(message.c_str() + at + before.size(), nullptr, 10);
}

class Budget : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(Budget, TheNamedMinimumWorksAndNothingBelow) {
  const Workspace w;
  const auto with = [&](const std::string& memory) {
    std::vector<std::string> more = GetParam();
    more.push_back("memory=" + memory);
    return more;
  };
  const Outcome refused = w.train("run", with("1MiB"));
  EXPECT_EQ(refused.code, 3) << refused.err;
  EXPECT_FALSE(exists(w.path("run")));
  EXPECT_NE(refused.err.find("found: memory of 1048576 B"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("holds at its peak: "), std::string::npos) << refused.err;
  const int64_t minimum = named_minimum(refused.err);
  ASSERT_GT(minimum, 0) << refused.err;
  EXPECT_NE(refused.err.find("try:   memory=" + std::to_string(minimum)), std::string::npos);

  w.trained("run", with(std::to_string(minimum)));
  expect_planned_is_measured(w, "run");
  const Json plan = w.json("run/plan.json");
  EXPECT_EQ(plan["minimum_bytes"], minimum);
  EXPECT_EQ(plan["engine_bytes"].get<int64_t>() + plan["runtime_bytes"].get<int64_t>(), minimum);

  const Outcome below = w.train("below", with(std::to_string(minimum - 4096)));
  EXPECT_EQ(below.code, 3);
  EXPECT_EQ(named_minimum(below.err), minimum) << "the minimum does not depend on the budget";
  EXPECT_FALSE(exists(w.path("below")));

  std::vector<std::string> words = w.train_arguments("planned", with("1MiB"));
  words[0] = "plan";
  EXPECT_EQ(run(words).code, 3);
  words.emplace_back("--json");
  const Outcome json = run(words);
  EXPECT_EQ(json.code, 3);
  EXPECT_EQ(Json::parse(json.out)["fits"], false);
  EXPECT_EQ(Json::parse(json.out)["minimum_bytes"], minimum);
}

INSTANTIATE_TEST_SUITE_P(
    Configs, Budget,
    testing::Values(std::vector<std::string>{},
                    std::vector<std::string>{"precision=bf16", "per_device_train_batch_size=3",
                                             "recompute=none", "sample_prompt=the cat"},
                    std::vector<std::string>{"recompute=norms+mlp", "head_rows=64",
                                             "global_batch_size=64", "eval_fraction=0",
                                             "max_steps=4", "per_device_train_batch_size=64"},
                    std::vector<std::string>{"optim=sgd", "sgd_momentum=0.9", "max_length=64",
                                             "per_device_eval_batch_size=9"}));

// On the CPU the memory that a budget allows may not be there: nothing starts that would be killed.
TEST(BudgetChoice, MoreThanIsFreeIsRefused) {
  const Workspace w;
  const std::vector<std::string> keys = {
      "memory=1000000GiB",
      "model={type: gpt2, n_layer: 12, n_embd: 1024, n_head: 16, n_positions: 256}",
      "max_length=128",
      "global_batch_size=16384",
      "head_rows=1024",
      "per_device_train_batch_size=16384",
      "recompute=none",
      "eval_fraction=0"};
  for (const char* command : {"train", "bench"}) {
    std::vector<std::string> words = w.train_arguments("run", keys);
    words[0] = command;
    if (words[0] == "bench") words.insert(words.begin() + 1, "step");
    const Outcome refused = run(words);
    EXPECT_EQ(refused.code, 3) << command << refused.err;
    for (const char* text : {"out_of_memory: expected ", " of free memory", "B of engine and ",
                             "\n  found: ", " free now", "\n  try:   to close other programs, or ",
                             "per_device_train_batch_size=1"})
      EXPECT_NE(refused.err.find(text), std::string::npos) << command << refused.err;
    EXPECT_FALSE(exists(w.path("run")));
  }
  // A plan takes none, and says so.
  std::vector<std::string> words = w.train_arguments("run", keys);
  words[0] = "plan";
  const Outcome planned = run(words);
  EXPECT_EQ(planned.code, 0) << planned.err;
  EXPECT_NE(planned.out.find("less than this plan takes"), std::string::npos) << planned.out;
  words.push_back("--json");
  const Json json = Json::parse(run(words).out);
  EXPECT_LT(json["free_bytes"], json["engine_bytes"]);
  // What is explained is what is planned.
  words = w.train_arguments("run", keys);
  words[0] = "explain";
  words.push_back("--peak");
  const Outcome explained = run(words);
  EXPECT_EQ(explained.code, 0) << explained.err;
  // The budget is a limit and not a wish: with the micro-batch left open a run is found.
  const Outcome open = run(w.train_arguments("run", {"memory=1000000GiB", "max_steps=1"}));
  EXPECT_EQ(open.code, 0) << open.err;
  EXPECT_EQ(open.out.find("less than this plan takes"), std::string::npos);
}

TEST(BudgetChoice, LessMemoryMeansMoreRecomputeAndTheSameNumbers) {
  const Workspace w;
  const std::vector<std::string> base = {"global_batch_size=32", "per_device_train_batch_size=32",
                                         "head_rows=256"};
  std::vector<std::string> tight = base;
  w.trained("wide", base);
  const Json wide = w.json("wide/plan.json");
  EXPECT_EQ(wide["decisions"]["recompute"], "none");
  tight.push_back("memory=" + std::to_string(wide["minimum_bytes"].get<int64_t>()));
  w.trained("tight", tight);
  EXPECT_NE(w.json("tight/plan.json")["decisions"]["recompute"], "none");
  EXPECT_LT(w.json("tight/memory.json")["measured_engine_bytes"],
            w.json("wide/memory.json")["measured_engine_bytes"]);
  EXPECT_EQ(w.curve("wide"), w.curve("tight"));
  EXPECT_EQ(slurp(w.path("wide/final/model.safetensors")),
            slurp(w.path("tight/final/model.safetensors")));
}

// Layers updated as backward leaves them: the same numbers, also where checkpoints are written
// meanwhile and gone on from.
TEST(SlowBudgetChoice, UpdatesInBackwardChangeNoNumber) {
  const Workspace w;
  const std::vector<std::string> base = {"model.n_layer=8",
                                         "model.n_embd=64",
                                         "max_length=16",
                                         "global_batch_size=2",
                                         "per_device_train_batch_size=2",
                                         "eval_fraction=0",
                                         "head_rows=32",
                                         "max_grad_norm=0",
                                         "save_steps=5",
                                         "save_buffer=64KiB"};
  w.trained("wide", base);
  const Json wide = w.json("wide/plan.json");
  EXPECT_EQ(wide["decisions"]["update"], "behind backward");
  const std::vector<std::string> least =
      joined(base, {"memory=" + std::to_string(wide["minimum_bytes"].get<int64_t>())});
  w.trained("tight", least);
  EXPECT_EQ(w.json("tight/plan.json")["decisions"]["update"], "in backward");
  expect_planned_is_measured(w, "tight");
  const auto same = [&](const std::string& run) {
    EXPECT_EQ(w.losses(run), w.losses("wide")) << run;
    EXPECT_TRUE(slurp(w.path(run + "/final/model.safetensors")) ==
                slurp(w.path("wide/final/model.safetensors")))
        << run;
    EXPECT_TRUE(slurp(w.path(run + "/checkpoint-5/optimizer.safetensors")) ==
                slurp(w.path("wide/checkpoint-5/optimizer.safetensors")))
        << run;
  };
  same("tight");
  lose_power_after(w, "tight", "again", 5);
  w.trained("again", joined(base, {"resume=latest"}));
  same("again");
}

}  // namespace
}  // namespace snug::e2e
