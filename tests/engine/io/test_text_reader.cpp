#include <gtest/gtest.h>

#include <random>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/text_reader.h"
#include "tests/engine/io/packed.h"
#include "tests/engine/io/temp_folder.h"

namespace snug {
namespace {

constexpr size_t kBlock = 256 << 10;  // of the reader

std::string blocks(const std::string& path) {
  TextReader reader(path);
  std::string out;
  while (true) {
    const std::string_view block = reader.next();
    if (block.empty()) return out;
    EXPECT_EQ(text_prefix(block), static_cast<int64_t>(block.size())) << "whole characters";
    out += block;
  }
}

std::vector<std::string> lines(const std::string& path, int64_t max_bytes = 1 << 20) {
  TextReader reader(path);
  std::vector<std::string> out;
  std::string_view line;
  while (reader.next_line(line, max_bytes)) {
    out.emplace_back(line);
    EXPECT_EQ(reader.line(), static_cast<int64_t>(out.size()));
  }
  EXPECT_FALSE(reader.next_line(line, max_bytes));
  return out;
}

std::string fmt_place(const char* byte, const std::string& path, int64_t line, size_t offset) {
  return std::string("byte ") + byte + " at " + path + ":" + std::to_string(line) + " (offset " +
         std::to_string(offset) + ")";
}

class TextReading : public ::testing::Test {
 protected:
  std::string put(const std::string& text, const std::string& name = "t.txt") {
    write_atomic(tmp_ / name, text);
    return tmp_ / name;
  }
  TempFolder tmp_;
};

// Characters of 1 to 4 bytes lie across the ends of blocks at every place they can.
TEST_F(TextReading, BlocksEndBetweenCharacters) {
  for (const std::string c : {"x", "é", "한", "😀"})
    for (size_t shift = 0; shift < 5; ++shift) {
      std::string text(kBlock - 4 + shift, 'a');
      while (text.size() < 2 * kBlock + 50) text += c;
      EXPECT_EQ(blocks(put(text)), text) << c << shift;
      EXPECT_TRUE(is_text(tmp_ / "t.txt"));
      EXPECT_EQ(blocks(put(test::gzip(text), "t.gz")), text);
      EXPECT_EQ(blocks(put(test::zstd(text), "t.zst")), text);
    }
  EXPECT_EQ(blocks(put("")), "");
  EXPECT_EQ(blocks(put("\xef\xbb\xbf")), "");
  EXPECT_EQ(blocks(put("\xef\xbb\xbf"
                       "a\xef\xbb\xbf")),
            "a\xef\xbb\xbf");
  EXPECT_TRUE(is_text(put("")));
}

TEST_F(TextReading, BadBytesAreNamedByLineAndOffset) {
  const auto check = [&](const std::string& text, const char* byte, int64_t line, size_t offset) {
    const std::string path = put(text);
    EXPECT_ERROR(blocks(path), ErrorCode::data, "UTF-8 without zero bytes in " + path,
                 fmt_place(byte, path, line, offset), "iconv");
    EXPECT_FALSE(is_text(path));
  };
  check("a\nb\xff", "0xff", 2, 3);
  check(std::string("\0", 1), "0x00", 1, 0);
  check("\n\n\xc3", "0xc3", 3, 2);      // the end inside a character
  check("\xed\xa0\x80", "0xed", 1, 0);  // a surrogate
  const std::string filler(kBlock - 1, '\n');
  const auto many = static_cast<int64_t>(kBlock);
  check(filler + "\xff", "0xff", many, kBlock - 1);      // the last byte of a block
  check(filler + "a\xff", "0xff", many, kBlock);         // the first of the next
  check(filler + "\xe1\x80", "0xe1", many, kBlock - 1);  // across, cut off by the end
  check(filler + "\xe1\x80z", "0xe1", many, kBlock - 1);
  check(filler + "\xe0\x9f\xbf", "0xe0", many, kBlock - 1);
  check(filler + filler + std::string("b\0", 2), "0x00", 2 * many - 1, 2 * kBlock - 1);
}

TEST_F(TextReading, Lines) {
  using S = std::vector<std::string>;
  EXPECT_EQ(lines(put("")), S{});
  EXPECT_EQ(lines(put("a")), S{"a"});
  EXPECT_EQ(lines(put("a\n")), S{"a"});
  EXPECT_EQ(lines(put("\n\na\r\n\nb")), (S{"", "", "a", "", "b"}));
  EXPECT_EQ(lines(put("a\nc\rd\r\ne\r")), (S{"a", "c\rd", "e\r"}));
  EXPECT_EQ(lines(put("a\r\rb\r")), (S{"a", "", "b"}));
  std::mt19937_64 rng(1);
  S want;
  std::string text;
  while (text.size() < 3 * kBlock) {
    std::string line;
    // Some lines longer than a block.
    for (uint64_t i = rng() % 40, n = rng() % 50 == 0 ? kBlock + 1000 : i; i < n; ++i)
      line += rng() % 9 == 0 ? "한" : "q";
    text += line + "\n";
    want.push_back(line);
  }
  EXPECT_EQ(lines(put(text)), want);
  EXPECT_EQ(lines(put(test::zstd(text), "t.jsonl.zst")), want);
}

TEST_F(TextReading, LinesHaveALimit) {
  EXPECT_EQ(lines(put("abcd\nab"), 4).size(), 2u);
  EXPECT_ERROR(lines(put("ab\nabcde\n"), 4), ErrorCode::data,
               "lines of at most 4 bytes in " + (tmp_ / "t.txt"),
               "a longer one at " + (tmp_ / "t.txt:2"), "split it");
  EXPECT_ERROR(lines(put(std::string(3 * kBlock, 'a')), kBlock), ErrorCode::data, "262144 bytes",
               "t.txt:1", "split it");
}

}  // namespace
}  // namespace snug
