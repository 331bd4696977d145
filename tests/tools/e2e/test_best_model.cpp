// The best model as files and lines name it: metric, step and checkpoint of trainer_state.json are
// of one evaluation, and a start that was better than what final/ holds is said.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>

#include "tests/tools/e2e/encoders.h"
#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

double eval_loss(const Workspace& w, const std::string& name, int step) {
  for (const Json& line : w.metrics(name))
    if (line["step"] == step && line.contains("eval_loss")) return line["eval_loss"].get<double>();
  ADD_FAILURE() << name << " has no evaluation at step " << step;
  return -1;
}

// The three fields are of one step, whose loss metrics.jsonl has. Returns the step.
int expect_agreement(const Workspace& w, const std::string& name) {
  const Json state = w.json(name + "/trainer_state.json");
  const int step = state["best_global_step"].get<int>();
  EXPECT_EQ(state["best_model_checkpoint"], w.path(name + "/checkpoint-" + std::to_string(step)));
  EXPECT_TRUE(exists(w.path(name + "/checkpoint-" + std::to_string(step) + "/COMPLETE")));
  const double loss = eval_loss(w, name, step);
  EXPECT_NEAR(state["best_metric"].get<double>(), loss, 1e-8 * loss);
  return step;
}

std::string warning(const Workspace& w, const std::string& name, int step,
                    const std::string& start) {
  char text[256];
  std::snprintf(text, sizeof text,
                "Warning: the validation loss was %.4f before the first step and is %.4f for "
                "final/; the weights of the start are %s. A smaller learning_rate may help.\n",
                eval_loss(w, name, 0), eval_loss(w, name, step), start.c_str());
  return text;
}

// Steps so large that all of them are worse than the start.
const std::vector<std::string> kWorse = {"learning_rate=10", "warmup_steps=0", "max_grad_norm=0",
                                         "eval_steps=1", "save_steps=2"};

TEST(BestModel, AStartThatWasBetterIsSaid) {
  const Workspace w;
  const std::vector<std::string> keys = joined(
      kWorse, {"early_stopping_patience=3", "load_best_model_at_end=true", "save_total_limit=1"});
  const Outcome o = w.trained("whole", keys);
  EXPECT_NE(o.out.find("Stopped early at step 3: "), std::string::npos) << o.out;
  const int best = expect_agreement(w, "whole");
  for (const int step : {1, 2, 3})
    EXPECT_LE(eval_loss(w, "whole", best), eval_loss(w, "whole", step)) << step;
  ASSERT_LT(eval_loss(w, "whole", 0), eval_loss(w, "whole", best));
  EXPECT_NE(o.out.find(warning(w, "whole", best, "not kept")), std::string::npos) << o.out;
  EXPECT_EQ(w.json("whole/final/snug.json")["step"], best);
  EXPECT_TRUE(slurp(w.path("whole/final/model.safetensors")) ==
              slurp(w.path("whole/checkpoint-" + std::to_string(best) + "/model.safetensors")));

  // Without load_best_model_at_end final/ holds the last weights, of which the same is said.
  const Outcome last = w.trained("last", joined(kWorse, {"max_steps=3"}));
  expect_agreement(w, "last");
  EXPECT_EQ(w.json("last/final/snug.json")["step"], 3);
  EXPECT_NE(last.out.find(warning(w, "last", 3, "not kept")), std::string::npos) << last.out;
  // Weights to begin with are where they were.
  const Outcome tuned = w.trained(
      "tuned", joined(kWorse, {"max_steps=2", "model=" + w.path("whole/final"), "init=auto"}));
  if (eval_loss(w, "tuned", 0) < eval_loss(w, "tuned", 2)) {
    EXPECT_NE(tuned.out.find(warning(w, "tuned", 2, "those of " + w.path("whole/final"))),
              std::string::npos)
        << tuned.out;
  }
  const Outcome good = w.trained("good");
  EXPECT_EQ(good.out.find("Warning"), std::string::npos) << good.out;
}

