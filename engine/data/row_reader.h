// From tables, JSON records and lines of text to a row file (row_file.h): what fine-tuning an
// encoder, and training on rows that are tokens already, starts from.
//
// Forms, by the name less .gz or .zst:
//   .tsv .csv              a record a row (table_reader.h)
//   .jsonl .ndjson .json   an object a line, or one array of objects; each a row
//   any other              a line a row, text without a label; without labels of kind tokens its
//                          words between blanks
// Rows
//   sequence   text, or two, and a label of the row
//   tokens     words and a label for each ("tokens" or "words"; "tags", "ner_tags" or "labels"):
//              the tokenizer runs on each word by itself, as is_split_into_words does; a word's
//              first token has its label, its others and special tokens -100
//   text       text without a label: masked language modelling by lines
//   causal     tokens alone, the next of which is learned: records that have "input_ids", or
//              conversations where RowOptions::chat is given, or pairs with RowOptions::pairs
// Whatever is asked for, records that have "input_ids" are tokens already:
//   input_ids [n]; labels [n] or label (a number, or K of them; "labels" too may be a number),
//   token_type_ids [n], attention_mask [n]: ones, then zeros where padding is, which is cut off.
//   Nothing is put around them. Of kind causal labels are tokens, where they stand, as
//   transformers has them (shifting is the model's); without labels they are the input_ids; and
//   token_type_ids are 0.
// Special tokens and token types are those of the tokenizer's post-processor. Rows above
// max_length are cut: the text of one, the longer of a pair first (transformers' truncation=True),
// special tokens never; token rows at their end.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/corpus.h"
#include "engine/data/front_tokens.h"
#include "engine/data/row_file.h"
#include "engine/text/tokenizer.h"

namespace snug {

enum class RowKind { sequence, tokens, text, causal };

struct RowRecord;  // row_record.h
class ChatRows;    // chat_rows.h
class PairRows;    // pair_rows.h

// What a label of a row is. `automatic`, as transformers decides: lists are multi-label, one known
// name or a number with a fraction is regression, all else is a class.
enum class ProblemType { automatic, regression, single_label, multi_label };
// The words of the key problem_type: "auto", "regression", "single_label_classification",
// "multi_label_classification". Throws usage.
ProblemType parse_problem_type(const std::string& word);
const char* to_string(ProblemType type);

struct RowOptions {
  RowKind kind = RowKind::sequence;
  // A column of tables or a key of records; of tables also its number, from 0. Empty: the columns
  // are found by their names: sentence1 + sentence2, premise + hypothesis, question1 + question2,
  // question + sentence, or sentence, text, premise, hypothesis, question; label or labels; of kind
  // tokens those above. A table without such names: text first, label last, which the report says.
  std::string text_column = {}, text_pair_column = {}, label_column = {};
  // Whether tables begin with the columns' names. Unset: yes if a column is given by name or the
  // first record has a known name, or if its label is no number and all others are.
  std::optional<bool> header = {};
  // False: rows get no labels, and none are looked for (predict).
  bool labels = true;
  // Without labels: a row's token labels say what is asked about it. Kind tokens: the number of the
  // word whose first token it is, or of the token where rows are ids. Kind text: the place of each
  // token `marked`. Kind sequence has none.
  bool places = false;
  int32_t marked = -1;
  // Kind causal: records are conversations (chat_rows.h), or input_ids.
  const ChatRows* chat = nullptr;
  // Kind causal: records are pairs (pair_rows.h), a row the tokens of both, of token types 0 and 1, of
  // which each has at most half of max_length.
  const PairRows* pairs = nullptr;
  // Called with each record in order, once its row is written; `made` is false if it is empty.
  std::function<void(const RowRecord& record, bool made)> seen = nullptr;
  int64_t max_length = 512;  // tokens of a row, special ones included
  // Before the tokens of each row, of kind causal without pairs; they have no labels.
  FrontTokens front = {};
  // By class id (id2label). Empty: the values that there are, numbers by size, else sorted by their
  // bytes, as run_glue.py sorts them. Rows to evaluate are read with the names and the problem_type
  // of the report of those trained on. Given: a label is a name of these, or an id below their
  // number.
  std::vector<std::string> label_names = {};
  ProblemType problem_type = ProblemType::automatic;
  int64_t vocab_size = 0;  // of the model: ids of token rows lie below it; 0: the tokenizer's
  std::optional<bool> quotes = {};  // of tables; unset: .csv has them and .tsv not
  int64_t max_record_bytes =
      kMaxRecordBytes;              // of JSON records a 24th of it: their values as a tree
  std::string longer_records = "";  // added to the advice for longer ones
  WindowLimit window = {};          // of .zst files
};

// Writes the rows of all files, in their order, to `out`. Files are read twice where labels must be
// known first, and with bounded memory: a record, and the label names (at most 65536, else an
// error). `tokenizer` may be null where all rows are tokens. `progress`, if given, is called now
// and then with the rows written so far. Throws usage for options that contradict each other, and
// data, naming file:line, for
//   a column that is not there, another number of fields than the first record has, broken JSON
//   a label that is missing, unknown, no number (regression), a list of another length
//   words and tags, or tokens and labels, types or mask, of different numbers
//   an attention_mask with holes, an id outside [0, vocab_size), a token type of kind causal
//   nothing at all to train on: no row, or no label that is not -100
// `out` is then as it was before.
RowReport write_rows(const std::vector<CorpusFile>& files, const Tokenizer* tokenizer,
                     const RowOptions& options, const std::string& out,
                     const std::function<void(int64_t)>& progress = nullptr);

// True if the first record of the first of `files` that holds JSON records has "input_ids". What
// cannot be read has none: whoever reads it says why.
bool holds_token_rows(const std::vector<CorpusFile>& files);

// A digest of the files' bytes, the tokenizer with what it puts around texts, and the options that
// decide rows: equal means an equal row file. write_rows stores it (RowFacts::source).
uint64_t rows_fingerprint(const std::vector<CorpusFile>& files, const Tokenizer* tokenizer,
                          const RowOptions& options);

}  // namespace snug
