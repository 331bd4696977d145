// The way a user goes: tokenizer, plan, train, eval, generate.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

TEST(MainJob, HelpAndVersionOfEveryCommand) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{},
                                             {"train"},
                                             {"plan"},
                                             {"eval"},
                                             {"generate"},
                                             {"bench"},
                                             {"tokenizer"},
                                             {"tokenizer", "train"},
                                             {"tokenizer", "encode"},
                                             {"tokenizer", "decode"}}) {
    std::vector<std::string> asked = words;
    asked.emplace_back("--help");
    const Outcome help = run(asked);
    const std::string name = words.empty() ? "snug" : words.back();
    EXPECT_EQ(help.code, 0) << name;
    EXPECT_EQ(help.err, "") << name;
    EXPECT_NE(help.out.find("usage: snug"), std::string::npos) << name;
    // It teaches by example.
    EXPECT_NE(help.out.find("  snug " + (words.empty() ? "" : words[0])), std::string::npos)
        << name;
  }
  const Outcome version = run({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.out.rfind("snug ", 0), 0u) << version.out;
  EXPECT_EQ(run({"train", "--help"}).out, run({"help", "train"}).out);
}

TEST(MainJob, TokenizerThroughPipes) {
  const Workspace w;
  spill(w.path("any.txt"),
        "the cat sees  a red door.\n\tna\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80\n\n");
  const Outcome round =
      shell("\"$SNUG\" tokenizer encode --tokenizer " + w.path("tok.json") + " < " +
            w.path("any.txt") + " | \"$SNUG\" tokenizer decode --tokenizer " + w.path("tok.json"));
  EXPECT_EQ(round.code, 0);
  EXPECT_EQ(round.out, slurp(w.path("any.txt")));
  const Outcome ids = run({"tokenizer", "encode", "--tokenizer", w.path("tok.json")}, "the cat");
  EXPECT_EQ(ids.code, 0);
  // Learned merges: fewer tokens than bytes.
  EXPECT_LT(std::count(ids.out.begin(), ids.out.end(), ' ') + 1, 5) << ids.out;
  EXPECT_EQ(run({"tokenizer", "encode", "--tokenizer", w.path("tok.json")}).out, "\n");
  const Outcome bad =
      run({"tokenizer", "decode", "--tokenizer", w.path("tok.json")}, "1 2\n3 99999");
  EXPECT_EQ(bad.code, 2);
  EXPECT_NE(bad.err.find("\"99999\" (standard input:2)"), std::string::npos) << bad.err;
}

TEST(MainJob, PlanHasItsContract) {
  const Workspace w;
  const Json plan = w.plan();
  EXPECT_TRUE(plan["fits"].is_boolean() && plan["fits"].get<bool>());
  for (const char* key :
       {"budget_bytes", "engine_bytes", "runtime_bytes", "host_bytes", "minimum_bytes"})
    EXPECT_TRUE(plan.contains(key) && plan[key].is_number_integer()) << key;
  EXPECT_EQ(plan["budget_bytes"], int64_t{64} << 20);
  EXPECT_TRUE(plan.contains("predicted_tokens_per_second"));
  for (const char* key : {"height", "lower_bound"})
    EXPECT_TRUE(plan["packing"][key].is_number_integer()) << key;
  EXPECT_GE(plan["packing"]["height"], plan["packing"]["lower_bound"]);
  int64_t sum = 0;
  for (const char* key :
       {"weights", "gradients", "optimizer", "activations", "logits", "workspace", "offload"})
    EXPECT_TRUE(plan["categories"].contains(key)) << key;
  for (const auto& [key, bytes] : plan["categories"].items()) {
    EXPECT_TRUE(bytes.is_number_integer()) << key;
    sum += bytes.get<int64_t>();
  }
  EXPECT_EQ(sum, plan["engine_bytes"].get<int64_t>()) << "categories say where every byte is";
  EXPECT_EQ(plan["engine_bytes"].get<int64_t>() % 4096, 0);
  EXPECT_LE(plan["engine_bytes"].get<int64_t>() + plan["runtime_bytes"].get<int64_t>(),
            plan["budget_bytes"].get<int64_t>());
  for (const char* key : {"micro_batch", "head_rows", "threads"})
    EXPECT_TRUE(plan["decisions"][key].is_number_integer()) << key;
  for (const char* key : {"recompute", "instruction_set"})
    EXPECT_TRUE(plan["decisions"][key].is_string()) << key;
  EXPECT_FALSE(plan["sentence"].get<std::string>().empty());
  EXPECT_EQ(plan["hash"].get<std::string>().size(), 16u);
  EXPECT_EQ(plan["hash"], w.plan()["hash"]) << "a plan is a function of its config";
  EXPECT_NE(plan["hash"], w.plan({"recompute=block"})["hash"]);
  EXPECT_FALSE(exists(w.path("planned"))) << "a plan writes nothing";
  // Weights, gradients and Adam's two states, by arithmetic: rows V..Vp are zero, Vp = 384.
  const int64_t C = 32, parameters = 384 * C + 64 * C + 2 * (12 * C * C + 13 * C) + 2 * C;
  EXPECT_GE(plan["categories"]["weights"].get<int64_t>(), 4 * parameters);
  EXPECT_LT(plan["categories"]["weights"].get<int64_t>(), 4 * parameters * 11 / 10);
  EXPECT_EQ(plan["categories"]["optimizer"].get<int64_t>(),
            2 * plan["categories"]["weights"].get<int64_t>());
}

