// What a run may remove and replace, and what it says when it cannot go on.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "tests/tools/e2e/runs.h"
#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

void refused(const Outcome& outcome, const char* says) {
  EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
  for (const char* part : {": expected ", "\n  found: ", "\n  try:   ", says})
    EXPECT_NE(outcome.err.find(part), std::string::npos) << part << "\nin " << outcome.err;
}

TEST(OutputFolder, FilesOfTheUserStay) {
  const Workspace w;
  w.trained("run", {"save_steps=6"});
  for (const char* name : {"proj", "proj/data", "proj/tokenizer", "proj/final"})
    fs::create_directory(w.path(name));
  spill(w.path("proj/data/mine"), "mine");
  const std::vector<std::string> before = listing(w.path(""));
  refused(w.train("proj", {"resume=" + w.path("run/checkpoint-6")}),
          "an output_dir that does not exist or is empty, to go on from");
  refused(w.train("proj", {"overwrite=true"}), "an output_dir that is empty or holds a run");
  refused(w.train("proj"), "with files in it");
  refused(w.train("text.txt"), "output_dir as a folder");
  EXPECT_EQ(listing(w.path("")), before);
  // A checkpoint that was copied beside files of the user.
  fs::copy(w.path("run/checkpoint-6"), w.path("proj/checkpoint-6"), fs::copy_options::recursive);
  refused(w.train("proj", {"resume=latest"}), "a run in output_dir");
  EXPECT_EQ(slurp(w.path("proj/data/mine")), "mine");
}

TEST(OutputFolder, TokensOfABrokenOffStartAreNoFiles) {
  const Workspace w;
  fs::create_directories(w.path("run/data.new"));
  spill(w.path("run/data.new/train.bin"), "torn");
  w.trained("run");
  EXPECT_FALSE(exists(w.path("run/data.new")));
}

// A file that a kill or power ended in the middle of: its name is a run's and a number.
TEST(OutputFolder, TornFilesOfTheRunGoAndOthersStay) {
  const Workspace w;
  w.trained("run", {"save_steps=1", "max_steps=1"});
  const auto litter = [&] {
    for (const char* name : {"report.html.tmp-4711-3", "plan.json.tmp-1-0", "mine.tmp-1-0",
                             "report.html.tmp-4711-3.txt", "report.html.tmp"})
      spill(w.path(std::string("run/") + name), "x");
  };
  const auto left = [&] {
    std::string names;
    for (const std::string& name : listing(w.path("run")))
      if (name.find(".tmp") != std::string::npos) names += name + " ";
    return names;
  };
  const char* others = "mine.tmp-1-0 report.html.tmp report.html.tmp-4711-3.txt ";
  litter();
  w.trained("run", {"resume=latest", "max_steps=2"});
  EXPECT_EQ(left(), others);
  litter();
  w.trained("run", {"overwrite=true", "max_steps=1"});
  EXPECT_EQ(left(), others);
}

// So is what a kill in the middle of a run's first file leaves, which no run is there for.
TEST(OutputFolder, TornFilesAloneAreNoFiles) {
  const Workspace w;
  for (const char* overwrite : {"overwrite=false", "overwrite=true"}) {
    fs::remove_all(w.path("run"));
    fs::create_directory(w.path("run"));
    spill(w.path("run/config.resolved.yaml.tmp-1-0"), "torn");
    w.trained("run", {overwrite, "max_steps=1"});
    EXPECT_FALSE(exists(w.path("run/config.resolved.yaml.tmp-1-0"))) << overwrite;
  }
  for (const char* others : {"mine.tmp-1-0", "config.resolved.yaml.tmp-1-0x"}) {
    fs::create_directory(w.path("more"));
    spill(w.path("more/plan.json.tmp-1-0"), "torn");
    spill(w.path(std::string("more/") + others), "mine");
    refused(w.train("more"), "with files in it");
    refused(w.train("more", {"overwrite=true"}), "with other files in it");
    EXPECT_EQ(listing(w.path("more")).size(), 2u);
    fs::remove_all(w.path("more"));
  }
  fs::create_directories(w.path("more/plan.json.tmp-1-0"));  // a folder is none of a run's files
  refused(w.train("more"), "with files in it");
}

