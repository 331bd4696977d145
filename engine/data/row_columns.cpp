// Which columns of a table a row is made of, and whether its first line names them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/suggest.h"
#include "engine/data/row_record.h"
#include "engine/data/row_words.h"
#include "engine/data/table_reader.h"
#include "engine/text/unicode.h"

namespace snug {
namespace {

bool is_number(const std::string& column) {
  return !column.empty() && column.size() < 10 &&
         column.find_first_not_of("0123456789") == column.npos;
}

std::string listed(const std::vector<std::string>& columns) {
  std::string names;
  for (const std::string& name : columns) {
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", beginning_utf8(name, 40));
    if (names.size() > 200) return names + "...";
  }
  return names;
}

class Chooser {
 public:
  Chooser(const std::string& path, const RowOptions& options)
      : path_(path),
        options_(options),
        table_(path, row_separator(path), options.quotes.value_or(row_separator(path) == ','),
               options.max_record_bytes, options.longer_records, options.window),
        labels_(options.labels && options.kind == RowKind::sequence) {}

  RowColumns choose() {
    const std::vector<std::string>& columns = table_.columns();
    if (columns.empty()) return out_;  // an empty file
    const auto is_name = [](const std::string& column) {
      return !column.empty() && !is_number(column);
    };
    const bool named = is_name(options_.text_column) || is_name(options_.text_pair_column) ||
                       is_name(options_.label_column);
    if (named && options_.header == false)
      fail(ErrorCode::usage, "columns by their numbers where tables have no header line",
           fmt::format("text_column \"{}\", text_pair_column \"{}\", label_column \"{}\"",
                       options_.text_column, options_.text_pair_column, options_.label_column),
           "give numbers from 0, or leave header out");
    bool known = false;
    for (const std::string& name : columns) known = known || is_known_column(name);
    const bool undecided = !options_.header && !named && !known;
    out_.header = options_.header.value_or(named || known);
    out_.text = given(options_.text_column, "text_column");
    out_.pair = given(options_.text_pair_column, "text_pair_column");
    if (labels_) out_.label = given(options_.label_column, "label_column");
    find_by_name();
    find_by_place();
    if (undecided) decide_header();
    if (undecided)
      say(fmt::format("the first line of {} {}", path_,
                      out_.header ? "names the columns, for its label alone is no number"
                                  : "is a row and names no columns"));
    return out_;
  }

 private:
  int64_t given(const std::string& column, const char* key) {
    if (column.empty()) return -1;
    const auto count = static_cast<int64_t>(table_.columns().size());
    if (is_number(column)) {
      const int64_t number = std::stoll(column);
      if (number < count) return number;
      fail(ErrorCode::data, fmt::format("a column number {} ({}) in {}", column, key, path_),
           fmt::format("{} columns at {}:{}: {}", count, path_, table_.line(),
                       listed(table_.columns())),
           fmt::format("give {} from 0 to {}", key, count - 1));
    }
    const int64_t found = table_.find(column);
    if (found >= 0) return found;
    std::vector<std::string_view> names(table_.columns().begin(), table_.columns().end());
    fail(ErrorCode::data, fmt::format("a column \"{}\" ({}) in {}", column, key, path_),
         fmt::format("the columns {} at {}:{}", listed(table_.columns()), path_, table_.line()),
         suggestion(column, names,
                    fmt::format("give {} as one of these, or as a number from 0", key)));
  }

  int64_t find(const char* name) const {
    const int64_t at = table_.find(name);
    return at == out_.text || at == out_.pair || at == out_.label ? -1 : at;
  }

  void find_by_name() {
    if (!out_.header) return;
    if (labels_ && out_.label < 0)
      for (const char* name : kLabelColumns)
        if (out_.label < 0) out_.label = find(name);
    if (out_.text >= 0) return;
    for (const auto& [first, second] : kPairColumns)
      if (options_.kind == RowKind::sequence && out_.text < 0 && find(first) >= 0 &&
          find(second) >= 0) {
        const int64_t pair = find(second);
        out_.text = find(first);
        if (out_.pair < 0) out_.pair = pair;
      }
    for (const char* name : kTextColumns)
      if (out_.text < 0) out_.text = find(name);
    by_name_ = out_.text >= 0;
  }

