// Pairs as rows: where answers begin, what of them is learned, what is cut and left out.
#include <gtest/gtest.h>

#include <vector>

#include "engine/data/chat_rows.h"
#include "engine/data/pair_rows.h"
#include "engine/data/row_packing.h"
#include "engine/data/row_reader.h"
#include "engine/data/row_record.h"
#include "engine/io/files.h"
#include "engine/text/bpe_trainer.h"
#include "tests/engine/io/temp_folder.h"

namespace snug {
namespace {

using Ids = std::vector<int32_t>;

class PairRowsTest : public testing::Test {
 protected:
  RowReport read(const std::string& text, int64_t max_length, PairUse use = PairUse::answers) {
    write_atomic(folder_ / "pairs.jsonl", text);
    const PairRows pairs(nullptr, max_length, use, &others_);
    RowOptions o;
    o.kind = RowKind::causal;
    o.pairs = &pairs;
    o.max_length = pairs.single() ? max_length : 2 * max_length;
    o.vocab_size = 100;
    o.seen = [&](const RowRecord& record, bool) { equal_ += record.equal; };
    return write_rows({{folder_ / "pairs.jsonl", true}}, nullptr, o, folder_ / "rows");
  }
  RowDataset dataset(int64_t T, int64_t rows, bool whole = false) {
    return {RowFile(folder_ / "rows"),
            {.T = T,
             .global_batch = rows,
             .max_rows_per_window = 3,
             .shuffle = false,
             .shift_labels = true,
             .pairs = true,
             .whole_chosen = whole}};
  }
  TempFolder folder_;
  OtherAnswers others_;
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

// The prompt of the chosen answer is learned too, and each window knows what its step has.
TEST_F(PairRowsTest, AChosenSequenceIsLearnedWhole) {
  read(
      "{\"prompt_ids\": [1, 2], \"chosen_ids\": [3, 4], \"rejected_ids\": [5]}\n"
      "{\"prompt_ids\": [], \"chosen_ids\": [6, 7], \"rejected_ids\": [8, 9]}\n"
      "{\"prompt_ids\": [1], \"chosen_ids\": [2], \"rejected_ids\": [3, 4, 5]}\n",
      7, PairUse::means);
  RowDataset d = dataset(14, 3, true);
  ASSERT_EQ(d.windows(0), 2);
  EXPECT_EQ(d.trained(0), 3);
  Ids targets(28);
  std::vector<PairPlace> pairs(6);
  d.fill(0, 0, 2, {.targets = targets.data(), .pairs = pairs.data()});
  const int32_t n = -100;
  int seen = 0;
  for (const PairPlace& p : pairs) {
    if (p.chosen < 0) {
      EXPECT_EQ(p.answer, -1);
      continue;
    }
    ++seen;
    EXPECT_EQ(p.step_targets, 3 + 1 + 1);
    EXPECT_EQ(p.step_pairs, 3);
    const Ids of(targets.begin() + p.chosen, targets.begin() + p.end);
    if (p.rejected - p.chosen == 4) {
      EXPECT_EQ(of, (Ids{2, 3, 4, n, n, 5, n}));
      EXPECT_EQ(p.answer, p.chosen + 1);
      EXPECT_EQ(p.chosen_tokens, 2);
      EXPECT_EQ(p.rejected_tokens, 1);
    } else if (p.end - p.rejected == 2) {
      // A first token without one before it is of no mean.
      EXPECT_EQ(of, (Ids{7, n, 9, n}));
      EXPECT_EQ(p.answer, p.chosen);
      EXPECT_EQ(p.chosen_tokens, 1);
      EXPECT_EQ(p.rejected_tokens, 1);
    } else {
      EXPECT_EQ(of, (Ids{2, n, 3, 4, 5, n}));
      EXPECT_EQ(p.answer, p.chosen);
      EXPECT_EQ(p.chosen_tokens, 1);
      EXPECT_EQ(p.rejected_tokens, 3);
    }
  }
  EXPECT_EQ(seen, 3);
  // A step of fewer pairs has fewer of both.
  RowDataset each = dataset(14, 1, true);
  each.fill(1, 0, 1, {.pairs = pairs.data()});
  EXPECT_EQ(pairs[0].step_targets, 1);
  EXPECT_EQ(pairs[0].step_pairs, 1);
}

// Of rewards nothing is a prompt, nothing is cut, and a pair may have a margin.
TEST_F(PairRowsTest, RewardedPairsAreWholeOrLeftOut) {
  const RowReport report = read(
      "{\"prompt_ids\": [1, 2], \"chosen_ids\": [3, 4], \"rejected_ids\": [5], \"margin\": 0.5}\n"
      "{\"chosen_ids\": [6, 7], \"rejected_ids\": [8]}\n"
      "{\"chosen_ids\": [6, 7], \"rejected_ids\": [1, 2, 3, 4, 5]}\n",
      4, PairUse::rewards);
  EXPECT_EQ(report.rows, 2);
  EXPECT_EQ(report.cut, 0);
  EXPECT_EQ(report.empty, 1);
  RowDataset d = dataset(14, 2);
  ASSERT_EQ(d.windows(0), 1);
  EXPECT_EQ(d.trained(0), 2);
  Ids tokens(14), first(3);
  std::vector<float> margins(3);
  std::vector<PairPlace> pairs(3);
  d.fill(0, 0, 1,
         {.tokens = tokens.data(),
          .first = first.data(),
          .values = margins.data(),
          .pairs = pairs.data()});
  EXPECT_EQ(tokens, (Ids{1, 2, 3, 4, 1, 2, 5, 6, 7, 8, 0, 0, 0, 0}));
  EXPECT_EQ(margins, (std::vector<float>{0.5f, 0, 0}));
  EXPECT_EQ(pairs[0].rejected, 4);
  EXPECT_EQ(pairs[0].end, 7);
  EXPECT_EQ(pairs[1].rejected, 9);
  EXPECT_EQ(pairs[2].chosen, -1);
  EXPECT_ERROR(read("{\"chosen_ids\": [1], \"rejected_ids\": [2], \"margin\": \"x\"}\n", 4,
                    PairUse::rewards),
               ErrorCode::data, "\"margin\" as a number", "pairs.jsonl:1: \"x\"", "");
  EXPECT_ERROR(read("{\"chosen_ids\": [1, 2, 3], \"rejected_ids\": [2]}\n", 2, PairUse::rewards),
               ErrorCode::data, "a pair of which no answer with its prompt is longer", "1 without",
               "raise max_length");
}

// Single answers are pairs of which one is empty; mismatched ones have the answer of the record before.
TEST_F(PairRowsTest, SingleAnswersAndThoseOfOthers) {
  const std::string text =
      "{\"prompt_ids\": [1, 2], \"completion_ids\": [3, 4], \"label\": true}\n"
      "{\"prompt_ids\": [5], \"completion_ids\": [6, 7, 8], \"label\": false}\n"
      // Its prompt fills it: no answer, and none to others.
      "{\"prompt_ids\": [1, 2, 3, 4], \"completion_ids\": [9], \"label\": true}\n"
      "{\"prompt_ids\": [], \"completion_ids\": [10, 11, 12, 13, 14], \"label\": 1}\n";
  const auto filled = [&](PairUse use, const Ids& tokens, const Ids& starts, const Ids& targets,
                          const std::vector<Ids>& places) {
    const RowReport report = read(text, 4, use);
    EXPECT_EQ(report.rows, 3);
    EXPECT_EQ(report.empty, 1);
    RowDataset d{RowFile(folder_ / "rows"),
                 {.T = 13,
                  .global_batch = 3,
                  .max_rows_per_window = 4,
                  .shuffle = false,
                  .shift_labels = true,
                  .pairs = true,
                  .single = true}};
    ASSERT_EQ(d.windows(0), 1);
    EXPECT_EQ(d.trained(0), 3);
    Ids got_tokens(13), got_starts(13), got_targets(13);
    std::vector<PairPlace> pairs(4);
    d.fill(0, 0, 1,
           {.tokens = got_tokens.data(),
            .document_start = got_starts.data(),
            .targets = got_targets.data(),
            .pairs = pairs.data()});
    EXPECT_EQ(got_tokens, tokens);
    EXPECT_EQ(got_starts, starts);
    EXPECT_EQ(got_targets, targets);
    for (size_t i = 0; i < 3; ++i)
      EXPECT_EQ((Ids{pairs[i].chosen, pairs[i].rejected, pairs[i].end, pairs[i].chosen_tokens,
                     pairs[i].rejected_tokens, pairs[i].answer}),
                places[i])
          << i;
    EXPECT_EQ(pairs[3].chosen, -1);
  };
  const int32_t n = -100;
  filled(PairUse::single, {1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 0},
         {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12}, {n, 3, 4, n, 6, 7, 8, n, 11, 12, 13, n, n},
         {{0, 4, 4, 2, 0, 0}, {4, 4, 8, 0, 3, 4}, {8, 12, 12, 4, 0, 8}});
  // Answers are those before they were cut.
  filled(PairUse::mismatched, {1, 2, 10, 11, 5, 3, 4, 6, 7, 8, 0, 0, 0},
         {0, 0, 0, 0, 4, 4, 4, 7, 7, 7, 10, 10, 10}, {n, 10, 11, n, 3, 4, n, 7, 8, n, n, n, n},
         {{0, 4, 4, 2, 0, 0}, {4, 4, 7, 0, 2, 4}, {7, 10, 10, 3, 0, 7}});
  const std::string pairs =
      "{\"prompt_ids\": [1], \"chosen_ids\": [2], \"rejected_ids\": [3, 4]}\n"
      "{\"prompt_ids\": [5], \"chosen_ids\": [6], \"rejected_ids\": [7]}\n";
  EXPECT_EQ(read(pairs, 4, PairUse::single).rows, 4);
  EXPECT_EQ(read(pairs, 4, PairUse::mismatched).tokens, 2 + 2 + 2 + 3);
}

TEST_F(PairRowsTest, WhatIsNoSingleAnswerIsRefused) {
  const auto refused = [&](const std::string& record, const char* expected, const char* found) {
    EXPECT_ERROR(read(record + "\n", 8, PairUse::single), ErrorCode::data, expected, found, "");
  };
  refused("{\"prompt_ids\": [1], \"completion_ids\": [2]}", "\"label\" in every record of single",
          "pairs.jsonl:1: the keys \"prompt_ids\", \"completion_ids\"");
  refused("{\"prompt_ids\": [1], \"completion_ids\": [2], \"label\": \"good\"}",
          "\"label\" as true or false", "pairs.jsonl:1: \"good\"");
  refused("{\"prompt_ids\": [1], \"completion_ids\": [2], \"label\": 2}",
          "\"label\" as true or false", "pairs.jsonl:1: 2");
  refused("{\"completion_ids\": [2], \"label\": true}", "\"prompt_ids\" in every record of single",
          "pairs.jsonl:1: the keys");
  refused("{\"prompt_ids\": [2], \"completion_ids\": [], \"label\": true}",
          "a token at least in \"completion_ids\"", "none");
  refused("{\"prompt\": \"a\", \"label\": true}", "\"completion\" in every record of single",
          "pairs.jsonl:1: the keys");
  refused("{\"prompt\": \"a\", \"completion\": \"\", \"label\": true}",
          "an answer in completion of every record", "completion is empty");
  refused("{\"prompt\": \"a\", \"completion\": [\"b\"], \"label\": true}",
          "prompt and completion that are both texts or both lists", "string beside array");
  refused("{\"prompt\": \"a\", \"chosen\": \"b\"}", "\"rejected\" in every record of pairs",
          "pairs.jsonl:1: the keys");
  const std::string lone = "{\"prompt_ids\": [1], \"completion_ids\": [2], \"label\": true}\n";
  EXPECT_EQ(read(lone, 8, PairUse::single).rows, 1);
  EXPECT_ERROR(read(lone, 8, PairUse::mismatched), ErrorCode::data, "two records at least",
               "pairs.jsonl:1 alone", "loss_type=apo_zero_unpaired");
}

// Texts, of which every byte is a token here, begin and end as in TRL: what both answers begin with is
// the prompt, less its last character where one answer is the beginning of the other (extract_prompt),
// and eos is added to a text that does not end with it.
TEST_F(PairRowsTest, TextsHaveOnePromptAndOneEnd) {
  const Tokenizer bytes = BpeTrainer({.vocab_size = 257}).train();
  const ChatRows chats(std::nullopt, bytes, {bytes.eos_id().value()}, "none");
  const PairRows pairs(&chats, 8);
  struct Row {
    const char* record;
    int32_t chosen, rejected;  // tokens that are learned
  };
  for (const Row& row :
       {Row{R"({"chosen": "abc", "rejected": "ab"})", 3, 2},
        Row{R"({"chosen": "ab", "rejected": "abcd"})", 2, 4},
        Row{R"({"chosen": "abc", "rejected": "abde"})", 2, 3},
        Row{R"({"chosen": "a b", "rejected": "a c"})", 3, 3},
        Row{R"({"prompt": "p", "chosen": "x<|endoftext|>", "rejected": "y"})", 2, 2},
        Row{R"({"prompt": "p", "chosen": "x", "rejected": "yz<|endoftext|>"})", 2, 3}}) {
    write_atomic(folder_ / "pairs.jsonl", std::string(row.record) + "\n");
    RowOptions o;
    o.kind = RowKind::causal;
    o.pairs = &pairs;
    o.max_length = 16;
    o.vocab_size = 257;
    write_rows({{folder_ / "pairs.jsonl", true}}, nullptr, o, folder_ / "rows");
    RowDataset d = dataset(16, 1);
    std::vector<PairPlace> places(3);
    d.fill(0, 0, 1, {.pairs = places.data()});
    EXPECT_EQ(places[0].chosen_tokens, row.chosen) << row.record;
    EXPECT_EQ(places[0].rejected_tokens, row.rejected) << row.record;
  }
}

// The last token of a row that is no padding, or its first.
TEST(LastToken, IsNotPadding) {
  const Ids row{7, 0, 5, 0, 0};
  EXPECT_EQ(last_token_of(row.data(), 5, 0), 2);
  EXPECT_EQ(last_token_of(row.data(), 5, -1), 4);
  EXPECT_EQ(last_token_of(row.data() + 3, 2, 0), 0);
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
  const std::string lone = "{\"prompt_ids\": [], \"chosen_ids\": [2, 3], \"rejected_ids\": [3]}\n";
  EXPECT_EQ(read(lone, 8).rows, 1);
  EXPECT_ERROR(read(lone, 8, PairUse::means), ErrorCode::data,
               "a token before the last of every answer",
               "pairs.jsonl:1: rejected is one token without a prompt", "give the pair a prompt");
  EXPECT_ERROR(read("{\"chosen\": \"a\", \"rejected\": \"b\"}\n", 8), ErrorCode::usage,
               "a tokenizer for pairs of texts or messages", "none", "tokenizer=tok.json");
}

}  // namespace
}  // namespace snug