// Going on from step 2 abandons 4 to 12; the limit counts what is of the new line only.
TEST(OutputFolder, LaterCheckpointsDoNotCountWhenAnEarlierOneIsResumed) {
  const Workspace w;
  w.trained("run", {"save_steps=2"});
  const Outcome resumed =
      w.trained("run", {"save_steps=2", "save_total_limit=2", "max_steps=4", "learning_rate=0.02",
                        "resume=" + w.path("run/checkpoint-2")});
  EXPECT_NE(resumed.out.find("checkpoint-12"), std::string::npos) << resumed.out;
  EXPECT_NE(resumed.out.find("resuming with learning_rate 0.02 instead of 0.01"), std::string::npos)
      << resumed.out;
  for (const char* name : {"2", "4"})
    EXPECT_TRUE(exists(w.path(std::string("run/checkpoint-") + name + "/COMPLETE"))) << name;
  for (const char* name : {"6", "8", "10", "12"})
    EXPECT_FALSE(exists(w.path(std::string("run/checkpoint-") + name))) << name;
}

TEST(OutputFolder, OtherDataOfTheSameLengthAndOtherScalesAreRefused) {
  const Workspace w;
  std::vector<uint16_t> ids = numbered_tokens(2000, 200);
  spill(w.path("ids.bin"), raw_tokens(ids));
  w.trained("run", {"save_steps=6", "train_data=" + w.path("ids.bin")});
  std::swap(ids[1000], ids[1001]);
  spill(w.path("swapped.bin"), raw_tokens(ids));
  refused(w.train("run", {"resume=latest", "train_data=" + w.path("swapped.bin")}),
          "the training data of ");
  refused(w.train("run", {"resume=latest", "train_data=" + w.path("ids.bin"),
                          "model.scale_attn_weights=false"}),
          "model as in ");
  w.trained("run", {"resume=latest", "train_data=" + w.path("ids.bin")});
}

TEST(OutputFolder, ADivergedRunFailsAndSaysWhereToGoOn) {
  const Workspace w;
  w.trained("run", {"save_steps=6"});
  const Outcome failed =
      w.train("run", {"resume=" + w.path("run/checkpoint-6"), "learning_rate=1e30",
                      "lr_scheduler_type=constant", "max_grad_norm=0"});
  EXPECT_EQ(failed.code, 1) << failed.out << failed.err;
  for (const char* part : {": expected finite", "\n  found: ", "\n  try:   ", "run/checkpoint-6"})
    EXPECT_NE(failed.err.find(part), std::string::npos) << part << "\nin " << failed.err;
  EXPECT_EQ(w.json("run/memory.json")["finished"], false);
  EXPECT_TRUE(exists(w.path("run/report.html")));
  for (const Json& line : w.metrics("run")) EXPECT_TRUE(line.is_object());
}

