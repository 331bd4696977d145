// Every error of reading rows names the place, and leaves the file that was there.
#include <gtest/gtest.h>

#include "engine/data/row_reader.h"
#include "tests/engine/data/row_case.h"

namespace snug {
namespace {

using namespace test;

struct Bad {
  const char *name, *text;
  RowOptions options;
  const char *expected, *found, *advice;
};

void expect_errors(const std::vector<Bad>& cases, ErrorCode code) {
  TempFolder tmp;
  const Tokenizer bert = small_bert(tmp);
  const std::string out = put(tmp, "out.rows", "what was there");
  for (const Bad& c : cases) {
    SCOPED_TRACE(std::string(c.name) + ": " + c.expected);
    const std::string path = put(tmp, c.name, c.text);
    EXPECT_ERROR(write_rows({{path, true}}, &bert, c.options, out), code, c.expected, c.found,
                 c.advice);
    std::filesystem::remove(path);
    EXPECT_EQ(read_file(out), "what was there");
    EXPECT_EQ(tmp.count(), 2);  // nothing beside it
  }
}

const RowOptions kWords = {.kind = RowKind::tokens};

TEST(RowErrors, Columns) {
  expect_errors(
      {
          {"a.tsv",
           "text\tlabel\na\t1\n",
           {.text_column = "txt", .label_column = "label"},
           "a column \"txt\" (text_column)",
           "the columns \"text\", \"label\" at",
           "did you mean text"},
          {"a.tsv",
           "text\tlabel\na\t1\n",
           {.label_column = "stars"},
           "a column \"stars\" (label_column)",
           "a.tsv:1",
           "as a number from 0"},
          {"a.tsv",
           "a\t1\n",
           {.text_column = "0", .label_column = "2"},
           "a column number 2 (label_column)",
           "2 columns at",
           "from 0 to 1"},
          {"a.tsv",
           "text\tidx\tstars\na\t1\t2\n",
           {},
           "a column \"label\" in",
           "\"text\", \"idx\", \"stars\" at",
           "with label_column"},
          {"a.tsv",
           "just text\n",
           {},
           "a column of text and one of labels",
           "the columns \"just text\" at",
           "tabs in .tsv, commas in .csv"},
          {"a.tsv",
           "text\tlabel\na\t1\nb\t0\tx\n",
           {},
           "2 fields in every record",
           "3 in the record at",
           "quoting=minimal"},
          {"a.tsv",
           "text\tlabel\na\t\n",
           {},
           "a label in column 1 of every row",
           "a.tsv:2: none",
           "fill it in"},
          {"a.tsv", "tokens\ttags\na b\tO O\n", kWords, "words and their labels as JSON",
           "the table ", "on each line of a .jsonl"},
          {"a.txt",
           "a film\n",
           {},
           "rows with labels: .tsv, .csv, .jsonl or .json",
           "a.txt, whose lines are text alone",
           "task=masked_lm, which needs none"},
          {"a.tsv", "", {}, "a row to learn from", "none in ", "in every row, or lines of text"},
          {"a.tsv",
           "text\tlabel\n\t1\n",
           {},
           "a row with text",
           "1 without, the first at ",
           "name the column of the text"},
      },
      ErrorCode::data);
}

TEST(RowErrors, Labels) {
  const auto single = ProblemType::single_label, number = ProblemType::regression;
  const std::string long_name = "text\tlabel\na\t" + std::string(300, 'x') + "\n";
  std::string many = "text\tlabel\n";
  for (int i = 0; i <= 65536; ++i) many += "a\tx" + std::to_string(i) + "\n";
  expect_errors(
      {
          {"a.tsv",
           "text\tlabel\na\tgood\na\tbda\n",
           {.label_names = {"good", "bad"}},
           "one of the 2 labels \"good\", \"bad\", or its number from 0",
           "a.tsv:3: \"bda\"",
           "did you mean bad"},
          {"a.tsv",
           "text\tlabel\na\t1\na\t2\n",
           {.label_names = {"good", "bad"}},
           "one of the 2 labels",
           "a.tsv:3: \"2\"",
           "leave the row out"},
          {"a.tsv",
           "text\tlabel\na\t1\na\tgood\n",
           {.problem_type = number},
           "numbers as labels of a regression",
           "a.tsv:3: a word",
           "single_label_classification"},
          {"a.jsonl",
           "{\"text\":\"a\",\"label\":[1]}\n{\"text\":\"a\",\"label\":[1,2]}\n",
           {.problem_type = number},
           "as many numbers in every row's label",
           "a.jsonl:2",
           "complete the labels"},
          {"a.jsonl",
           "{\"text\":\"a\",\"label\":[1,2]}\n",
           {.label_names = {"a", "b", "c"}, .problem_type = number},
           "3 numbers in a label, as there are names",
           "2 in ",
           "correct id2label"},
          {"a.jsonl",
           "{\"text\":\"a\",\"label\":[1]}\n{\"text\":\"a\",\"label\":1}\n",
           {},
           "lists as labels in every row, or in none",
           "a.jsonl:1 and none at",
           "alike"},
          {"a.jsonl",
           "{\"text\":\"a\",\"label\":[1]}\n",
           {.problem_type = single},
           "one label in every row (single_label_classification)",
           "a.jsonl:1: a list",
           "multi_label_classification"},
          {"a.tsv",
           long_name.c_str(),
           {},
           "labels of at most 256 bytes",
           "a.tsv:2: one of 300: xxx",
           "this one looks like text"},
          {"a.tsv",
           many.c_str(),
           {},
           "at most 65536 different labels",
           "a.tsv:65538",
           "problem_type to regression"},
          {"a.tsv",
           "text\tlabel\na\tx\n",
           {.label_names = {"x", "x"}},
           "names of labels that differ (id2label)",
           "\"x\" twice",
           "each class its name"},
          {"a.jsonl",
           "{\"text\":\"a\",\"label\":[]}\n",
           {},
           "something in the label of some row",
           "empty lists, the first at ",
           "with label_column"},
          {"a.jsonl",
           "{\"text\":\"a\",\"label\":[]}\n",
           {.problem_type = number},
           "something in the label of some row",
           "a.jsonl:1",
           "with label_column"},
          {"a.tsv",
           "text\tlabel\na\t-100\n",
           {},
           "a label that is not -100 in some row",
           "1 rows, all of whose labels are ignored, the first at ",
           "raise max_length"},
      },
      ErrorCode::data);
}

TEST(RowErrors, Records) {
  expect_errors(
      {
          {"a.jsonl",
           "{\"text\":\"a\",\"label\":1}\n{\"text\":\"a\",\"labl\":1}\n",
           {},
           "a label under \"label\" in every record",
           "a.jsonl:2: the keys \"labl\", \"text\"",
           "with label_column"},
          {"a.jsonl",
           "{\"body\":\"a\",\"label\":1}\n",
           {},
           "a text under \"text\" in every record",
           "a.jsonl:1: the keys \"body\", \"label\"",
           "with text_column"},
          {"a.jsonl",
           "{}\n",
           {.text_column = "body"},
           "a text under \"body\"",
           "a.jsonl:1: an empty object",
           "with text_column"},
          {"a.jsonl",
           "{\"text\":[\"a\"],\"label\":1}\n",
           {},
           "a string under \"text\" in every record",
           "a.jsonl:1: ",
           "write the text as a string"},
          {"a.jsonl",
           "{\"text\":\"a\",\"label\":1}\n",
           {.text_column = "text", .text_pair_column = "b"},
           "a second text under \"b\" in every record",
           "a.jsonl:1",
           "with text_pair_column"},
          {"a.jsonl",
           "{\"text\":\"a\",\"label\":{\"x\":1}}\n",
           {},
           "names or numbers as labels under \"label\"",
           "a.jsonl:1: ",
           "or as a list of these"},
          {"a.jsonl", "[1]\n", {}, "a JSON object for every row", "a.jsonl:1: 1", "in one array"},
          {"a.jsonl",
           "{\"text\":\"a\",\"label\":1}\n7\n",
           {},
           "a JSON object for every row",
           "a.jsonl:2: 7",
           "on a line of its own"},
          {"a.jsonl", "{\"text\":\"a\",\n", {}, "", "a.jsonl:1", ""},
          {"a.json",
           "[{\"text\":\"a\",\"label\":1},\n {\"text\":}]",
           {},
           "",
           "a.json:2, record 2 of its array:1:9",
           ""},
          {"a.json",
           "[{\"text\":\"a\",\n\"label\":1}",
           {},
           "the bracket that ends the array",
           "a.json:1",
           "written to its end"},
          {"a.json",
           "[{\"text\":\"a\",\"label\":1}]\n[]",
           {},
           "nothing behind the array in",
           "more at",
           "one array of objects"},
          {"a.json", "[]", {}, "a row to learn from", "none in", "give .tsv"},
          {"a.jsonl",
           "{\"text\":\"a\",\"label\":1}\n{\"input_ids\":[1],\"label\":1}\n",
           {},
           "text in every row, or input_ids in every row",
           "a.jsonl:1 and another at",
           "two files"},
      },
      ErrorCode::data);
  TempFolder tmp;
  const Tokenizer bert = small_bert(tmp);
  const std::string path =
      put(tmp, "a.json", "[{\"text\":\"" + std::string(70000, 'x') + "\",\"label\":1}]");
  EXPECT_ERROR(
      write_rows({{path, true}}, &bert,
                 {.max_record_bytes = 1000, .longer_records = ", or memory=1GiB"}, tmp / "out"),
      ErrorCode::data, "rows of at most 65536 bytes in", "a longer record at " + path + ":1",
      "or cut its text, or memory=1GiB");
}

TEST(RowErrors, TokenRows) {
  const RowOptions named = {.kind = RowKind::tokens, .label_names = {"O", "B"}};
  expect_errors(
      {
          {"a.jsonl",
           "{\"input_ids\":[5,14],\"label\":1}\n",
           {},
           "input_ids from 0 to 13",
           "a.jsonl:1: 14 at place 1",
           "the tokenizer of this model"},
          {"a.jsonl",
           "{\"input_ids\":[5,-1],\"label\":1}\n",
           {},
           "input_ids from 0 to 13",
           "-1",
           "vocabulary size it was made with"},
          {"a.jsonl",
           "{\"input_ids\":[5,5000000000],\"label\":1}\n",
           {},
           "a list of integers of 32 bits under \"input_ids\"",
           "a.jsonl:1: ",
           "[101, 2023, 102]"},
          {"a.jsonl",
           "{\"input_ids\":\"5\",\"label\":1}\n",
           {},
           "a list of integers",
           "a.jsonl:1",
           "write it as"},
          {"a.jsonl",
           "{\"input_ids\":[5,6,7],\"attention_mask\":[1,0,1],\"label\":1}\n",
           {},
           "an attention_mask of ones, and zeros where padding is",
           "from place 1 on",
           "pad on the right"},
          {"a.jsonl",
           "{\"input_ids\":[5,6],\"attention_mask\":[2,1],\"label\":1}\n",
           {},
           "an attention_mask of ones",
           "a.jsonl:1: something else, from place 0",
           "leave"},
          {"a.jsonl",
           "{\"input_ids\":[5,6],\"attention_mask\":[1],\"label\":1}\n",
           {},
           "as many attention_mask as input_ids in a row",
           "2 input_ids and 1 attention_mask",
           "one for each token"},
          {"a.jsonl",
           "{\"input_ids\":[5,6],\"token_type_ids\":[1],\"label\":1}\n",
           {},
           "as many token_type_ids as input_ids",
           "1 token_type_ids",
           "one for each"},
          {"a.jsonl",
           "{\"input_ids\":[5],\"token_type_ids\":[-1],\"label\":1}\n",
           {},
           "token_type_ids of 0 and above",
           "-1 at place 0",
           "1 for the second"},
          {"a.jsonl", "{\"input_ids\":[5,6],\"labels\":[1]}\n", kWords,
           "as many labels as input_ids", "2 input_ids and 1 labels", "one for each"},
          {"a.jsonl", "{\"input_ids\":[5,6],\"label\":1}\n", kWords,
           "labels, a list as long as input_ids, in every row", "a.jsonl:1: one label",
           "-100 where nothing"},
          {"a.jsonl", "{\"input_ids\":[5,6]}\n", kWords, "labels, a list as long as input_ids",
           "a.jsonl:1: none", "-100"},
          {"a.jsonl",
           "{\"input_ids\":[5,6]}\n",
           {},
           "a label in every row of input_ids",
           "a.jsonl:1: none",
           "under \"label\""},
          {"a.jsonl", "{\"input_ids\":[5],\"labels\":[-1]}\n", kWords,
           "ids of 0 and above, or -100, as labels", "-1 at place 0", "-100"},
          {"a.jsonl", "{\"input_ids\":[5],\"labels\":[2]}\n", named,
           "ids from 0 to 1, or -100, as labels of input_ids", "2 at place 0", "-100"},
          {"a.jsonl", "{\"input_ids\":[5],\"labels\":[\"O\"]}\n", named, "ids from 0 to 1",
           "O at place 0", "-100"},
          {"a.jsonl",
           "{\"input_ids\":[5,6,7],\"labels\":[-100,-100,7]}\n",
           {.kind = RowKind::tokens, .max_length = 2},
           "a label that is not -100 in some row",
           "a.jsonl:1",
           "raise max_length if the labels are behind it"},
      },
      ErrorCode::data);
}

TEST(RowErrors, TokensOfCausalModels) {
  const RowOptions causal = {.kind = RowKind::causal, .vocab_size = 8};
  expect_errors(
      {
          {"a.jsonl", "{\"input_ids\":[5,6],\"labels\":[1]}\n", causal,
           "as many labels as input_ids", "a.jsonl:1: 2 input_ids and 1 labels", "one for each"},
          {"a.jsonl", "{\"input_ids\":[5,6],\"labels\":1}\n", causal,
           "labels, a list as long as input_ids", "a.jsonl:1: one label", "-100 where nothing"},
          {"a.jsonl", "{\"input_ids\":[5,6],\"labels\":[5,8]}\n", causal,
           "tokens from 0 to 7, or -100, as labels of input_ids", "a.jsonl:1: 8 at place 1",
           "-100 where nothing"},
          {"a.jsonl", "{\"input_ids\":[5,8]}\n", causal, "input_ids from 0 to 7",
           "a.jsonl:1: 8 at place 1", "the tokenizer of this model"},
          {"a.jsonl", "{\"input_ids\":[5,6],\"attention_mask\":[0,1]}\n", causal,
           "an attention_mask of ones", "a.jsonl:1: something else, from place 0 on",
           "pad on the right"},
          {"a.jsonl", "{\"input_ids\":[5,6],\"token_type_ids\":[0,1]}\n", causal,
           "token_type_ids of 0 alone for a causal language model", "a.jsonl:1: 1 at place 1",
           "leave token_type_ids out"},
          {"a.jsonl", "{\"input_ids\":[5]}\n{\"text\":\"a\"}\n", causal,
           "\"input_ids\" in every record", "a.jsonl:2: the keys \"text\"", "in two runs"},
          {"a.tsv", "text\na\n", causal, "rows of input_ids as JSON", "a.tsv",
           "on each line of a .jsonl"},
          {"a.jsonl", "{\"input_ids\":[5,6],\"labels\":[5,-100]}\n", causal,
           "a label that is not -100 behind the first token of some row", "the first at",
           "correct the labels"},
          {"a.jsonl", "{\"input_ids\":[]}\n", causal, "a row with text", "1 without, the first at",
           "look at its input_ids"},
          {"a.jsonl", "", causal, "a row to learn from", "none in", "input_ids in every row"},
      },
      ErrorCode::data);
}

TEST(RowErrors, Words) {
  expect_errors(
      {
          {"a.jsonl", "{\"tokens\":[\"a\",\"b\"],\"tags\":[\"O\"]}\n", kWords,
           "a label for each word of a row", "a.jsonl:1: 2 words and 1 labels", "\"O\" where"},
          {"a.jsonl", "{\"tokens\":[\"a\"],\"tags\":\"O\"}\n", kWords,
           "a label for each word of a row", "1 words and 0 labels", "one label a word"},
          {"a.jsonl", "{\"tokens\":[\"a\",7],\"tags\":[\"O\",\"O\"]}\n", kWords,
           "a list of words under \"tokens\"", "a.jsonl:1: ", "[\"The\", \"word\"]"},
          {"a.jsonl", "{\"text\":\"a\",\"tags\":[\"O\"]}\n", kWords,
           "a list of words under \"tokens\" in every record", "the keys \"tags\", \"text\"",
           "the key of the words"},
          {"a.jsonl", "{\"tokens\":[\"a\"]}\n", kWords, "a list of labels under \"tags\"",
           "the keys \"tokens\"", "the key of the labels"},
          {"a.jsonl",
           "{\"tokens\":[\"a\"],\"tags\":[\"X\"]}\n",
           {.kind = RowKind::tokens, .label_names = {"O", "B"}},
           "one of the 2 labels",
           "a.jsonl:1: \"X\"",
           "did you mean O?"},
          {"a.jsonl", "{\"tokens\":[\"a\"],\"tags\":[-100]}\n", kWords,
           "a label that is not -100 in some row", "a.jsonl:1", "correct the labels"},
      },
      ErrorCode::data);
}

TEST(RowErrors, Options) {
  expect_errors(
      {
          {"a.tsv",
           "text\tlabel\na\t1\n",
           {.max_length = 0},
           "a max_length of rows of 1 or more",
           "0",
           "128"},
          {"a.tsv",
           "text\tlabel\na\t1\n",
           {.max_length = 2},
           "a max_length above the 2 special tokens of a row",
           "2",
           "max_length=24"},
          {"a.tsv",
           "sentence1\tsentence2\tlabel\na\ta\t1\n",
           {.max_length = 3},
           "a max_length above the 3 special tokens",
           "3",
           "max_length=32"},
          {"a.tsv",
           "text\tlabel\na\t1\n",
           {.text_column = "text", .header = false},
           "columns by their numbers where tables have no header line",
           "text_column \"text\"",
           "leave header out"},
          {"a.tsv",
           "text\tlabel\na\t1\n",
           {.text_column = "0", .text_pair_column = "0"},
           "different columns for text_column",
           "columns 0, 0 and 1",
           "text_pair_column out"},
          {"a.txt",
           "a\n",
           {.kind = RowKind::text, .text_pair_column = "b"},
           "a text_pair_column for sequence classification alone",
           "\"b\"",
           "leave it out"},
          {"a.tsv",
           "text\tlabel\na\t1\n",
           {.text_pair_column = "b"},
           "a text_column beside text_pair_column",
           "\"b\" alone",
           "name both"},
      },
      ErrorCode::usage);
  TempFolder tmp;
  const std::string text = put(tmp, "a.tsv", "text\tlabel\na\t1\n"),
                    ids = put(tmp, "b.jsonl", "{\"input_ids\":[1],\"label\":1}\n");
  EXPECT_ERROR(write_rows({{text, true}}, nullptr, {}, tmp / "out"), ErrorCode::usage,
               "a tokenizer for rows of text", "none, and text at " + text + ":2", "input_ids");
  EXPECT_ERROR(write_rows({{ids, true}}, nullptr, {}, tmp / "out"), ErrorCode::usage,
               "the model's vocabulary size for rows of input_ids", "none", "its tokenizer");
  EXPECT_ERROR(parse_problem_type("ranking"), ErrorCode::usage,
               "problem_type as auto, regression, single_label_classification", "\"ranking\"",
               "leave it out");
  EXPECT_EQ(parse_problem_type("auto"), ProblemType::automatic);
  EXPECT_EQ(parse_problem_type("multi_label_classification"), ProblemType::multi_label);
}

}  // namespace
}  // namespace snug