TEST(MainJob, TrainWritesEverything) {
  const Workspace w;
  const Outcome outcome = w.trained("run", {"max_steps=30", "eval_steps=10"});
  const std::string counted = w.json("run/memory.json")["measured_is"];
  for (const char* part : {"anonymous pages", "mincore", "RssAnon", "mapped files"})
    EXPECT_NE(counted.find(part), std::string::npos) << counted;
  EXPECT_EQ(outcome.err, "");
  EXPECT_NE(outcome.out.find("planned = measured: "), std::string::npos);
  for (const char* name : {"config.resolved.yaml",
                           "plan.json",
                           "metrics.jsonl",
                           "memory.json",
                           "report.html",
                           "checkpoint-30/model.safetensors",
                           "checkpoint-30/optimizer.safetensors",
                           "checkpoint-30/trainer_state.json",
                           "checkpoint-30/snug_state.json",
                           "trainer_state.json",
                           "metrics.csv",
                           "checkpoint-30/COMPLETE",
                           "checkpoint-30/config.json",
                           "final/config.json",
                           "final/model.safetensors",
                           "final/tokenizer.json",
                           "final/tokenizer_config.json",
                           "final/vocab.json",
                           "final/merges.txt",
                           "legs.jsonl"})
    EXPECT_TRUE(exists(w.path(std::string("run/") + name))) << name;
  for (const std::string& name : listing(w.path("run")))
    EXPECT_EQ(name.find(".tmp"), std::string::npos) << name;
  // What AutoTokenizer cuts texts at.
  EXPECT_EQ(w.json("run/final/tokenizer_config.json")["model_max_length"],
            w.json("run/final/config.json")["n_positions"]);
  expect_planned_is_measured(w, "run");
  EXPECT_EQ(w.json("run/memory.json")["categories"], w.json("run/plan.json")["categories"]);

  int steps = 0;
  std::vector<int> evaluated;
  for (const Json& line : w.metrics("run")) {
    if (line.contains("eval_loss")) {
      evaluated.push_back(line["step"].get<int>());
      EXPECT_NEAR(line["eval_perplexity"].get<double>(), std::exp(line["eval_loss"].get<double>()),
                  1e-6 * line["eval_perplexity"].get<double>());
      continue;
    }
    EXPECT_EQ(line["step"].get<int>(), ++steps);
    for (const char* key : {"loss", "learning_rate", "grad_norm", "tokens_per_second",
                            "step_seconds", "elapsed_seconds", "epoch"})
      EXPECT_TRUE(line.contains(key) && line[key].is_number()) << key;
    EXPECT_EQ(line["num_input_tokens_seen"].get<int>(), steps * 6 * 32);
    EXPECT_EQ(line["memory_bytes"], w.json("run/plan.json")["engine_bytes"]) << "flat";
  }
  EXPECT_EQ(steps, 30);
  EXPECT_EQ(evaluated, (std::vector<int>{0, 10, 20, 30}));
  const std::vector<double> losses = w.losses("run");
  // Before learning every token is equally likely: ln 300.
  EXPECT_NEAR(losses.front(), std::log(300.0), 0.1);
  EXPECT_LT(losses.back(), losses.front() - 1.5);
  EXPECT_LT(w.last_eval_loss("run"), losses.front() - 1.5);
  const std::string report = slurp(w.path("run/report.html"));
  EXPECT_NE(report.find("<svg"), std::string::npos);
  EXPECT_NE(report.rfind("</html>"), std::string::npos);
  for (const char* link : {"http://", "https://", "src=\"//"})
    EXPECT_EQ(report.find(link), std::string::npos) << "the page needs nothing from elsewhere";
}

