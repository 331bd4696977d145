// snug eval with a sliding window and on multiple-choice questions, against what PyTorch computes
// with the same weights (tests/golden/eval_make.py).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "tests/support/folders.h"
#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

const std::string kGolden = source_folder() + "/tests/golden/";

// The fixture as a model folder, `model`.
class Fixture : public Workspace {
 public:
  Fixture() : expected(Json::parse(slurp(kGolden + "eval_expected.json"))) {
    fs::create_directory(path("model"));
    spill(path("model/config.json"), expected["config"].dump());
    fs::copy(kGolden + "eval_model.safetensors", path("model/model.safetensors"));
    fs::copy(kGolden + "tokenizer_gpt2.json", path("model/tokenizer.json"));
    std::string lines;
    for (const Json& line : expected["choices"]["lines"]) lines += line.get<std::string>() + "\n";
    spill(path("questions.jsonl"), lines);
  }
  Outcome eval(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"eval",      "--model", path("model"), "--memory", "64MiB",
                                      "--threads", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  Json json_of(std::vector<std::string> more) const {
    more.emplace_back("--json");
    const Outcome o = eval(more);
    EXPECT_EQ(o.code, 0) << o.err;
    return o.code == 0 ? Json::parse(o.out) : Json();
  }
  Json expected;
};

// Float32 against float64: losses of about 8 from sums of 24 to 96 terms, in which 1e-5 relative is
// hundreds of roundings; the wrong token, weight or count of tokens shows above 1e-3.
constexpr double kTolerance = 1e-5;

// A text shorter than the model's positions is one sample, and it is said how long.
TEST(Eval, AShortTextIsASampleOfItsLength) {
  const Fixture f;
  const std::string text = slurp(kGolden + "text_corpus.txt").substr(0, 40),
                    name = f.path("short.txt");
  spill(name, text);
  const Outcome o = f.eval({"--data", name});
  ASSERT_EQ(o.code, 0) << o.err;
  const std::string mark = ", as with --max-length ";
  const size_t at = o.err.find(mark);
  ASSERT_NE(at, std::string::npos) << o.err;
  const std::string length = std::to_string(std::stoi(o.err.substr(at + mark.size())));
  EXPECT_NE(o.out.find(" 1 sample of " + length), std::string::npos) << o.out;
  EXPECT_EQ(f.json_of({"--data", name})["loss"],
            f.json_of({"--data", name, "--max-length", length})["loss"]);
  EXPECT_EQ(f.eval({"--data", name, "--max-length", "48"}).code, 2) << "what was asked holds";
}

TEST(Eval, SlidingWindowIsThatOfTheGuide) {
  const Fixture f;
  for (const Json& want : f.expected["strided"]) {
    for (const char* batch : {"1", "7"}) {
      const Json got = f.json_of({"--data", kGolden + "text_corpus.txt", "--max-length",
                                  want["max_length"].dump(), "--stride", want["stride"].dump(),
                                  "--batch-size", batch});
      EXPECT_EQ(got["tokens"], want["tokens"]) << want << batch;
      EXPECT_NEAR(got["loss"].get<double>(), want["loss"].get<double>(),
                  kTolerance * want["loss"].get<double>())
          << want << batch;
      EXPECT_NEAR(got["perplexity"].get<double>(), std::exp(got["loss"].get<double>()),
                  1e-9 * got["perplexity"].get<double>());
      EXPECT_EQ(got["stride"], want["stride"]);
      EXPECT_FALSE(got.contains("samples"));
    }
  }
  // The first windows alone, and a text shorter than one.
  const Json first = f.json_of({"--data", kGolden + "text_corpus.txt", "--max-length", "20",
                                "--stride", "5", "--max-samples", "3"});
  EXPECT_EQ(first["tokens"], 19 + 5 + 5);
  spill(f.path("short.txt"), "a");
  const Json shorter = f.json_of({"--data", f.path("short.txt"), "--stride", "10"});
  EXPECT_EQ(shorter["tokens"], 1);
  // Two files are two texts.
  const Json one = f.json_of({"--data", f.path("text.txt"), "--stride", "13"});
  fs::create_directory(f.path("twice"));
  for (const char* name : {"a", "b"}) {
    ASSERT_EQ(run({"tokenizer", "encode", "--tokenizer", f.path("model"), "--help"}).code, 0);
    spill(f.path(std::string("twice/") + name + ".bin"),
          raw_tokens(std::vector<uint16_t>(31, static_cast<uint16_t>(name[0] - 'a' + 5))));
  }
  const Json two = f.json_of(
      {"--data", f.path("twice/a.bin"), "--data", f.path("twice/b.bin"), "--stride", "13"});
  EXPECT_EQ(two["tokens"], 60) << "the first of each file is not scored";
  EXPECT_GT(one["tokens"], 100);
  const Outcome text = f.eval({"--data", kGolden + "text_corpus.txt", "--stride", "16"});
  EXPECT_NE(text.out.find("in windows of 48, one every 16"), std::string::npos) << text.out;
}

TEST(Eval, ChoicesAreScoredAsInTheHarness) {
  const Fixture f;
  const Json want = f.expected["choices"];
  const Json got = f.json_of({"--choices", f.path("questions.jsonl")});
  EXPECT_EQ(got["acc"], want["acc"]);
  EXPECT_EQ(got["acc_norm"], want["acc_norm"]);
  const double p = want["acc"].get<double>(), n = static_cast<double>(want["rows"].size());
  EXPECT_NEAR(got["acc_stderr"].get<double>(), std::sqrt(p * (1 - p) / (n - 1)), 1e-12);
  ASSERT_EQ(got["scores"].size(), want["rows"].size());
  for (size_t i = 0; i < want["rows"].size(); ++i) {
    const Json& scores = want["rows"][i]["scores"];
    ASSERT_EQ(got["scores"][i].size(), scores.size());
    for (size_t c = 0; c < scores.size(); ++c)
      EXPECT_NEAR(got["scores"][i][c].get<double>(), scores[c].get<double>(),
                  kTolerance * std::fabs(scores[c].get<double>()))
          << i << " " << c;
  }
  // acc and acc_norm must differ somewhere, or the division is not seen.
  bool differ = false;
  for (const Json& row : want["rows"]) differ |= row["acc"] != row["acc_norm"];
  EXPECT_TRUE(differ);
  const Json some = f.json_of({"--choices", f.path("questions.jsonl"), "--max-samples", "2"});
  EXPECT_EQ(some["questions"], 2);
  EXPECT_EQ(some["scores"].size(), 2u);
  const Outcome text = f.eval({"--choices", f.path("questions.jsonl")});
  // Two shares, each with the error of its own.
  std::string shares;
  for (const char* key : {"acc", "acc_norm"}) {
    const double share = want[key];
    shares += fmt::format("{} {:.4f} +- {:.4f}  ", key, share, std::sqrt(share * (1 - share) / 7));
  }
  EXPECT_NE(want["acc"], want["acc_norm"]);
  EXPECT_NE(text.out.find(shares + "over 8 questions, 24 choices"), std::string::npos) << text.out;
}

// Lines are those of every reader of text: CR alone ends them too, and UTF-16 is named.
TEST(Eval, QuestionsAreReadAsTexts) {
  const Fixture f;
  const std::string questions = slurp(f.path("questions.jsonl"));
  std::string cr = questions;
  std::replace(cr.begin(), cr.end(), '\n', '\r');
  spill(f.path("cr.jsonl"), cr);
  EXPECT_EQ(f.json_of({"--choices", f.path("cr.jsonl")})["scores"],
            f.json_of({"--choices", f.path("questions.jsonl")})["scores"]);
  std::string wide = "\xff\xfe";
  for (const char c : questions) wide += {c, '\0'};
  spill(f.path("wide.jsonl"), wide);
  const Outcome refused = f.eval({"--choices", f.path("wide.jsonl")});
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("UTF-16"), std::string::npos) << refused.err;
}

