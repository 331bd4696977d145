// What is read back of a run's folder: its lines, its legs, and so much of long logs as a page shows.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/engine/io/temp_folder.h"
#include "tools/trainer/run_story.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

void spill(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(RunStory, NumbersOfALine) {
  const std::string line =
      R"({"step":5,"loss":2.5e-1,"grad_norm":null, "x" : 3,"sample":"\"loss\":9","eval_loss": -4})";
  EXPECT_EQ(number_in_line(line, "loss"), 0.25);
  EXPECT_EQ(number_in_line(line, "step"), 5);
  EXPECT_EQ(number_in_line(line, "eval_loss"), -4);
  EXPECT_TRUE(std::isnan(number_in_line(line, "grad_norm")));
  EXPECT_TRUE(std::isnan(number_in_line(line, "oss")));
  EXPECT_TRUE(std::isnan(number_in_line(R"({"sample":"\"loss\":9"})", "loss")));
  EXPECT_TRUE(std::isnan(number_in_line("{\"loss\":", "loss")));
}

// A process that ended before it logged is only in legs.jsonl: it stands behind all lines up to its step,
// that of the step it began at among them, and before what came later.
TEST(RunStory, ALegWithoutALineStandsWhereItBegan) {
  TempFolder tmp;
  const std::string run = tmp / "run";
  fs::create_directories(run);
  spill(run + "/metrics.jsonl",
        R"({"step":10,"loss":3,"elapsed_seconds":1.5,"leg":{"from_step":0,"began":"b0"}})"
        "\n"
        R"({"step":20,"loss":2,"elapsed_seconds":2.5})"
        "\n"
        R"({"step":30,"loss":1,"elapsed_seconds":4,"leg":{"from_step":25,"began":"b2"}})"
        "\n");
  spill(run + "/legs.jsonl", R"({"from_step":0,"began":"b0"})"
                             "\n"
                             R"({"from_step":20,"began":"b1"})"
                             "\n"
                             R"({"from_step":25,"began":"b2"})"
                             "\n");
  const ReportRun r = read_run(run);
  ASSERT_EQ(r.legs.size(), 3u);
  EXPECT_EQ(r.legs[0].when + r.legs[1].when + r.legs[2].when, "b0b1b2");
  EXPECT_FALSE(r.legs[1].logged);
  EXPECT_GT(r.legs[1].seconds, 2.5);
  EXPECT_LT(r.legs[1].seconds, 2.6);
}