// Weights that blew up are seen by an evaluation, and by a sample where nothing is evaluated: no
// checkpoint and no final/ has them.
TEST(OutputFolder, WeightsThatAreNotFiniteAreNotSaved) {
  const Workspace w;
  const std::vector<std::string> wild = {"learning_rate=1e30", "lr_scheduler_type=constant",
                                         "max_grad_norm=0",    "eval_steps=1",
                                         "save_steps=1",       "max_steps=1"};
  const auto failed = [&](const std::string& name, const std::vector<std::string>& keys, int step,
                          const std::string& found, const std::string& advice) {
    const Outcome o = w.train(name, keys);
    EXPECT_EQ(o.code, 1) << o.out << o.err;
    const std::string at = std::to_string(step);
    EXPECT_NE(o.out.find("Training failed at step " + at + "; "), std::string::npos) << o.out;
    EXPECT_NE(o.err.find("diverged: expected finite losses and gradients\n  found: " + found + at),
              std::string::npos)
        << o.err;
    EXPECT_NE(o.err.find("\n  try:   " + advice), std::string::npos) << o.err;
    EXPECT_EQ(w.json(name + "/memory.json")["finished"], false);
    EXPECT_FALSE(exists(w.path(name + "/final")));
    EXPECT_FALSE(exists(w.path(name + "/checkpoint-" + at)));
    EXPECT_EQ(o.out.find("-nan"), std::string::npos) << o.out;
  };
  failed("evaluated", wild, 1, "a validation loss of nan at step ", "a smaller learning_rate");
  failed("sampled", joined(wild, {"eval_fraction=0", "sample_prompt=the"}), 1, "a sample at step ",
         "a smaller learning_rate");
  // The weights a run begins with.
  w.trained("good", {"max_steps=2", "save_steps=2"});
  fs::copy(w.path("good/final"), w.path("nan"), fs::copy_options::recursive);
  std::string weights = slurp(w.path("nan/model.safetensors"));
  for (size_t at = weights.size() - 64; at < weights.size(); at += 4)
    weights.replace(at, 4, std::string("\0\0\xc0\x7f", 4));
  spill(w.path("nan/model.safetensors"), weights);
  failed("begun", {"model=" + w.path("nan")}, 0, "a validation loss of nan at step ",
         "other weights to begin with, or precision=fp32");
  // In the middle of a run also where final/ would be the best: that is what there is to go on
  // from.
  fs::remove_all(w.path("good/final"));
  failed("good", joined(wild, {"resume=latest", "max_steps=4", "load_best_model_at_end=true"}), 3,
         "a validation loss of nan at step ",
         "a smaller learning_rate, max_grad_norm=1.0, or check the data; resume=latest goes on "
         "from " +
             w.path("good/checkpoint-2"));
}

TEST(OutputFolder, TheResumeCommandIsQuoted) {
  const Workspace w;
  Child child(w.train_arguments("a b"));
  ASSERT_TRUE(child.read_until("step      3/12"));
  child.send(SIGTERM);
  const Outcome stopped = child.finish();
  ASSERT_EQ(stopped.code, 75) << stopped.err;
  const std::string command = "snug train '" + w.path("a b") + "'\n";
  EXPECT_NE(stopped.out.find("To go on: " + command), std::string::npos) << stopped.out;
  EXPECT_TRUE(exists(w.path("a b/report.html")));
  // It works as it stands, though the tokenizer it was trained with is gone.
  fs::remove(w.path("tok.json"));
  const Outcome resumed = shell(
      "$"
      "SNUG" +
      command.substr(4));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(w.losses("a b").size(), 12u);
}

// The file of a resumed run is one for new runs too.
TEST(OutputFolder, AResumeIsNoKeyOfTheSavedConfig) {
  const Workspace w;
  w.trained("run", {"save_steps=6"});
  w.trained("run", {"resume=latest", "max_steps=14"});
  EXPECT_NE(slurp(w.path("run/config.resolved.yaml")).find("\nresume: null\n"), std::string::npos);
  const Outcome again = run(
      {"train", "--config", w.path("run/config.resolved.yaml"), "output_dir=" + w.path("other")});
  EXPECT_EQ(again.code, 0) << again.err;
}

// What is said of a run that was killed before its first checkpoint can be done.
TEST(OutputFolder, ARunWithoutACheckpointSaysHowToStartAgain) {
  const Workspace w;
  w.trained("run", {"save_steps=0"});
  refused(w.train("run", {"resume=latest"}),
          "/final and another output_dir, without resume, to train");
  w.trained("run", {"overwrite=true"});
}

