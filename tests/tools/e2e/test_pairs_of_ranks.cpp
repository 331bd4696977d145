// Pairs and single answers shared by ranks, at every stage: what one rank learns, its metrics too.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

struct Case {
  const char* name;
  std::vector<std::string> keys;
  const char* weights;  // of final/
};

class PairsOfRanks : public testing::Test {
 protected:
  PairsOfRanks() {
    w_.trained("base", {"max_steps=8"});
    std::string pairs, answers;
    for (int i = 0; i < 12; ++i) {
      const std::string prompt = sentences(1, static_cast<unsigned>(i)).substr(0, 8);
      pairs += Json({{"prompt", prompt},
                     {"chosen", " the cat"},
                     {"rejected", i % 2 == 0 ? " a dog sees" : " no"}})
                   .dump() +
               "\n";
      answers += Json({{"prompt", prompt},
                       {"completion", i % 3 == 0 ? " the cat" : " a dog"},
                       {"label", i % 3 == 0}})
                     .dump() +
                 "\n";
    }
    spill(w_.path("pairs.jsonl"), pairs);
    spill(w_.path("answers.jsonl"), answers);
  }
  // Six a step, in micro-steps of one window: of the last round a rank has none.
  std::vector<std::string> with(const std::vector<std::string>& more) const {
    return joined({"model=" + w_.path("base/final"), "tokenizer=null", "eval_fraction=0",
                   "train_data=" + w_.path("pairs.jsonl"), "eval_data=" + w_.path("pairs.jsonl"),
                   "max_length=24", "global_batch_size=6", "per_device_train_batch_size=1",
                   "logging_steps=1", "max_steps=6", "learning_rate=0.003", "threads=1"},
                  more);
  }
  // Every number of every line that steps and evaluations have, but for clocks and bytes.
  void expect_near(const std::string& a, const std::string& b, double relative) const {
    const std::vector<Json> all = w_.metrics(a), each = w_.metrics(b);
    ASSERT_EQ(all.size(), each.size());
    for (size_t i = 0; i < all.size(); ++i)
      for (const auto& [key, value] : all[i].items()) {
        const bool learned =
            key.find('/') != std::string::npos || key.find("loss") != std::string::npos ||
            key.find("accuracy") != std::string::npos || key.find("margin") != std::string::npos ||
            key.find("reward") != std::string::npos || key.find("odds") != std::string::npos ||
            key == "grad_norm";
        if (!learned || !value.is_number()) continue;
        ASSERT_TRUE(each[i].contains(key)) << key;
        const double x = value.get<double>(), y = each[i][key].get<double>();
        EXPECT_NEAR(x, y, relative * std::max(1.0, std::fabs(x))) << key << " of line " << i;
      }
  }
  Workspace w_;
};

TEST_F(PairsOfRanks, LearnWhatOneLearns) {
  const std::string answers = "train_data=" + w_.path("answers.jsonl");
  const std::vector<std::string> lora = {"peft=lora", "lora_r=4", "target_modules=all-linear"};
  const Case cases[] = {
      {"beside", joined({"task=dpo"}, lora), "adapter_model.safetensors"},
      {"whole", {"task=dpo", "precompute_ref_log_probs=true"}, "model.safetensors"},
      {"orpo", {"task=dpo", "loss_type=orpo"}, "model.safetensors"},
      {"kto",
       joined({"task=dpo", "loss_type=kto", answers, "eval_data=" + w_.path("answers.jsonl")},
              lora),
       "adapter_model.safetensors"},
      {"reward", {"task=reward", "center_rewards_coefficient=0.01"}, "model.safetensors"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const std::string one = std::string(c.name) + "-one";
    w_.trained(one, with(c.keys));
    for (const int zero : {0, 1, 2, 3}) {
      const auto run_of = [&](int stage) { return fmt::format("{}-zero={}", c.name, stage); };
      const std::string name = run_of(zero);
      w_.trained(name, with(joined(c.keys, {"ranks=2", fmt::format("zero={}", zero)})));
      expect_planned_is_measured(w_, name);
      expect_planned_is_measured(w_, name + "/ranks/1");
      expect_near(one, name, 2e-5);
      expect_near(name, name + "/ranks/1", 0);
      if (zero % 2 == 0) continue;  // from stage 2 on every micro-step is summed over ranks
      expect_near(run_of(zero - 1), name, 0);
      expect_same_bytes(w_, name, run_of(zero - 1), std::string("final/") + c.weights);
    }
  }
}

// The reference that the weights of the start give is written once, and read by all who go on.
TEST_F(PairsOfRanks, GoOnWithTheReferenceOfTheStart) {
  const std::vector<std::string> keys = {"task=dpo",     "precompute_ref_log_probs=true",
                                         "ranks=2",      "zero=3",
                                         "save_steps=3", "logging_steps=2"};
  w_.trained("whole", with(keys));
  EXPECT_FALSE(exists(w_.path("whole/ranks/1/reference_logps.safetensors")));
  lose_power_after(w_, "whole", "on", 3);
  w_.trained("on", with(joined(keys, {"resume=latest"})));
  expect_same_bytes(w_, "on", "whole", "final/model.safetensors");
  EXPECT_EQ(w_.curve("on"), w_.curve("whole"));
  EXPECT_TRUE(slurp(w_.path("on/reference_logps.safetensors")) ==
              slurp(w_.path("whole/reference_logps.safetensors")));
}

}  // namespace
}  // namespace snug::e2e
