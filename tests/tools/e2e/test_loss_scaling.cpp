// precision: fp16 as a user meets it: what is said, counted, logged, refused, and when it ends.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

// 2^40: about 25 halvings above what this model's gradients allow.
const std::vector<std::string> kTooLarge = {"precision=fp16", "init_scale=1099511627776",
                                            "logging_steps=1", "max_steps=60",
                                            "learning_rate=3e-3"};

TEST(LossScalingRun, OverflowsAreSkippedAndTrainingRecovers) {
  const Workspace w;
  const Outcome o = w.trained("run", kTooLarge);
  double scale = 0x1p40;
  int skipped = 0;
  double first_rate = -1;
  for (const Json& line : w.metrics("run")) {
    if (!line.contains("loss")) continue;
    const int now = line["skipped_steps"];
    if (now > skipped) {
      EXPECT_EQ(now, skipped + 1);
      scale /= 2;
      skipped = now;
      EXPECT_TRUE(line["grad_norm"].is_null()) << line;
    } else {
      EXPECT_TRUE(line["grad_norm"].is_number()) << line;
      // The first update has the first rate of the schedule, however many steps were skipped.
      if (first_rate < 0) first_rate = line["learning_rate"];
    }
    EXPECT_EQ(line["loss_scale"].get<double>(), scale) << line;
  }
  EXPECT_GT(skipped, 10);
  EXPECT_LT(skipped, 35);
  w.trained("plain", {"precision=fp16", "logging_steps=1", "max_steps=60", "learning_rate=3e-3"});
  EXPECT_EQ(w.metrics("plain")[1]["skipped_steps"], 0);
  EXPECT_EQ(w.metrics("plain")[1]["learning_rate"], first_rate);
  const std::vector<double> losses = w.losses("run");
  EXPECT_LT(losses.back(), 0.9 * losses.front());
  EXPECT_EQ(w.json("run/memory.json")["loss_scaling"]["skipped_steps"], skipped);
  EXPECT_EQ(w.json("run/memory.json")["loss_scaling"]["loss_scale"], scale);
  EXPECT_EQ(w.json("run/checkpoint-60/snug_state.json")["updates"], 60 - skipped);
  EXPECT_EQ(w.json("run/checkpoint-60/snug_state.json")["loss_scaling"]["loss_scale"], scale);
  EXPECT_NE(o.out.find(" is not finite at the loss scale 1099511627776: skipped, the scale is "
                       "549755813888"),
            std::string::npos)
      << o.out;
  EXPECT_NE(o.out.find("  step 1: the gradient of "), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("skipped " + std::to_string(skipped)), std::string::npos);
  EXPECT_EQ(slurp(w.path("run/metrics.csv")).find("eval_tokens,loss_scale,skipped_steps,time\n") !=
                std::string::npos,
            true);
  expect_planned_is_measured(w, "run");
}

