// What a run tells of itself after it was resumed, killed or had come to its end: its page, `snug
// report`, `snug train RUN`, and why nothing is left to do.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <sstream>

#include "engine/io/safetensors.h"
#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Behind "To train on: ".
std::vector<std::string> advice(const std::string& out) {
  const std::string mark = "To train on: ";
  const size_t at = out.find(mark);
  if (at == std::string::npos) return {};
  std::istringstream line(out.substr(at + mark.size(), out.find('\n', at) - at - mark.size()));
  std::vector<std::string> words;
  for (std::string word; line >> word;) words.push_back(word);
  return words;
}

TEST(Story, LegsAreMeasuredAgainstTheirOwnPlans) {
  const Workspace w;
  const Json wide = w.plan({"per_device_train_batch_size=3"});
  w.trained("run", {"per_device_train_batch_size=3", "save_steps=6", "max_steps=6"});
  // In the least memory that its numbers allow, which is said: other decisions, the same bits.
  const std::vector<std::string> on = {"train", w.path("run"), "max_steps=12"};
  const std::string mark = "expected memory of at least ";
  const Outcome refused = run(joined(on, {"memory=1MiB"}));
  ASSERT_EQ(refused.code, 3) << refused.err;
  const size_t said = refused.err.find(mark);
  ASSERT_NE(said, std::string::npos) << refused.err;
  const int64_t least = std::stoll(refused.err.substr(said + mark.size()));
  const Outcome small = run(joined(on, {"memory=" + std::to_string(least)}));
  ASSERT_EQ(small.code, 0) << small.err;
  const int64_t now = w.json("run/plan.json")["engine_bytes"];
  ASSERT_LT(now, wide["engine_bytes"].get<int64_t>());
  std::vector<Json> legs;
  for (const Json& line : w.metrics("run"))
    if (line.contains("leg")) legs.push_back(line["leg"]);
  ASSERT_EQ(legs.size(), 2u);
  EXPECT_EQ(legs[0]["planned_engine_bytes"], wide["engine_bytes"]);
  EXPECT_EQ(legs[0]["from_step"], 0);
  EXPECT_EQ(legs[1]["planned_engine_bytes"], now);
  EXPECT_EQ(legs[1]["from_step"], 6);
  EXPECT_EQ(legs[1]["plan"], w.json("run/plan.json")["sentence"]);
  EXPECT_FALSE(legs[1]["machine"].get<std::string>().empty());
  const std::string page = slurp(w.path("run/report.html"));
  EXPECT_TRUE(has(page, "The difference is 0 bytes in all 12 samples."));
  EXPECT_TRUE(has(page, "what the plan of their leg has (2 legs)"));
  EXPECT_FALSE(has(page, "than planned"));
  EXPECT_TRUE(has(page, "<code>final/</code> holds the weights of step 12"));
}

// While a finished run goes on it is not finished, and final/ is of the leg before.
TEST(Story, AFinishedRunThatGoesOn) {
  const Workspace w;
  w.trained("run", {"save_steps=6"});
  ASSERT_EQ(w.json("run/memory.json")["finished"], true);
  const std::vector<std::string> inspect = {"inspect", w.path("run"), "--json"};
  {
    Child child({"train", w.path("run"), "max_steps=4000"});
    ASSERT_TRUE(child.read_until("Weights: resumed from"));
    EXPECT_EQ(Json::parse(run(inspect).out)["finished"], false);
    EXPECT_EQ(w.json("run/memory.json")["finished"], false);
    ASSERT_TRUE(child.read_until("step     18/"));
    child.send(SIGINT);
    child.finish();
  }
  ASSERT_GE(w.json("run/trainer_state.json")["global_step"], 18);
  const auto says = [&](const std::string& page) {
    EXPECT_TRUE(has(page, "unfinished:"));
    EXPECT_TRUE(has(page, " of 4000, at "));
    EXPECT_TRUE(has(page, "<code>final/</code> holds the weights of step 12"));
  };
  says(slurp(w.path("run/report.html")));
  // Files that are torn are as none.
  spill(w.path("run/memory.json"), "{\"finished\": tr");
  const Outcome torn = run({"report", w.path("run")});
  ASSERT_EQ(torn.code, 0) << torn.err;
  EXPECT_TRUE(has(torn.err, "Note: " + w.path("run/memory.json") + " is left out: ")) << torn.err;
  says(slurp(w.path("run/report.html")));
}

