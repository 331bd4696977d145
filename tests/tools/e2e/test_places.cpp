// Places that cannot be written to, texts that cannot be read, and a tokenizer that takes more
// memory than a run sets aside: found before the first step or in the middle, said in words.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

void expect_said(const Outcome& outcome, int code, const std::vector<std::string>& says) {
  EXPECT_EQ(outcome.code, code) << outcome.out << outcome.err;
  for (const char* part : {": expected ", "\n  found: ", "\n  try:   "})
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  for (const std::string& part : says)
    EXPECT_NE(outcome.err.find(part), std::string::npos) << part << "\nin " << outcome.err;
}

TEST(Places, EventFilesNeedAFolder) {
  const Workspace w;
  w.trained("run", {"max_steps=2"});
  fs::remove_all(w.path("run/runs"));
  spill(w.path("run/runs"), "a file");
  expect_said(w.train("run", {"resume=latest", "max_steps=4"}), 1,
              {"device: expected to create " + w.path("run/runs"), "try:   free disk space"});
}

// The folder of a run is taken away and a file put in its place.
Outcome displaced(const Workspace& w, const std::vector<std::string>& more) {
  std::vector<std::string> words = {"max_steps=8", "eval_fraction=0", "report_to=none"};
  words.insert(words.end(), more.begin(), more.end());
  Child child(w.train_arguments("run", words));
  EXPECT_TRUE(child.read_until("step      2/"));
  fs::rename(w.path("run"), w.path("moved"));
  spill(w.path("run"), "a file");
  return child.finish();
}

TEST(Places, ACheckpointWhoseFolderIsGone) {
  const Workspace w;
  expect_said(
      displaced(w, {"save_steps=6"}), 1,
      {"device: expected the output_dir " + w.path("run") + " that this run began in",
       "found: another folder or file of that name", "then:  snug train " + w.path("run-")});
}

TEST(Places, AModelFolderWhoseFolderIsGone) {
  const Workspace w;
  expect_said(
      displaced(w, {"save_steps=0", "output_dir=" + w.path("run/")}), 1,
      {"device: expected the output_dir " + w.path("run/") + " that this run began in",
       "found: another folder or file of that name", "then:  snug train " + w.path("run-")});
}

TEST(Places, TextThatCannotBeRead) {
  const Workspace w;
  const std::string tokenizer = " --tokenizer " + w.path("tok.json");
  expect_said(shell("$SNUG tokenizer encode" + tokenizer + " < /"), 2,
              {"data: expected text on standard input", "a read error", "check what is piped in"});
  expect_said(shell("$SNUG tokenizer decode" + tokenizer + " < /"), 2,
              {"text on standard input", "a read error"});
}

// A vocabulary of a few tokens of many bytes: its tables take more than its number of tokens says.
TEST(SlowPlaces, ATokenizerOfMoreMemoryThanARunSetsAside) {
  if (program_has_sanitizer()) GTEST_SKIP() << "a sanitizer's own memory is not held against a run";
  const Workspace w;
  Json tokenizer = w.json("tok.json");
  for (int i = 0; i < 20; ++i)
    tokenizer["model"]["vocab"][std::string(1 << 20, static_cast<char>('A' + i))] = 300 + i;
  spill(w.path("large.json"), tokenizer.dump());
  const Outcome o =
      w.train("out", {"tokenizer=" + w.path("large.json"), "memory=null", "max_steps=1"});
  expect_said(o, 3,
              {"out_of_memory: expected at most ", " B of runtime memory (program, libraries,",
               " B before the arena is reserved", "report this with the tokenizer you use"});
  EXPECT_FALSE(exists(w.path("out")));
}

}  // namespace
}  // namespace snug::e2e
