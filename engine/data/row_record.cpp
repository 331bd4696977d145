#include "engine/data/row_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/core/error.h"
#include "engine/data/chat_rows.h"
#include "engine/data/json_records.h"
#include "engine/data/pair_rows.h"
#include "engine/data/record_layout.h"
#include "engine/data/row_words.h"
#include "engine/data/table_reader.h"
#include "engine/io/json.h"
#include "engine/io/text_reader.h"
#include "engine/text/unicode.h"

namespace snug {
namespace {

using json = nlohmann::json;

bool ends(std::string_view name, std::initializer_list<const char*> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view e) {
    return name.size() > e.size() && name.ends_with(e);
  });
}

// What one key of a record holds, with messages that name the place.
class Keys {
 public:
  Keys(json& record, const std::string& where) : record_(record), where_(where) {}

  // The first of `names` that is there and not null, or null.
  json* find(std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) {
      const auto at = record_.find(name);
      if (at == record_.end() || at->is_null()) continue;
      key_ = name;
      return &*at;
    }
    return nullptr;
  }
  template <size_t N>
  json* find(const char* const (&names)[N]) {
    for (const char* name : names)
      if (json* value = find({name})) return value;
    return nullptr;
  }
  [[noreturn]] void refuse(const std::string& expected, const std::string& found,
                           const std::string& advice) const {
    fail(ErrorCode::data, expected, fmt::format("{}: {}", where_, found), advice);
  }
  std::string others() const {
    std::string list;
    for (const auto& [key, value] : record_.items()) {
      list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", beginning_utf8(key, 40));
      if (list.size() > 200) break;
    }
    return list.empty() ? "an empty object" : "the keys " + list;
  }
  std::string other_task() const {
    const std::string task = task_of_record(record_);
    return task.empty() ? task : task + ", or ";
  }
  std::string text(json& value, const std::string& key) const {
    if (!value.is_string())
      refuse(fmt::format("a string under \"{}\" in every record", key), json_brief(value),
             "write the text as a string, or name its key with text_column");
    return std::move(value.get_ref<std::string&>());
  }
  const std::string& key() const { return key_; }  // the one found last
  std::vector<int64_t> integers(const json& value) const {
    std::vector<int64_t> out;
    bool good = value.is_array();
    if (good) out.reserve(value.size());
    for (size_t i = 0; good && i < value.size(); ++i) {
      good = value[i].is_number_integer() &&
             !(value[i].is_number_unsigned() && value[i].get<uint64_t>() > INT32_MAX);
      if (good) out.push_back(value[i].get<int64_t>());
    }
    if (!good)
      refuse(fmt::format("a list of integers of 32 bits under \"{}\"", key_), json_brief(value),
             "write it as [101, 2023, 102]");
    return out;
  }
  std::vector<std::string> words(json& value) const {
    std::vector<std::string> out;
    bool good = value.is_array();
    for (size_t i = 0; good && i < value.size(); ++i) {
      good = value[i].is_string();
      if (good) out.push_back(std::move(value[i].get_ref<std::string&>()));
    }
    if (!good)
      refuse(fmt::format("a list of words under \"{}\"", key_), json_brief(value),
             "write it as [\"The\", \"word\"], or name its key with text_column");
    return out;
  }
  RawLabel label(const json& value) const {
    if (value.is_string()) return {.text = value.get<std::string>()};
    if (value.is_boolean()) {
      const bool set = value.get<bool>();
      return {.text = set ? "1" : "0", .number = true, .integer = true, .value = set ? 1.0 : 0.0};
    }
    if (!value.is_number())
      refuse(fmt::format("names or numbers as labels under \"{}\"", key_), json_brief(value),
             "write a label as \"name\", as a number, or as a list of these");
    RawLabel out{.text = value.dump(), .number = true};
    out.value = value.get<double>();
    out.integer = value.is_number_integer() && std::abs(out.value) < 0x1p53;
    return out;
  }
  void labels(const json& value, RowRecord& out) const {
    out.labels = value.is_array() ? RowRecord::Labels::list : RowRecord::Labels::one;
    if (!value.is_array()) return out.label.push_back(label(value));
    for (const json& one : value) out.label.push_back(label(one));
  }

 private:
  json& record_;
  const std::string& where_;
  std::string key_;
};

// A record that is tokens already.
void read_ids(Keys& keys, const json& ids, const RowOptions& o, RowRecord& out) {
  out.content = RowRecord::Content::ids;
  out.ids = keys.integers(ids);
  if (const json* types = keys.find({"token_type_ids"})) out.types = keys.integers(*types);
  if (const json* mask = keys.find({"attention_mask"})) out.mask = keys.integers(*mask);
  const json* labels = !o.label_column.empty()     ? keys.find({o.label_column})
                       : o.kind == RowKind::tokens ? keys.find({"labels", "label"})
                       : o.kind == RowKind::causal ? keys.find({"labels"})
                                                   : keys.find({"label", "labels"});
  out.labels_left = labels && o.labels && o.kind == RowKind::text;
  if (labels && o.labels && o.kind != RowKind::text) keys.labels(*labels, out);
}

