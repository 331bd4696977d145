// No command destroys or swallows what it was given: what lies behind a checkpoint is set aside,
// runs fork and move, and what runs made is no text.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

// Of every file below the folder, by its path in it.
std::map<std::string, std::string> contents(const std::string& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file())
      all[fs::relative(entry.path(), folder).string()] = slurp(entry.path().string());
  return all;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::istringstream in(slurp(path));
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Kept, WhatLiesBehindACheckpoint) {
  const Workspace w;
  const std::vector<std::string> common = {"save_steps=4", "eval_steps=2"};
  w.trained("whole", common);
  fs::copy(w.path("whole"), w.path("run"), fs::copy_options::recursive);
  const auto before = contents(w.path("run"));
  const Outcome resumed =
      w.trained("run", joined(common, {"resume=" + w.path("run/checkpoint-4")}));
  const std::string aside = w.path("run/aside-1");
  EXPECT_TRUE(says(resumed.out, "Set aside in " + aside +
                                    ": checkpoint-8, checkpoint-12, final, report.html, "
                                    "memory.json, trainer_state.json, 12 lines of metrics, which "
                                    "lie behind " +
                                    w.path("run/checkpoint-4") + "\n"))
      << resumed.out;
  expect_same_run(w, "whole", "run");
  // Every file is there with its bytes; of those that grow, every line.
  const auto kept = contents(aside);
  for (const auto& [name, bytes] : before) {
    const std::string top = name.substr(0, name.find('/'));
    static const std::set<std::string> whole = {
        "checkpoint-8", "checkpoint-12",       "final", "report.html", "trainer_state.json",
        "plan.json",    "config.resolved.yaml"};
    if (!whole.contains(top)) continue;
    EXPECT_TRUE(kept.contains(name) && kept.at(name) == bytes) << name;
  }
  for (const char* name : {"metrics.jsonl", "metrics.csv"}) {
    const auto all = lines_of(w.path(std::string("whole/") + name));
    const auto now = lines_of(w.path(std::string("run/") + name));
    auto later = lines_of(aside + "/" + name);
    if (later.front().starts_with("step,")) {
      EXPECT_EQ(later.front(), all.front());
      later.erase(later.begin());
    }
    ASSERT_EQ(later.size(), 12u) << name;
    EXPECT_EQ(later, std::vector<std::string>(all.end() - 12, all.end())) << name;
    EXPECT_TRUE(std::equal(all.begin(), all.end() - 12, now.begin())) << name;
  }
  // The next time another name; and a line of a checkpoint that stays is none of those.
  const Outcome again = w.trained("run", joined(common, {"resume=" + w.path("run/checkpoint-8")}));
  EXPECT_TRUE(says(again.out, "Set aside in " + w.path("run/aside-2") + ": checkpoint-12, final"))
      << again.out;
  EXPECT_TRUE(contents(aside) == kept);
  const Outcome longer = w.trained("run", joined(common, {"resume=latest", "max_steps=14"}));
  EXPECT_FALSE(says(longer.out, "Set aside")) << longer.out;
  // What was set aside can be gone on from.
  w.trained("back", joined(common, {"resume=" + aside + "/checkpoint-8"}));
  expect_same_run(w, "whole", "back");
  EXPECT_TRUE(contents(aside) == kept);
  // A new run in its place takes all of it.
  w.trained("run", {"overwrite=true", "max_steps=1"});
  EXPECT_FALSE(exists(aside));
}

// After power was lost: lines alone.
TEST(Kept, LinesOfStepsThatAreDoneAgain) {
  const Workspace w;
  w.trained("whole", {"save_steps=5"});
  lose_power_after(w, "whole", "run", 5);
  fs::remove(w.path("run/trainer_state.json"));
  const Outcome resumed = w.trained("run", {"save_steps=5", "resume=latest"});
  EXPECT_TRUE(says(resumed.out, "Set aside in " + w.path("run/aside-1") + ": 8 lines of metrics, "))
      << resumed.out;
  expect_same_run(w, "whole", "run");
}