// Weights before the first good step are the first weights: all that was saved is.
TEST(LossScalingRun, SkippedStepsLeaveTheWeights) {
  const Workspace w;
  std::vector<std::string> keys = {"precision=fp16", "init_scale=1099511627776", "save_steps=1",
                                   "max_steps=6"};
  const Outcome o = w.train("run", keys);
  EXPECT_EQ(o.code, 1) << o.out;
  EXPECT_NE(
      o.err.find(
          "found: all 6 steps skipped, the loss scale 17179869184 by now: nothing was "
          "learned, and final/ was not written\n  try:   overwrite=true with a smaller init_scale"),
      std::string::npos)
      << o.err;
  EXPECT_EQ(o.out.find("-nan"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("norm     nan"), std::string::npos) << o.out;
  EXPECT_FALSE(exists(w.path("run/final")));
  EXPECT_EQ(w.json("run/memory.json")["finished"], false);
  EXPECT_EQ(w.json("run/checkpoint-6/snug_state.json")["updates"], 0);
  const std::string first = slurp(w.path("run/checkpoint-1/model.safetensors"));
  EXPECT_TRUE(first == slurp(w.path("run/checkpoint-6/model.safetensors")));
  w.trained("fp32", {"learning_rate=0", "weight_decay=0", "max_steps=1", "save_steps=1"});
  EXPECT_TRUE(first == slurp(w.path("fp32/checkpoint-1/model.safetensors")))
      << "those of the initialisation";
}

TEST(LossScalingRun, AScaleIsSaidInFewDigits) {
  const Workspace w;
  const Outcome o = w.train("run", {"precision=fp16", "init_scale=1e20", "max_steps=2"});
  EXPECT_EQ(o.code, 1) << o.out;
  EXPECT_NE(o.out.find("at the loss scale 1e+20: skipped, the scale is 5e+19\n"), std::string::npos)
      << o.out;
  EXPECT_NE(o.out.find("  scale 2.5e+19  skipped 2"), std::string::npos) << o.out;
}

// Metrics, csv and state of other precisions are as they were.
TEST(LossScalingRun, OthersDoNotKnowIt) {
  const Workspace w;
  w.trained("run", {"precision=bf16", "max_steps=2", "save_steps=2"});
  EXPECT_FALSE(w.metrics("run")[0].contains("loss_scale"));
  EXPECT_EQ(slurp(w.path("run/metrics.csv")).find("loss_scale"), std::string::npos);
  EXPECT_FALSE(w.json("run/memory.json").contains("loss_scaling"));
  EXPECT_TRUE(w.json("run/checkpoint-2/snug_state.json")["loss_scaling"].is_null());
}

void expect_ended(const Workspace& w, const std::vector<std::string>& keys,
                  const std::vector<std::string>& parts) {
  const Outcome o = w.train("run", joined({"precision=fp16", "overwrite=true"}, keys));
  EXPECT_EQ(o.code, 1) << o.err << o.out;
  for (const std::string& part : parts)
    EXPECT_NE(o.err.find(part), std::string::npos) << o.err << "lacks " << part;
  EXPECT_EQ(w.json("run/memory.json")["finished"], false);
}

TEST(LossScalingRun, EndsWhenNoScaleHelps) {
  const Workspace w;
  expect_ended(
      w, {"init_scale=1099511627776", "min_loss_scale=274877906944"},
      {"diverged: expected finite losses and gradients", "found: the gradient of ",
       " is not finite at step 3 (loss ", "at the smallest loss scale, 274877906944", "try: "});
  expect_ended(w, {"loss_scale=1099511627776"},
               {"is not finite at step 1 (loss ", "at the fixed loss scale 1099511627776",
                "loss_scale=0 lets it follow the gradients"});
}

TEST(LossScalingRun, AFixedScaleTrains) {
  const Workspace w;
  w.trained("run", {"precision=fp16", "loss_scale=512", "logging_steps=1", "max_steps=3"});
  for (const Json& line : w.metrics("run")) {
    if (!line.contains("loss")) continue;
    EXPECT_EQ(line["loss_scale"], 512);
    EXPECT_EQ(line["skipped_steps"], 0);
  }
}

TEST(LossScalingRun, AResumeKeepsTheScaleAndSaysWhatChanged) {
  const Workspace w;
  w.trained("run", {"precision=fp16", "init_scale=1024", "growth_interval=2", "max_steps=3",
                    "save_steps=3"});
  EXPECT_EQ(w.json("run/checkpoint-3/snug_state.json")["loss_scaling"],
            (Json{{"loss_scale", 2048}, {"growth_tracker", 1}, {"init_scale", 1024}}));
  const Outcome seen = run({"inspect", w.path("run/checkpoint-3"), "--json"});
  EXPECT_EQ(seen.code, 0) << seen.err;
  EXPECT_EQ(Json::parse(seen.out)["loss_scale"], 2048);
  EXPECT_EQ(Json::parse(seen.out)["skipped_steps"], 0);
  const auto again = [&](const std::vector<std::string>& keys) {
    return w.train("run", joined({"precision=fp16", "growth_interval=2", "max_steps=6",
                                  "logging_steps=1", "save_steps=6", "resume=latest"},
                                 keys));
  };
  const Outcome refused = again({"init_scale=512"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("init_scale as in " + w.path("run/checkpoint-3") + ": 1024"),
            std::string::npos)
      << refused.err;
  const Outcome fixed = again({"loss_scale=64"});
  // growth_interval is dynamic's: a fixed scale has no use for it.
  EXPECT_EQ(fixed.code, 2);
  EXPECT_NE(fixed.err.find("growth_interval only with precision: fp16 and loss_scale: 0"),
            std::string::npos)
      << fixed.err;
  const Outcome resumed = again({"init_scale=1024", "backoff_factor=0.25"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.out.find("Note: resuming with backoff_factor 0.25 instead of 0.5."),
            std::string::npos);
  const std::vector<Json> lines = w.metrics("run");
  EXPECT_EQ(lines.back().contains("loss") ? lines.back()["loss_scale"] : Json(8192), 8192);
}

TEST(LossScalingRun, EvaluationAndGenerationTakeFp16) {
  const Workspace w;
  w.trained("run", {"max_steps=4"});
  const auto eval = [&](const char* precision) {
    const Outcome o = run({"eval", "--model", w.path("run/final"), "--data", w.path("text.txt"),
                           "--precision", precision, "--json"});
    EXPECT_EQ(o.code, 0) << o.err;
    return Json::parse(o.out)["loss"].get<double>();
  };
  const double wide = eval("fp32"), narrow = eval("fp16");
  // Every stored value moves by 2^-11 of itself at most; the loss is a mean over many tokens.
  EXPECT_NEAR(narrow, wide, 1e-3 * wide);
  EXPECT_NE(narrow, wide);
  const Outcome text = run({"generate", "--model", w.path("run/final"), "--prompt", "the cat",
                            "--max-new-tokens", "8", "--precision", "fp16"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_FALSE(text.out.empty());
}

}  // namespace
}  // namespace snug::e2e
