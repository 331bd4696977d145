// Pairs as rows: where answers begin, what of them is learned, what is cut and left out.
#include <gtest/gtest.h>

#include <vector>

#include "engine/data/pair_rows.h"
#include "engine/data/row_packing.h"
#include "engine/data/row_reader.h"
#include "engine/data/row_record.h"
#include "engine/io/files.h"
#include "tests/engine/io/temp_folder.h"

namespace snug {
namespace {

using Ids = std::vector<int32_t>;

class PairRowsTest : public testing::Test {
 protected:
  RowReport read(const std::string& text, int64_t max_length) {
    write_atomic(folder_ / "pairs.jsonl", text);
    const PairRows pairs(nullptr, max_length);
    RowOptions o;
    o.kind = RowKind::causal;
    o.pairs = &pairs;
    o.max_length = 2 * max_length;
    o.vocab_size = 100;
    o.seen = [&](const RowRecord& record, bool) { equal_ += record.equal; };
    return write_rows({{folder_ / "pairs.jsonl", true}}, nullptr, o, folder_ / "rows");
  }
  RowDataset dataset(int64_t T, int64_t rows) {
    return {RowFile(folder_ / "rows"),
            {.T = T,
             .global_batch = rows,
             .max_rows_per_window = 3,
             .shuffle = false,
             .shift_labels = true,
             .pairs = true}};
  }
  TempFolder folder_;
  int equal_ = 0;
};

TEST_F(PairRowsTest, BothAnswersLieSideBySide) {
  const RowReport report = read(
      "{\"prompt_ids\": [1, 2], \"chosen_ids\": [3, 4], \"rejected_ids\": [5]}\n"
      "{\"prompt_ids\": [], \"chosen_ids\": [6, 7], \"rejected_ids\": [8, 9]}\n",
      5);
  EXPECT_EQ(report.rows, 2);
  RowDataset d = dataset(14, 2);
  ASSERT_EQ(d.windows(0), 1);
  EXPECT_EQ(d.trained(0), 2);
  Ids tokens(14), starts(14), types(14), targets(14);
  std::vector<PairPlace> pairs(3);
  d.fill(0, 0, 1,
         {.tokens = tokens.data(),
          .document_start = starts.data(),
          .types = types.data(),
          .targets = targets.data(),
          .pairs = pairs.data()});
  EXPECT_EQ(tokens, (Ids{1, 2, 3, 4, 1, 2, 5, 6, 7, 8, 9, 0, 0, 0}));
  EXPECT_EQ(starts, (Ids{0, 0, 0, 0, 4, 4, 4, 7, 7, 9, 9, 11, 11, 11}));
  EXPECT_EQ(types, (Ids{0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0}));
  const int32_t n = -100;
  // The first token of an answer without a prompt has nothing before it, the last of the other least.
  EXPECT_EQ(targets, (Ids{n, 3, 4, n, n, 5, n, 7, n, 9, n, n, n, n}));
  const auto is = [](const PairPlace& p, int32_t a, int32_t b, int32_t c, int32_t x, int32_t y) {
    return p.chosen == a && p.rejected == b && p.end == c && p.chosen_tokens == x &&
           p.rejected_tokens == y;
  };
  EXPECT_TRUE(is(pairs[0], 0, 4, 7, 2, 1));
  EXPECT_TRUE(is(pairs[1], 7, 9, 11, 2, 2));
  EXPECT_TRUE(is(pairs[2], -1, -1, -1, -1, -1));
}

// What is behind the rows has no position beyond those of an answer.
TEST_F(PairRowsTest, TheEndOfAWindowIsCutToo) {
  read("{\"prompt_ids\": [1], \"chosen_ids\": [2], \"rejected_ids\": [3]}\n", 8);
  RowDataset d = dataset(16, 1);
  Ids starts(16);
  d.fill(0, 0, 1, {.document_start = starts.data()});
  EXPECT_EQ(starts, (Ids{0, 0, 2, 2, 4, 4, 4, 4, 4, 4, 4, 4, 12, 12, 12, 12}));
}

TEST_F(PairRowsTest, LongAnswersAreCutAndLongPromptsLeftOut) {
  const RowReport report = read(
      "{\"prompt_ids\": [1, 2], \"chosen_ids\": [3, 4, 5], \"rejected_ids\": [3]}\n"
      "{\"prompt_ids\": [1, 2, 3, 4], \"chosen_ids\": [5], \"rejected_ids\": [6]}\n"
      // What the answers have in common is learned; of a prompt, what is before them.
      "{\"prompt_ids\": [1], \"chosen_ids\": [2, 3], \"rejected_ids\": [2, 3]}\n",
      4);
  EXPECT_EQ(report.rows, 2);
  EXPECT_EQ(report.cut, 1);
  EXPECT_NE(report.first_cut.find("pairs.jsonl:1"), std::string::npos);
  EXPECT_EQ(report.empty, 1);
  EXPECT_NE(report.first_empty.find("pairs.jsonl:2"), std::string::npos);
  EXPECT_EQ(report.tokens, 4 + 3 + 3 + 3);
  EXPECT_EQ(equal_, 1);
}

TEST_F(PairRowsTest, WhatIsNoPairIsRefused) {
  const auto refused = [&](const std::string& record, const char* expected, const char* found) {
    EXPECT_ERROR(read(record + "\n", 8), ErrorCode::data, expected, found, "");
  };
  refused("{\"prompt_ids\": [1], \"chosen_ids\": [2]}", "\"rejected_ids\" in every record of pairs",
          "pairs.jsonl:1: the keys \"prompt_ids\", \"chosen_ids\"");
  refused("{\"prompt\": \"a\", \"chosen\": \"b\"}", "\"rejected\" in every record of pairs",
          "pairs.jsonl:1: the keys");
  refused("{\"prompt_ids\": [1], \"chosen_ids\": [2.5], \"rejected_ids\": [3]}",
          "\"chosen_ids\" as a list of tokens", "2.5");
  refused("{\"prompt_ids\": 1, \"chosen_ids\": [2], \"rejected_ids\": [3]}",
          "\"prompt_ids\" as a list of tokens", "another value");
  refused("{\"prompt_ids\": [1], \"chosen_ids\": [2], \"rejected_ids\": []}",
          "a token at least in \"rejected_ids\"", "none");
  refused("{\"chosen\": \"a\", \"rejected\": [1]}", "all texts or all lists of messages",
          "array beside string");
  refused("{\"chosen\": \"a\", \"rejected\": \"\"}", "an answer in chosen and in rejected",
          "rejected is empty");
  EXPECT_ERROR(read("{\"chosen\": \"a\", \"rejected\": \"b\"}\n", 8), ErrorCode::usage,
               "a tokenizer for pairs of texts or messages", "none", "tokenizer=tok.json");
}

}  // namespace
}  // namespace snug
