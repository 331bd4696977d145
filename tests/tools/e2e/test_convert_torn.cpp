// A conversion into an empty folder that was broken off, and the next one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>

#include "tests/tools/e2e/model_files.h"
#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

Outcome convert(const std::string& model, const std::string& output) {
  return run({"convert", "--model", model, "--to", "hf", "--output", output});
}

// What a kill leaves goes with the next conversion; nothing else does, and nothing of one that
// still runs.
TEST(Convert, WhatAKillLeftInTheFolderGoes) {
  Workspace w;
  w.trained("run", {"max_steps=1", "eval_fraction=0"});
  const std::string model = w.path("run/final"), into = w.path("into"),
                    torn = into + "/.snug-convert-aB3xYz";
  const auto tear = [&] {
    fs::create_directories(torn);
    spill(torn + "/model.safetensors", "torn");
  };
  const auto refused = [&](const std::string& what) {
    const std::vector<std::string> before = listing(into);
    const Outcome o = convert(model, into);
    EXPECT_EQ(o.code, 2) << o.out;
    EXPECT_EQ(o.err,
              "usage: expected --output as a folder that is not there yet, or an empty one\n"
              "  found: " +
                  into + ", which holds " + what + "\n  try:   another name\n");
    EXPECT_EQ(listing(into), before);
  };
  tear();
  const Outcome again = convert(model, into);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(listing(into), model_files(model));
  tear();
  refused("something");  // a whole model beside it
  for (const char* name : {"/mine", "/.snug-convert-a", "/.snug-convert-aB3xYz"}) {
    fs::remove_all(into);
    fs::create_directory(into);
    spill(into + name, "mine");
    refused("something");
  }
  fs::remove_all(into);
  tear();
  const int held = open(torn.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(flock(held, LOCK_EX | LOCK_NB), 0);
  refused(".snug-convert-aB3xYz, where another snug may be writing");
  close(held);
  EXPECT_EQ(convert(model, into).code, 0);
}

// The names are those that the program makes.
TEST(Convert, AKilledConversionIsDoneAgain) {
  NEEDS_PRELOAD();
  Workspace w;
  w.trained("run", {"max_steps=1", "eval_fraction=0"});
  const std::string model = w.path("run/final"), into = w.path("into");
  fs::create_directory(into);
  // Killed while it writes the first bytes of the weights, which takes it a minute.
  const Outcome killed =
      shell("BAD_WORLD_FILES=model.safetensors BAD_WORLD_SLOW=60 LD_PRELOAD=" + kBadWorld +
            " $SNUG convert --model " + model + " --to hf --output " + into +
            " & p=$!; while kill -0 $p && [ -z \"$(find " + into +
            " -type f)\" ]; do sleep 0.01; done 2>/dev/null; kill -KILL $p; wait $p");
  EXPECT_EQ(killed.code, 128 + 9) << killed.err;
  EXPECT_EQ(listing(into).size(), 2u) << "a folder with a file";
  const Outcome again = convert(model, into);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(listing(into), model_files(model));
}

}  // namespace
}  // namespace snug::e2e
