#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "engine/core/error.h"
#include "engine/data/token_file.h"
#include "engine/io/fingerprint.h"
#include "engine/io/json.h"
#include "tests/engine/io/temp_folder.h"

namespace snug {
namespace {

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string header(int32_t magic, int32_t version, int32_t count) {
  std::vector<int32_t> h(256, 0);
  h[0] = magic, h[1] = version, h[2] = count;
  return raw(h);
}

std::vector<int32_t> all(const TokenFile& file) {
  std::vector<int32_t> out(static_cast<size_t>(file.size()));
  file.copy(0, file.size(), out.data());
  return out;
}

// The bytes are spelled out here from the published layouts, not made by our writer.
TEST(TokenFile, ReadsTheThreeLayouts) {
  TempFolder tmp;
  const std::string path = tmp / "t.bin";
  const std::vector<int32_t> want = {5, 50256, 0, 65535};
  const std::vector<uint16_t> narrow = {5, 50256, 0, 65535};
  const std::vector<uint32_t> wide = {5, 50256, 0, 65535};
  for (const std::string& bytes :
       {header(20240520, 1, 4) + raw(narrow), header(20240801, 7, 4) + raw(wide), raw(narrow)}) {
    write_atomic(path, bytes);
    const TokenFile file(path, 123);  // no side file: any tokenizer will do
    EXPECT_EQ(all(file), want);
    int32_t two[2];
    file.copy(2, 2, two);
    EXPECT_EQ(two[0], 0);
    EXPECT_EQ(two[1], 65535);
    EXPECT_THROW(file.copy(3, 2, two), Error);
    EXPECT_THROW(file.copy(-1, 1, two), Error);
  }
  write_atomic(path, "");
  EXPECT_EQ(TokenFile(path).size(), 0);
}

TEST(TokenFile, RefusesWhatDoesNotFit) {
  TempFolder tmp;
  const std::string path = tmp / "t.bin";
  const auto open = [&](const std::string& bytes) {
    write_atomic(path, bytes);
    return TokenFile(path).size();
  };
  const std::string two = raw(std::vector<uint16_t>{1, 2});
  EXPECT_ERROR(open(header(20240520, 1, 3) + two), ErrorCode::data, "1030 bytes in " + path,
               "1028 bytes", "make the token file again");
  EXPECT_ERROR(open(header(20240520, 1, 1) + two), ErrorCode::data, "1026 bytes", "1028 bytes",
               "again");
  EXPECT_ERROR(open(header(20240520, 1, -1) + two), ErrorCode::data, "a header of 1024 and -1",
               "1028 bytes", "again");
  EXPECT_ERROR(open(header(20240520, 2, 2) + two), ErrorCode::data, "version 1 in the header", "2",
               "again");
  EXPECT_ERROR(open(header(20240801, 1, 2) + two + two), ErrorCode::data, "version 7", "1",
               "again");
  EXPECT_ERROR(open(header(20240522, 1, 2) + two), ErrorCode::data, "tokens in " + path,
               "multiple-choice", "training tokens");
  EXPECT_ERROR(open(header(20240328, 2, 2) + two), ErrorCode::data, "tokens in", "tokenizer",
               "give");
  EXPECT_ERROR(open("abc"), ErrorCode::data, "uint16 tokens only", "odd number of bytes, 3",
               "give text files");
  EXPECT_ERROR(TokenFile(tmp / "none"), ErrorCode::data, "none", "No such file", "path");
}

TEST(TokenFile, CheckNamesTheFirstBadToken) {
  TempFolder tmp;
  const std::string path = tmp / "t.bin";
  write_atomic(path, raw(std::vector<uint16_t>{1, 2, 99, 100, 101}));
  TokenFile(path).check(102);
  EXPECT_ERROR(TokenFile(path).check(100), ErrorCode::data,
               "below the vocabulary size 100 in " + path, "100 at position 3 of 5",
               "model or tokenizer");
  // No other above it: the size itself is no id.
  write_atomic(path, raw(std::vector<uint16_t>{1, 100, 99}));
  EXPECT_ERROR(TokenFile(path).check(100), ErrorCode::data, "below", "100 at position 1 of 3",
               "model or tokenizer");
  write_atomic(path, header(20240801, 7, 1) + raw(std::vector<uint32_t>{0xffffffffu}));
  EXPECT_ERROR(TokenFile(path).check(INT32_MAX), ErrorCode::data, "below",
               "4294967295 at position 0", "make the file again");
}

TEST(TokenFile, WritesTheLlmcLayouts) {
  TempFolder tmp;
  const std::string path = tmp / "t.bin";
  for (const int64_t vocab : {65535, 65536}) {
    std::vector<int32_t> ids(100'000);  // several buffers
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * 7919) % 65535);
    TokenFileWriter writer(path, vocab, 0xabcu);
    writer.append(ids.data(), 3);
    writer.end_document();
    writer.append(ids.data() + 3, static_cast<int64_t>(ids.size()) - 3);
    writer.end_document();
    writer.commit();
    const bool wide = vocab >= 65536;
    const std::string bytes = read_file(path);
    // What llm.c reads, and what it leaves at 0 but for our 52 bytes.
    const std::string plain = header(wide ? 20240801 : 20240520, wide ? 7 : 1, 100'000);
    EXPECT_EQ(bytes.substr(0, 12), plain.substr(0, 12));
    EXPECT_EQ(bytes.substr(64, 960), plain.substr(64));
    EXPECT_EQ(bytes.substr(12, 12), std::string("SNUG\1\0\0\0\0\0\0\0", 12));
    const std::vector<uint64_t> facts = {0xabcu, 100'000u, 2u, static_cast<uint64_t>(vocab),
                                         fingerprint(bytes.substr(1024))};
    EXPECT_EQ(bytes.substr(24, 40), raw(facts));
    EXPECT_EQ(read_file(path + ".idx"),
              "SNUGDOCS" + raw(std::vector<int64_t>{1, 2, 100'000, 3, 100'000}));
    EXPECT_EQ(bytes.size(), 1024 + ids.size() * (wide ? 4 : 2));
    const TokenFile file(path, 0xabcu);
    EXPECT_EQ(all(file), ids);
    EXPECT_EQ(file.token_bytes(), wide ? 4 : 2);
    const auto info = read_token_info(path);
    ASSERT_TRUE(info);
    EXPECT_EQ(info->tokenizer, 0xabcu);
    EXPECT_EQ(info->vocab_size, vocab);
    EXPECT_EQ(info->tokens, 100'000);
    EXPECT_EQ(info->documents, 2);
    EXPECT_ERROR(TokenFile(path, 0xabdu), ErrorCode::data, "this run's tokenizer, 0000000000000abd",
                 "tokenizer 0000000000000abc, says " + path, "use the tokenizer");
    // The header says it by itself.
    std::filesystem::remove(path + ".json");
    EXPECT_ERROR(TokenFile(path, 0xabdu), ErrorCode::data, "this run's tokenizer",
                 "tokenizer 0000000000000abc", "use the tokenizer");
  }
}

TEST(TokenFile, WriterRefusesIdsOutsideTheVocabulary) {
  TempFolder tmp;
  {
    TokenFileWriter writer(tmp / "t.bin", 10, 1);
    const int32_t ids[] = {9, 10, -1};
    writer.append(ids, 1);
    EXPECT_ERROR(writer.append(ids + 1, 1), ErrorCode::data, "token ids from 0 to 9",
                 "10 at position 1", "the vocabulary size of the tokenizer, added tokens included");
    EXPECT_ERROR(writer.append(ids + 2, 1), ErrorCode::data, "from 0 to 9", "-1 at position 1",
                 "added tokens");
  }
  EXPECT_EQ(tmp.count(), 0);  // nothing half-written is left
}

TEST(TokenFile, BrokenSideFilesAreErrors) {
  TempFolder tmp;
  const std::string path = tmp / "t.bin";
  write_atomic(path, raw(std::vector<uint16_t>{1}));
  write_atomic(path + ".json", "{\"tokenizer_fingerprint\":\"xyz\"}");
  EXPECT_ERROR(TokenFile(path, 1), ErrorCode::data, "16 hex digits", "\"xyz\"", "again");
  write_atomic(path + ".json", "{}");
  EXPECT_ERROR(TokenFile(path, 1), ErrorCode::data, "a string for tokenizer_fingerprint in " + path,
               "no such key", "tokenizer_fingerprint");
  write_atomic(path + ".json", "{");
  EXPECT_ERROR(TokenFile(path, 1), ErrorCode::data, "valid JSON", path + ".json:1:", "correct");
  EXPECT_EQ(TokenFile(path).size(), 1);  // not asked, not read
  EXPECT_TRUE(is_token_file_name("a/b.bin"));
  EXPECT_FALSE(is_token_file_name(".bin"));
  EXPECT_FALSE(is_token_file_name("a.txt"));
}

// The header speaks for itself when the side file is lost; the side file keeps what was passed
// over.
TEST(TokenFile, TheHeaderAndTheSideFileSayWhoseTokensTheyAre) {
  TempFolder tmp;
  const std::string path = tmp / "t.bin";
  TokenFileWriter writer(path, 300, 0x1234);
  const int32_t ids[] = {1, 2, 299};
  writer.append(ids, 3);
  writer.set_source({.fingerprint = 7,
                     .report = {.files = 2,
                                .bytes = 9,
                                .skipped = 1,
                                .empty = 3,
                                .no_column = 4,
                                .quoted_breaks = 5,
                                .first_skipped = "s",
                                .first_no_column = "n.csv",
                                .first_quoted = "q.csv:2"}});
  writer.commit();
  const auto info = read_token_info(path);
  ASSERT_TRUE(info);
  EXPECT_EQ(info->source.report.skipped, 1);
  EXPECT_EQ(info->source.report.empty, 3);
  EXPECT_EQ(info->source.report.no_column, 4);
  EXPECT_EQ(info->source.report.quoted_breaks, 5);
  EXPECT_EQ(info->source.report.first_no_column, "n.csv");
  EXPECT_EQ(info->source.report.first_quoted, "q.csv:2");
  std::filesystem::remove(path + ".json");
  EXPECT_EQ(TokenFile(path).tokenizer(), uint64_t{0x1234});
  EXPECT_EQ(TokenFile(path).vocab_size(), 300);
  write_atomic(path, std::string("\1\0\2\0", 4));
  EXPECT_FALSE(TokenFile(path).tokenizer());
  EXPECT_FALSE(TokenFile(path).vocab_size());
}

}  // namespace
}  // namespace snug