// A terminal that is closed is a reason to stop as good as any other; one that must not matter
// (nohup) does not.
TEST(OutputFolder, AHangUpIsASignalToStop) {
  const Workspace w;
  Child child(w.train_arguments("run"));
  ASSERT_TRUE(child.read_until("step      3/12"));
  // As a closing terminal does.
  child.send(SIGHUP);
  child.send(SIGTERM);
  child.send(SIGHUP);
  EXPECT_EQ(child.finish().code, 75);
  EXPECT_FALSE(w.metrics("run").empty());
  Child deaf(w.train_arguments("deaf"), {"/usr/bin/nohup"});
  ASSERT_TRUE(deaf.read_until("step      3/12"));
  deaf.send(SIGHUP);
  EXPECT_EQ(deaf.finish().code, 0);
}

// While a run goes on, nothing else may write to its folder; however it ends, the folder is free.
TEST(OutputFolder, ARunHasItsFolderForItself) {
  const Workspace w;
  Child child(w.train_arguments("run", {"save_steps=4"}));
  ASSERT_TRUE(child.read_until("checkpoint-4 ("));  // the next one is further than it can get
  const std::vector<std::string> before = listing(w.path("run"));
  const std::string held = slurp(w.path("run/.lock"));
  EXPECT_EQ(held, std::to_string(child.pid()) + "\n");
  const std::string who = w.path("run") + ", which process " + std::to_string(child.pid()) +
                          " holds (" + w.path("run/.lock") + ")";
  refused(w.train("run", {"overwrite=true"}), who.c_str());
  refused(w.train("run", {"resume=latest"}), who.c_str());
  refused(w.train("run", {"resume=" + w.path("run/checkpoint-4")}), who.c_str());
  refused(w.train("run", {"overwrite=true"}),
          "expected an output_dir that no other run writes to\n  found: ");
  refused(w.train("run", {"overwrite=true"}),
          "try:   another output_dir, or wait until that run has ended");
  EXPECT_EQ(listing(w.path("run")), before);
  EXPECT_EQ(slurp(w.path("run/.lock")), held);
  EXPECT_EQ(child.finish().code, 0);
  EXPECT_FALSE(exists(w.path("run/.lock")));
  EXPECT_EQ(w.losses("run").size(), 12u);
}

// Of every file below the folder, by its path.
std::map<std::string, std::string> contents(const std::string& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) all[entry.path().string()] = slurp(entry.path().string());
  return all;
}