// A start that was killed before it logged a step is on the page; and not once another began there.
TEST(Story, ALegThatLoggedNothing) {
  const Workspace w;
  w.trained("run", {"save_steps=6", "max_steps=6"});
  {
    // No checkpoint either, however many steps there are before the signal comes.
    Child child({"train", w.path("run"), "max_steps=1000000", "logging_steps=1000000",
                 "save_steps=1000000"});
    ASSERT_TRUE(child.read_until("started in "));
    child.send(SIGKILL);
    child.finish();
  }
  const auto page = [&] {
    EXPECT_EQ(run({"report", w.path("run")}).code, 0);
    return slurp(w.path("run/report.html"));
  };
  std::string drawn = page();
  EXPECT_TRUE(has(drawn, "<tr><th scope=\"row\">6</th>")) << drawn;
  EXPECT_TRUE(has(drawn, "No step of it is logged. ")) << drawn;
  EXPECT_TRUE(has(drawn, "what the plan of their leg has (2 legs)"));
  ASSERT_EQ(run({"train", w.path("run"), "max_steps=9", "logging_steps=1"}).code, 0);
  drawn = page();
  EXPECT_TRUE(has(drawn, "<tr><th scope=\"row\">6</th>"));
  EXPECT_FALSE(has(drawn, "No step of it is logged. "));
  EXPECT_TRUE(has(drawn, "(2 legs)"));
}

// Why a run ended whose loss is not finite, on its page, beside others and in what inspect says.
TEST(Story, ADivergedRunSaysSo) {
  const Workspace w;
  const Outcome o =
      w.train("run", {"learning_rate=1e30", "max_grad_norm=0", "max_steps=40", "logging_steps=1"});
  ASSERT_EQ(o.code, 1) << o.out;
  const std::string page = slurp(w.path("run/report.html"));
  EXPECT_TRUE(has(page, "<p class=\"verdict bad\"><b>failed:</b> ")) << page;
  EXPECT_TRUE(has(page, " is not finite at step ")) << page;
  EXPECT_FALSE(has(page, "unfinished:"));
  EXPECT_TRUE(has(run({"inspect", w.path("run")}).out, " is not finite at step "));
  w.trained("good");
  ASSERT_EQ(run({"report", w.path("good"), w.path("run"), "--output", w.path("both.html")}).code,
            0);
  EXPECT_TRUE(has(slurp(w.path("both.html")), "failed: "));
  // Gone on with, it is a run like others.
  ASSERT_EQ(w.train("run", {"overwrite=true"}).code, 0);
  EXPECT_FALSE(has(slurp(w.path("run/report.html")), "failed:"));
}

