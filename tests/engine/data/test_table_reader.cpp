#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "engine/core/error.h"
#include "engine/data/table_reader.h"
#include "engine/io/files.h"
#include "tests/engine/io/temp_folder.h"

namespace snug {
namespace {

using Strings = std::vector<std::string>;

class Table : public ::testing::Test {
 protected:
  // The names of the columns, then every field of the column.
  Strings read(const std::string& text, int64_t column = 0, char separator = ',',
               int64_t limit = 1000, bool quotes = true) {
    // Thousands of files: not made durable, and not written over, which some file systems flush.
    std::filesystem::remove(path_);
    std::ofstream(path_, std::ios::binary) << text;
    TableReader reader(path_, separator, quotes, limit);
    Strings out = reader.columns();
    lines_.clear();
    std::string_view field;
    while (reader.next(column, field)) {
      out.emplace_back(field);
      lines_.push_back(reader.line());
    }
    return out;
  }
  TempFolder tmp_;
  const std::string path_ = tmp_ / "t.csv";
  std::vector<int64_t> lines_;
};

// The cases of RFC 4180, section 2, in its order.
TEST_F(Table, TheSpecificationsCases) {
  EXPECT_EQ(read("a,b\r\naaa,bbb\r\nzzz,yyy\r\n", 1), (Strings{"a", "b", "bbb", "yyy"}));
  EXPECT_EQ(read("a,b\r\naaa,bbb\r\nzzz,yyy", 0), (Strings{"a", "b", "aaa", "zzz"}));
  EXPECT_EQ(read("a,b\n x , y \n", 1), (Strings{"a", "b", " y "}));  // blanks are text
  EXPECT_EQ(read("\"a\",\"b\"\n\"aaa\",\"b\r\nbb\"\nzzz,yyy\n", 1),
            (Strings{"a", "b", "b\r\nbb", "yyy"}));
  EXPECT_EQ(lines_, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(read("a,b\n\"x,y\",\"b\"\"bb\"\n", 1), (Strings{"a", "b", "b\"bb"}));
  EXPECT_EQ(read("a,b\n\"x,y\",\"\"\n", 0), (Strings{"a", "b", "x,y"}));
}

TEST_F(Table, SeveralColumnsInAnyOrder) {
  std::ofstream(path_, std::ios::binary) << "a,b,c\n1,\"2,2\",3\n,,\nx,y\n";
  TableReader reader(path_, ',', true, 1000);
  const std::vector<int64_t> wanted = {2, 0, 1};
  std::vector<std::string_view> fields(3);
  ASSERT_TRUE(reader.next(wanted, fields));
  EXPECT_EQ(Strings(fields.begin(), fields.end()), (Strings{"3", "1", "2,2"}));
  ASSERT_TRUE(reader.next(wanted, fields));
  EXPECT_EQ(Strings(fields.begin(), fields.end()), (Strings{"", "", ""}));
  EXPECT_THROW(reader.next(wanted, fields), Error);
}

// As TSV is read unless told otherwise, and pandas with quoting=csv.QUOTE_NONE.
TEST_F(Table, WithoutQuotesTheyStandForThemselves) {
  const auto tsv = [&](const std::string& text) { return read(text, 0, '\t', 1000, false); };
  EXPECT_EQ(tsv("text\tlabel\n\"Oh\t0\nyes it is\"\t1\nok\t1\n"),
            (Strings{"text", "label", "\"Oh", "yes it is\"", "ok"}));
  EXPECT_EQ(tsv("a\tb\n\"Oh\" he said\t1\n\"\"\t2\n"),
            (Strings{"a", "b", "\"Oh\" he said", "\"\""}));
  EXPECT_EQ(tsv("\"a\"\tb\nx\t1\r\n"), (Strings{"\"a\"", "b", "x"}));
}

TEST_F(Table, LinesThatEndWithCarriageReturns) {
  EXPECT_EQ(read("text\rone\rtwo\r"), (Strings{"text", "one", "two"}));
  EXPECT_EQ(lines_, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(read("a,b\r\"x\ry\",2\rz,3"), (Strings{"a", "b", "x\ry", "z"}));
}

TEST_F(Table, WhatItLeavesOpen) {
  EXPECT_EQ(read(""), Strings{});
  EXPECT_EQ(read("\n\r\n"), Strings{});
  EXPECT_EQ(read("a\n"), Strings{"a"});
  EXPECT_EQ(read("a,b\n\n\r\n1,2\n\n"), (Strings{"a", "b", "1"}));  // empty lines
  EXPECT_EQ(read("a,b\n,\n", 0), (Strings{"a", "b", ""}));          // empty fields
  EXPECT_EQ(read("a,b\n1,", 1), (Strings{"a", "b", ""}));           // one at the end
  EXPECT_EQ(read("a\n\"\"\nx", 0), (Strings{"a", "", "x"}));        // an empty record in quotes
  EXPECT_EQ(read("a,b\nsay \"hi\",2\n"), (Strings{"a", "b", "say \"hi\""}));
  EXPECT_EQ(read("a,b\nx\ry,2\r"), (Strings{"a", "b", "x\ry"}));  // a lone CR is text
  EXPECT_EQ(read("a\tb\n1,5\t\"x\ty\"\n", 1, '\t'), (Strings{"a", "b", "x\ty"}));
  write_atomic(path_, "id,text\n");
  EXPECT_EQ(TableReader(path_, ',', true, 100).find("text"), 1);
  EXPECT_EQ(TableReader(path_, ',', true, 100).find("txt"), -1);
}

TEST_F(Table, ErrorsNameTheLine) {
  EXPECT_ERROR(read("a,b\n1,2\n\n1,2,3\n"), ErrorCode::data, "2 fields in every record",
               "3 in the record at " + path_ + ":4", "\"quotes\"");
  EXPECT_ERROR(read("a,b\n\"x\ny\",2\n1\n"), ErrorCode::data, "2 fields",
               "1 in the record at " + path_ + ":4", "commas");
  EXPECT_ERROR(read("a\tb\n1\n", 0, '\t'), ErrorCode::data, "2 fields", path_ + ":2", "tabs");
  EXPECT_ERROR(read("a,b\n1,\"x\n\ny"), ErrorCode::data, "a closing quote in " + path_,
               "the quote was opened at " + path_ + ":2", "twice");
  EXPECT_ERROR(read("a,b\n1,\"x\n\" y\n"), ErrorCode::data, "after a closing quote",
               "other text at " + path_ + ":3", "whole field");
  EXPECT_ERROR(read("a,b\n1,\"x\"\ry\n"), ErrorCode::data, "after a closing quote", path_ + ":2",
               "quotes");
  EXPECT_ERROR(read("a,b\n1,2\n1,\"" + std::string(100, 'x'), 0, ',', 100), ErrorCode::data,
               "records of at most 100 bytes in " + path_, "a longer one at " + path_ + ":3",
               "never closed");
  EXPECT_EQ(read("a,b\n1," + std::string(99, 'x'), 0, ',', 100).size(), 3u);
  EXPECT_ERROR(read("a,b\n1,\xff\n"), ErrorCode::data, "UTF-8", path_ + ":2", "iconv");
  // A first line of separators: every empty name costs memory.
  EXPECT_ERROR(read(std::string(200, ','), 0, ',', 1000), ErrorCode::data,
               "a first line of at most 1000 bytes in " + path_, " columns at " + path_ + ":1",
               "look at what the file really is");
}

std::string quoted(const std::string& field, std::mt19937_64& rng) {
  if (field.find_first_of(",\"\r\n") == std::string::npos && !field.empty() && rng() % 2 == 0)
    return field;
  std::string out = "\"";
  for (const char c : field) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

// Whatever a writer quotes comes back, also where fields lie across the reader's blocks.
TEST_F(Table, RestoresWhatWasWritten) {
  std::mt19937_64 rng(2);
  const std::string parts[] = {"a", "\"", ",", "\n", "\r\n", "\r", "한", "two words", "\t"};
  for (const size_t rows : {1u, 40u, 20000u}) {
    std::string text = "x,y,z\n";
    Strings want = {"x", "y", "z"};
    for (size_t r = 0; r < rows; ++r) {
      for (int c = 0; c < 3; ++c) {
        std::string field;
        for (uint64_t i = 0, n = rng() % 9; i < n; ++i) field += parts[rng() % std::size(parts)];
        if (c == 1) want.push_back(field);
        text += quoted(field, rng) + (c < 2 ? "," : rng() % 2 == 0 ? "\n" : "\r\n");
      }
    }
    EXPECT_EQ(read(text, 1), want);
  }
}

// A text as the header of the reader says: whole, a character after the other.
struct PlainTable {
  std::vector<Strings> records;
  std::vector<int64_t> lines;
  int64_t breaks = 0, first_break = 0;
  bool bad = false;

  PlainTable(const std::string& text, char separator, bool quotes) {
    const char end = text.find('\n') == text.npos && text.find('\r') != text.npos ? '\r' : '\n';
    int64_t line = 1;
    for (size_t at = 0; at < text.size() && !bad;) {
      if (text[at] == '\n' || text[at] == '\r') {  // an empty line
        line += text[at++] == end;
        continue;
      }
      Strings fields;
      lines.push_back(line);
      for (bool more = true; more && !bad;) {
        std::string field;
        if (quotes && at < text.size() && text[at] == '"') {
          bool closed = false;
          for (++at; at < text.size() && !closed; ++at) {
            if (text[at] == '"' && text.compare(at, 2, "\"\"") == 0)
              ++at;
            else if (text[at] == '"')
              closed = true;
            if (text[at] == end && breaks++ == 0) first_break = line;
            line += text[at] == end;
            if (!closed) field += text[at];
          }
          if (end == '\n' && text.compare(at, 2, "\r\n") == 0) ++at;
          if (end == '\n' && at + 1 == text.size() && text[at] == '\r') ++at;
          bad = !closed || (at < text.size() && text[at] != separator && text[at] != end);
        } else {
          while (at < text.size() && text[at] != separator && text[at] != end) field += text[at++];
          if (end == '\n' && (at == text.size() || text[at] == end) && field.ends_with('\r'))
            field.pop_back();
        }
        fields.push_back(field);
        more = at < text.size() && text[at] == separator;
        at += more;
      }
      if (at < text.size() && text[at] == end) ++at, ++line;
      if (!records.empty() && records.front().size() != fields.size()) bad = true;
      records.push_back(fields);
    }
  }
};

TEST_F(Table, AgreesWithOneThatReadsItWhole) {
  std::mt19937_64 rng(5);
  const std::string parts[] = {"a", "b", "\"", "\"", ",", ",", "\n", "\r\n", "\r", "\t", "\"\""};
  int read_whole = 0, refused = 0;
  for (int trial = 0; trial < 2500; ++trial) {
    std::string text = rng() % 3 == 0 ? "" : "x,y\n";
    const bool quotes = rng() % 4 != 0;
    for (uint64_t i = 0, n = rng() % 14; i < n; ++i) text += parts[rng() % std::size(parts)];
    const PlainTable plain(text, ',', quotes);
    std::vector<Strings> got;
    std::vector<int64_t> lines;
    std::filesystem::remove(path_);
    std::ofstream(path_, std::ios::binary) << text;
    try {
      TableReader reader(path_, ',', quotes, 1000);
      if (!reader.columns().empty()) {
        got.push_back(reader.columns());
        lines.push_back(reader.line());
      }
      std::vector<int64_t> wanted(reader.columns().size());
      for (size_t c = 0; c < wanted.size(); ++c) wanted[c] = static_cast<int64_t>(c);
      std::vector<std::string_view> fields(wanted.size());
      while (!wanted.empty() && reader.next(wanted, fields)) {
        got.emplace_back(fields.begin(), fields.end());
        lines.push_back(reader.line());
      }
      ASSERT_FALSE(plain.bad) << text;
      EXPECT_EQ(got, plain.records) << text;
      EXPECT_EQ(lines, plain.lines) << text;
      EXPECT_EQ(reader.quoted_breaks(), plain.breaks) << text;
      EXPECT_EQ(reader.first_quoted_break(), plain.first_break) << text;
      ++read_whole;
    } catch (const Error&) {
      ASSERT_TRUE(plain.bad) << text;
      ++refused;
    }
  }
  EXPECT_GT(read_whole, 500);
  EXPECT_GT(refused, 300);
}

TEST_F(Table, NoInputCrashes) {
  std::mt19937_64 rng(3);
  const std::string parts[] = {"a", "\"", ",", "\n", "\r"};
  for (int trial = 0; trial < 2000; ++trial) {
    std::string text = "x,y\n";
    for (uint64_t i = 0, n = rng() % 30; i < n; ++i) text += parts[rng() % std::size(parts)];
    try {
      read(text, 1);
    } catch (const Error& e) {
      EXPECT_STREQ(to_string(e.code()), "data") << e.what();
    }
  }
}

}  // namespace
}  // namespace snug
