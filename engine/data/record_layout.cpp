#include "engine/data/record_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/io/byte_source.h"

namespace snug {
namespace {

constexpr size_t kLongestKey = 64;  // longer is the beginning of a sentence in quotes

// Reads what a text begins with; every function is false, or empty, at anything else.
class Beginning {
 public:
  explicit Beginning(std::string_view text) : text_(text) {}

  bool take(char expected) {
    at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
    if (at_ == text_.size() || text_[at_] != expected) return false;
    ++at_;
    return true;
  }
  // {"key":
  std::string_view object() {
    if (!take('{') || !take('"')) return {};
    const size_t from = at_, end = text_.find('"', at_);
    if (end == text_.npos || end - from > kLongestKey) return {};
    at_ = end + 1;
    return take(':') ? text_.substr(from, end - from) : std::string_view();
  }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

// The key of {"key": [{"other": or nothing.
std::string_view wrapping_key(std::string_view text) {
  Beginning outer(text);
  const std::string_view key = outer.object();
  return !key.empty() && outer.take('[') && !outer.object().empty() ? key : std::string_view();
}

// A record, alone, by the names of its text or its turns (formats of TRL and of ShareGPT).
bool begins_record(std::string_view text) {
  Beginning outer(text);
  const std::string_view key = outer.object();
  if (key == "text" || key == "prompt" || key == "instruction") return outer.take('"');
  if (key != "messages" && key != "conversations") return false;
  if (!outer.take('[')) return false;
  const std::string_view inner = outer.object();
  return inner == "role" || inner == "content" || inner == "from" || inner == "value";
}

bool begins_two_lines(std::string_view text) {
  const size_t end = text.find('\n');
  if (end == text.npos || Beginning(text).object().empty()) return false;
  const std::string_view first = text.substr(0, end);
  const size_t last = first.find_last_not_of(" \t\r");
  return last != first.npos && first[last] == '}' &&
         !Beginning(text.substr(end + 1)).object().empty();
}

}  // namespace

RecordLayout record_layout(std::string_view beginning, std::string_view path) {
  Beginning array(beginning);
  if (array.take('[') && !array.object().empty()) return RecordLayout::array;
  if (begins_two_lines(beginning)) return RecordLayout::lines;
  if (!unpacked_name(path).ends_with(".json")) return RecordLayout::none;
  if (begins_record(beginning)) return RecordLayout::one;
  if (!wrapping_key(beginning).empty()) return RecordLayout::wrapped;
  Beginning strings(beginning);
  if (strings.take('[') && strings.take('"')) return RecordLayout::strings;
  return RecordLayout::none;
}

void refuse_records(RecordLayout layout, std::string_view beginning, const std::string& path) {
  const std::string_view name = unpacked_name(path);
  const std::string packing = path.substr(name.size());
  const std::string column =
      ", and the key of the text as text_column (of eval and tokenizer: --text-column)";
  std::string found = "a JSON array of records", advice;
  if (layout == RecordLayout::lines) {
    const size_t folder = name.rfind('/') == name.npos ? 0 : name.rfind('/') + 1;
    const size_t dot = std::min(name.rfind('.'), name.size());
    found = "a JSON record a line";
    advice = fmt::format("{}.jsonl{} as its name",
                         name.substr(0, dot <= folder ? name.size() : dot), packing);
  } else {
    std::string list = layout == RecordLayout::one ? "." : ".[]";
    if (layout == RecordLayout::one) found = "a JSON record";
    if (layout == RecordLayout::strings) {
      found = "a JSON array of strings";
      list = ".[] | {text: .}";
    }
    if (layout == RecordLayout::wrapped) {
      const std::string_view key = wrapping_key(beginning);
      found = fmt::format("a JSON array of records under \"{}\"", key);
      list = fmt::format(".[\"{}\"][]", key);
    }
    const char* const unpack = packing == ".gz" ? "zcat" : packing == ".zst" ? "zstdcat" : "";
    advice = *unpack != '\0' ? fmt::format("{} {} | jq -c '{}' > FILE.jsonl", unpack, path, list)
                             : fmt::format("jq -c '{}' {} > FILE.jsonl", list, path);
  }
  fail(ErrorCode::data, fmt::format("text, or a record a line, in {}", path), found,
       advice + (layout == RecordLayout::strings ? "" : column));
}

std::string task_of_record(const nlohmann::json& record) {
  if (!record.is_object()) return {};
  if (record.contains("chosen") && record.contains("rejected"))
    return "task=dpo or task=reward, which read pairs of answers";
  if (record.contains("prompt") && record.contains("completion") && record.contains("label"))
    return "task=dpo loss_type=kto, which reads single answers";
  for (const char* key : {"messages", "conversations"})
    if (record.contains(key) && record[key].is_array())
      return "task=sft, which reads conversations";
  return {};
}

}  // namespace snug
