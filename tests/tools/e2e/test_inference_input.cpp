// What eval and generate are given: tokenizers that do not belong to the model, folders that hold
// more than text, and places for temporary files.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

void expect_refused(const Outcome& outcome, const std::vector<std::string>& says) {
  EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
  for (const char* part : {": expected ", "\n  found: ", "\n  try:   "})
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  for (const std::string& part : says)
    EXPECT_NE(outcome.err.find(part), std::string::npos) << part << "\nin " << outcome.err;
}

Outcome generated(const Workspace& w, const std::string& model,
                  const std::vector<std::string>& more) {
  std::vector<std::string> words = {"generate",  "--model", w.path(model),   "--prompt", "the cat",
                                    "--threads", "1",       "--temperature", "0"};
  words.insert(words.end(), more.begin(), more.end());
  return run(words);
}

Outcome evaluated(const Workspace& w, const std::string& data) {
  return run({"eval", "--model", w.path("run/final"), "--data", w.path(data), "--max-length", "32",
              "--threads", "1"});
}

// The part of eval's text that the data decides: from "loss" on.
std::string result(const Outcome& outcome) {
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.out.substr(std::min(outcome.out.find("\nloss "), outcome.out.size()));
}

TEST(InferenceInput, ATokenizerLargerThanTheModelIsRefused) {
  const Workspace w;
  w.trained("run", {"max_steps=1", "eval_fraction=0"});
  std::filesystem::copy(w.path("run/final"), w.path("large"));
  for (const char* name : {"tokenizer.json", "vocab.json", "merges.txt"})
    std::filesystem::remove(w.path(std::string("large/") + name));
  const Outcome made = run({"tokenizer", "train", "--vocab-size", "305", "--output",
                            w.path("large/tokenizer.json"), w.path("text.txt")});
  ASSERT_EQ(made.code, 0) << made.err;
  const std::vector<std::string> says = {"at most 300 tokens", "large/config.json",
                                         "305 tokens in " + w.path("large"),
                                         "the tokenizer that the model was trained with"};
  expect_refused(generated(w, "large", {}), says);
  expect_refused(run({"eval", "--model", w.path("large"), "--data", w.path("text.txt")}), says);
}

TEST(InferenceInput, AnyNumberOfNewTokensAndNoLongerPrompt) {
  const Workspace w;
  w.trained("run", {"max_steps=2", "eval_fraction=0"});
  const Outcome all = generated(w, "run/final", {"--max-new-tokens", "64"});
  ASSERT_EQ(all.code, 0) << all.err;
  const Outcome endless = generated(w, "run/final", {"--max-new-tokens", "9223372036854775807"});
  EXPECT_EQ(endless.code, 0) << endless.err;
  EXPECT_EQ(endless.out, all.out);
  expect_refused(run({"generate", "--model", w.path("run/final"), "--prompt", sentences(40, 3)}),
                 {"a prompt of 1 to 64 tokens", "a shorter prompt"});
}

TEST(InferenceInput, Bf16WeightsAreReadWithoutAWideCopy) {
  const Workspace w;
  w.trained("run", {"max_steps=20"});
  const auto eval = [&](const char* precision) {
    const Outcome o =
        run({"eval", "--model", w.path("run/final"), "--data", w.path("text.txt"), "--max-length",
             "32", "--threads", "1", "--batch-size", "1", "--json", "--precision", precision});
    EXPECT_EQ(o.code, 0) << o.err;
    return Json::parse(o.out);
  };
  const Json wide = eval("fp32"), narrow = eval("bf16");
  const double loss = wide.at("loss");
  EXPECT_NEAR(narrow.at("loss").get<double>(), loss, 0.02 * loss);
  EXPECT_LT(narrow.at("engine_bytes"), wide.at("engine_bytes"));
}

