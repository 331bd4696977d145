#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/errors.h"
#include "tests/support/folders.h"
#include "tools/infer/generation.h"
#include "tools/infer/prompt_file.h"

namespace snug {
namespace {

class PromptFiles : public testing::Test {
 protected:
  PromptFiles() : folder_(testing::TempDir() + "snug_prompts_" + std::to_string(getpid())) {
    std::filesystem::create_directory(folder_);
  }
  ~PromptFiles() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << text;
    return folder_ + "/" + name;
  }
  static std::vector<std::string> read(const std::string& path) {
    const PromptFile prompts(path);
    std::vector<std::string> out;
    for (int64_t i = 0; i < prompts.size(); ++i) out.push_back(prompts.prompt(i));
    return out;
  }
  std::string folder_;
};
using Texts = std::vector<std::string>;

TEST_F(PromptFiles, ALineOfTextIsAPrompt) {
  EXPECT_EQ(read(file("a.txt", "one\n\n  \ttwo \r\n three")), (Texts{"one", "  \ttwo ", " three"}));
  EXPECT_EQ(read(file("b", "\xEF\xBB\xBFone\n")), (Texts{"one"})) << "a byte order mark";
  EXPECT_EQ(read(file("c.txt", "{\"prompt\": \"x\"}\n")), (Texts{"{\"prompt\": \"x\"}"}));
  EXPECT_EQ(read(file("e.txt", "one\rtwo\r")), (Texts{"one", "two"})) << "lines that CR ends";
  const PromptFile prompts(file("d.txt", "\n\nx\n\ny\n"));
  EXPECT_EQ(prompts.where(1), folder_ + "/d.txt:5");
}

TEST_F(PromptFiles, AnObjectALineOfJsonl) {
  EXPECT_EQ(
      read(file("a.jsonl", "{\"prompt\": \"a\\nb\", \"id\": 3}\n\n{\"prompt\":\"\xED\x95\x9C\"}")),
      (Texts{"a\nb", "\xED\x95\x9C"}));
}

TEST_F(PromptFiles, WhatIsWrongIsNamedWithItsLine) {
  const auto refused = [&](const std::string& text, std::initializer_list<const char*> words,
                           const char* name = "a.jsonl") {
    const std::string path = file(name, text);
    test::expect_error(ErrorCode::data, words, [&] { PromptFile{path}; });
  };
  refused("{\"prompt\": \"a\"}\n\n[1]\n",
          {"a JSON object in ", "a.jsonl:3", "a list of 1 values", "{\"prompt\":"});
  refused("{\"text\": \"a\"}\n", {"\"prompt\" in ", "a.jsonl:1", "no such key"});
  refused("{\"prompt\": 7}\n", {"\"prompt\" as a string in ", "a.jsonl:1", "7"});
  refused("{\"prompt\": \"a\"}\n{\"prompt\": \n", {"a.jsonl:2"});
  refused("one\ntw\xE9\n",
          {"text in UTF-8 without zero bytes in ", "byte 0xe9 at ", "a.txt:2 (offset 6)", "iconv"},
          "a.txt");
  refused(std::string("a\n\0b", 4), {"byte 0x00 at ", "a.txt:2"}, "a.txt");
  refused("{\"prompt\": \"\xFF\"}\n", {"byte 0xff at ", "a.jsonl:1"});
  refused(std::string("\xff\xfeo\0n\0e\0", 8), {"UTF-16", "iconv -f utf-16"}, "a.txt");
  refused("", {"prompts in ", "a.jsonl", "none"});
  refused("\n \n", {"prompts in ", "none", "a prompt a line"}, "a.txt");
  test::expect_error(ErrorCode::data, {"missing.txt"},
                     [&] { PromptFile{folder_ + "/missing.txt"}; });
}

TEST_F(PromptFiles, StopTokensComeFromTheFolder) {
  ModelSpec spec;
  spec.V = 300;
  const Tokenizer tokenizer =
      Tokenizer::load(source_folder() + "/tests/golden/tokenizer_gpt2.json");
  const auto tokens = [&] { return stop_tokens(folder_, spec, tokenizer); };
  using Ids = std::vector<int32_t>;
  const Ids own = tokenizer.eos_id() ? Ids{*tokenizer.eos_id()} : Ids{};
  EXPECT_EQ(tokens(), own);
  file("config.json", "{\"eos_token_id\": 9}");
  EXPECT_EQ(tokens(), Ids{9});
  for (const auto& [text, expected] :
       {std::pair<const char*, Ids>{"{}", {9}},
        {"{\"eos_token_id\": null}", {9}},
        {"{\"eos_token_id\": 7}", {7}},
        {"{\"eos_token_id\": [7, 8, 7]}", {7, 8}},
        {"{\"eos_token_id\": [7, 300, -1, 9223372036854775807, 18446744073709551615]}", {7}}}) {
    file("generation_config.json", text);
    EXPECT_EQ(tokens(), expected) << text;
  }
  for (const char* text : {"{\"eos_token_id\": \"7\"}", "{\"eos_token_id\": [1.5]}"}) {
    file("generation_config.json", text);
    test::expect_error(
        ErrorCode::data,
        {"eos_token_id as an integer or a list of integers", "generation_config.json"}, tokens);
  }
  file("generation_config.json", "[]");
  test::expect_error(ErrorCode::data, {"generation_config.json"}, tokens);
}

TEST(GenerationRequest, RowsOfABatch) {
  GenerationRequest r;
  EXPECT_EQ(wanted_rows(r, 1), 1);
  EXPECT_EQ(wanted_rows(r, 5), 5);
  EXPECT_EQ(wanted_rows(r, 100), 8);
  r.sequences = 3;
  EXPECT_EQ(wanted_rows(r, 1), 3);
  EXPECT_EQ(wanted_rows(r, 100), 8);
  r.batch_size = 20;
  EXPECT_EQ(wanted_rows(r, 100), 20);
  EXPECT_EQ(wanted_rows(r, 2), 6);
  r.beams.beams = 4;
  EXPECT_EQ(wanted_rows(r, 100), 80);
  r.batch_size = 0;
  EXPECT_EQ(wanted_rows(r, 100), 8);
  r.beams.beams = 5;
  EXPECT_EQ(wanted_rows(r, 100), 5);
}

}  // namespace
}  // namespace snug