TEST(Story, AKilledRunHasItsPage) {
  const Workspace w;
  {
    Child child(w.train_arguments(
        "run", {"eval_steps=2", "max_steps=100000", "sample_prompt=the", "sample_tokens=3"}));
    ASSERT_TRUE(child.read_until("step     20/"));
    child.send(SIGKILL);
    child.finish();
  }
  const std::string page = slurp(w.path("run/report.html"));
  EXPECT_TRUE(has(page, "<h2>Learning"));
  EXPECT_TRUE(has(page, "<h2>Samples"));
  EXPECT_TRUE(has(page, "unfinished:"));
  EXPECT_TRUE(has(page, "<h2>Address map"));
  // Drawn anew it says what the log has since.
  const Outcome report = run({"report", w.path("run")});
  ASSERT_EQ(report.code, 0) << report.err;
  EXPECT_EQ(report.out, w.path("run/report.html") + "\n");
  const std::string drawn = slurp(w.path("run/report.html"));
  const Json last = w.metrics("run").back();
  EXPECT_TRUE(has(drawn, "the last step written here is " + last["step"].dump()));
  EXPECT_TRUE(has(drawn, "<h2>Address map"));
  // One of a plan that cannot be renewed stays.
  const std::string mark = "<section id=\"plan\">";
  std::string other = drawn;
  other.erase(other.find(mark), mark.size());
  spill(w.path("run/report.html"), other);
  const Outcome beside = run({"report", w.path("run")});
  ASSERT_EQ(beside.code, 0) << beside.err;
  EXPECT_EQ(beside.out, w.path("run/report-story.html") + "\n");
  EXPECT_TRUE(has(beside.err, "Note: " + w.path("run/report.html") + " has pictures"))
      << beside.err;
  EXPECT_EQ(slurp(w.path("run/report.html")), other);
  EXPECT_TRUE(has(slurp(w.path("run/report-story.html")), "<h2>Learning"));
  // Without a page of before there is one of the log, which the next one replaces.
  std::filesystem::remove(w.path("run/report.html"));
  ASSERT_EQ(run({"report", w.path("run") + "/"}).code, 0);
  EXPECT_TRUE(has(slurp(w.path("run/report.html")), "<h2>Learning"));
  EXPECT_TRUE(has(slurp(w.path("run/report.html")), "--picture plan.html"));
  EXPECT_EQ(run({"report", w.path("run")}).out, w.path("run/report.html") + "\n");
}

TEST(Story, RunsSideBySide) {
  const Workspace w;
  w.trained("a", {"eval_steps=6"});
  w.trained("b", {"eval_steps=6", "learning_rate=0.002", "model.n_layer=1"});
  const std::string page = w.path("runs.html");
  const Outcome both = run({"report", w.path("a"), w.path("b"), "--output", page});
  ASSERT_EQ(both.code, 0) << both.err;
  EXPECT_EQ(both.out, page + "\n");
  const std::string html = slurp(page);
  for (const char* part : {"learning_rate</th><td>0.01</td><td>0.002", "model.n_layer",
                           "<figcaption>Validation loss", "2 runs"})
    EXPECT_TRUE(has(html, part)) << part;
  EXPECT_FALSE(has(html, "output_dir"));
  EXPECT_FALSE(has(html, "<th scope=\"row\">seed")) << "it is the same";
  // A page of ours is replaced, another file is not.
  EXPECT_EQ(run({"report", w.path("a"), w.path("b"), "--output", page}).code, 0);
  EXPECT_EQ(run({"report", w.path("a"), "--output", w.path("text.txt")}).code, 2);
  EXPECT_EQ(run({"report", w.path("a"), w.path("a")}).code, 2);
  // What is not the folder of a run says which is.
  const Outcome part = run({"report", w.path("a/final")});
  EXPECT_EQ(part.code, 2);
  EXPECT_TRUE(has(part.err, "snug report " + w.path("a") + "\n")) << part.err;
  EXPECT_EQ(run({"report", w.path("nowhere")}).code, 2);
}

struct End {
  const char* name;
  std::vector<std::string> first, again;
  const char* why;
};

void PrintTo(const End& e, std::ostream* out) {
  *out << e.name;
}

class StoryEnd : public testing::TestWithParam<End> {};