// What was evaluated and not saved is not named by one field of the three.
TEST(BestModel, AnEvaluationBetweenCheckpointsIsNotMixedWithThem) {
  const Workspace w;
  // Held out are tokens that are never trained: the first evaluation of a step is the best.
  std::vector<uint16_t> others = numbered_tokens(2000, 100);
  for (uint16_t& id : others) id = static_cast<uint16_t>(id + 150);
  spill(w.path("ids.bin"), raw_tokens(numbered_tokens(3000, 100)));
  spill(w.path("eval.bin"), raw_tokens(others));
  const std::vector<std::string> keys = {"train_data=" + w.path("ids.bin"),
                                         "eval_data=" + w.path("eval.bin"),
                                         "eval_fraction=0",
                                         "eval_steps=1",
                                         "save_steps=6",
                                         "max_steps=12"};
  w.trained("run", keys);
  const int best = expect_agreement(w, "run");
  EXPECT_EQ(best, eval_loss(w, "run", 6) < eval_loss(w, "run", 12) ? 6 : 12);
  // Before there is a checkpoint the metric is of the best step, without one.
  const Outcome none = w.trained("none", joined(keys, {"save_steps=0"}));
  const Json state = w.json("none/trainer_state.json");
  EXPECT_TRUE(state["best_model_checkpoint"].is_null());
  const int step = state["best_global_step"].get<int>();
  EXPECT_GT(step, 0);
  for (int i = 1; i <= 12; ++i) EXPECT_LE(eval_loss(w, "none", step), eval_loss(w, "none", i));
}

// The best of before an interruption, and the start, are known after it.
TEST(BestModel, AResumeKnowsTheBestAndTheStart) {
  const Workspace w;
  const std::vector<std::string> keys =
      joined(kWorse, {"load_best_model_at_end=true", "max_steps=8", "save_total_limit=3"});
  const Outcome whole = w.trained("whole", keys);
  const int best = expect_agreement(w, "whole");
  Child child(w.train_arguments("parts", keys));
  char line[32];
  std::snprintf(line, sizeof line, "step %6d/8", std::min(best + 1, 7));
  ASSERT_TRUE(child.read_until(line));
  child.send(SIGTERM);
  EXPECT_EQ(child.finish().code, 75);
  const Outcome resumed = w.trained("parts", joined(keys, {"resume=latest"}));
  EXPECT_EQ(expect_agreement(w, "parts"), best);
  EXPECT_NE(resumed.out.find(warning(w, "parts", best, "not kept")), std::string::npos)
      << resumed.out;
  expect_same_run(w, "whole", "parts", 8);
}

// The rules of transformers' Trainer and EarlyStoppingCallback, on the curve that was written: which
// step is the best, and where patience ends (0: nowhere).
struct Rules {
  int best = -1, stop = 0;
  double metric = 0;
};
Rules by_the_rules(const Workspace& w, const std::string& name, const std::string& key,
                   bool greater, int patience, double threshold) {
  Rules r;
  double top = 0;
  int waited = 0;
  bool any = false;
  for (const Json& line : w.metrics(name)) {
    if (!line.contains(key)) continue;
    const double value = line[key];
    const auto better = [&](double than) { return greater ? value > than : value < than; };
    waited = !any || (better(top) && std::fabs(value - top) > threshold) ? 0 : waited + 1;
    if (!any || better(top)) top = value;  // the start is what steps are compared with
    any = true;
    const int step = line["step"];
    if (step > 0 && (r.best < 0 || better(r.metric))) {
      r.best = step;
      r.metric = value;
    }
    if (waited >= patience && r.stop == 0) r.stop = step;
  }
  return r;
}