  void find_by_place() {
    const auto count = static_cast<int64_t>(table_.columns().size());
    const auto taken = [&](int64_t c) {
      return c == out_.text || c == out_.pair || c == out_.label;
    };
    const int64_t needed = (out_.text < 0 ? 1 : 0) + (labels_ && out_.label < 0 ? 1 : 0);
    int64_t free = 0;
    for (int64_t c = 0; c < count; ++c) free += taken(c) ? 0 : 1;
    if (free < needed)
      fail(ErrorCode::data, fmt::format("a column of text and one of labels in {}", path_),
           fmt::format("the columns {} at {}:{}", listed(table_.columns()), path_, table_.line()),
           "separate text and label with what the file's name says: tabs in .tsv, commas in .csv");
    if (labels_ && out_.label < 0 && by_name_ && free > 1)
      fail(ErrorCode::data, fmt::format("a column \"label\" in {}", path_),
           fmt::format("the columns {} at {}:{}", listed(table_.columns()), path_, table_.line()),
           "name the column of the labels with label_column");
    const bool text = out_.text < 0, label = labels_ && out_.label < 0;
    for (int64_t c = 0; c < count && out_.text < 0; ++c)
      if (!taken(c)) out_.text = c;
    for (int64_t c = count - 1; c >= 0 && labels_ && out_.label < 0; --c)
      if (!taken(c)) out_.label = c;
    if (text)
      say(fmt::format("the text of {} is column {}{}", path_, out_.text, name_of(out_.text)));
    if (label)
      say(fmt::format("the label of {} is column {}{}", path_, out_.label, name_of(out_.label)));
    if (out_.text == out_.pair || (labels_ && (out_.label == out_.text || out_.label == out_.pair)))
      fail(ErrorCode::usage, "different columns for text_column, text_pair_column, label_column",
           fmt::format("columns {}, {} and {} of {}", out_.text, out_.pair, out_.label, path_),
           "give each its own column, or leave text_pair_column out");
  }
  std::string name_of(int64_t column) const {
    if (!out_.header) return "";
    return fmt::format(" (\"{}\")",
                       beginning_utf8(table_.columns()[static_cast<size_t>(column)], 40));
  }

  // A first record whose label alone is no number names the columns.
  void decide_header() {
    out_.header = false;
    if (!labels_) return;
    const std::string& first = table_.columns()[static_cast<size_t>(out_.label)];
    if (raw_label(first).number) return;
    std::string_view label;
    bool any = false;
    while (table_.next(out_.label, label)) {
      if (!raw_label(label).number) return;
      any = true;
    }
    out_.header = any;
  }

  void say(const std::string& sentence) {
    out_.assumed += (out_.assumed.empty() ? "" : "; ") + sentence;
  }

  std::string path_;
  const RowOptions& options_;
  TableReader table_;
  bool labels_, by_name_ = false;
  RowColumns out_;
};

}  // namespace

bool is_known_column(std::string_view name) {
  const auto in = [&](const auto& list) {
    return std::find(std::begin(list), std::end(list), name) != std::end(list);
  };
  if (in(kTextColumns) || in(kLabelColumns)) return true;
  return std::any_of(std::begin(kPairColumns), std::end(kPairColumns),
                     [&](const auto& pair) { return name == pair.first || name == pair.second; });
}

char row_separator(const std::string& path) {
  return unpacked_name(path).ends_with(".csv") ? ',' : '\t';
}

RawLabel raw_label(std::string_view field) {
  RawLabel label{.text = std::string(field)};
  const size_t begin = field.find_first_not_of(' '), end = field.find_last_not_of(' ');
  if (begin == field.npos) return label;
  std::string_view digits = field.substr(begin, end - begin + 1);
  if (digits.starts_with('+')) digits.remove_prefix(1);
  const char* const last = digits.data() + digits.size();
  const auto [stop, code] = std::from_chars(digits.data(), last, label.value);
  label.number = code == std::errc() && stop == last && std::isfinite(label.value);
  label.integer = label.number && digits.find_first_not_of("-0123456789") == digits.npos &&
                  std::abs(label.value) < 0x1p53;
  if (label.number) label.text = std::string(digits);
  return label;
}

RowColumns row_columns(const std::string& path, const RowOptions& options) {
  return Chooser(path, options).choose();
}

}  // namespace snug