void read_words(Keys& keys, const RowOptions& o, RowRecord& out) {
  out.content = RowRecord::Content::words;
  json* words = o.text_column.empty() ? keys.find(kWordColumns) : keys.find({o.text_column});
  if (!words)
    keys.refuse(fmt::format("a list of words under \"{}\" in every record",
                            o.text_column.empty() ? "tokens" : o.text_column),
                keys.others(), "name the key of the words with text_column");
  out.words = keys.words(*words);
  if (!o.labels) return;
  json* tags = o.label_column.empty() ? keys.find(kTagColumns) : keys.find({o.label_column});
  if (!tags)
    keys.refuse(fmt::format("a list of labels under \"{}\" in every record",
                            o.label_column.empty() ? "tags" : o.label_column),
                keys.others(), "name the key of the labels with label_column");
  keys.labels(*tags, out);
}

void read_text(Keys& keys, const RowOptions& o, RowRecord& out) {
  json *text = nullptr, *pair = nullptr;
  std::string pair_key = o.text_pair_column;
  if (o.text_column.empty() && pair_key.empty() && o.kind == RowKind::sequence)
    for (const auto& [first, second] : kPairColumns)
      if (!text && keys.find({second}) && (text = keys.find({first}))) pair_key = second;
  if (!text) text = o.text_column.empty() ? keys.find(kTextColumns) : keys.find({o.text_column});
  if (!text)
    keys.refuse(fmt::format("a text under \"{}\" in every record",
                            o.text_column.empty() ? "text" : o.text_column),
                keys.others(), keys.other_task() + "name the key of the text with text_column");
  out.text = keys.text(*text, keys.key());
  if (!pair_key.empty() && !(pair = keys.find({pair_key})))
    keys.refuse(fmt::format("a second text under \"{}\" in every record", pair_key), keys.others(),
                "name the key of the second text with text_pair_column");
  out.has_pair = pair != nullptr;
  if (pair) out.pair = keys.text(*pair, pair_key);
  if (!o.labels || o.kind == RowKind::text) return;
  const json* label =
      o.label_column.empty() ? keys.find(kLabelColumns) : keys.find({o.label_column});
  if (!label)
    keys.refuse(fmt::format("a label under \"{}\" in every record",
                            o.label_column.empty() ? "label" : o.label_column),
                keys.others(), "name the key of the label with label_column");
  keys.labels(*label, out);
}

QuotedBreaks read_table(const std::string& path, const RowOptions& o, const RowColumns& columns,
                        const std::function<void(RowRecord&)>& each) {
  if (o.kind == RowKind::tokens)
    fail(ErrorCode::data, "words and their labels as JSON, a record a line",
         fmt::format("the table {}", path),
         "write {\"tokens\": [\"The\", \"word\"], \"tags\": [\"O\", \"O\"]} on each line of a "
         ".jsonl");
  TableReader table(path, row_separator(path), o.quotes.value_or(row_separator(path) == ','),
                    o.max_record_bytes, o.longer_records, o.window);
  if (table.columns().empty()) return {};
  std::vector<int64_t> wanted = {columns.text};
  for (const int64_t column : {columns.pair, columns.label})
    if (column >= 0) wanted.push_back(column);
  std::array<std::string_view, 3> fields;
  const auto give = [&] {
    RowRecord record;
    record.where = fmt::format("{}:{}", path, table.line());
    size_t at = 0;
    record.text = fields[at++];
    record.has_pair = columns.pair >= 0;
    if (record.has_pair) record.pair = fields[at++];
    if (columns.label >= 0) {
      record.labels = RowRecord::Labels::one;
      record.label.push_back(raw_label(fields[at]));
      if (record.label.back().text.empty())
        fail(ErrorCode::data, fmt::format("a label in column {} of every row", columns.label),
             fmt::format("{}: none", record.where), "fill it in, or leave the row out");
    }
    each(record);
  };
  if (!columns.header) {
    for (size_t i = 0; i < wanted.size(); ++i)
      fields[i] = table.columns()[static_cast<size_t>(wanted[i])];
    give();
  }
  while (table.next(wanted, {fields.data(), wanted.size()})) give();
  return {table.quoted_breaks(), table.first_quoted_break()};
}

// A line without labels: its words stand between blanks.
void split_words(std::string_view line, RowRecord& out) {
  constexpr std::string_view kBlanks = " \t\r\f\v";
  out.content = RowRecord::Content::words;
  for (size_t at = line.find_first_not_of(kBlanks); at != line.npos;) {
    const size_t end = std::min(line.find_first_of(kBlanks, at), line.size());
    out.words.emplace_back(line.substr(at, end - at));
    at = line.find_first_not_of(kBlanks, end);
  }
}