TEST(Kept, ACheckpointGoesOnInAnotherFolder) {
  const Workspace w;
  const std::vector<std::string> common = {"save_steps=4", "eval_steps=2", "save_total_limit=2",
                                           "load_best_model_at_end=true"};
  w.trained("whole", common);
  w.trained("a", joined(common, {"save_total_limit=0"}));
  // As if step 4 were the best so far at step 8.
  Json state = w.json("a/checkpoint-8/snug_state.json");
  state["best_saved_step"] = 4;
  state["best_saved_loss"] = state["best_saved_metric"] = 1e-3;
  spill(w.path("a/checkpoint-8/snug_state.json"), state.dump());
  reseal(w.path("a/checkpoint-8"));
  const auto before = contents(w.path("a"));
  const Outcome forked = w.trained("b", joined(common, {"resume=" + w.path("a/checkpoint-4")}));
  EXPECT_TRUE(says(forked.out, "Copied " + w.path("a/checkpoint-4") + " to " + w.path("b") +
                                   ", with the log up to its step\n"))
      << forked.out;
  EXPECT_TRUE(says(forked.out, "resumed from " + w.path("a/checkpoint-4"))) << forked.out;
  EXPECT_FALSE(says(forked.out, "Set aside")) << forked.out;
  expect_same_run(w, "whole", "b");
  EXPECT_TRUE(contents(w.path("a")) == before);
  // The best one comes along.
  const Outcome best =
      w.trained("c", joined(common, {"resume=" + w.path("a/checkpoint-8"), "save_steps=0"}));
  EXPECT_TRUE(says(best.out, "Best model: " + w.path("c/checkpoint-4") + " with")) << best.out;
  EXPECT_EQ(slurp(w.path("c/final/model.safetensors")),
            slurp(w.path("a/checkpoint-4/model.safetensors")));
  // Neither needs where it came from.
  fs::remove_all(w.path("a"));
  for (const char* name : {"b", "c"}) w.trained(name, {"resume=latest", "max_steps=14"});
}

// An empty folder will do, and one that is stopped at once has what it goes on from.
TEST(Kept, AForkThatIsKilledGoesOn) {
  const Workspace w;
  w.trained("a", {"save_steps=4"});
  fs::create_directory(w.path("b"));
  {
    Child child(w.train_arguments("b", {"save_steps=4", "resume=" + w.path("a/checkpoint-4")}));
    ASSERT_TRUE(child.read_until("step      5/12"));
  }  // and ends it
  w.trained("b", {"save_steps=4", "resume=latest"});
  expect_same_run(w, "a", "b");
  // What is in the way of a fork is left as it is, and a start that fails leaves nothing.
  const Outcome other = w.train("c", {"resume=" + w.path("a/checkpoint-4"), "seed=7"});
  EXPECT_EQ(other.code, 2) << other.err;
  EXPECT_FALSE(exists(w.path("c")));
}