TEST(BestModel, AMetricOfTheTaskChooses) {
  const Workspace w;
  make_encoder_data(w);
  const std::vector<std::string> keys = {"max_steps=30",
                                         "eval_steps=1",
                                         "save_steps=30",
                                         "learning_rate=0.001",
                                         "warmup_steps=0",
                                         "lr_scheduler_type=constant",
                                         "load_best_model_at_end=true"};
  struct Case {
    const char *name, *key;
    bool greater;
    std::vector<std::string> more;
  };
  const Case cases[] = {
      {"accuracy", "eval_accuracy", true, {"metric_for_best_model=accuracy"}},
      {"mcc",
       "eval_matthews_correlation",
       true,
       {"metric_for_best_model=eval_matthews_correlation", "greater_is_better=true"}},
      {"worst", "eval_f1", false, {"metric_for_best_model=f1", "greater_is_better=false"}},
      {"greatest", "eval_loss", true, {"greater_is_better=true"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Outcome o = train_encoder(w, c.name, joined(keys, c.more));
    ASSERT_EQ(o.code, 0) << o.err;
    const Rules rules = by_the_rules(w, c.name, c.key, c.greater, 1000, 0);
    const Json state = w.json(std::string(c.name) + "/trainer_state.json");
    EXPECT_EQ(state["best_global_step"], rules.best);
    EXPECT_NEAR(state["best_metric"].get<double>(), rules.metric, 1e-8);
    const std::string best =
        w.path(std::string(c.name) + "/checkpoint-") + std::to_string(rules.best);
    EXPECT_EQ(state["best_model_checkpoint"], best);
    EXPECT_TRUE(slurp(w.path(std::string(c.name) + "/final/model.safetensors")) ==
                slurp(best + "/model.safetensors"));
    const Outcome seen = run({"inspect", best, "--json"});
    const Json facts = Json::parse(seen.out);
    EXPECT_EQ(facts["metric_for_best_model"], c.key);
    EXPECT_EQ(facts["greater_is_better"], c.greater);
    EXPECT_NEAR(facts["best_metric"].get<double>(), rules.metric, 1e-8);
  }
  // Accuracy is at its best before the loss is.
  EXPECT_NE(w.json("accuracy/trainer_state.json")["best_global_step"],
            by_the_rules(w, "accuracy", "eval_loss", false, 1000, 0).best);
  const Outcome said = train_encoder(w, "said", joined(keys, {"metric_for_best_model=accuracy"}));
  char words[64];
  std::snprintf(words, sizeof words, " with an eval_accuracy of %.4f; final/ holds its weights",
                by_the_rules(w, "accuracy", "eval_accuracy", true, 1000, 0).metric);
  EXPECT_NE(said.out.find(words), std::string::npos) << said.out;

  // Patience counts evaluations without a better one, across an interruption too.
  const std::vector<std::string> patient =
      joined(keys, {"metric_for_best_model=accuracy", "early_stopping_patience=3",
                    "early_stopping_threshold=0.01"});
  const Outcome early = train_encoder(w, "early", patient);
  ASSERT_EQ(early.code, 0) << early.err;
  const int stop = by_the_rules(w, "accuracy", "eval_accuracy", true, 3, 0.01).stop;
  ASSERT_GT(stop, 0);
  EXPECT_NE(early.out.find("Stopped early at step " + std::to_string(stop) +
                           ": 3 evaluations in a row without an eval_accuracy above "),
            std::string::npos)
      << early.out;
  ASSERT_EQ(train_encoder(w, "parts", joined(patient, {"max_steps=2"})).code, 0);
  ASSERT_EQ(train_encoder(w, "parts", joined(patient, {"resume=latest"})).code, 0);
  EXPECT_EQ(w.losses("parts"), w.losses("early"));
  // Another metric at a resume: what was best by the old one says nothing.
  const Outcome other = train_encoder(
      w, "parts", joined(keys, {"metric_for_best_model=f1", "max_steps=32", "resume=latest"}));
  EXPECT_NE(other.out.find("Note: the best is by eval_f1 from here on; what was best by "
                           "eval_accuracy is forgotten.\n"),
            std::string::npos)
      << other.out;
}

}  // namespace
}  // namespace snug::e2e