// The folder was moved and another run's has its name: that one keeps all it has, and what was
// learned is saved beside it.
TEST(SlowOutputFolder, AnotherFolderOfItsNameIsLeftAlone) {
  const Workspace w;
  w.trained("whole");
  const auto exchange = [&](const char* name, const std::vector<std::string>& keys,
                            const char* until, const char* written) {
    SCOPED_TRACE(name);
    const std::string run_dir = w.path(name), other = w.path(std::string(name) + "-other");
    w.trained(std::string(name) + "-other", {"save_steps=3", "seed=7"});
    Child child(w.train_arguments(name, keys));
    ASSERT_TRUE(child.read_until(until));
    for (int i = 0; i < 1000 && written && !exists(run_dir + written); ++i) usleep(10'000);
    fs::rename(run_dir, run_dir + "-moved");
    fs::rename(other, run_dir);
    const auto before = contents(run_dir);
    const Outcome ended = child.finish();
    EXPECT_EQ(ended.code, 1);
    for (const std::string& part : {"expected the output_dir " + run_dir,
                                    std::string("found: another folder or file of that name")})
      EXPECT_NE(ended.err.find(part), std::string::npos) << ended.err;
    EXPECT_TRUE(contents(run_dir) == before);
    EXPECT_FALSE(exists(run_dir + "-moved/final"));
    const std::string beside = run_dir + "-" + std::to_string(child.pid());
    EXPECT_NE(ended.out.find("output_dir was another one: saved " + beside + "/checkpoint-"),
              std::string::npos)
        << ended.out;
    const std::vector<std::string> saved = listing(beside);
    const auto last = std::find_if(saved.begin(), saved.end(), [](const std::string& file) {
      return file.starts_with("checkpoint-");
    });
    ASSERT_NE(last, saved.end());
    const Json state = Json::parse(slurp(beside + "/" + *last + "/trainer_state.json"));
    EXPECT_EQ(state["log_history"][1]["loss"].get<double>(), w.losses("whole")[0]);
    const Outcome resumed =
        run({"train", "--config", beside + "/config.resolved.yaml", "resume=latest"});
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(slurp(beside + "/final/model.safetensors"),
              slurp(w.path("whole/final/model.safetensors")));
  };
  // Found at the next checkpoint, at the end, and between a checkpoint in the background and the
  // removal of those beyond the limit.
  exchange("next", {"save_steps=4", "save_buffer=0"}, "step      5/12", nullptr);
  exchange("end", {"save_steps=0", "output_dir=" + w.path("end/")}, "step      5/12", nullptr);
  exchange("dot", {"save_steps=0", "output_dir=" + w.path("dot/.")}, "step      5/12", nullptr);
  exchange("limit", {"save_steps=4", "save_total_limit=1"}, "step      3/12",
           "/checkpoint-4/COMPLETE");
}

TEST(OutputFolder, AKilledRunLeavesNoLock) {
  const Workspace w;
  {
    Child child(w.train_arguments("run", {"save_steps=2"}));
    ASSERT_TRUE(child.read_until("step      5/12"));
    child.send(SIGKILL);
    EXPECT_EQ(child.finish().code, 128 + SIGKILL);
  }
  EXPECT_TRUE(exists(w.path("run/.lock")));
  w.trained("run", {"save_steps=2", "resume=latest"});
  EXPECT_FALSE(exists(w.path("run/.lock")));
  // One that was left alone in a folder is no file of anybody's.
  fs::create_directory(w.path("bare"));
  spill(w.path("bare/.lock"), "1\n");
  w.trained("bare");
}

TEST(OutputFolder, WithoutLocksARunWarnsAndGoesOn) {
  const Workspace w;
  // Built with AddressSanitizer the program wants its runtime loaded before all else, for functions
  // that nothing here replaces.
  const char* set = std::getenv("ASAN_OPTIONS");
  const Environment order("ASAN_OPTIONS",
                          std::string(set ? set : "") + ":verify_asan_link_order=0"),
      load("LD_PRELOAD", kBadWorld), locks("BAD_WORLD_LOCKS", "none");
  const Outcome done = w.trained("run");
  const size_t at = done.out.find("Warning: " + w.path("run") + " cannot be locked");
  ASSERT_NE(at, std::string::npos) << done.out;
  EXPECT_EQ(done.out.find("cannot be locked", at + 60), std::string::npos) << done.out;
  EXPECT_FALSE(exists(w.path("run/.lock")));
  w.trained("run", {"overwrite=true"});
}

TEST(OutputFolder, ALockThatIsNoFileIsRefused) {
  const Workspace w;
  fs::create_directories(w.path("run/.lock"));
  refused(w.train("run"), "run/.lock that can be opened and locked");
}

// Two runs below one new folder: the one that is refused takes nothing of the other with it.
TEST(OutputFolder, ARefusedStartLeavesWhatOthersMadeBesideIt) {
  const Workspace w;
  spill(w.path("short.txt"), "too short");
  Child child(w.train_arguments("sweep/a"));
  ASSERT_TRUE(child.read_until("step      2/12"));
  EXPECT_NE(w.train("sweep/b", {"train_data=" + w.path("short.txt")}).code, 0);
  EXPECT_FALSE(exists(w.path("sweep/b")));
  EXPECT_EQ(child.finish().code, 0);
  EXPECT_NE(w.train("new/b", {"train_data=" + w.path("short.txt")}).code, 0);
  EXPECT_FALSE(exists(w.path("new")));
}

}  // namespace
}  // namespace snug::e2e
