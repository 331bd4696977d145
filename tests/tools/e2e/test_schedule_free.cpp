// Runs of an optimizer that keeps other weights than it trains: where states rest, how often it is
// evaluated and where it was stopped is nothing to what it learns, and final/ is what was evaluated.
#include <gtest/gtest.h>

#include <cstring>

#include "engine/io/safetensors.h"
#include "tests/tools/e2e/runs.h"
#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

using Keys = std::vector<std::string>;

TEST(ScheduleFree, AnyRunLearnsTheSame) {
  for (const char* precision : {"fp32", "bf16"}) {
    SCOPED_TRACE(precision);
    const Workspace w;
    const Keys base = {std::string("precision=") + precision,
                       "optim=schedule_free_adamw",
                       "warmup_steps=3",
                       "per_device_train_batch_size=3",
                       "head_rows=64",
                       "save_steps=4",
                       "eval_fraction=0.1"};
    w.trained("often", joined(base, {"max_steps=8", "eval_steps=1"}));
    expect_planned_is_measured(w, "often");
    // The rate that is said is the one of the step.
    std::vector<double> rates;
    for (const auto& line : w.metrics("often"))
      if (line.contains("learning_rate")) rates.push_back(line["learning_rate"]);
    ASSERT_EQ(rates.size(), 8u);
    for (size_t k = 0; k < 8; ++k)
      EXPECT_NEAR(rates[k], 0.01 * std::min(1.0, static_cast<double>(k + 1) / 3), 1e-8) << k;
    EXPECT_NE(slurp(w.path("often/config.resolved.yaml")).find("lr_scheduler_type: constant"),
              std::string::npos);
    EXPECT_NE(slurp(w.path("often/report.html")).find("to_kept"), std::string::npos);
    const auto same = [&](const std::string& name) {
      for (const char* file : {"/final/model.safetensors", "/checkpoint-8/model.safetensors",
                               "/checkpoint-8/optimizer.safetensors"})
        EXPECT_TRUE(slurp(w.path(name + file)) == slurp(w.path(std::string("often") + file)))
            << name << file;
      EXPECT_EQ(w.losses(name), w.losses("often")) << name;
    };
    w.trained("seldom", joined(base, {"max_steps=8", "eval_steps=8"}));
    same("seldom");
    w.trained("resumed", joined(base, {"max_steps=4", "eval_steps=4"}));
    w.trained("resumed", joined(base, {"max_steps=8", "eval_steps=1", "resume=latest"}));
    same("resumed");
    w.trained("host", joined(base, {"max_steps=8", "eval_steps=2", "offload_optimizer=cpu"}));
    expect_planned_is_measured(w, "host");
    same("host");
    w.trained("streamed", joined(base, {"max_steps=8", "eval_steps=2", "offload_params=cpu"}));
    expect_planned_is_measured(w, "streamed");
    same("streamed");
    // What is kept is what was evaluated, and what a checkpoint's folder has.
    const SafetensorsFolder a(w.path("often/final")), b(w.path("often/checkpoint-8"));
    for (const SafeTensor* t : a.tensors())
      EXPECT_EQ(std::memcmp(t->data, b.at(t->name).data, static_cast<size_t>(t->bytes)), 0)
          << t->name;
  }
}

TEST(ScheduleFree, RanksLearnTheSame) {
  const Workspace w;
  const Keys base = {
      "optim=schedule_free_adamw",     "precision=bf16", "threads=1",    "ranks=2",
      "per_device_train_batch_size=3", "max_steps=6",    "save_steps=1", "eval_fraction=0.1"};
  w.trained("zero0", joined(base, {"zero=0", "eval_steps=1"}));
  for (const char* zero : {"1", "2", "3"}) {
    const std::string name = std::string("zero") + zero;
    w.trained(name, joined(base, {std::string("zero=") + zero, "eval_steps=2"}));
    for (const char* file : {"final/model.safetensors", "checkpoint-6/optimizer.safetensors",
                             "checkpoint-5/model.safetensors", "checkpoint-4/model.safetensors"}) {
      SCOPED_TRACE(file);
      expect_same_tensors(w, name, "zero0", file);
    }
    EXPECT_EQ(w.json(name + "/memory.json")["planned_engine_bytes"],
              w.json(name + "/memory.json")["measured_engine_bytes"]);
  }
}

// The best weights of a run are kept ones, wherever the last step led.
TEST(ScheduleFree, TheBestModelIsOfKeptWeights) {
  const Workspace w;
  const Keys keys = {"optim=schedule_free_sgd",
                     "learning_rate=30",
                     "max_steps=6",
                     "save_steps=6",
                     "eval_fraction=0.1",
                     "eval_steps=1",
                     "load_best_model_at_end=true"};
  const Outcome run = w.trained("run", keys);
  const size_t at = run.out.find("Best model: ");
  ASSERT_NE(at, std::string::npos) << run.out;
  const std::string best = run.out.substr(run.out.find("checkpoint-", at), 12);
  EXPECT_NE(best, "checkpoint-6");  // of which nothing would be loaded
  const SafetensorsFolder a(w.path("run/final")), b(w.path("run/" + best));
  for (const SafeTensor* t : a.tensors())
    EXPECT_EQ(std::memcmp(t->data, b.at(t->name).data, static_cast<size_t>(t->bytes)), 0)
        << t->name;
}

}  // namespace
}  // namespace snug::e2e
