#include <gtest/gtest.h>

#include <random>

#include "engine/data/row_reader.h"
#include "engine/data/row_record.h"
#include "engine/io/fingerprint.h"
#include "engine/text/tokenizer_spec.h"
#include "tests/engine/data/row_case.h"
#include "tests/engine/io/packed.h"

namespace snug {
namespace {

using namespace test;

struct Made {
  RowReport report;
  RowFacts facts;
  std::vector<ReadRow> rows;
};

class RowReader : public ::testing::Test {
 protected:
  Made make(const std::vector<std::string>& paths, const RowOptions& options = {}) {
    std::vector<CorpusFile> files;
    for (const std::string& path : paths) files.push_back({path, true});
    Made out;
    out.report = write_rows(files, &bert_, options, tmp_ / "out.rows");
    RowFile file(tmp_ / "out.rows", bert_.fingerprint());
    file.check(N);
    out.facts = file.facts();
    out.rows = all_rows(file);
    const RowReport stored = file.report();
    EXPECT_EQ(stored.rows, out.report.rows);
    EXPECT_EQ(stored.label_names, out.report.label_names);
    EXPECT_EQ(stored.assumed, out.report.assumed);
    EXPECT_EQ(out.report.rows, static_cast<int64_t>(out.rows.size()));
    EXPECT_EQ(out.facts.source, rows_fingerprint(files, &bert_, options));
    return out;
  }
  Made make(const std::string& name, const std::string& text, const RowOptions& options = {}) {
    return make({put(tmp_, name, text)}, options);
  }

