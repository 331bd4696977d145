// Reward models from the command: learned from pairs, on the whole model and beside it, looked at, evaluated,
// asked, gone on with, and what is refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

class Rewards : public testing::Test {
 protected:
  Rewards() {
    w_.trained("base", {"max_steps=8"});
    std::string pairs;
    for (int i = 0; i < 12; ++i)
      pairs += Json({{"prompt", sentences(1, static_cast<unsigned>(i)).substr(0, 8)},
                     {"chosen", " the cat"},
                     {"rejected", i % 2 == 0 ? " a dog sees" : " no"}})
                   .dump() +
               "\n";
    spill(w_.path("pairs.jsonl"), pairs);
  }
  std::vector<std::string> with(const std::vector<std::string>& more = {}) const {
    return joined({"model=" + w_.path("base/final"), "tokenizer=null", "task=reward",
                   "train_data=" + w_.path("pairs.jsonl"), "eval_data=" + w_.path("pairs.jsonl"),
                   "eval_fraction=0", "max_length=24", "global_batch_size=6", "logging_steps=1",
                   "learning_rate=0.003"},
                  more);
  }
  Json evaluated(const std::vector<std::string>& words) const {
    const Outcome o = run(joined({"eval", "--task", "reward", "--data", w_.path("pairs.jsonl"),
                                  "--max-length", "24", "--json", "--threads", "1"},
                                 words));
    EXPECT_EQ(o.code, 0) << o.err;
    return Json::parse(o.out);
  }
  Workspace w_;
};

TEST_F(Rewards, AModelLearnsToRewardAndSaysIt) {
  const Outcome o = w_.trained("run", with({"center_rewards_coefficient=0.01"}));
  expect_planned_is_measured(w_, "run");
  EXPECT_NE(o.out.find("train_data: 12 pairs, "), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("  accuracy "), std::string::npos) << o.out;
  const std::vector<Json> lines = w_.metrics("run");
  const Json& last = lines.back();
  EXPECT_LT(last["eval_loss"].get<double>(), 0.3);
  EXPECT_EQ(last["eval_accuracy"], 1.0);
  for (const Json& line : lines) {
    const std::string of = line.contains("eval_loss") ? "eval_" : "";
    for (const char* name : {"accuracy", "margin", "mean_reward", "min_reward", "max_reward"})
      EXPECT_TRUE(line[of + name].is_number()) << name;
    EXPECT_LE(line[of + "min_reward"].get<double>(), line[of + "mean_reward"].get<double>());
    EXPECT_FALSE(line.contains("eval_perplexity"));
  }
  const Json config = Json::parse(slurp(w_.path("run/final/config.json")));
  EXPECT_EQ(config["architectures"][0], "GPT2ForSequenceClassification");
  EXPECT_EQ(config["id2label"], Json({{"0", "LABEL_0"}}));

  const Json result =
      evaluated({"--model", w_.path("run/final"), "--center-rewards-coefficient", "0.01"});
  EXPECT_NEAR(result["loss"].get<double>(), last["eval_loss"].get<double>(), 1e-5);
  EXPECT_NEAR(result["margin"].get<double>(), last["eval_margin"].get<double>(), 1e-5);
  EXPECT_EQ(result["pairs"], 12);
  EXPECT_EQ(result["task"], "reward");

  // A text alone has a reward.
  spill(w_.path("texts.jsonl"),
        Json({{"text", "a b"}}).dump() + "\n" + Json({{"text", "x"}}).dump() + "\n");
  const Outcome said = run({"predict", "--model", w_.path("run/final"), "--data",
                            w_.path("texts.jsonl"), "--json", "--threads", "1"});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_NE(said.out.find("\"value\":"), std::string::npos) << said.out;
  // It goes on where it ended.
  w_.trained("more", with({"model=" + w_.path("run/final"), "max_steps=2"}));
  EXPECT_LT(w_.metrics("more").front()["eval_loss"].get<double>(), 0.4);
}

// A token sequence as pairs and as a row has the same reward.
TEST_F(Rewards, APairsMarginIsThatOfItsTexts) {
  spill(w_.path("pairs.jsonl"),
        "{\"chosen_ids\": [5, 6, 7, 8], \"rejected_ids\": [9, 10], \"margin\": 0.5}\n");
  w_.trained("run", with({"max_steps=3", "global_batch_size=1"}));
  const Json pair = evaluated({"--model", w_.path("run/final")});
  spill(w_.path("ids.jsonl"), "{\"input_ids\": [5, 6, 7, 8]}\n{\"input_ids\": [9, 10]}\n");
  const Outcome said = run({"predict", "--model", w_.path("run/final"), "--data",
                            w_.path("ids.jsonl"), "--json", "--threads", "1"});
  ASSERT_EQ(said.code, 0) << said.err;
  std::vector<double> rewards;
  std::istringstream lines(said.out);
  for (std::string line; std::getline(lines, line);)
    rewards.push_back(Json::parse(line)["value"].get<double>());
  ASSERT_EQ(rewards.size(), 2u) << said.out;
  EXPECT_NEAR(pair["margin"].get<double>(), rewards[0] - rewards[1], 1e-5);
  EXPECT_NEAR(pair["max_reward"].get<double>(), std::max(rewards[0], rewards[1]), 1e-5);
  // -log sigmoid(c - r - margin)
  EXPECT_NEAR(pair["loss"].get<double>(), std::log1p(std::exp(0.5 - (rewards[0] - rewards[1]))),
              1e-5);
}