// Questions that cannot be scored are counted, and those around them have their scores.
TEST(Eval, AQuestionThatCannotBeScoredIsLeftOut) {
  const Fixture f;
  const Json all = f.json_of({"--choices", f.path("questions.jsonl")});
  EXPECT_EQ(all["left_out"], 0);
  std::string longer;
  for (int i = 0; i < 60; ++i) longer += "word " + std::to_string(i) + " ";
  struct Row {
    Json query, choices;
    std::string why;
  };
  for (const Row& row :
       {Row{"a", {"b", ""}, "choice 1 is empty"}, Row{"  ", {"b", "c"}, "a query of white space"},
        Row{"a", {longer, "b"}, "tokens and a sample holds 48"}}) {
    const std::string bad =
        Json({{"query", row.query}, {"choices", row.choices}, {"gold", 0}}).dump() + "\n";
    std::string lines;
    for (size_t i = 0; i < f.expected["choices"]["lines"].size(); ++i) {
      if (i == 2) lines += bad;
      lines += f.expected["choices"]["lines"][i].get<std::string>() + "\n";
    }
    spill(f.path("some.jsonl"), lines + bad);
    const Json got = f.json_of({"--choices", f.path("some.jsonl")});
    EXPECT_EQ(got["left_out"], 2) << row.why;
    for (const char* key : {"acc", "acc_norm", "acc_stderr", "questions", "choices", "max_length"})
      EXPECT_EQ(got[key], all[key]) << key << row.why;
    Json scores = got["scores"];
    EXPECT_TRUE(scores[2].is_null() && scores.back().is_null()) << scores;
    scores.erase(2);
    scores.erase(scores.size() - 1);
    EXPECT_EQ(scores, all["scores"]) << row.why;
    const Outcome text = f.eval({"--choices", f.path("some.jsonl")});
    EXPECT_NE(text.out.find("left out: 2 of 10 questions, which cannot be scored; the first is " +
                            f.path("some.jsonl") + ":3: "),
              std::string::npos)
        << text.out;
    EXPECT_NE(text.out.find(row.why), std::string::npos) << text.out;
  }
  // The others need fewer tokens than a sample may have, which is the bound that is named.
  spill(f.path("short.jsonl"),
        Json({{"query", "a"}, {"choices", {"b", "c"}}, {"gold", 0}}).dump() + "\n" +
            Json({{"query", "a"}, {"choices", {longer, "b"}}, {"gold", 0}}).dump());
  const Outcome text = f.eval({"--choices", f.path("short.jsonl")});
  EXPECT_NE(text.out.find("tokens and a sample holds 48"), std::string::npos) << text.out;
}