// What a folder says: legs with their plans, the best step, samples, and whose weights final/ has.
TEST(RunStory, IsReadFromTheFolder) {
  TempFolder tmp;
  const std::string run = tmp / "run";
  fs::create_directories(run + "/final");
  EXPECT_TRUE(read_run(run).metrics.empty());
  spill(run + "/config.resolved.yaml",
        "model:\n  n_layer: 2\n  n_embd: 64\nallow: [a, b]\nload_best_model_at_end: true\n"
        "metric_for_best_model: eval_accuracy\n");
  spill(run + "/final/config.json", "{}");
  spill(run + "/final/snug.json", R"({"step":20})");
  spill(run + "/memory.json", R"({"finished":true})");
  spill(run + "/plan.json", R"({"model":"a small one"})");
  spill(run + "/trainer_state.json",
        "{\n  \"best_global_step\": 20,\n  \"global_step\": 30,\n  \"log_history\": [\n    "
        "{\"step\":3,\"max_steps\":7}\n  ],\n  \"max_steps\": 30\n}\n");
  spill(run + "/metrics.jsonl",
        R"({"step":0,"eval_loss":9,"eval_accuracy":0.9,"time":"t0"})"
        "\n"
        R"({"step":10,"loss":3,"elapsed_seconds":1.5,"memory_bytes":100,"startup_seconds":0.1,)"
        R"("predicted_tokens_per_second":7,"leg":{"from_step":0,"began":"b0","machine":"m",)"
        R"("planned_engine_bytes":100,"budget_bytes":200,"plan":"p"},"time":"t1"})"
        "\n"
        R"({"step":10,"sample":"a \"loss\": b","time":"t1"})"
        "\n"
        R"({"step":20,"eval_loss":2,"eval_accuracy":0.7,"time":"t2"})"
        "\n"
        R"({"step":30,"loss":null,"elapsed_seconds":4,"memory_bytes":50,"startup_seconds":0.1,)"
        R"("leg":{"from_step":15,"planned_engine_bytes":50,"budget_bytes":null},"time":"t3"})"
        "\n"
        R"({"step":30,"eval_loss":1,"eval_accuracy":0.6,"time":"t4"})"
        "\n");
  const ComparedRun all = read_compared_run(run);
  const ReportRun& r = all.run;
  ASSERT_EQ(r.legs.size(), 2u);
  EXPECT_EQ(r.legs[0].engine_bytes, 100);
  EXPECT_EQ(r.legs[0].machine + r.legs[0].when + r.legs[0].sentence, "mb0p");
  EXPECT_EQ(r.legs[0].budget, 200);
  EXPECT_EQ(r.legs[0].predicted_tokens_per_second, 7);
  EXPECT_EQ(r.legs[1].from_step, 15);
  EXPECT_EQ(r.legs[1].seconds, 4);
  EXPECT_EQ(r.legs[1].engine_bytes, 50);
  ASSERT_EQ(r.metrics.size(), 2u);
  EXPECT_TRUE(std::isnan(r.metrics[1].loss));
  EXPECT_EQ(r.memory_samples[1], std::pair(4.0, int64_t{50}));
  EXPECT_EQ(r.evals.size(), 3u);
  EXPECT_EQ(r.best_step, 20) << "the start is no result";
  EXPECT_EQ(r.best_value, 0.7);
  EXPECT_EQ(r.final_step, 20);
  EXPECT_TRUE(r.finished);
  EXPECT_EQ(r.total_steps, 30);
  EXPECT_EQ(r.written, "t4");
  EXPECT_EQ(r.model_text, "a small one");
  ASSERT_EQ(r.samples.size(), 1u);
  EXPECT_EQ(r.samples[0].text, "a \"loss\": b");
  const std::vector<std::pair<std::string, std::string>> keys = {
      {"model.n_layer", "2"},
      {"model.n_embd", "64"},
      {"allow", "[a, b]"},
      {"load_best_model_at_end", "true"},
      {"metric_for_best_model", "eval_accuracy"}};
  EXPECT_EQ(all.keys, keys);
  // Killed after it went on: what memory.json says is of the leg before.
  spill(run + "/trainer_state.json", "{\n  \"global_step\": 20,\n  \"log_history\": []\n}\n");
  EXPECT_FALSE(read_run(run).finished);
  EXPECT_EQ(read_run(run).final_step, 20) << "it is of final/ alone";
  fs::remove(run + "/final/snug.json");
  EXPECT_EQ(read_run(run).final_step, -1);
  // A total of the leg before is none.
  const auto total = [&](const std::string& stated, const std::string& config) {
    spill(run + "/trainer_state.json",
          "{\n  \"global_step\": 30,\n  \"max_steps\": " + stated + "\n}\n");
    spill(run + "/config.resolved.yaml", config);
    return read_run(run).total_steps;
  };
  EXPECT_EQ(total("12", "max_steps: null\n"), 0);
  EXPECT_EQ(total("12", "max_steps: 4000\n"), 4000);
  EXPECT_EQ(total("30", "max_steps: 12\n"), 0);
  EXPECT_EQ(total("40", "max_steps: 4000\nnum_train_epochs: 2\n"), 40);
  EXPECT_EQ(total("12", "max_steps: 4000\nnum_train_epochs: 2\n"), 4000);
  // Files that are torn are as none, which is said.
  for (const char* name : {"memory.json", "plan.json", "config.resolved.yaml", "final/snug.json"})
    spill(run + "/" + name, "{\"step\": [1, ");
  const ReportRun torn = read_run(run);
  ASSERT_EQ(torn.notes.size(), 4u);
}