  TempFolder tmp_;
  Tokenizer bert_ = small_bert(tmp_);
};

const Ints kGoodFilm = {CLS, A, GOOD, FILM, SEP}, kBadFilm = {CLS, A, BAD, FILM, SEP};

// The same two rows in every form of file.
TEST_F(RowReader, EveryFormGivesTheSameRows) {
  struct Form {
    const char *name, *text;
    RowOptions options;
  };
  const Form forms[] = {
      {"a.tsv", "sentence\tlabel\na good film\t1\na bad film\t0\n", {}},
      {"b.tsv", "label\tidx\ttext\n1\t7\ta good film\n0\t8\ta bad film\n", {}},
      {"c.csv", "text,label\n\"a good\nfilm\",1\r\na bad film,0", {}},
      {"d.tsv",
       "x\tq\ty\na good film\t9\t1\na bad film\t9\t0\n",
       {.text_column = "x", .label_column = "y"}},
      {"e.tsv", "9\ta good film\t1\n9\ta bad film\t0\n", {.text_column = "1", .label_column = "2"}},
      {"f.tsv", "a good film\t1\na bad film\t0\n", {}},
      {"g.tsv", "review\tsentiment\na good film\t1\na bad film\t0\n", {}},
      {"h.csv", "1,a good film\n0,a bad film\n", {.text_column = "1"}},
      {"i.tsv", "a good film\tx\t1\na bad film\tx\t0\n", {.header = false}},
      {"j.tsv",
       "text\tlabel\na good film\t1\na bad film\t0\n",
       {.text_column = "0", .label_column = "1"}},
      {"k.jsonl",
       "{\"label\": 1, \"text\": \"a good film\"}\n\n{\"sentence\": \"a bad film\", "
       "\"label\": 0}\n",
       {}},
      // A key that is null is not there: another name of the same takes its place.
      {"k2.jsonl",
       "{\"sentence\": null, \"text\": \"a good film\", \"label\": null, \"labels\": 1}\n"
       "{\"text\": \"a bad film\", \"sentence2\": null, \"label\": 0, \"labels\": null}\n",
       {}},
      {"l.json",
       "[{\"text\": \"a good film\", \"label\": 1},\n {\"text\": \"a bad film\", "
       "\"label\": 0}]\n",
       {}},
      {"m.json",
       "\n[ {\n  \"body\": \"a good film\",\n  \"stars\": true\n}\n, {\"body\": \"a bad "
       "film\", \"stars\": false, \"x\": [\"]},\\\"\", {}]} ] ",
       {.text_column = "body", .label_column = "stars"}},
      {"n.json",
       "{\"text\": \"a good film\", \"label\": 1}\n{\"text\": \"a bad film\", \"label\": "
       "0}\n",
       {}},
      {"o.ndjson",
       "{\"input_ids\": [2, 8, 5, 7, 3], \"label\": 1}\n{\"input_ids\": [2, 8, 6, 7, 3, "
       "0, 0], \"attention_mask\": [1, 1, 1, 1, 1, 0, 0], \"labels\": 0}\n",
       {}},
  };
  for (const Form& form : forms) {
    SCOPED_TRACE(form.name);
    const Made made = make(form.name, form.text, form.options);
    ASSERT_EQ(made.rows.size(), 2u);
    EXPECT_EQ(made.rows[0].tokens, kGoodFilm);
    EXPECT_EQ(made.rows[1].tokens, kBadFilm);
    EXPECT_EQ(made.rows[0].class_id, 1);
    EXPECT_EQ(made.rows[1].class_id, 0);
    EXPECT_FALSE(made.facts.form.types);
    EXPECT_EQ(made.report.label_names, (std::vector<std::string>{"0", "1"}));
    EXPECT_EQ(made.report.label_counts, (std::vector<int64_t>{1, 1}));
    EXPECT_EQ(made.report.problem_type, "single_label_classification");
    EXPECT_EQ(made.report.longest, 5);
    EXPECT_EQ(made.report.mean_length(), 5.0);
    EXPECT_EQ(made.facts.class_count, 2);
    EXPECT_EQ(made.facts.tokenizer, std::string(form.name) == "o.ndjson" ? 0 : bert_.fingerprint());
  }
  write_atomic(tmp_ / "p.jsonl.gz", test::gzip(forms[10].text));
  EXPECT_EQ(make({tmp_ / "p.jsonl.gz"}).rows[1].tokens, kBadFilm);
}

TEST_F(RowReader, SaysWhatItAssumed) {
  const std::string path = tmp_ / "a.tsv";
  const auto assumed = [&](const std::string& text, const RowOptions& o = {}) {
    std::string all;
    for (const std::string& sentence : make("a.tsv", text, o).report.assumed) all += sentence + "|";
    return all;
  };
  EXPECT_EQ(assumed("text\tlabel\na\t1\na\t0\n"), "");
  EXPECT_EQ(assumed("a\tgood\na\tbad\n"), "the text of " + path + " is column 0; the label of " +
                                              path + " is column 1; the first line of " + path +
                                              " is a row and names no columns|");
  EXPECT_EQ(assumed("x\ty\na\t1\na\t0\n"), "the text of " + path + " is column 0; the label of " +
                                               path + " is column 1; the first line of " + path +
                                               " names the columns, for its label alone is no "
                                               "number|");
  EXPECT_EQ(assumed("text\tstars\na\t1\na\t0\n"),
            "the label of " + path + " is column 1 (\"stars\")|");
  EXPECT_EQ(assumed("text\tlabel\na\t5\na\t1\na\t3\n"),
            "the labels \"1\", \"3\", \"5\" are the classes 0 to 2, in this order|");
}

TEST_F(RowReader, PairsHaveTypesAndAreCutLongestFirst) {
  const std::string text =
      "premise\thypothesis\tlabel\n"
      "the film was good\ta film\tyes\n"
      "a good good good good\tthe film was\tno\n"
      "a\t\tyes\n";
  const Made made = make("a.tsv", text, {.max_length = 9});
  EXPECT_EQ(made.rows[0].tokens, (Ints{CLS, THE, FILM, WAS, GOOD, SEP, A, FILM, SEP}));
  EXPECT_EQ(made.rows[0].types, (Ints{0, 0, 0, 0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(made.rows[0].class_id, 1);
  EXPECT_EQ(made.rows[1].tokens, (Ints{CLS, A, GOOD, GOOD, SEP, THE, FILM, WAS, SEP}));
  EXPECT_EQ(made.rows[2].tokens, (Ints{CLS, A, SEP, SEP}));
  EXPECT_EQ(made.report.cut, 1);
  EXPECT_EQ(made.report.first_cut, (tmp_ / "a.tsv") + ":3");
  EXPECT_EQ(made.report.label_names, (std::vector<std::string>{"no", "yes"}));
  EXPECT_EQ(made.facts.type_count, 2);
  // Lengths of (first, second) at a room of 6 and 7, as Hugging Face tokenizers cuts them.
  struct Cut {
    int first, second, room, left_first, left_second;
  };
  const Cut cuts[] = {{5, 3, 6, 3, 3}, {2, 9, 6, 2, 4}, {9, 2, 6, 4, 2}, {9, 9, 6, 3, 3},
                      {5, 5, 7, 3, 4}, {6, 5, 7, 4, 3}, {5, 6, 7, 3, 4}, {7, 8, 6, 3, 3},
                      {1, 9, 7, 1, 6}, {4, 4, 7, 3, 4}, {9, 3, 7, 4, 3}, {3, 3, 6, 3, 3}};
  for (const Cut& c : cuts) {
    const auto words = [](int n, const char* word) {
      std::string out;
      for (int i = 0; i < n; ++i) out += std::string(i ? " " : "") + word;
      return out;
    };
    const Made cut = make("c.jsonl",
                          "{\"sentence1\":\"" + words(c.first, "good") + "\",\"sentence2\":\"" +
                              words(c.second, "bad") + "\",\"label\":0}\n",
                          {.max_length = c.room + 3});
    const Ints& t = cut.rows[0].tokens;
    EXPECT_EQ(std::count(t.begin(), t.end(), GOOD), c.left_first) << c.first << " " << c.second;
    EXPECT_EQ(std::count(t.begin(), t.end(), BAD), c.left_second) << c.first << " " << c.second;
  }
}

TEST_F(RowReader, TextIsCutAndEmptyTextLeftOut) {
  const Made made = make("a.tsv", "text\tlabel\na good film\tx\n\ty\n \ty\nthe bad film was\ty\n",
                         {.max_length = 4});
  EXPECT_EQ(made.rows[0].tokens, (Ints{CLS, A, GOOD, SEP}));
  EXPECT_EQ(made.rows[1].tokens, (Ints{CLS, THE, BAD, SEP}));
  EXPECT_EQ(made.report.rows, 2);
  EXPECT_EQ(made.report.cut, 2);
  EXPECT_EQ(made.report.empty, 2);
  EXPECT_EQ(made.report.first_empty, (tmp_ / "a.tsv") + ":3");
}

TEST_F(RowReader, LabelsAreWhatTheyAreInTransformers) {
  struct Labels {
    const char* labels;  // of JSON records, one a row
    RowOptions options;
    const char* problem;
    std::vector<std::string> names;
    std::vector<std::vector<float>> values;  // of single labels the class alone
  };
  const auto multi = ProblemType::multi_label, single = ProblemType::single_label,
             number = ProblemType::regression;
  const Labels cases[] = {
      {"2 1 0", {}, "single", {"0", "1", "2"}, {{2}, {1}, {0}}},
      {"10 9 -1", {}, "single", {"-1", "9", "10"}, {{2}, {1}, {0}}},
      {"\"10\" \"9\" \"a\"", {}, "single", {"10", "9", "a"}, {{0}, {1}, {2}}},
      {"\"no\" \"Yes\" \"no\"", {}, "single", {"Yes", "no"}, {{1}, {0}, {1}}},
      {"0 -100 1", {}, "single", {"0", "1"}, {{0}, {-100}, {1}}},
      {"0.5 2 -1e-1", {}, "regression", {}, {{0.5f}, {2}, {-0.1f}}},
      {"1 2 3", {.problem_type = number}, "regression", {}, {{1}, {2}, {3}}},
      // -100 with a point is a number like others; as an integer it is no label.
      {"0.5 -100.0", {}, "regression", {}, {{0.5f}, {-100}}},
      {"1 2 3", {.label_names = {"stars"}}, "regression", {"stars"}, {{1}, {2}, {3}}},
      {"[1.5,2] [0,0]", {.problem_type = number}, "regression", {}, {{1.5f, 2}, {0, 0}}},
      {"1.0 0.0", {.problem_type = single}, "single", {"0.0", "1.0"}, {{1}, {0}}},
      {"1.0 0", {.label_names = {"x", "y"}}, "single", {"x", "y"}, {{1}, {0}}},
      {"\"y\" 0 \"x\"", {.label_names = {"x", "y"}}, "single", {"x", "y"}, {{1}, {0}, {0}}},
      {"5 1", {.label_names = {"1", "5"}}, "single", {"1", "5"}, {{1}, {0}}},
      {"[1,0,1] [0,0,0]", {}, "multi", {}, {{1, 0, 1}, {0, 0, 0}}},
      {"[1.0,0.25] [0,1]", {}, "multi", {}, {{1, 0.25f}, {0, 1}}},
      {"[1,0] [0,1]", {.label_names = {"x", "y"}}, "multi", {"x", "y"}, {{1, 0}, {0, 1}}},
      {"[\"b\",\"c\"] [] [\"a\"]", {}, "multi", {"a", "b", "c"}, {{0, 1, 1}, {0, 0, 0}, {1, 0, 0}}},
      {"[\"b\"] [\"a\"]", {}, "multi", {"a", "b"}, {{0, 1}, {1, 0}}},
      {"[-100,1] [0,1]", {}, "multi", {"0", "1"}, {{0, 1}, {1, 1}}},
      {"[7] [3,7]", {}, "multi", {"3", "7"}, {{0, 1}, {1, 1}}},
      {"[1] [0,2]",
       {.label_names = {"x", "y", "z"}},
       "multi",
       {"x", "y", "z"},
       {{0, 1, 0}, {1, 0, 1}}},
      {"\"b\" \"a\"", {.problem_type = multi}, "multi", {"a", "b"}, {{0, 1}, {1, 0}}},
  };
  for (const Labels& c : cases) {
    SCOPED_TRACE(c.labels);
    std::istringstream words(c.labels);
    std::string text;
    for (std::string label; words >> label;)
      text += "{\"text\": \"a film\", \"label\": " + label + "}\n";
    const Made made = make("a.jsonl", text, c.options);
    EXPECT_TRUE(made.report.problem_type.starts_with(c.problem)) << made.report.problem_type;
    EXPECT_EQ(made.report.label_names, c.names);
    ASSERT_EQ(made.rows.size(), c.values.size());
    std::vector<int64_t> counts(made.report.label_counts.size());
    for (size_t r = 0; r < made.rows.size(); ++r) {
      if (made.facts.form.label == RowLabel::class_id) {
        EXPECT_EQ(made.rows[r].class_id, static_cast<int32_t>(c.values[r][0]));
        if (made.rows[r].class_id >= 0) ++counts[static_cast<size_t>(made.rows[r].class_id)];
      } else {
        EXPECT_EQ(made.rows[r].values, c.values[r]);
        for (size_t k = 0; k < counts.size(); ++k) counts[k] += c.values[r][k] >= 0.5f;
      }
    }
    EXPECT_EQ(made.report.label_counts, counts);
  }
  // Of tables, where a number may have any spelling.
  const Made table = make("a.tsv", "text\tlabel\na\t 1.5\na\t+2\n");
  EXPECT_EQ(table.report.problem_type, "regression");
  EXPECT_EQ(table.rows[1].values, std::vector<float>{2});
  EXPECT_EQ(make("a.tsv", "text\tlabel\na\tnan\na\tinf\n").report.label_names,
            (std::vector<std::string>{"inf", "nan"}));
}

TEST_F(RowReader, WordsHaveTheirLabelAtTheirFirstToken) {
  const std::string text =
      "{\"tokens\": [\"the\", \"playing\", \"was\", \"good\"], \"tags\": [\"O\", \"B\", \"O\", "
      "\"A\"]}\n"
      "{\"tokens\": [\"played\", \"\", \"film\"], \"tags\": [\"B\", \"O\", \"A\"]}\n"
      "{\"tokens\": [], \"tags\": []}\n";
  const Made made = make("a.jsonl", text, {.kind = RowKind::tokens, .max_length = 6});
  EXPECT_EQ(made.report.label_names, (std::vector<std::string>{"A", "B", "O"}));
  EXPECT_EQ(made.rows[0].tokens, (Ints{CLS, THE, PLAY, ING, WAS, SEP}));
  EXPECT_EQ(made.rows[0].labels, (Ints{-100, 2, 1, -100, 2, -100}));
  EXPECT_EQ(made.rows[1].tokens, (Ints{CLS, PLAY, ED, FILM, SEP}));
  EXPECT_EQ(made.rows[1].labels, (Ints{-100, 1, -100, 0, -100}));
  EXPECT_EQ(made.report.cut, 1);
  EXPECT_EQ(made.report.lost_words, 1);
  EXPECT_EQ(made.report.empty, 1);
  EXPECT_EQ(made.report.label_counts, (std::vector<int64_t>{1, 2, 2}));
  EXPECT_EQ(made.report.problem_type, "");
  // Ids, other keys, known names.
  const Made ids = make("b.jsonl", "{\"words\": [\"the\", \"film\"], \"ner_tags\": [0, 2]}\n",
                        {.kind = RowKind::tokens, .label_names = {"O", "B", "I"}});
  EXPECT_EQ(ids.rows[0].labels, (Ints{-100, 0, 2, -100}));
  const Made named = make("c.jsonl", "{\"w\": [\"the\", \"film\"], \"t\": [\"I\", -100]}\n",
                          {.kind = RowKind::tokens,
                           .text_column = "w",
                           .label_column = "t",
                           .label_names = {"O", "B", "I"}});
  EXPECT_EQ(named.rows[0].labels, (Ints{-100, 2, -100, -100}));
  // Nobody's labels.
  const Made bare = make("d.jsonl", "{\"tokens\": [\"the\", \"film\"]}\n",
                         {.kind = RowKind::tokens, .labels = false});
  EXPECT_FALSE(bare.facts.form.token_labels);
  EXPECT_EQ(bare.rows[0].tokens, (Ints{CLS, THE, FILM, SEP}));
}

TEST_F(RowReader, WordsOfByteLevelTokenizersHaveABlank) {
  TokenizerSpec spec;
  const char* words[] = {"a", "b", "\xc4\xa0",
                         "\xc4\xa0"
                         "a",
                         "\xc4\xa0"
                         "b"};
  for (int32_t i = 0; i < 5; ++i) spec.vocab[words[i]] = i;
  spec.merges = {{2, 0}, {2, 1}};
  const Tokenizer bpe = Tokenizer::build(spec);
  const std::string path = put(tmp_, "a.jsonl", "{\"tokens\": [\"a\", \"b\"], \"tags\": [1, 0]}\n");
  const RowReport report =
      write_rows({{path, true}}, &bpe, {.kind = RowKind::tokens}, tmp_ / "out.rows");
  ASSERT_EQ(report.assumed.size(), 1u);
  EXPECT_EQ(report.assumed[0], "words are read with a blank before them, as this tokenizer's are");
  EXPECT_EQ(all_rows(RowFile(tmp_ / "out.rows"))[0].tokens, (Ints{3, 4}));
}

TEST_F(RowReader, TokenRows) {
  const std::string text =
      "{\"input_ids\": [2, 5, 6, 3], \"token_type_ids\": [0, 1, 1, 1], \"labels\": [-100, 5, 6, "
      "3]}\n"
      "{\"input_ids\": [5, 0, 0], \"attention_mask\": [1, 0, 0], \"labels\": [0, -100, -100]}\n"
      "{\"input_ids\": [0, 0], \"attention_mask\": [0, 0], \"labels\": [0, 0]}\n"
      "{\"input_ids\": [5, 6], \"labels\": [-100, -100]}\n";
  const Made made = make("a.jsonl", text, {.kind = RowKind::tokens, .max_length = 3});
  ASSERT_EQ(made.rows.size(), 3u);
  EXPECT_EQ(made.rows[0].tokens, (Ints{2, 5, 6}));
  EXPECT_EQ(made.rows[0].types, (Ints{0, 1, 1}));
  EXPECT_EQ(made.rows[0].labels, (Ints{-100, 5, 6}));
  EXPECT_EQ(made.rows[1].tokens, Ints{5});
  EXPECT_EQ(made.rows[1].types, Ints{0});
  EXPECT_EQ(made.rows[1].labels, Ints{0});
  EXPECT_EQ(made.report.cut, 1);
  EXPECT_EQ(made.report.empty, 1);
  EXPECT_EQ(made.report.unlabelled, 1);
  EXPECT_EQ(made.report.first_unlabelled, (tmp_ / "a.jsonl") + ":4");
  EXPECT_EQ(made.facts.class_count, 7);
  EXPECT_EQ(made.facts.tokenizer, 0u);
  // Labels that nobody uses are said to be there.
  const Made plain = make("a.jsonl", text, {.kind = RowKind::text});
  EXPECT_FALSE(plain.facts.form.token_labels);
  ASSERT_EQ(plain.report.assumed.size(), 1u);
  EXPECT_EQ(plain.report.assumed[0], "labels of the rows are not used: this task draws its own");
  // Several numbers are a row's where rows have labels, and no tokenizer is needed.
  const std::string many = put(tmp_, "b.jsonl", "{\"input_ids\": [900], \"labels\": [0.5, 1]}\n");
  write_rows({{many, true}}, nullptr, {.vocab_size = 1000}, tmp_ / "out.rows");
  EXPECT_EQ(all_rows(RowFile(tmp_ / "out.rows"))[0].values, (std::vector<float>{0.5f, 1}));
}

// A row of just the length is whole; of one that is cut all ids must be known ones.
TEST_F(RowReader, RowsOfJustTheLengthAreNotCut) {
  const std::string ids = "{\"input_ids\": [2, 5, 6, 3], \"labels\": [-100, 5, 6, 3]}\n";
  const std::string text = "text\tlabel\na good film\t1\na bad film\t0\n";
  for (const int64_t less : {0, 1}) {
    const Made tokens = make("a.jsonl", ids, {.kind = RowKind::tokens, .max_length = 4 - less});
    EXPECT_EQ(tokens.report.cut, less);
    EXPECT_EQ(tokens.rows[0].tokens.size(), static_cast<size_t>(4 - less));
    EXPECT_EQ(tokens.report.first_cut, less ? (tmp_ / "a.jsonl") + ":1" : "");
    const Made texts = make("a.tsv", text, {.max_length = 5 - less});
    EXPECT_EQ(texts.report.cut, 2 * less);
    EXPECT_EQ(texts.rows[0].tokens.size(), static_cast<size_t>(5 - less));
    EXPECT_EQ(texts.report.first_cut, less ? (tmp_ / "a.tsv") + ":2" : "");
  }
  EXPECT_ERROR(make("b.jsonl", "{\"input_ids\": [2, 5, 6, 999], \"labels\": [-100, 5, 6, 3]}\n",
                    {.kind = RowKind::tokens, .max_length = 2}),
               ErrorCode::data, "input_ids from 0 to", "999 at place 3", "tokenizer");
}

TEST_F(RowReader, TokenRowsOfCausalModels) {
  const std::string text =
      "{\"input_ids\": [2, 5, 6, 3], \"labels\": [-100, -100, 7, 3], \"label\": 9}\n"
      "{\"input_ids\": [5, 6, 0], \"attention_mask\": [1, 1, 0], \"token_type_ids\": [0, 0, 0]}\n"
      "{\"input_ids\": [5]}\n"
      "{\"input_ids\": [5, 6], \"labels\": [5, -100]}\n"
      "{\"input_ids\": []}\n";
  const RowOptions causal = {.kind = RowKind::causal, .max_length = 3, .vocab_size = 8};
  const std::string path = put(tmp_, "a.jsonl", text);
  put(tmp_, "notes.txt", "text\n");
  put(tmp_, "table.tsv", "text\n");
  EXPECT_TRUE(holds_token_rows({{path, true}}));
  EXPECT_TRUE(holds_token_rows({{tmp_ / "notes.txt", false}, {path, false}}));
  const RowReport report =
      write_rows({{tmp_ / "notes.txt", false}, {tmp_ / "table.tsv", false}, {path, false}}, nullptr,
                 causal, tmp_ / "out.rows");
  const std::vector<ReadRow> rows = all_rows(RowFile(tmp_ / "out.rows"));
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].tokens, (Ints{2, 5, 6}));
  EXPECT_EQ(rows[0].labels, (Ints{-100, -100, 7}));  // as they stand
  EXPECT_EQ(rows[1].tokens, (Ints{5, 6}));
  EXPECT_EQ(rows[1].labels, (Ints{5, 6}));
  EXPECT_TRUE(rows[1].types.empty());
  EXPECT_EQ(rows[2].labels, Ints{5});
  EXPECT_EQ(report.cut, 1);
  EXPECT_EQ(report.empty, 1);
  EXPECT_EQ(report.skipped, 2);
  EXPECT_EQ(report.unlabelled, 2);  // of one token; with a label of the first alone
  EXPECT_EQ(report.first_unlabelled, path + ":3");
  EXPECT_TRUE(report.label_names.empty());
  EXPECT_TRUE(report.problem_type.empty());
  // An array of records; records of text; what cannot be read.
  EXPECT_TRUE(holds_token_rows({{put(tmp_, "b.json", "[{\"input_ids\": [1]}]"), true}}));
  EXPECT_FALSE(holds_token_rows({{put(tmp_, "c.jsonl", "{\"text\": \"a\"}\n" + text), true}}));
  EXPECT_FALSE(holds_token_rows({{put(tmp_, "d.jsonl", "{\"input_ids\""), true}}));
  EXPECT_FALSE(holds_token_rows({{tmp_ / "none.jsonl", true}}));
}

TEST_F(RowReader, LinesAreRowsOfTheirOwn) {
  const Made made = make("a.txt", "a good film\n\n  \nthe bad film was playing\n",
                         {.kind = RowKind::text, .max_length = 6});
  EXPECT_EQ(made.rows[0].tokens, kGoodFilm);
  EXPECT_EQ(made.rows[1].tokens, (Ints{CLS, THE, BAD, FILM, WAS, SEP}));
  EXPECT_EQ(made.report.empty, 2);
  EXPECT_EQ(made.report.cut, 1);
  EXPECT_EQ(made.facts.form, RowForm{});
  // Text of tables and records as well.
  EXPECT_EQ(make("a.csv", "id,text\n1,a good film\n", {.kind = RowKind::text}).rows[0].tokens,
            kGoodFilm);
  EXPECT_EQ(
      make("a.jsonl", "{\"text\": \"a good film\"}\n", {.kind = RowKind::text}).rows[0].tokens,
      kGoodFilm);
  // And without labels, for those who want to have them predicted.
  EXPECT_EQ(make("b.txt", "a good film\n", {.labels = false}).rows[0].tokens, kGoodFilm);
  EXPECT_EQ(make("b.csv", "a good film\n", {.labels = false}).rows[0].tokens, kGoodFilm);
}

TEST_F(RowReader, RowsWithoutLabelsSayWhatIsAskedAboutThem) {
  std::vector<std::string> seen;
  const auto see = [&](const RowRecord& record, bool made) {
    seen.push_back((made ? "" : "empty ") + record.where.substr(record.where.rfind('/') + 1));
  };
  const RowOptions words = {.kind = RowKind::tokens, .labels = false, .places = true, .seen = see};
  // The first token of a word has its number; what gives no token has none.
  const Made lines = make("a.txt", "a  good\tfilm\n \nthe film\n", words);
  EXPECT_EQ(lines.rows[0].tokens, kGoodFilm);
  EXPECT_EQ(lines.rows[0].labels, (Ints{-100, 0, 1, 2, -100}));
  EXPECT_EQ(seen, (std::vector<std::string>{"a.txt:1", "empty a.txt:2", "a.txt:3"}));
  EXPECT_EQ(
      make("a.jsonl", "{\"words\": [\"a\", \"\", \"playing\", \"film\"]}\n", words).rows[0].labels,
      (Ints{-100, 0, 2, -100, 3, -100}));
  EXPECT_EQ(make("b.jsonl", "{\"input_ids\": [2, 8, 3], \"labels\": [5]}\n", words).rows[0].labels,
            (Ints{0, 1, 2}));
  // Of text the places of a token, of sequences nothing.
  const RowOptions marks = {.kind = RowKind::text, .labels = false, .places = true, .marked = GOOD};
  EXPECT_EQ(make("b.txt", "a good film\na good good\na film\n", marks).rows[1].labels,
            (Ints{-100, -100, 2, 3, -100}));
  EXPECT_FALSE(
      make("c.txt", "a good film\n", {.labels = false, .places = true}).facts.form.token_labels);
}

TEST_F(RowReader, FoldersGiveTheirRows) {
  put(tmp_, "d/a.tsv", "text\tlabel\na good film\t1\n");
  put(tmp_, "d/b.jsonl", "{\"text\": \"a bad film\", \"label\": 0}\n");
  put(tmp_, "d/weights.bin", "\x01\x02");
  const RowReport report = write_rows(expand_corpus({tmp_ / "d"}), &bert_, {}, tmp_ / "out.rows");
  EXPECT_EQ(report.files, 2);
  EXPECT_EQ(report.rows, 2);
  EXPECT_EQ(report.skipped, 1);
  EXPECT_EQ(report.first_skipped, tmp_ / "d/weights.bin");
}

TEST_F(RowReader, FingerprintTellsWhatDecidesRows) {
  const std::string path = put(tmp_, "a.tsv", "text\tlabel\na good film\t1\na\t0\n");
  const std::vector<CorpusFile> files = {{path, true}};
  std::set<uint64_t> seen;
  const RowOptions different[] = {{},
                                  {.kind = RowKind::text},
                                  {.text_column = "text"},
                                  {.label_column = "text"},
                                  {.header = true},
                                  {.header = false},
                                  {.labels = false},
                                  {.labels = false, .places = true},
                                  {.labels = false, .places = true, .marked = 4},
                                  {.max_length = 9},
                                  {.label_names = {"a", "b"}},
                                  {.label_names = {"a b"}},
                                  {.problem_type = ProblemType::regression},
                                  {.vocab_size = 99},
                                  {.quotes = true}};
  for (const RowOptions& o : different)
    EXPECT_TRUE(seen.insert(rows_fingerprint(files, &bert_, o)).second);
  EXPECT_TRUE(seen.insert(rows_fingerprint(files, nullptr, {})).second);
  EXPECT_EQ(rows_fingerprint(files, &bert_, {}), rows_fingerprint(files, &bert_, {}));
  put(tmp_, "a.tsv", "text\tlabel\na good film\t1\na\t1\n");
  EXPECT_TRUE(seen.insert(rows_fingerprint(files, &bert_, {})).second);
}

TEST_F(RowReader, RowsThatQuotingTookAreSaid) {
  const std::string rows = "text,label\n\"a,0\na film\",1\nfilm,1\n\"a\n\nfilm\",0\n";
  const std::string path = put(tmp_, "a.csv", rows);
  const RowReport quoted = write_rows({{path, true}}, &bert_, {}, tmp_ / "out.rows");
  EXPECT_EQ(quoted.rows, 3);
  EXPECT_EQ(quoted.assumed, std::vector<std::string>{
                                "3 line breaks of " + path + " are inside of quotes, e.g. at " +
                                path + ":2; with quoting=none each line is a record"});
  const std::string one = put(tmp_, "b.csv", "text,label\n\"a,0\na film\",1\nfilm,1\n");
  EXPECT_EQ(write_rows({{one, true}}, &bert_, {.quotes = false}, tmp_ / "out.rows").rows, 3);
}

TEST_F(RowReader, ProgressIsTold) {
  std::string text = "text\tlabel\n";
  for (int i = 0; i < 3000; ++i) text += "a film\t" + std::to_string(i % 2) + "\n";
  std::vector<int64_t> told;
  write_rows({{put(tmp_, "a.tsv", text), true}}, &bert_, {}, tmp_ / "out.rows",
             [&](int64_t rows) { told.push_back(rows); });
  EXPECT_EQ(told, (std::vector<int64_t>{1024, 2048}));
}

}  // namespace
}  // namespace snug