// Why nothing is left to do is said, and what is said goes on.
TEST_P(StoryEnd, IsSaidAndGoesOn) {
  const Workspace w;
  const End& e = GetParam();
  w.trained("run", joined({"save_steps=3"}, e.first));
  const std::vector<std::string> more = {"train", w.path("run")};
  const Outcome nothing = run(joined(more, e.again));
  ASSERT_EQ(nothing.code, 0) << nothing.err;
  EXPECT_TRUE(has(nothing.out, "Nothing is left to train: ")) << nothing.out;
  EXPECT_TRUE(has(nothing.out, e.why)) << nothing.out;
  const int64_t last = w.metrics("run").back()["step"];
  const std::vector<std::string> words = advice(nothing.out);
  ASSERT_FALSE(words.empty());
  const Outcome on = run(joined(more, words));
  ASSERT_EQ(on.code, 0) << on.err;
  EXPECT_FALSE(has(on.out, "Nothing is left"));
  EXPECT_GT(w.metrics("run").back()["step"].get<int64_t>(), last);
}

INSTANTIATE_TEST_SUITE_P(
    Ends, StoryEnd,
    testing::Values(
        End{"finished", {"max_steps=6"}, {}, "is at step 6, and max_steps is 6 ("},
        End{"shorter", {"max_steps=6"}, {"max_steps=4"}, "max_steps is 4 (command line)"},
        End{"epochs",
            {"max_steps=null", "num_train_epochs=0.05"},
            {},
            "num_train_epochs of 0.05 are "},
        End{"both", {"max_steps=3", "num_train_epochs=0.001"}, {}, "num_train_epochs of 0.001"},
        End{"early",
            {"eval_steps=1", "early_stopping_patience=2", "early_stopping_threshold=100",
             "max_steps=12"},
            {},
            "2 evaluations in a row were no better and early_stopping_patience is 2 ("}),
    [](const auto& e) { return std::string(e.param.name); });

// nanoGPT's bias=False: a GPT-2 whose biases stay where they begin, and a folder that says so.
TEST(Story, BiasesMayStayAtZero) {
  const Workspace w;
  w.trained("run", {"freeze=bias$", "max_steps=3"});
  const SafetensorsReader file(w.path("run/final/model.safetensors"));
  int biases = 0;
  for (const SafeTensor& tensor : file.tensors()) {
    if (!tensor.name.ends_with(".bias")) continue;
    ++biases;
    const uint8_t* const bytes = tensor.data;
    EXPECT_TRUE(std::all_of(bytes, bytes + tensor.bytes, [](uint8_t c) { return c == 0; }))
        << tensor.name;
  }
  EXPECT_EQ(biases, 2 * 6 + 1);
}

TEST(Story, EpochsBringEvaluationsAndCheckpoints) {
  const Workspace w;
  const Outcome o = w.trained("run", {"max_steps=null", "num_train_epochs=3", "eval_strategy=epoch",
                                      "save_strategy=epoch", "global_batch_size=50"});
  EXPECT_TRUE(has(o.out, ", at the end of every epoch"));
  EXPECT_FALSE(has(o.err, "left out")) << o.err;
  const size_t at = o.out.find(" samples of 32 tokens to train on");
  ASSERT_NE(at, std::string::npos);
  const int64_t samples = std::stoll(o.out.substr(o.out.rfind(' ', at - 1) + 1));
  std::vector<int> steps;
  for (int64_t e = 1; e <= 3; ++e) steps.push_back(static_cast<int>((e * samples + 49) / 50));
  EXPECT_EQ(complete_checkpoints(w, "run"), steps);
  std::vector<int> evaluated;
  for (const Json& line : w.metrics("run"))
    if (line.contains("eval_loss") && line["step"] > 0) evaluated.push_back(line["step"]);
  EXPECT_EQ(evaluated, steps);
  EXPECT_TRUE(has(slurp(w.path("run/config.resolved.yaml")), "save_steps: epoch\n"));
  const Json state = w.json("run/trainer_state.json");
  for (const char* every : {"save_steps", "eval_steps"}) EXPECT_EQ(state[every], steps[0]) << every;
  // As transformers' Trainer counts them: samples of 32 tokens by 50 a step.
  EXPECT_EQ(state["global_step"], steps[2]);
  EXPECT_EQ(state["max_steps"], steps[2]);
  EXPECT_EQ(state["num_input_tokens_seen"], int64_t{steps[2]} * 50 * 32);
  EXPECT_EQ(state["num_train_epochs"], 3) << "though the last step is of a fourth one too";
  EXPECT_GT(50 * steps[2], 3 * samples);
  EXPECT_NEAR(state["epoch"].get<double>(), 50.0 * steps[2] / static_cast<double>(samples), 1e-9);
  // It goes on from its own file.
  EXPECT_EQ(run({"train", w.path("run"), "num_train_epochs=4"}).code, 0);
  EXPECT_EQ(complete_checkpoints(w, "run").size(), 4u);
}

