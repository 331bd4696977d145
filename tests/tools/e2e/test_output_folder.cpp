// What a run may remove and replace, and what it says when it cannot go on.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>

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
  refused(w.train("proj", {"resume=" + w.path("run/checkpoint-6")}), "a checkpoint in output_dir");
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

// Going on from step 2 abandons 4 to 12; the limit counts what is of the new line only.
TEST(OutputFolder, LaterCheckpointsGoWhenAnEarlierOneIsResumed) {
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

TEST(OutputFolder, TheResumeCommandIsQuoted) {
  const Workspace w;
  Child child(w.train_arguments("a b"));
  ASSERT_TRUE(child.read_until("step      3/12"));
  child.send(SIGTERM);
  const Outcome stopped = child.finish();
  ASSERT_EQ(stopped.code, 75) << stopped.err;
  EXPECT_NE(stopped.out.find("--config '" + w.path("a b/config.resolved.yaml") + "' resume=latest"),
            std::string::npos)
      << stopped.out;
  EXPECT_TRUE(exists(w.path("a b/report.html")));
}

}  // namespace
}  // namespace snug::e2e