TEST_F(Rewards, ResumeAndSplitsChangeNothing) {
  const std::vector<std::string> more = {"save_steps=5", "eval_steps=4", "logging_steps=3"};
  w_.trained("whole", with(more));
  lose_power_after(w_, "whole", "parts", 5);
  w_.trained("parts", with(joined(more, {"resume=latest", "recompute=block"})));
  EXPECT_EQ(w_.curve("whole"), w_.curve("parts"));
  EXPECT_TRUE(slurp(w_.path("whole/final/model.safetensors")) ==
              slurp(w_.path("parts/final/model.safetensors")));
  expect_planned_is_measured(w_, "parts");
  w_.trained("all", with({"per_device_train_batch_size=6"}));
  w_.trained("each", with({"per_device_train_batch_size=1"}));
  const std::vector<double> all = w_.losses("all"), each = w_.losses("each");
  ASSERT_EQ(all.size(), each.size());
  for (size_t i = 0; i < all.size(); ++i) EXPECT_NEAR(all[i], each[i], 1e-4 * all[i]) << i;
}

TEST_F(Rewards, AdaptersLearnItToo) {
  w_.trained("run",
             with({"peft=lora", "lora_r=4", "target_modules=all-linear", "learning_rate=0.01"}));
  expect_planned_is_measured(w_, "run");
  const Json last = w_.metrics("run").back();
  EXPECT_EQ(last["eval_accuracy"], 1.0);
  const Json adapter = Json::parse(slurp(w_.path("run/final/adapter_config.json")));
  EXPECT_EQ(adapter["task_type"], "SEQ_CLS");
  EXPECT_EQ(adapter["modules_to_save"], Json::array({"score"}));
  const Json result =
      evaluated({"--model", w_.path("base/final"), "--adapter", w_.path("run/final")});
  EXPECT_NEAR(result["loss"].get<double>(), last["eval_loss"].get<double>(), 1e-5);
  ASSERT_EQ(run({"merge", "--model", w_.path("base/final"), "--adapter", w_.path("run/final"),
                 "--output", w_.path("merged")})
                .code,
            0);
  EXPECT_NEAR(evaluated({"--model", w_.path("merged")})["loss"].get<double>(),
              last["eval_loss"].get<double>(), 1e-4);
}

TEST_F(Rewards, KernelsLearnWhatTheCpuLearns) {
  w_.trained("cpu", with({"max_steps=4"}));
  w_.trained("emu", with({"max_steps=4", "device=emu", "cuda_graphs=on"}));
  expect_planned_is_measured(w_, "emu");
  const std::vector<double> cpu = w_.losses("cpu"), emu = w_.losses("emu");
  ASSERT_EQ(cpu.size(), emu.size());
  for (size_t i = 0; i < cpu.size(); ++i)
    EXPECT_NEAR(emu[i], cpu[i], 2e-5 * static_cast<double>(i + 1)) << "step " << i + 1;
  for (size_t i = 0; i < w_.metrics("cpu").size(); ++i)
    for (const char* name : {"margin", "eval_margin"})
      if (w_.metrics("cpu")[i].contains(name)) {
        EXPECT_NEAR(w_.metrics("cpu")[i][name].get<double>(),
                    w_.metrics("emu")[i][name].get<double>(), 1e-3);
      }
}

TEST_F(Rewards, PreviewShowsBothAnswers) {
  const Outcome o = run(joined({"data", "preview", "-n", "1"}, with()));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("\nchosen, "), std::string::npos) << o.out;
  EXPECT_NE(o.out.find(" the cat"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("\nrejected, "), std::string::npos) << o.out;
  EXPECT_EQ(o.out.find("{{"), std::string::npos) << o.out;
}