// A memory of one line that is not the plan's stays, and all lines are counted; of evaluations that
// fall all the way the best is one.
TEST(RunStory, ThinningKeepsMemoryAndOneBest) {
  TempFolder tmp;
  std::string lines;
  constexpr int kSteps = 20000, kLeg = 9000;
  constexpr int64_t kOver = 50'000'000;
  for (int i = 1; i <= kSteps; ++i) {
    const bool starts = i == 1 || i == kLeg + 1;
    const std::string leg = starts ? fmt::format(
                                         "\"startup_seconds\":1,\"leg\":{{\"from_step\":{},"
                                         "\"planned_engine_bytes\":{}}},",
                                         i - 1, i == 1 ? 1000 : 2000)
                                   : "";
    const int64_t plan = i <= kLeg ? 1000 : 2000;
    lines += fmt::format(
        "{{\"step\":{},\"loss\":{},\"grad_norm\":1,{}\"elapsed_seconds\":{},"
        "\"memory_bytes\":{}}}\n{{\"step\":{},\"eval_loss\":{}}}\n",
        i, 3 + i % 7, leg, i,
        i == 12345 ? plan + kOver
        : i == 777 ? plan - 1
                   : plan,
        i, i == kSteps - 1 ? 1.0 : 2.0 - 1e-5 * i);
  }
  spill(tmp / "metrics.jsonl", lines);
  const ReportRun run = read_run(tmp.path());
  int64_t high = 0, low = 0;
  for (const auto& [seconds, bytes] : run.memory_samples) {
    const int64_t plan = seconds <= kLeg ? 1000 : 2000;
    high = std::max(high, bytes - plan);
    low = std::min(low, bytes - plan);
  }
  EXPECT_EQ(std::pair(low, high), std::pair(int64_t{-1}, kOver));
  ASSERT_EQ(run.legs.size(), 2u);
  EXPECT_EQ(run.legs[0].samples, kLeg);
  EXPECT_EQ(run.legs[1].samples, kSteps - kLeg);
  EXPECT_LT(run.memory_samples.size() + run.evals.size(), 8200u);
  EXPECT_EQ(run.best_step, kSteps - 1);
  EXPECT_EQ(run.evals[run.evals.size() - 2].step, kSteps - 1) << "beside those that stay";
}

// What a leg wrote before another went back behind it is among the other's lines.
TEST(RunStory, LinesOfALegThatWasGoneBackBehindCount) {
  TempFolder tmp;
  std::string lines;
  for (const int step : {1, 2, 3, 1, 2})
    lines += fmt::format("{{\"step\":{},\"loss\":3,{}\"elapsed_seconds\":1,\"memory_bytes\":9}}\n",
                         step, step == 1 ? "\"startup_seconds\":1,\"leg\":{\"from_step\":0}," : "");
  spill(tmp / "metrics.jsonl", lines);
  const ReportRun run = read_run(tmp.path());
  ASSERT_EQ(run.legs.size(), 1u);
  EXPECT_EQ(run.legs[0].samples, 5);
}

// Of many lines some thousand stay, with every spike and the last.
TEST(RunStory, LongRunsAreThinned) {
  TempFolder tmp;
  std::string lines;
  constexpr int kSteps = 100000;
  for (int i = 1; i <= kSteps; ++i)
    lines += fmt::format(
        "{{\"step\":{},\"loss\":{},\"learning_rate\":1e-3,\"grad_norm\":{},\"tokens_per_second\":9,"
        "\"elapsed_seconds\":{},\"memory_bytes\":77}}\n",
        i,
        i == 777     ? 50
        : i == 50001 ? 0.5
                     : 3.0 + 0.001 * (i % 7),
        i == 31234 ? 99 : 1, i);
  spill(tmp / "metrics.jsonl", lines);
  const ReportRun run = read_run(tmp.path());
  EXPECT_LT(run.metrics.size(), 5000u);
  EXPECT_GT(run.metrics.size(), 1000u);
  EXPECT_EQ(run.metrics.back().step, kSteps);
  double high = 0, low = 9, norm = 0;
  int64_t before = 0;
  for (const ReportMetric& m : run.metrics) {
    EXPECT_GT(m.step, before);
    before = m.step;
    high = std::max(high, m.loss);
    low = std::min(low, m.loss);
    norm = std::max(norm, m.grad_norm);
  }
  EXPECT_EQ(high, 50);
  EXPECT_EQ(low, 0.5);
  EXPECT_EQ(norm, 99);
}

}  // namespace
}  // namespace snug