TEST(Eval, WhatIsWrongIsExplained) {
  const Fixture f;
  const auto refused = [&](const std::vector<std::string>& more,
                           const std::vector<std::string>& words) {
    const Outcome o = f.eval(more);
    EXPECT_EQ(o.code, 2) << o.out << o.err;
    EXPECT_NE(o.err.find("\n  try:   "), std::string::npos) << o.err;
    for (const std::string& word : words)
      EXPECT_NE(o.err.find(word), std::string::npos) << "no \"" << word << "\" in:\n" << o.err;
  };
  const std::string data = kGolden + "text_corpus.txt", questions = f.path("questions.jsonl");
  refused({}, {"--data or --choices for snug eval, one of them", "none"});
  refused({"--data", data, "--choices", questions}, {"one of them", "both"});
  refused({"--choices", questions, "--stride", "4"}, {"--packing-boundaries only with --data"});
  refused({"--choices", questions, "--batch-size", "4"}, {"only with --data"});
  refused({"--data", data, "--stride", "-1"}, {"--stride of at least 0", "-1"});
  refused({"--data", data, "--stride", "48"}, {"--stride below --max-length, 48", "--stride 24"});
  refused({"--data", data, "--stride", "1", "--max-length", "1"}, {"--max-length of 2 to 48"});
  refused({"--choices", questions, "--max-length", "49"}, {"--max-length of 1 to 48", "49"});
  refused({"--choices", f.path("nothing.jsonl")}, {"nothing.jsonl"});
  const auto line = [&](const std::string& text, const std::vector<std::string>& words) {
    spill(f.path("bad.jsonl"), R"({"query":"a","choices":["b","c"],"gold":0})"
                               "\n\n" +
                                   text + "\n");
    std::vector<std::string> all = words;
    all.push_back("bad.jsonl:3");
    refused({"--choices", f.path("bad.jsonl")}, all);
  };
  line("{", {"bad.jsonl:3:"});
  line("[1]", {"a JSON object in", "a list of 1 values"});
  line(R"({"choices":["b","c"],"gold":0})", {"\"query\" or \"ctx\" in", "neither"});
  line(R"({"ctx":7,"choices":["b","c"],"gold":0})", {"\"query\" or \"ctx\" as a string", "7"});
  line(R"({"ctx":"a","gold":0})", {"\"choices\" or \"endings\" in", "neither"});
  line(R"({"ctx":"a","choices":["b"],"gold":0})", {"two or more strings", "a list of 1 values"});
  line(R"({"ctx":"a","choices":["b",3],"gold":0})", {"two or more strings", "3"});
  line(R"({"ctx":"a","choices":["b","c"]})", {"\"gold\" or \"label\" in", "neither"});
  for (const char* gold : {"2", "-1", "\"x\"", "\"1x\"", "\"\"", "0.5", "18446744073709551615"})
    line(std::string(R"({"ctx":"a","choices":["b","c"],"gold":)") + gold + "}",
         {"as the number of a choice, 0 to 1", gold});
  spill(f.path("empty.jsonl"), "\n \n");
  refused({"--choices", f.path("empty.jsonl")}, {"questions in", "one JSON object a line", "none"});
  std::string longer;
  for (int i = 0; i < 60; ++i) longer += "word " + std::to_string(i) + " ";
  spill(f.path("long.jsonl"), Json({{"ctx", "a"}, {"choices", {"b", longer}}, {"gold", 0}}).dump() +
                                  "\n" + R"({"ctx":"a","choices":["b",""],"gold":0})" + "\n");
  refused({"--choices", f.path("long.jsonl")},
          {"a question in", "that can be scored", "long.jsonl:1: choice 1 has ",
           "tokens and a sample holds 48", "another wording, or a larger --max-length"});
  fs::remove(f.path("model/tokenizer.json"));
  refused({"--choices", questions},
          {"a tokenizer in", "for --choices", "copy the tokenizer's files"});
}

// A loss that is no number is no result.
TEST(Eval, WeightsThatAreNotFiniteAreAnError) {
  const Fixture f;
  std::string weights = slurp(f.path("model/model.safetensors"));
  for (size_t at = weights.size() - 64; at < weights.size(); at += 4)
    weights.replace(at, 4, std::string("\0\0\xc0\x7f", 4));
  spill(f.path("model/model.safetensors"), weights);
  const Outcome o = f.eval({"--data", f.path("text.txt"), "--max-length", "16"});
  EXPECT_EQ(o.code, 2) << o.out;
  EXPECT_NE(o.err.find("data: expected a finite loss of " + f.path("model")), std::string::npos)
      << o.err;
  const Outcome choices = f.eval({"--choices", f.path("questions.jsonl")});
  EXPECT_EQ(choices.code, 2) << choices.out;
  EXPECT_EQ(choices.out.find("acc"), std::string::npos) << choices.out;
  EXPECT_NE(choices.err.find("data: expected a finite score of choice 0 in " +
                             f.path("questions.jsonl") + ":1\n  found: nan\n"),
            std::string::npos)
      << choices.err;
}

}  // namespace
}  // namespace snug::e2e