TEST(Story, DataGivenTwiceIsSaid) {
  const Workspace w;
  std::filesystem::copy_file(w.path("text.txt"), w.path("copy.txt"));
  const std::string text = w.path("text.txt"), copy = w.path("copy.txt");
  const std::vector<std::string> more = {"eval_fraction=0", "max_steps=1"};
  Outcome o = w.trained(
      "run", joined(more, {"train_data=[" + text + ", " + copy + "]", "eval_data=" + text}));
  EXPECT_TRUE(has(o.out, "Note: " + copy + " has the bytes of " + text +
                             ": what they say is learned twice as often."))
      << o.out;
  EXPECT_TRUE(has(o.out, "Note: " + text + " of eval_data is " + text + " of train_data: "));
  spill(w.path("other.txt"), sentences(40, 5));
  o = w.trained("two", joined(more, {"train_data=[" + text + ", " + text + "]",
                                     "eval_data=" + w.path("other.txt")}));
  EXPECT_TRUE(has(o.out, "Note: train_data names " + text + " twice; a file is read once."));
  EXPECT_FALSE(has(o.out, "of eval_data"));
  o = w.trained("four", joined(more, {"overwrite=true", "train_data=[" + text + ", " + text + ", " +
                                                            copy + ", " + text + "]"}));
  EXPECT_TRUE(
      has(o.out, "Note: train_data names " + text + " twice, and 1 more; a file is read once."))
      << o.out;
  o = w.trained("none", {"max_steps=1"});
  EXPECT_FALSE(has(o.out, "Note: ")) << o.out;
}

TEST(Story, AWordNamesTheRun) {
  const Workspace w;
  w.trained("run", {"save_steps=3", "max_steps=6"});
  // From one of its checkpoints: what lies behind is set aside.
  const Outcome back = run({"train", w.path("run/checkpoint-3"), "max_steps=8"});
  ASSERT_EQ(back.code, 0) << back.err;
  EXPECT_TRUE(has(back.out, "resumed from " + w.path("run/checkpoint-3"))) << back.out;
  EXPECT_TRUE(exists(w.path("run/aside-1/checkpoint-6")));
  // With its own copy of a tokenizer that is gone; and on in another folder.
  std::filesystem::rename(w.path("tok.json"), w.path("tok.json.moved"));
  const Outcome fork = run({"train", w.path("run"), "max_steps=9", "output_dir=" + w.path("fork")});
  EXPECT_EQ(fork.code, 0) << fork.err;
  EXPECT_TRUE(has(fork.out, "resumed from " + w.path("run/checkpoint-8"))) << fork.out;
  std::filesystem::rename(w.path("tok.json.moved"), w.path("tok.json"));
  const Outcome anew = run({"train", w.path("run") + "/", "overwrite=true", "max_steps=4"});
  ASSERT_EQ(anew.code, 0) << anew.err;
  EXPECT_EQ(w.metrics("run").back()["step"], 4);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"train", w.path("run/final")},
        {"train", w.path("run"), w.path("run")},
        {"train", w.path("run"), "--config", w.path("run/config.resolved.yaml")}}) {
    const Outcome refused = run(words);
    EXPECT_EQ(refused.code, 2) << refused.out;
    EXPECT_TRUE(has(refused.err, "usage: expected the folder of ")) << refused.err;
  }
}

}  // namespace
}  // namespace snug::e2e
