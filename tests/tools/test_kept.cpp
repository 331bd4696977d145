// What a run was given stays: inputs that lie in what it removes, folders that were moved, and what
// lies behind a checkpoint.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "engine/core/error.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/support/errors.h"
#include "tools/checkpoint/aside.h"
#include "tools/checkpoint/output_folder.h"
#include "tools/checkpoint/run_input.h"
#include "tools/config/run_place.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

void put(const std::string& path, const std::string& text = "x") {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

TEST(RunInput, IsFoundInWhatOverwriteRemoves) {
  TempFolder tmp;
  const std::string run = tmp / "run";
  for (const char* name :
       {"config.resolved.yaml", "data/train.bin", "final/config.json", "final/model.safetensors",
        "checkpoint-3/config.json", "aside-1/checkpoint-9/config.json", "tokenizer/tokenizer.json",
        "mine/a.txt", "aside-2/mine.txt"})
    put(run + "/" + name);
  put(tmp / "b.txt");
  RunConfig c;
  c.output_dir = run;
  EXPECT_EQ(input_of_old_run(c), "");
  const auto found = [&](auto member, const auto& value) {
    RunConfig other = c;
    other.*member = value;
    return input_of_old_run(other);
  };
  const std::string final = run + "/final";
  EXPECT_EQ(found(&RunConfig::model, final), "model: " + final + " (default)");
  EXPECT_EQ(found(&RunConfig::model, run + "/checkpoint-3/"),
            "model: " + run + "/checkpoint-3/ (default)");
  EXPECT_NE(found(&RunConfig::model, run + "/../run/aside-1/checkpoint-9"), "");
  EXPECT_EQ(found(&RunConfig::model, std::string("gpt2")), "");
  EXPECT_NE(found(&RunConfig::tokenizer, run + "/tokenizer/tokenizer.json"), "");
  using Paths = std::vector<std::string>;
  const Paths tokens = {tmp / "b.txt", run + "/da*/*.bin"};
  EXPECT_EQ(found(&RunConfig::train_data, tokens),
            "train_data: " + run + "/data/train.bin (default)");
  EXPECT_NE(found(&RunConfig::eval_data, Paths{run + "/data"}), "");
  // What stays is no matter: other files in the folder, and those that a folder around it gives.
  EXPECT_EQ(found(&RunConfig::train_data, Paths{run + "/mine", run + "/aside-2/mine.txt"}), "");
  EXPECT_EQ(found(&RunConfig::train_data, Paths{tmp.path(), tmp / "none.txt"}), "");
  // Links, from both sides.
  fs::create_directory(tmp / "cache");
  fs::create_symlink(final + "/model.safetensors", tmp / "cache/model.safetensors");
  put(tmp / "cache/config.json");
  EXPECT_EQ(found(&RunConfig::model, tmp / "cache"),
            "model: " + tmp / "cache/model.safetensors (default)");
  fs::create_directory_symlink(run, tmp / "link");
  EXPECT_NE(found(&RunConfig::model, tmp / "link/final"), "");
  fs::rename(run + "/data", tmp / "far");
  fs::create_directory_symlink(tmp / "far", run + "/data");
  EXPECT_NE(found(&RunConfig::train_data, Paths{run + "/data/train.bin"}), "");
  // Nothing is removed from a folder without a run.
  fs::remove(run + "/config.resolved.yaml");
  EXPECT_EQ(found(&RunConfig::model, final), "");
}

TEST(OldRun, GoesWithWhatItSetAside) {
  TempFolder tmp;
  for (const char* name : {"metrics.jsonl", "aside-1/metrics.csv", "aside-2/mine.txt", "aside-x/a",
                           "aside-3/checkpoint-8.damaged/COMPLETE", "checkpoint-2/COMPLETE"})
    put(tmp / name);
  remove_old_run(tmp.path());
  for (const char* name : {"metrics.jsonl", "aside-1", "aside-3", "checkpoint-2"})
    EXPECT_FALSE(fs::exists(tmp / name)) << name;
  for (const char* name : {"aside-2/mine.txt", "aside-x/a"})
    EXPECT_TRUE(fs::exists(tmp / name)) << name;
}

TEST(SetAside, KeepsWhatIsLater) {
  TempFolder tmp;
  const auto run = [&](const std::vector<int>& steps) {
    for (const int step : steps) put(tmp / ("checkpoint-" + std::to_string(step) + "/COMPLETE"));
    for (const char* name :
         {"config.resolved.yaml", "plan.json", "final/config.json", "report.html", "metrics.jsonl"})
      put(tmp / name);
  };
  run({5, 10, 20});
  put(tmp / "checkpoint-15/model.safetensors");  // torn
  put(tmp / "aside-1", "a file of the user's");
  {
    Aside aside(tmp.path());
    set_later_aside(aside, tmp.path(), 20);
    EXPECT_EQ(aside.text(), "");
    EXPECT_TRUE(fs::exists(tmp / "final"));
    set_later_aside(aside, tmp.path(), 5);
    EXPECT_EQ(aside.text(), tmp / "aside-2: checkpoint-10, checkpoint-20, final, report.html");
  }
  for (const char* name : {"checkpoint-5/COMPLETE", "config.resolved.yaml", "metrics.jsonl",
                           "aside-2/checkpoint-20/COMPLETE", "aside-2/config.resolved.yaml",
                           "aside-2/plan.json", "aside-2/final/config.json"})
    EXPECT_TRUE(fs::exists(tmp / name)) << name;
  for (const char* name : {"checkpoint-10", "checkpoint-15", "final"})
    EXPECT_FALSE(fs::exists(tmp / name)) << name;
  // A run that ended later, whose later checkpoints are gone.
  run({});
  put(tmp / "memory.json", R"({"finished": true})");
  put(tmp / "trainer_state.json", R"({"global_step": 5})");
  Aside same(tmp.path()), later(tmp.path());
  set_later_aside(same, tmp.path(), 5);
  EXPECT_FALSE(same.used());
  put(tmp / "trainer_state.json", R"({"global_step": 6})");
  set_later_aside(later, tmp.path(), 5);
  EXPECT_EQ(later.text(), tmp / "aside-3: final, report.html, memory.json, trainer_state.json");
  put(later.folder() + "/trace.json/in the way");
  put(tmp / "trace.json");
  EXPECT_ERROR(later.move("trace.json"), ErrorCode::device,
               "to rename " + (tmp / "trace.json") + " to " + (tmp / "aside-3/trace.json"),
               "directory", "check the rights of output_dir");
  Aside nowhere(tmp / "nothing");
  EXPECT_ERROR(nowhere.folder(), ErrorCode::device, "to create " + tmp / "nothing/aside-1",
               "No such file", "free disk space");
}

// A run whose folder lies elsewhere than its file says.
class MovedRun : public ::testing::Test {
 protected:
  MovedRun() {
    put(file_, "output_dir: " + old_ + "\ntrain_data: [" + old_ + "/data/*.bin, " + tmp_ / "b.txt" +
                   "]\ntokenizer: " + old_ + "/../orig/tokenizer\nmodel: gpt2\noverwrite: true\n");
    put(tmp_ / "cpy/metrics.jsonl");
  }
  RunConfig load(const std::vector<std::string>& more) {
    RunConfig config = load_config(file_, more);
    follow_moved_run(config, file_);
    return config;
  }
  TempFolder tmp_;
  const std::string old_ = tmp_ / "orig", here_ = tmp_ / "cpy",
                    file_ = here_ + "/config.resolved.yaml";
};

TEST_F(MovedRun, GoesOnWhereItLies) {
  const RunConfig c = load({"resume=latest"});
  EXPECT_EQ(c.output_dir, here_);
  EXPECT_EQ(c.train_data, (std::vector<std::string>{here_ + "/data/*.bin", tmp_ / "b.txt"}));
  EXPECT_EQ(c.tokenizer, here_ + "/tokenizer");
  EXPECT_EQ(c.model, "gpt2");
  ASSERT_EQ(c.notes.size(), 1u);
  EXPECT_EQ(c.notes[0], "the run of " + old_ + " lies in " + here_ +
                            " now, and so do there: output_dir, tokenizer, train_data");
  // The command line is what it says.
  const RunConfig other = load({"resume=latest", "output_dir=" + old_, "tokenizer=" + old_ + "/t"});
  EXPECT_EQ(other.output_dir, old_);
  EXPECT_EQ(other.tokenizer, old_ + "/t");
  EXPECT_EQ(other.train_data[0], here_ + "/data/*.bin");
  // A new run from the file: paths that lead nowhere any more follow.
  const RunConfig fresh = load({"overwrite=false"});
  EXPECT_EQ(fresh.output_dir, old_);
  EXPECT_EQ(fresh.train_data[0], here_ + "/data/*.bin");
  fs::create_directory(old_);
  EXPECT_EQ(load({"overwrite=false"}).train_data[0], old_ + "/data/*.bin");
  EXPECT_EQ(load({"resume=latest"}).output_dir, here_);
}

TEST_F(MovedRun, IsLeftAloneWhereItIsNone) {
  fs::remove(here_ + "/metrics.jsonl");  // a file by itself is a configuration like any other
  EXPECT_EQ(load({"resume=latest"}).output_dir, old_);
  put(here_ + "/plan.json");
  EXPECT_EQ(load({"resume=latest"}).output_dir, here_);
  fs::create_directory_symlink(here_, old_);  // the same place
  const RunConfig c = load({"resume=latest"});
  EXPECT_EQ(c.output_dir, old_);
  EXPECT_TRUE(c.notes.empty());
}

// The run that the folder was copied from is not what overwrite means.
TEST_F(MovedRun, OverwriteAsksForAPlace) {
  EXPECT_ERROR(load({}), ErrorCode::usage,
               "output_dir on the command line beside overwrite, for the file of a run that was "
               "moved or copied from " +
                   old_,
               "output_dir: " + old_ + " (" + file_ + ":1), and the file is in " + here_,
               "output_dir=" + here_);
  EXPECT_EQ(load({"output_dir=" + here_}).output_dir, here_);
}

}  // namespace
}  // namespace snug