TEST(MainJob, ConfigFileAndItsResolvedFormSayTheSame) {
  const Workspace w;
  std::string yaml;
  const std::vector<std::string> words = w.train_arguments("a");
  for (size_t i = 1; i < words.size(); ++i) {
    std::string line = words[i];
    line.replace(line.find('='), 1, ": ");
    yaml += line + "\n";
  }
  spill(w.path("run.yaml"), yaml);
  ASSERT_EQ(run({"train", "--config", w.path("run.yaml")}).code, 0);
  const Outcome again =
      run({"train", "--config", w.path("a/config.resolved.yaml"), "output_dir=" + w.path("b")});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(w.curve("a"), w.curve("b"));
  EXPECT_EQ(slurp(w.path("a/final/model.safetensors")), slurp(w.path("b/final/model.safetensors")));
  EXPECT_EQ(run({"plan", "--config", w.path("run.yaml"), "--print-config"}).out,
            slurp(w.path("a/config.resolved.yaml")));
}

TEST(MainJob, EvalEqualsTheLastEvaluationOfTraining) {
  const Workspace w;
  spill(w.path("heldout.txt"), sentences(60, 2));
  for (const char* precision : {"fp32", "bf16"}) {
    w.trained(precision, {"eval_fraction=0", "eval_data=" + w.path("heldout.txt"),
                          std::string("precision=") + precision});
    const Outcome eval = run({"eval", "--model", w.path(std::string(precision) + "/final"),
                              "--data", w.path("heldout.txt"), "--max-length", "32", "--threads",
                              "1", "--precision", precision, "--json"});
    ASSERT_EQ(eval.code, 0) << eval.err;
    const Json result = Json::parse(eval.out);
    // metrics.jsonl has nine digits.
    EXPECT_NEAR(result["loss"].get<double>(), w.last_eval_loss(precision), 1e-6) << precision;
    EXPECT_NEAR(result["perplexity"].get<double>(), std::exp(result["loss"].get<double>()), 1e-9);
    EXPECT_EQ(result["tokens"], w.metrics(precision).back()["eval_tokens"]);
  }
}

TEST(MainJob, GenerateIsAFunctionOfTheSeed) {
  const Workspace w;
  w.trained("run", {"max_steps=40"});
  const auto text = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"generate", "--model",          w.path("run/final"),
                                      "--prompt", "the cat",          "--threads",
                                      "1",        "--max-new-tokens", "24"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  const std::string seven = text({"--seed", "7"});
  EXPECT_EQ(seven.rfind("the cat", 0), 0u);
  EXPECT_GT(seven.size(), std::string("the cat\n").size());
  EXPECT_EQ(seven, text({"--seed", "7"}));
  EXPECT_NE(seven, text({"--seed", "8"}));
  EXPECT_EQ("the cat" + text({"--seed", "7", "--no-echo"}), seven);
  const std::string greedy = text({"--temperature", "0"});
  EXPECT_EQ(greedy, text({"--temperature", "0", "--seed", "8"})) << "the likeliest knows no seed";
  EXPECT_EQ(greedy, text({"--top-k", "1"}));
  // The cache ends with the model's 64 positions, and that is said.
  const Outcome full = run({"generate", "--model", w.path("run/final"), "--prompt", "the cat",
                            "--max-new-tokens", "500", "--threads", "1"});
  EXPECT_EQ(full.code, 0);
  EXPECT_NE(full.err.find("stopped at the model's 64 positions"), std::string::npos) << full.err;
}

TEST(MainJob, SamplesDuringTrainingStayInTheArena) {
  const Workspace w;
  const Outcome outcome = w.trained("run", {"sample_prompt=the cat", "sample_tokens=8"});
  EXPECT_NE(outcome.out.find("  sample: the cat"), std::string::npos);
  expect_planned_is_measured(w, "run");
  // Sampling is no part of the training's numbers.
  w.trained("plain");
  EXPECT_EQ(w.curve("run"), w.curve("plain"));
}

TEST(MainJob, LinesWithoutATerminalArePlain) {
  const Workspace w;
  const Outcome outcome = w.trained("run", {"logging_steps=5"});
  for (const char c : outcome.out) EXPECT_TRUE(c == '\n' || (c >= ' ' && c != 0x7f)) << int{c};
  int logged = 0;
  for (size_t at = 0; (at = outcome.out.find("/12  loss", at)) != std::string::npos; ++at) ++logged;
  EXPECT_EQ(logged, 3) << "steps 5, 10 and 12, no live line";
}

}  // namespace
}  // namespace snug::e2e