TEST_F(Rewards, LongPairsAreLeftOut) {
  std::string list;
  for (int i = 0; i < 30; ++i) list += fmt::format("{}{}", i == 0 ? "" : ", ", 5 + i);
  spill(w_.path("pairs.jsonl"),
        "{\"chosen_ids\": [5, 6], \"rejected_ids\": [7]}\n{\"chosen_ids\": [5, 6], "
        "\"rejected_ids\": [" +
            list + "]}\n");
  const Outcome o = w_.trained("run", with({"max_steps=1", "global_batch_size=1"}));
  EXPECT_NE(o.out.find("longer than max_length left out"), std::string::npos) << o.out;
}

TEST_F(Rewards, WhatIsRefused) {
  struct Case {
    std::string record;
    std::vector<std::string> keys;
    const char* words;
  };
  const std::string good = R"({"prompt": "the", "chosen": " cat", "rejected": " dog"})";
  const Case cases[] = {
      {R"({"prompt": "the", "chosen": " cat"})", {}, "\"rejected\" in every record of pairs"},
      {R"({"prompt": "the", "chosen": " cat", "rejected": " dog", "margin": "big"})",
       {},
       "\"margin\" as a number"},
      {good, {"max_length=2"}, "longer than max_length"},
      {good, {"beta=0.2"}, "beta only with task: dpo"},
      {good, {"loss_type=ipo"}, "loss_type only with task: dpo"},
      {good,
       {"task=dpo", "center_rewards_coefficient=0.1"},
       "center_rewards_coefficient only with"},
      {good, {"center_rewards_coefficient=-1"}, "center_rewards_coefficient"},
      {good, {"label_column=x"}, "label_column only with"},
      {good, {"problem_type=regression"}, "problem_type only with"},
      {good, {"sample_prompt=the"}, "sample_prompt only with"},
      {good, {"peft=lora", "lora_dropout=0.1"}, "no dropout with task: reward"},
      {good,
       {"metric_for_best_model=eval_perplexity"},
       "metric_for_best_model as eval_loss, eval_accuracy, eval_margin"},
      {good, {"model=bert-tiny"}, "a causal model for task: reward"},
  };
  for (const Case& c : cases) {
    spill(w_.path("pairs.jsonl"), c.record + "\n");
    const Outcome o = w_.train("bad", with(c.keys));
    EXPECT_EQ(o.code, 2) << c.words << "\n" << o.out << o.err;
    EXPECT_NE(o.err.find(c.words), std::string::npos) << c.words << "\n" << o.err;
    EXPECT_NE(o.err.find("\n  try:   "), std::string::npos) << o.err;
    EXPECT_FALSE(exists(w_.path("bad"))) << c.words;
  }
}

TEST_F(Rewards, WhatElseRefusesARewardModel) {
  w_.trained("run", with({"max_steps=1"}));
  const auto refused = [&](const std::vector<std::string>& words, const char* expected) {
    const Outcome o = run(words);
    EXPECT_EQ(o.code, 2) << o.out << o.err;
    EXPECT_NE(o.err.find(expected), std::string::npos) << o.err;
  };
  const std::string model = w_.path("run/final"), pairs = w_.path("pairs.jsonl");
  refused({"generate", "--model", model, "--prompt", "the"},
          "a decoder of type gpt2 with a head for");
  refused({"convert", "--model", model, "--to", "gguf", "--output", w_.path("x.gguf")},
          "a model with a head of causal_lm to write as GGUF");
  refused({"eval", "--model", model, "--task", "reward", "--center-rewards-coefficient=-1",
           "--data", pairs},
          "--center-rewards-coefficient of 0 and above");
  refused({"eval", "--model", w_.path("base/final"), "--task", "reward", "--data", pairs},
          "a causal model of one label for --task reward");
  refused({"eval", "--model", model, "--task", "dpo", "--data", pairs},
          "a model with a head of causal_lm");
  refused({"eval", "--model", model, "--task", "reward", "--beta", "1", "--data", pairs},
          "--beta with --task dpo alone");
  refused({"eval", "--model", w_.path("base/final"), "--center-rewards-coefficient", "1", "--data",
           pairs},
          "--center-rewards-coefficient with --task reward alone");
  const Outcome bad = w_.train("bad", with({"model=" + model, "task=causal_lm"}));
  EXPECT_EQ(bad.code, 2) << bad.out;
  EXPECT_NE(bad.err.find("task=auto, or the model that it was made from"), std::string::npos)
      << bad.err;
  Json config = Json::parse(slurp(model + "/config.json"));
  config["id2label"] = {{"0", "good"}, {"1", "bad"}};
  config["label2id"] = {{"good", 0}, {"bad", 1}};
  spill(model + "/config.json", config.dump());
  const Outcome two = w_.train("bad", with({"model=" + model}));
  EXPECT_EQ(two.code, 2) << two.out;
  EXPECT_NE(two.err.find("a model of one label for task: reward"), std::string::npos) << two.err;
}

}  // namespace
}  // namespace snug::e2e
