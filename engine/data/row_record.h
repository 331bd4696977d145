// Records of tables, JSON and lines, as far as a row is made of them (row_reader.h): what they say,
// not yet what it means.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/row_reader.h"

namespace snug {

// A label as it was written: a word, or a number.
struct RawLabel {
  std::string text;
  bool number = false;   // finite; of JSON one without quotes, of tables a field that reads as one
  bool integer = false;  // with neither fraction nor exponent
  double value = 0;
};

struct RowRecord {
  std::string where;  // file:line
  enum class Content { text, words, ids } content = Content::text;
  std::string text, pair;
  bool has_pair = false;
  std::vector<std::string> words;
  std::vector<int64_t> ids, types, mask;  // types and mask empty: none given
  // Of the row, or of its words or tokens; none: there is none, or none is wanted.
  enum class Labels { none, one, list } labels = Labels::none;
  std::vector<RawLabel> label;
  // Of ids that were made from a conversation: whether each is trained; in place of labels.
  std::vector<uint8_t> trained;
  int64_t turns = 0, open_turns = 0;  // assistant's turns, and those without an end token
  bool equal = false, cut = false;    // of a pair: both alike; one of them is longer than fits
  float margin = 0;                   // of a pair that is rewarded
  bool labels_left = false;           // there are labels, which the kind of row has no use for
};

// Where a table has what a row is made of; -1: nowhere.
struct RowColumns {
  int64_t text = -1, pair = -1, label = -1;
  bool header = true;
  std::string assumed;  // a sentence, if something was
};

// Line breaks inside of quotes of a table: rows that its quoting may have eaten.
struct QuotedBreaks {
  int64_t count = 0, first_line = 0;
};

enum class RowSource { table, records, lines };
RowSource row_form(const std::string& path);
// True for names whose content is known to be rows, as a folder is searched for them.
bool has_row_name(const std::string& path);

// The columns of a table. Throws data if one is not there, usage for contradictions.
RowColumns row_columns(const std::string& path, const RowOptions& options);

// Calls `each` with every record of a file, which it may take apart. `columns` are the file's, if
// it is a table. Throws data for what cannot be a record of options.kind.
QuotedBreaks for_each_record(const std::string& path, const RowOptions& options,
                             const RowColumns& columns,
                             const std::function<void(RowRecord&)>& each);

RawLabel raw_label(std::string_view field);  // of a table

}  // namespace snug
