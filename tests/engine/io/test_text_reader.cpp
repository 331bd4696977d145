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

// UTF-16 and UTF-32 of either order of bytes, with a mark and without, are named as iconv calls them.
TEST_F(TextReading, WideTextIsNamedByItsEncoding) {
  struct Row {
    int bytes;
    bool low_first, mark;
    const char *iconv, *found;
  };
  constexpr const char *kMark = "by its byte order mark", *kZeros = "by where its zero bytes are";
  for (const Row& row : {Row{2, true, true, "utf-16", kMark},
                         {2, false, true, "utf-16", kMark},
                         {4, true, true, "utf-32", kMark},
                         {4, false, true, "utf-32", kMark},
                         {2, true, false, "utf-16le", kZeros},
                         {2, false, false, "utf-16be", kZeros},
                         {4, true, false, "utf-32le", kZeros},
                         {4, false, false, "utf-32be", kZeros}}) {
    std::string text;
    const auto put_code = [&](uint32_t code) {
      for (int k = 0; k < row.bytes; ++k)
        text += static_cast<char>(code >> (8 * (row.low_first ? k : row.bytes - 1 - k)));
    };
    if (row.mark) put_code(0xFEFF);
    for (const char c : std::string("Two cats")) put_code(static_cast<unsigned char>(c));
    const std::string name = row.bytes == 2 ? "UTF-16, " : "UTF-32, ", advice = row.iconv;
    SCOPED_TRACE(name + advice);
    EXPECT_ERROR(refuse_wide_text(text), ErrorCode::data, "text in UTF-8 on standard input",
                 (name + row.found).c_str(), ("iconv -f " + advice + " -t utf-8 before").c_str());
    for (const auto& [end, by] : {std::pair(".txt", ""), {".gz", "zcat "}, {".zst", "zstdcat "}}) {
      const std::string path = std::string("wide") + end;
      const std::string want = *by ? by + path + " | iconv -f " + advice + " -t utf-8 > FILE"
                                   : "iconv -f " + advice + " -t utf-8 " + path + " > FILE";
      EXPECT_ERROR(fail_not_text(path, text, 0, 0, 0), ErrorCode::data, "text in UTF-8",
                   (name + row.found).c_str(), want.c_str());
    }
    // Behind the beginning of a file nothing is said of its encoding.
    EXPECT_ERROR(fail_not_text("x.txt", text, 1, 6, 100), ErrorCode::data, "text in UTF-8",
                 "at x.txt:7 (offset 101)", "iconv -f ENCODING");
  }
  // Too short to tell, and with zeros everywhere.
  EXPECT_NO_THROW(refuse_wide_text(std::string("a\0b\0c\0", 6)));
  EXPECT_NO_THROW(refuse_wide_text(std::string(64, '\0')));
  EXPECT_NO_THROW(refuse_wide_text("plain text in one byte each"));
}

// A form that is not text says how to get at the text in it.
TEST_F(TextReading, PackedFormsSayHowTheyAreUnpacked) {
  for (const auto& [name, found, advice] :
       {std::tuple("a.zip", "an archive", "unzip a.zip -d FOLDER"),
        {"a.tar.gz", "an archive", "tar -xf a.tar.gz -C"},
        {"a.tgz", "an archive", "tar -xf a.tgz -C"},
        {"a.tar.zst", "an archive", "tar -xf a.tar.zst -C"},
        {"a.tar", "an archive", "tar -xf a.tar -C"},
        {"a.7z", "an archive", "7z x a.7z -oFOLDER"},
        {"a.xz", "packed", "xz -dk a.xz"},
        {"a.bz2", "packed", "bunzip2 -k a.bz2"},
        {"a.parquet", "Parquet", "pandas.read_parquet"},
        {"a.bin", "byte 0x00 at a.bin:1 (offset 0)", "token files alone"}})
    EXPECT_ERROR(fail_not_text(name, std::string_view("\0", 1), 0, 0, 0), ErrorCode::data,
                 "text in UTF-8 without zero bytes", found, advice);
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