void read_lines(const std::string& path, const RowOptions& o,
                const std::function<void(RowRecord&)>& each) {
  if (o.labels && o.kind != RowKind::text)
    fail(ErrorCode::data, "rows with labels: .tsv, .csv, .jsonl or .json",
         fmt::format("{}, whose lines are text alone", path),
         "give the labels in a column or key of their own, or task=masked_lm, which needs none");
  TextReader reader(path, o.window);
  std::string_view line;
  while (reader.next_line(line, o.max_record_bytes, o.longer_records)) {
    RowRecord record;
    record.where = fmt::format("{}:{}", path, reader.line());
    if (o.kind == RowKind::tokens)
      split_words(line, record);
    else
      record.text = line;
    each(record);
  }
}

}  // namespace

RowSource row_form(const std::string& path) {
  const std::string_view name = unpacked_name(path);
  if (ends(name, {".tsv", ".csv"})) return RowSource::table;
  return ends(name, {".jsonl", ".ndjson", ".json"}) ? RowSource::records : RowSource::lines;
}

namespace {

// Whether an object has a key, without a tree of its values: that takes some twenty times its text.
struct KeySearch {
  std::string_view wanted;
  int depth = 0;
  bool found = false, object = false;

  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(int64_t) { return true; }
  bool number_unsigned(uint64_t) { return true; }
  bool number_float(double, const std::string&) { return true; }
  bool string(std::string&) { return true; }
  bool binary(json::binary_t&) { return true; }
  bool start_object(size_t) {
    object |= depth == 0;
    return ++depth > 0;
  }
  bool end_object() { return --depth >= 0; }
  bool start_array(size_t) { return ++depth > 0; }
  bool end_array() { return --depth >= 0; }
  bool key(std::string& name) {
    found |= depth == 1 && object && name == wanted;
    return true;
  }
  static bool parse_error(size_t, const std::string&, const json::exception&) { return false; }
};

// Of the first line that is not blank; nothing where the file is one array.
std::optional<bool> first_line_has(const std::string& path, std::string_view key) {
  TextReader reader(path, {});
  std::string_view line;
  while (reader.next_line(line, kMaxRecordBytes / 24, "")) {
    const size_t at = line.find_first_not_of(" \t\r");
    if (at == line.npos) continue;
    if (line[at] == '[') return {};
    KeySearch search{key};
    return json::sax_parse(line.begin(), line.end(), &search) && search.found;
  }
  return false;
}

}  // namespace

bool holds_token_rows(const std::vector<CorpusFile>& files) {
  struct Seen {};
  bool tokens = false;
  for (const CorpusFile& file : files) {
    if (row_form(file.path) != RowSource::records) continue;
    try {
      if (const std::optional<bool> has = first_line_has(file.path, "input_ids")) return *has;
      for_each_json_record(file.path, kMaxRecordBytes / 24, "", {},
                           [&](json& object, const std::string&, std::string_view) {
                             tokens = object.contains("input_ids");
                             throw Seen();
                           });
    } catch (const Seen&) {
      return tokens;
    } catch (const Error&) {
      return false;
    }
  }
  return false;
}

bool has_row_name(const std::string& path) {
  return row_form(path) != RowSource::lines || ends(unpacked_name(path), {".txt"});
}

QuotedBreaks for_each_record(const std::string& path, const RowOptions& options,
                             const RowColumns& columns,
                             const std::function<void(RowRecord&)>& each) {
  if (options.kind == RowKind::causal && row_form(path) != RowSource::records)
    fail(ErrorCode::data,
         options.pairs  ? "answers as JSON, a record a line"
         : options.chat ? "conversations as JSON, a record a line"
                        : "rows of input_ids as JSON, a record a line",
         path,
         options.pairs
             ? "write {\"prompt\": ..., \"chosen\": ..., \"rejected\": ...} on each line of a "
               ".jsonl"
         : options.chat ? "write {\"messages\": [...]} on each line of a .jsonl"
                        : "text and tokens in two runs, or write {\"input_ids\": [464, 3290]} on "
                          "each line of a .jsonl");
  if (row_form(path) == RowSource::table) return read_table(path, options, columns, each);
  if (row_form(path) == RowSource::lines) {
    read_lines(path, options, each);
    return {};
  }
  // A tree of values takes some twenty times its text.
  const int64_t most = std::max<int64_t>(options.max_record_bytes / 24, 64 << 10);
  for_each_json_record(path, most, options.longer_records, options.window,
                       [&](json& object, const std::string& where, std::string_view text) {
                         RowRecord record;
                         record.where = where;
                         Keys keys(object, where);
                         if (options.pairs) {
                           const int last = options.pairs->rows(object) - 1;
                           for (int row = 0; row < last; ++row) {
                             RowRecord other;
                             other.where = where;
                             options.pairs->read(object, text, where, other, row);
                             each(other);
                           }
                           options.pairs->read(object, text, where, record, last);
                         } else if (const json* ids = keys.find({"input_ids"}))
                           read_ids(keys, *ids, options, record);
                         else if (options.chat)
                           options.chat->read(object, text, where, record);
                         else if (options.kind == RowKind::causal)
                           keys.refuse("\"input_ids\" in every record, as the first has them",
                                       keys.others(), "text and tokens in two runs");
                         else if (options.kind == RowKind::tokens)
                           read_words(keys, options, record);
                         else
                           read_text(keys, options, record);
                         each(record);
                       });
  return {};
}

}  // namespace snug
