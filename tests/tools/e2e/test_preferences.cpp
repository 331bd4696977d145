// Pairs from the command: learned beside a model that is its own reference, looked at, evaluated, merged,
// gone on with, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/tools/e2e/preference_runs.h"

namespace snug::e2e {
namespace {

class Preferences : public PreferenceRuns {
 protected:
  // Up to the order of sums.
  void expect_near_losses(const std::string& a, const std::string& b) const {
    const std::vector<double> all = w_.losses(a), each = w_.losses(b);
    ASSERT_EQ(all.size(), each.size());
    for (size_t i = 0; i < all.size(); ++i) EXPECT_NEAR(all[i], each[i], 1e-4 * all[i]) << i;
  }
};

TEST_F(Preferences, ARunLearnsToPrefer) {
  const Outcome o = w_.trained("run", with());
  expect_planned_is_measured(w_, "run");
  EXPECT_NE(o.out.find("train_data: 12 pairs, "), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("  accuracy "), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("(12 pairs, "), std::string::npos) << o.out;
  const std::vector<Json> lines = w_.metrics("run");
  // Before the first step the model is its reference.
  EXPECT_NEAR(lines.front()["eval_loss"].get<double>(), std::log(2.0), 1e-6);
  EXPECT_EQ(lines.front()["eval_rewards/margins"], 0.0);
  EXPECT_FALSE(lines.front().contains("eval_perplexity"));
  const Json& last = lines.back();
  EXPECT_LT(last["eval_loss"].get<double>(), 0.6);
  EXPECT_EQ(last["eval_rewards/accuracies"], 1.0);
  EXPECT_NEAR(
      last["eval_rewards/margins"].get<double>(),
      last["eval_rewards/chosen"].get<double>() - last["eval_rewards/rejected"].get<double>(),
      1e-6);
  for (const Json& line : lines)
    if (line.contains("loss")) {
      for (const char* name : {"rewards/chosen", "rewards/rejected", "rewards/accuracies",
                               "rewards/margins", "logps/chosen", "logps/rejected"})
        EXPECT_TRUE(line[name].is_number()) << name;
    }

  const std::vector<std::string> eval = {"eval",
                                         "--model",
                                         w_.path("base/final"),
                                         "--task",
                                         "dpo",
                                         "--data",
                                         w_.path("pairs.jsonl"),
                                         "--max-length",
                                         "24",
                                         "--json",
                                         "--threads",
                                         "1"};
  const Outcome tuned = run(joined(eval, {"--adapter", w_.path("run/final")}));
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  const Json result = Json::parse(tuned.out);
  EXPECT_NEAR(result["loss"].get<double>(), last["eval_loss"].get<double>(), 1e-5);
  EXPECT_EQ(result["pairs"], 12);
  EXPECT_EQ(result["rewards/accuracies"], 1.0);
  const Outcome plain = run(eval);
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_NEAR(Json::parse(plain.out)["loss"].get<double>(), std::log(2.0), 1e-6);
  EXPECT_NE(plain.err.find("without --adapter the model is its own reference"), std::string::npos);

  EXPECT_EQ(run({"merge", "--model", w_.path("base/final"), "--adapter", w_.path("run/final"),
                 "--output", w_.path("merged")})
                .code,
            0);
  EXPECT_EQ(run({"generate", "--model", w_.path("merged"), "--prompt", "the", "--max-new-tokens",
                 "3", "--temperature", "0"})
                .code,
            0);
}

// Stopped after its checkpoint, and gone on with under another policy: the same bits.
TEST_F(Preferences, ResumeChangesNoBit) {
  for (const char* loss : {"loss_type=sigmoid", "loss_type=ipo"}) {
    const std::string name = loss + 10, whole = "whole_" + name, parts = "parts_" + name;
    const std::vector<std::string> more = {loss, "save_steps=5", "eval_steps=4", "logging_steps=3"};
    w_.trained(whole, with(more));
    expect_goes_on(whole, parts, more, "adapter_model.safetensors");
    expect_planned_is_measured(w_, parts);
  }
}

// A window at a time or all at once: up to the order of sums.
TEST_F(Preferences, SplitsOfAStepAreEqual) {
  w_.trained("all", with({"per_device_train_batch_size=6", "logging_steps=1"}));
  w_.trained("each", with({"per_device_train_batch_size=1", "logging_steps=1"}));
  expect_near_losses("all", "each");
}

// Without a reference the whole model may learn.
TEST_F(Preferences, SimpoTrainsTheModelItself) {
  const Outcome o = w_.trained("run", with({"peft=null", "target_modules=null", "lora_r=null",
                                            "loss_type=simpo", "beta=2", "learning_rate=0.002"}));
  expect_planned_is_measured(w_, "run");
  EXPECT_EQ(w_.metrics("run").back()["eval_rewards/accuracies"], 1.0);
  EXPECT_TRUE(exists(w_.path("run/final/model.safetensors")));
}

// The chosen answer is learned beside the preference: its loss falls, the odds grow.
TEST_F(Preferences, OrpoLearnsTheChosenAnswerToo) {
  const std::vector<std::string> orpo = {
      "peft=null", "target_modules=null", "lora_r=null",    "loss_type=orpo",
      "beta=0.5",  "learning_rate=0.002", "logging_steps=1"};
  w_.trained("run", with(orpo));
  expect_planned_is_measured(w_, "run");
  const std::vector<Json> lines = w_.metrics("run");
  const Json &first = lines.front(), &last = lines.back();
  EXPECT_LT(last["eval_nll_loss"].get<double>(), first["eval_nll_loss"].get<double>() - 0.3);
  EXPECT_GT(last["eval_log_odds_chosen"].get<double>(),
            first["eval_log_odds_chosen"].get<double>());
  EXPECT_GE(last["eval_rewards/accuracies"], first["eval_rewards/accuracies"]);
  for (const Json& line : lines) {
    const std::string of = line.contains("eval_loss") ? "eval_" : "";
    EXPECT_NEAR(
        line[of + "loss"].get<double>(),
        line[of + "nll_loss"].get<double>() - 0.5 * line[of + "log_odds_ratio"].get<double>(),
        1e-5 * line[of + "loss"].get<double>());
  }
  EXPECT_TRUE(exists(w_.path("run/final/model.safetensors")));
  // A window at a time, and gone on with under another policy.
  w_.trained("each", with(joined(orpo, {"per_device_train_batch_size=1"})));
  expect_near_losses("run", "each");
  const std::vector<std::string> more = joined(orpo, {"save_steps=5", "logging_steps=3"});
  w_.trained("whole", with(more));
  expect_goes_on("whole", "parts", more, "model.safetensors");

  const Outcome o = run({"eval", "--model", w_.path("run/final"), "--task", "dpo", "--loss-type",
                         "orpo", "--beta", "0.5", "--data", w_.path("pairs.jsonl"), "--max-length",
                         "24", "--json", "--threads", "1"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.err.find("its own reference"), std::string::npos) << o.err;
  const Json result = Json::parse(o.out);
  EXPECT_NEAR(result["nll_loss"].get<double>(), last["eval_nll_loss"].get<double>(), 1e-5);

  const Outcome preview = run(joined({"data", "preview", "-n", "1"}, with(orpo)));
  ASSERT_EQ(preview.code, 0) << preview.err;
  EXPECT_NE(preview.out.find(" of them the answer\n"), std::string::npos) << preview.out;
}

// Each answer with a label of its own, beside prompts with the answers of others.
TEST_F(Preferences, KtoLearnsFromSingleAnswers) {
  std::string answers;
  for (int i = 0; i < 12; ++i)
    answers += Json({{"prompt", sentences(1, static_cast<unsigned>(i)).substr(0, 16)},
                     {"completion", i % 3 > 0 ? " the cat" : " no"},
                     {"label", i % 3 > 0}})
                   .dump() +
               "\n";
  spill(w_.path("answers.jsonl"), answers);
  const std::vector<std::string> kto = {"train_data=" + w_.path("answers.jsonl"),
                                        "eval_data=" + w_.path("answers.jsonl"),
                                        "loss_type=kto",
                                        "undesirable_weight=0.2",
                                        "logging_steps=1",
                                        "global_batch_size=12"};
  const Outcome o = w_.trained("run", with(kto));
  expect_planned_is_measured(w_, "run");
  EXPECT_NE(o.out.find("train_data: 12 answers, "), std::string::npos) << o.out;
  EXPECT_NE(o.out.find(", 8 desirable"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("a desirable_weight of 0.1 to 0.133 lets both kinds"), std::string::npos)
      << o.out;
  EXPECT_NE(o.out.find("(12 answers, "), std::string::npos) << o.out;
  const std::vector<Json> lines = w_.metrics("run");
  const Json &first = lines.front(), &last = lines.back();
  // Before the first step the model is its reference: half of the mean weight.
  EXPECT_NEAR(first["eval_loss"].get<double>(), (8 + 0.2 * 4) / 24, 1e-6);
  EXPECT_EQ(first["eval_rewards/margins"], 0.0);
  EXPECT_EQ(first["eval_kl"], 0.0);
  EXPECT_LT(last["eval_loss"].get<double>(), first["eval_loss"].get<double>() - 0.01);
  EXPECT_GT(last["eval_rewards/margins"].get<double>(), 0.2);
  EXPECT_FALSE(last.contains("eval_rewards/accuracies"));
  double most = 0;
  for (const Json& line : lines) {
    const std::string of = line.contains("eval_loss") ? "eval_" : "";
    EXPECT_NEAR(
        line[of + "rewards/margins"].get<double>(),
        line[of + "rewards/chosen"].get<double>() - line[of + "rewards/rejected"].get<double>(),
        1e-6);
    most = std::max(most, line[of + "kl"].get<double>());
    EXPECT_GE(line[of + "kl"].get<double>(), 0);
  }
  EXPECT_GT(most, 1e-3);  // some steps were compared with something

  // A window at a time: what answers are compared with is the step's, not the micro-batch's.
  w_.trained("each", with(joined(kto, {"per_device_train_batch_size=1"})));
  expect_near_losses("run", "each");
  const std::vector<std::string> more = joined(kto, {"save_steps=5", "logging_steps=3"});
  w_.trained("whole", with(more));
  expect_goes_on("whole", "parts", more, "adapter_model.safetensors");

  const Outcome eval =
      run({"eval", "--model", w_.path("base/final"), "--adapter", w_.path("run/final"), "--task",
           "dpo", "--loss-type", "kto", "--undesirable-weight", "0.2", "--data",
           w_.path("answers.jsonl"), "--max-length", "24", "--json", "--threads", "1"});
  ASSERT_EQ(eval.code, 0) << eval.err;
  const Json result = Json::parse(eval.out);
  EXPECT_NEAR(result["loss"].get<double>(), last["eval_loss"].get<double>(), 1e-5);
  EXPECT_NEAR(result["kl"].get<double>(), last["eval_kl"].get<double>(), 1e-4);
  EXPECT_EQ(result["answers"], 12);

  const Outcome preview = run(joined({"data", "preview", "-n", "3"}, with(kto)));
  ASSERT_EQ(preview.code, 0) << preview.err;
  EXPECT_NE(preview.out.find("\ndesirable, "), std::string::npos) << preview.out;
  EXPECT_NE(preview.out.find("{{ the cat"), std::string::npos) << preview.out;
  const Outcome facts = run(joined({"data", "preview", "-n", "12", "--json"}, with(kto)));
  ASSERT_EQ(facts.code, 0) << facts.err;
  const Json previewed = Json::parse(facts.out);
  EXPECT_EQ(previewed["task"], "dpo");
  int undesirable = 0;
  for (const Json& sample : previewed["samples"]) {
    const auto of_none = std::count(sample["targets"].begin(), sample["targets"].end(), Json(-100));
    EXPECT_EQ(sample["trained"], static_cast<int64_t>(sample["targets"].size()) - of_none)
        << sample;
    undesirable += sample["label"] == false;
  }
  EXPECT_EQ(undesirable, 4);
  // Without a divergence, and of answers that are all of one kind.
  const Outcome plain = w_.trained(
      "plain", with(joined(kto, {"loss_type=apo_zero_unpaired", "eval_fraction=0", "max_steps=4",
                                 "metric_for_best_model=eval_rewards/margins"})));
  for (const Json& line : w_.metrics("plain"))
    EXPECT_EQ(line[line.contains("eval_loss") ? "eval_kl" : "kl"], 0.0);
  spill(w_.path("good.jsonl"), R"({"prompt": "the", "completion": " cat", "label": true})"
                               "\n"
                               R"({"prompt": "a", "completion": " dog", "label": true})"
                               "\n");
  const Outcome good =
      w_.trained("good", with(joined(kto, {"train_data=" + w_.path("good.jsonl"),
                                           "eval_data=" + w_.path("good.jsonl"), "max_steps=2"})));
  EXPECT_NE(good.out.find("all answers of train_data are desirable"), std::string::npos)
      << good.out;
  EXPECT_TRUE(w_.metrics("good").back()["eval_rewards/margins"].is_null());
}

// A metric that is not a number is never the best, so that its checkpoint can be read.
TEST_F(Preferences, KtoOfOneKindGoesOn) {
  spill(w_.path("good.jsonl"),
        R"({"prompt": "the", "completion": " cat", "label": true})"
        "\n"
        R"({"prompt": "a", "completion": " dog", "label": true, "chosen": null})"
        "\n");
  const std::vector<std::string> kto = {"train_data=" + w_.path("good.jsonl"),
                                        "eval_data=" + w_.path("good.jsonl"),
                                        "loss_type=kto",
                                        "global_batch_size=2",
                                        "save_steps=2",
                                        "eval_steps=2",
                                        "metric_for_best_model=eval_rewards/margins"};
  const Outcome all = w_.trained("run", with(joined(kto, {"max_steps=4"})));
  EXPECT_EQ(all.out.find("nan"), std::string::npos) << all.out;
  w_.trained("run", with(joined(kto, {"max_steps=6", "resume=latest"})));
  EXPECT_EQ(w_.losses("run").size(), 6u);
  const Outcome bench = run(joined({"bench", "--steps", "1", "--json", "--no-roofs"}, with(kto)));
  EXPECT_EQ(bench.code, 0) << bench.err;
  // Records of one line are several.
  spill(w_.path("array.json"), R"([{"prompt": "the", "completion": " cat", "label": true}, )"
                               R"({"prompt": "a", "completion": " dog", "label": true}])");
  w_.trained("array", with(joined(kto, {"train_data=" + w_.path("array.json"), "max_steps=1"})));
}

// What answers are compared with is of the trained weights, whether or not the kept ones were just written.
TEST_F(Preferences, KtoComparesTrainedWeightsOfASchedule) {
  const std::vector<std::string> kto = {"loss_type=kto", "optim=schedule_free_adamw",
                                        "lr_scheduler_type=constant", "max_steps=6",
                                        "logging_steps=1"};
  w_.trained("once", with(joined(kto, {"save_steps=0", "eval_steps=0"})));
  w_.trained("often", with(joined(kto, {"save_steps=1", "eval_steps=1"})));
  EXPECT_EQ(w_.losses("once"), w_.losses("often"));
}

// A pair is two answers; the whole model learns beside what it was, on kernels as on the CPU.
TEST_F(Preferences, KtoTakesPairsAndACachedReference) {
  const std::vector<std::string> whole = {"peft=null",
                                          "target_modules=null",
                                          "lora_r=null",
                                          "loss_type=kto",
                                          "precompute_ref_log_probs=true",
                                          "learning_rate=0.002",
                                          "save_steps=5",
                                          "logging_steps=1"};
  const Outcome o = w_.trained("run", with(whole));
  expect_planned_is_measured(w_, "run");
  EXPECT_NE(o.out.find("train_data: 24 answers, "), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("reference: log probabilities of 24 answers"), std::string::npos) << o.out;
  const std::vector<Json> lines = w_.metrics("run");
  EXPECT_NEAR(lines.front()["eval_loss"].get<double>(), 0.5, 1e-6);
  EXPECT_LT(lines.back()["eval_loss"].get<double>(), 0.45);
  // Its first loss is that of adapters, which have changed nothing yet.
  w_.trained("beside", with({"loss_type=kto", "max_steps=1", "logging_steps=1"}));
  EXPECT_NEAR(w_.losses("run").front(), w_.losses("beside").front(), 1e-6);
  expect_goes_on("run", "parts", whole, "model.safetensors");
  w_.trained("cpu", with(joined(whole, {"max_steps=3"})));
  w_.trained("emu", with(joined(whole, {"max_steps=3", "device=emu", "cuda_graphs=on"})));
  expect_planned_is_measured(w_, "emu");
  const std::vector<double> cpu = w_.losses("cpu"), emu = w_.losses("emu");
  ASSERT_EQ(cpu.size(), emu.size());
  for (size_t i = 0; i < emu.size(); ++i)
    EXPECT_NEAR(emu[i], cpu[i], 2e-5 * static_cast<double>(i + 1)) << "step " << i + 1;
}

// The reference is what the run began with: computed once, kept, and read by what goes on.
TEST_F(Preferences, AWholeModelLearnsBesideWhatItWas) {
  const std::vector<std::string> whole = {"peft=null",           "target_modules=null",
                                          "lora_r=null",         "precompute_ref_log_probs=true",
                                          "learning_rate=0.002", "save_steps=5",
                                          "logging_steps=1"};
  const Outcome o = w_.trained("run", with(whole));
  expect_planned_is_measured(w_, "run");
  EXPECT_NE(o.out.find("reference: log probabilities of 12 pairs"), std::string::npos) << o.out;
  const std::vector<Json> lines = w_.metrics("run");
  EXPECT_NEAR(lines.front()["eval_loss"].get<double>(), std::log(2.0), 1e-6);
  EXPECT_EQ(lines.front()["eval_rewards/margins"], 0.0);
  EXPECT_EQ(lines.back()["eval_rewards/accuracies"], 1.0);
  EXPECT_LT(lines.back()["eval_loss"].get<double>(), 0.6);
  EXPECT_TRUE(exists(w_.path("run/final/model.safetensors")));
  // Its first loss is that of adapters, which have changed nothing yet.
  w_.trained("beside", with({"max_steps=1", "logging_steps=1"}));
  EXPECT_NEAR(w_.losses("run").front(), w_.losses("beside").front(), 1e-6);

  expect_goes_on("run", "parts", whole, "model.safetensors");
  // A fork takes it along; without it nothing goes on.
  w_.trained("fork", with(joined(whole, {"resume=" + w_.path("run/checkpoint-5")})));
  EXPECT_TRUE(exists(w_.path("fork/reference_logps.safetensors")));
  EXPECT_TRUE(slurp(w_.path("run/final/model.safetensors")) ==
              slurp(w_.path("fork/final/model.safetensors")));
  std::filesystem::remove(w_.path("run/reference_logps.safetensors"));
  const Outcome lost =
      w_.train("run", with(joined(whole, {"resume=" + w_.path("run/checkpoint-5")})));
  EXPECT_EQ(lost.code, 2) << lost.out;
  EXPECT_NE(lost.err.find("the reference of this run's pairs"), std::string::npos) << lost.err;
}

// Of pairs that the run did not begin with there is no reference, and none is made up.
TEST_F(Preferences, AReferenceIsOfTheRunsPairs) {
  const std::vector<std::string> whole = {
      "peft=null",    "target_modules=null", "lora_r=null",       "precompute_ref_log_probs=true",
      "save_steps=2", "max_steps=2",         "max_eval_samples=1"};
  w_.trained("run", with(whole));
  const auto refused = [&](const std::vector<std::string>& more, const char* words) {
    const Outcome o =
        w_.train("run", with(joined(whole, joined({"max_steps=4", "resume=latest"}, more))));
    EXPECT_EQ(o.code, 2) << o.out;
    EXPECT_NE(o.err.find(words), std::string::npos) << o.err;
  };
  refused({"max_eval_samples=0"}, "a reference of every pair that is evaluated");
  spill(w_.path("others.jsonl"), R"({"prompt": "the", "chosen": " cat", "rejected": " dog"})"
                                 "\n");
  refused({"eval_data=" + w_.path("others.jsonl")}, "that of other pairs");
}

TEST_F(Preferences, KernelsReadACachedReference) {
  const std::vector<std::string> whole = {"peft=null",           "target_modules=null",
                                          "lora_r=null",         "precompute_ref_log_probs=true",
                                          "learning_rate=0.002", "max_steps=3",
                                          "logging_steps=1"};
  w_.trained("cpu", with(whole));
  w_.trained("emu", with(joined(whole, {"device=emu", "cuda_graphs=on"})));
  expect_planned_is_measured(w_, "emu");
  const std::vector<double> cpu = w_.losses("cpu"), emu = w_.losses("emu");
  ASSERT_EQ(cpu.size(), emu.size());
  for (size_t i = 0; i < cpu.size(); ++i)
    EXPECT_NEAR(emu[i], cpu[i], 2e-5 * static_cast<double>(i + 1)) << "step " << i + 1;
}

TEST_F(Preferences, TheBestIsByANllLossThatIsTheLower) {
  w_.trained("run", with({"peft=null", "target_modules=null", "lora_r=null", "loss_type=orpo",
                          "metric_for_best_model=nll_loss", "eval_steps=4", "learning_rate=0.002",
                          "load_best_model_at_end=true"}));
  const Json facts = Json::parse(slurp(w_.path("run/trainer_state.json")));
  EXPECT_NEAR(facts["best_metric"].get<double>(),
              w_.metrics("run").back()["eval_nll_loss"].get<double>(), 1e-6);
}

TEST_F(Preferences, TheBestIsByARewardWhereThatIsAsked) {
  const Outcome o = w_.trained("run", with({"metric_for_best_model=rewards/margins",
                                            "load_best_model_at_end=true", "eval_steps=4"}));
  EXPECT_NE(o.out.find("eval_rewards/margins"), std::string::npos) << o.out;
}

TEST_F(Preferences, PreviewShowsBothAnswers) {
  std::vector<std::string> words = {"data", "preview"};
  for (const std::string& key : with({"-n", "1"})) words.push_back(key);
  const Outcome o = run(words);
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("Tokens whose probability is learned stand in {{ }}."), std::string::npos);
  EXPECT_NE(o.out.find("\nchosen, "), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("{{ the cat"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("\nrejected, "), std::string::npos) << o.out;
  // To look at the data no adapter is needed.
  std::erase_if(words, [](const std::string& word) {
    return word.starts_with("peft=") || word.starts_with("lora") || word.starts_with("target");
  });
  const Outcome plain = run(words);
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_EQ(plain.out, o.out);
}

TEST_F(Preferences, WhatIsRefused) {
  struct Case {
    std::string record;
    std::vector<std::string> keys;
    const char* words;
  };
  const std::string good = R"({"prompt": "the", "chosen": " cat", "rejected": " dog"})";
  const Case cases[] = {
      {R"({"prompt": "the", "chosen": " cat"})", {}, "\"rejected\" in every record of pairs"},
      {R"({"prompt": "the", "rejected": " cat"})", {}, "\"chosen\" in every record of pairs"},
      {R"({"prompt": "the", "chosen": " cat", "rejected": ""})", {}, "rejected is empty"},
      {R"({"prompt": "the", "chosen": " cat", "rejected": ["a"]})", {}, "all texts or all lists"},
      {R"({"prompt": [{"role": "user", "content": "x"}], "chosen": [{"role": "assistant", "content": )"
       R"("a"}], "rejected": [{"role": "assistant", "content": "b"}]})",
       {},
       "a chat template for conversations"},
      {R"({"prompt_ids": [1], "chosen_ids": [2], "rejected_ids": []})", {}, "a token at least"},
      {R"({"prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [99999]})",
       {},
       "input_ids from 0"},
      {good, {"max_length=1"}, "a pair whose prompt leaves room for an answer"},
      {good,
       {"peft=null", "target_modules=null", "lora_r=null"},
       "adapters as peft: lora, qlora, dora, lora_fa, ia3, vera, miss, mora, houlsby or pfeiffer "
       "for "
       "loss_type"},
      {good, {"lora_dropout=0.1"}, "no dropout with task: dpo"},
      {good, {"init_lora_weights=pissa"}, "init_lora_weights: true or gaussian for loss_type"},
      {good,
       {"init_lora_weights=olora", "loss_type=kto"},
       "init_lora_weights: true or gaussian for loss_type"},
      {good, {"bias=all"}, "bias: none for loss_type"},
      {good, {"modules_to_save=[lm_head]"}, "no modules_to_save for loss_type"},
      {good, {"loss_type=hinge", "label_smoothing=0.1"}, "label_smoothing only with"},
      {good, {"simpo_gamma=1"}, "simpo_gamma only with"},
      {good, {"loss_type=sigmod"}, "loss_type"},
      {good, {"loss_type=kto_pair"}, "loss_type"},
      {good, {"loss_type=kto"}, "two records at least"},
      {R"({"prompt": "the", "completion": " cat"})",
       {"loss_type=kto"},
       "\"label\" in every record of single answers"},
      {R"({"prompt": "the", "completion": " cat", "label": "yes"})",
       {"loss_type=apo_zero_unpaired"},
       "\"label\" as true or false"},
      {good, {"desirable_weight=2"}, "desirable_weight only with loss_type: kto"},
      {good,
       {"loss_type=kto", "desirable_weight=0", "undesirable_weight=0"},
       "a desirable_weight or an undesirable_weight above 0"},
      {good, {"loss_type=kto", "label_smoothing=0.1"}, "label_smoothing only with"},
      {good,
       {"loss_type=apo_zero_unpaired", "metric_for_best_model=eval_rewards/accuracies"},
       "metric_for_best_model as eval_loss, eval_rewards"},
      {good, {"task=orpo"}, "loss_type=orpo of task=dpo"},
      {good, {"task=kto"}, "loss_type=kto of task=dpo"},
      {good, {"loss_type=orpo", "label_smoothing=0.1"}, "label_smoothing only with"},
      {good, {"metric_for_best_model=eval_nll_loss"}, "metric_for_best_model as eval_loss"},
      {R"({"prompt_ids": [], "chosen_ids": [2, 3], "rejected_ids": [3]})",
       {"loss_type=orpo"},
       "a token before the last of every answer"},
      {good, {"beta=0"}, "beta"},
      {good, {"label_smoothing=0.5"}, "label_smoothing"},
      {good, {"task=causal_lm", "beta=0.2"}, "beta only with task: dpo"},
      {good,
       {"precompute_ref_log_probs=true", "loss_type=orpo"},
       "precompute_ref_log_probs only with a loss_type that has a reference"},
      {good,
       {"precompute_ref_log_probs=true", "task=causal_lm"},
       "precompute_ref_log_probs only with task: dpo"},
      {good,
       {"metric_for_best_model=eval_perplexity"},
       "metric_for_best_model as eval_loss, eval_rewards"},
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

TEST_F(Preferences, WhatEvaluationRefuses) {
  w_.trained("run", with({"max_steps=1"}));
  const auto refused = [&](const std::vector<std::string>& words, const char* expected,
                           const char* found) {
    const Outcome o = run(joined({"eval", "--model", w_.path("base/final"), "--data",
                                  w_.path("pairs.jsonl"), "--threads", "1"},
                                 words));
    EXPECT_EQ(o.code, 2) << o.out << o.err;
    EXPECT_NE(o.err.find(expected), std::string::npos) << o.err;
    EXPECT_NE(o.err.find(found), std::string::npos) << o.err;
  };
  const std::vector<std::string> dpo = {"--task", "dpo"};
  refused({"--beta", "0.2"}, "--beta with --task dpo alone", "--beta with --task auto");
  refused(joined(dpo, {"--beta", "0"}), "--beta above 0", "found: 0");
  refused(joined(dpo, {"--loss-type", "dpo"}), "--loss-type as one of sigmoid, hinge", "dpo");
  refused(joined(dpo, {"--label-smoothing", "0.5"}),
          "--label-smoothing of 0 and above, below 0.5, of sigmoid and simpo", "0.5 of sigmoid");
  refused(joined(dpo, {"--desirable-weight", "2"}),
          "--desirable-weight of 0 and above, of --loss-type kto", "2 of sigmoid");
  refused(joined(dpo, {"--simpo-gamma", "1"}), "--simpo-gamma of 0 and above, of --loss-type simpo",
          "1 of sigmoid");
  // The base beside what is made of its weights is less than the model, which a reference that is computed
  // first is not.
  w_.trained("parts", with({"init_lora_weights=pissa", "precompute_ref_log_probs=true"}));
  EXPECT_NEAR(w_.metrics("parts").front()["eval_loss"].get<double>(), std::log(2.0), 1e-5);
  const std::vector<std::string> parts = joined(dpo, {"--adapter", w_.path("parts/final")});
  refused(parts, "an adapter beside a whole model for --loss-type sigmoid",
          "which began as parts of its weights");
  refused(joined(parts, {"--loss-type", "kto"}), "for --loss-type kto",
          "try:   --loss-type simpo, which has no reference");
  const Outcome simpo =
      run(joined({"eval", "--model", w_.path("base/final"), "--data", w_.path("pairs.jsonl"),
                  "--loss-type", "simpo", "--threads", "1"},
                 parts));
  EXPECT_EQ(simpo.code, 0) << simpo.err;
}

// Kernels compute planned windows whole, with the reference in a graph; on the CPU their empty ends are
// left out.
TEST_F(Preferences, KernelsLearnWhatTheCpuLearns) {
  w_.trained("cpu", with({"max_steps=4"}));
  w_.trained("emu", with({"max_steps=4", "device=emu", "cuda_graphs=on"}));
  expect_planned_is_measured(w_, "emu");
  const std::vector<double> cpu = w_.losses("cpu"), emu = w_.losses("emu");
  ASSERT_EQ(cpu.size(), emu.size());
  for (size_t i = 0; i < cpu.size(); ++i)
    EXPECT_NEAR(emu[i], cpu[i], 2e-5 * static_cast<double>(i + 1)) << "step " << i + 1;
  for (const Json& line : w_.metrics("cpu"))
    if (line.contains("idle_share")) {
      EXPECT_LT(line["idle_share"].get<double>(), line["empty_share"].get<double>());
    }
  EXPECT_TRUE(w_.metrics("cpu").back().contains("eval_loss"));
}

// Answers that are alike teach nothing.
TEST_F(Preferences, EqualAnswersAreSaid) {
  const std::string equal = R"({"prompt": "the", "chosen": " cat", "rejected": " cat"})";
  spill(w_.path("pairs.jsonl"), slurp(w_.path("pairs.jsonl")) + equal + "\n");
  const Outcome o = w_.trained("run", with({"max_steps=1"}));
  EXPECT_NE(o.out.find("chosen and rejected are the same in 1 of train_data, e.g. "),
            std::string::npos)
      << o.out;
}

}  // namespace
}  // namespace snug::e2e