TEST(Kept, ACopiedRunGoesOnWhereItLies) {
  const Workspace w;
  w.trained("orig", {"save_steps=4"});
  lose_power_after(w, "orig", "cpy", 4);
  const auto before = contents(w.path("orig"));
  const std::string file = w.path("cpy/config.resolved.yaml");
  const Outcome resumed = run({"train", "--config", file, "resume=latest"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_TRUE(says(resumed.err, "Note: the run of " + w.path("orig") + " lies in " + w.path("cpy") +
                                    " now, and so does there: output_dir.\n"))
      << resumed.err;
  EXPECT_TRUE(contents(w.path("orig")) == before);
  expect_same_run(w, "orig", "cpy");
  EXPECT_TRUE(says(slurp(file), "\noutput_dir: " + w.path("cpy") + "\n")) << slurp(file);
  // In its own folder, by the file's bare name, moved again.
  lose_power_after(w, "cpy", "third", 4);
  fs::rename(w.path("orig"), w.path("gone"));
  fs::remove_all(w.path("cpy"));
  const Outcome inside = shell("cd " + w.path("third") +
                               " && $SNUG train --config config.resolved.yaml resume=latest");
  EXPECT_EQ(inside.code, 0) << inside.err;
  expect_same_run(w, "gone", "third");
}

// A run's own tokens may be its data: a resume leaves them, and they move with it.
TEST(Kept, TheTokensOfARunAsItsData) {
  const Workspace w;
  w.trained("whole", {"save_steps=4"});
  lose_power_after(w, "whole", "n", 4);
  const std::string tokens = slurp(w.path("n/data/train.bin"));
  w.trained("n", {"save_steps=4", "resume=latest", "train_data=" + w.path("n/data/train.bin")});
  expect_same_run(w, "whole", "n");
  EXPECT_TRUE(slurp(w.path("n/data/train.bin")) == tokens);
  lose_power_after(w, "n", "m", 8);
  fs::remove_all(w.path("n"));
  const Outcome moved =
      run({"train", "--config", w.path("m/config.resolved.yaml"), "resume=latest"});
  EXPECT_EQ(moved.code, 0) << moved.err;
  EXPECT_TRUE(says(moved.err, "and so do there: output_dir, train_data.")) << moved.err;
  expect_same_run(w, "whole", "m");
  EXPECT_TRUE(slurp(w.path("m/data/train.bin")) == tokens);
}

// overwrite=true was said once, of another run than the one that the file tells of by then.
TEST(Kept, ASavedConfigDoesNotOverwrite) {
  const Workspace w;
  w.trained("run", {"max_steps=2"});
  w.trained("run", {"overwrite=true", "max_steps=3"});
  const auto before = contents(w.path("run"));
  const Outcome again = run({"train", "--config", w.path("run/config.resolved.yaml")});
  EXPECT_EQ(again.code, 2) << again.err;
  EXPECT_TRUE(says(again.err, "resume=latest, overwrite=true, or another output_dir")) << again.err;
  EXPECT_TRUE(contents(w.path("run")) == before);
}

// However many runs lie beside the texts, these are the data.
TEST(Kept, WhatRunsMadeIsNoText) {
  const Workspace w;
  const std::string folder = w.path(""), pattern = w.path("**/*.txt");
  const auto tokenizer = [&](const std::string& name, const std::string& from) {
    const Outcome made =
        run({"tokenizer", "train", "--vocab-size", "300", "--output", w.path(name) + "/", from});
    EXPECT_EQ(made.code, 0) << made.err;
    return made.out;
  };
  tokenizer("tok", w.path("text.txt"));
  for (const std::string& data : {folder, pattern}) {
    for (const char* name : {"a", "b"}) fs::remove_all(w.path(name));
    w.trained("a", {"save_steps=6", "train_data=" + data});
    const Outcome second = w.trained("b", {"save_steps=6", "train_data=" + data});
    EXPECT_EQ(w.curve("a"), w.curve("b"));
    EXPECT_EQ(w.json("a/checkpoint-6/snug_state.json")["pinned"]["data"],
              w.json("b/checkpoint-6/snug_state.json")["pinned"]["data"]);
    EXPECT_TRUE(says(second.err, "Note: train_data leaves out " +
                                     std::string(data == folder ? "3" : "2") +
                                     " runs, models or tokenizers, e.g. " + w.path("a") + ".\n"))
        << second.err;
    EXPECT_TRUE(says(second.out, "Data: 1 file, 1 document")) << second.out;
    // With the run's own copy of the tokenizer, as its last line says.
    w.trained("a", {"save_steps=6", "train_data=" + data, "resume=latest", "max_steps=14",
                    "tokenizer=" + w.path("a/tokenizer")});
  }
  const std::string out = tokenizer("tok2", pattern);
  EXPECT_TRUE(says(out, " in 1 file,")) << out;
  EXPECT_TRUE(says(out, "left out: 3 runs, models or tokenizers, e.g. " + w.path("a"))) << out;
  EXPECT_EQ(slurp(w.path("tok2/tokenizer.json")), slurp(w.path("tok/tokenizer.json")));
  // What is named is meant.
  EXPECT_TRUE(says(tokenizer("tok3", w.path("a/final/merges.txt")), " in 1 file,"));
}

}  // namespace
}  // namespace snug::e2e