TEST(InferenceInput, TemporaryFiles) {
  const Workspace w;
  w.trained("run", {"max_steps=1", "eval_fraction=0"});
  spill(w.path("short.txt"), "the cat sees a red door.");
  const std::string eval =
      " $SNUG eval --model " + w.path("run/final") + " --max-length 32 --threads 1 --data ";
  expect_refused(shell("TMPDIR=" + w.path("none") + eval + w.path("text.txt")),
                 {"a folder for temporary files", "TMPDIR=" + w.path("none"), "TMPDIR=FOLDER"});
  expect_refused(shell("TMPDIR=" + w.path("text.txt") + eval + w.path("text.txt")),
                 {"a folder for temporary files", "text.txt"});
  std::filesystem::create_directory(w.path("tmp"));
  const Outcome good = shell("TMPDIR=" + w.path("tmp") + eval + w.path("text.txt"));
  EXPECT_EQ(good.code, 0) << good.err;
  const Outcome small = shell("TMPDIR=" + w.path("tmp") + eval + w.path("short.txt"));
  expect_refused(small, {"at least 33 tokens", "tokens in " + w.path("short.txt")});
  EXPECT_EQ(small.err.find("snug-eval"), std::string::npos) << small.err;
  EXPECT_TRUE(listing(w.path("tmp")).empty()) << "nothing is left";
}

TEST(InferenceInput, FoldersTakeTokenFilesThatSaySo) {
  const Workspace w;
  spill(w.path("whole.txt"), sentences(150, 5));
  const Outcome trained =
      w.trained("run", {"max_steps=2", "eval_fraction=0", "train_data=" + w.path("whole.txt")});
  EXPECT_NE(trained.out.find("Data: 1 file, 1 document, "), std::string::npos) << trained.out;
  const std::string loss = result(evaluated(w, "whole.txt"));
  const std::string tokens = slurp(w.path("run/data/train.bin"));

  // With a header, with or without a side file, which is no text.
  for (const bool side : {false, true}) {
    const std::string name = side ? "sided" : "headed";
    std::filesystem::create_directory(w.path(name));
    spill(w.path(name + "/t.bin"), tokens);
    if (side) spill(w.path(name + "/t.bin.json"), slurp(w.path("run/data/train.bin.json")));
    const Outcome o = evaluated(w, name);
    EXPECT_EQ(result(o), loss);
    EXPECT_NE(o.out.find("data: 1 token file, " + w.path(name + "/t.bin") + ", "),
              std::string::npos)
        << o.out;
  }
  // No header, and a side file.
  std::filesystem::create_directory(w.path("bare"));
  spill(w.path("bare/t.bin"), tokens.substr(1024));
  spill(w.path("bare/t.bin.json"), slurp(w.path("run/data/train.bin.json")));
  EXPECT_EQ(result(evaluated(w, "bare")), loss);

  // Neither: it may be anything, and the text beside it is what counts.
  std::filesystem::create_directory(w.path("mixed"));
  spill(w.path("mixed/a.txt"), slurp(w.path("whole.txt")));
  spill(w.path("mixed/odd.bin"), "seven b");
  spill(w.path("mixed/raw.bin"), tokens.substr(1024));
  const Outcome mixed = evaluated(w, "mixed");
  EXPECT_EQ(result(mixed), loss);
  for (const std::string& part :
       {std::string("data: 1 file, 1 document, "),
        "2 .bin files that may not be tokens skipped, e.g. " + w.path("mixed/odd.bin")})
    EXPECT_NE(mixed.out.find(part), std::string::npos) << part << "\nin " << mixed.out;
  // Named, it is taken.
  EXPECT_EQ(result(evaluated(w, "mixed/raw.bin")), loss);
  expect_refused(evaluated(w, "mixed/odd.bin"), {"odd number of bytes"});

  std::filesystem::remove(w.path("mixed/a.txt"));
  expect_refused(evaluated(w, "mixed"),
                 {"text or token files for --data", "2 .bin files without a llm.c header",
                  "--data=" + w.path("mixed/odd.bin")});
  expect_refused(w.train("out", {"train_data=" + w.path("mixed")}),
                 {"text or token files for train_data", "train_data=" + w.path("mixed/odd.bin")});

  // Several are counted, the first is named.
  spill(w.path("headed/u.bin"), tokens);
  const Outcome two = evaluated(w, "headed");
  EXPECT_NE(two.out.find("data: 2 token files, the first " + w.path("headed/t.bin") + ", "),
            std::string::npos)
      << two.out;
}

}  // namespace
}  // namespace snug::e2e
