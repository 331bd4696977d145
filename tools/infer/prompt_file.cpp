#include "tools/infer/prompt_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/error.h"
#include "engine/io/json.h"
#include "engine/io/text_reader.h"

namespace snug {
namespace {

constexpr const char* kForm = R"({"prompt": "Once upon a time"})";

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

}  // namespace

PromptFile::PromptFile(const std::string& path)
    : path_(path), json_(path.ends_with(".jsonl")), text_(read_file(path)) {
  const std::string_view text = text_;
  if (const int64_t good = text_prefix(text); good < static_cast<int64_t>(text.size()))
    fail_not_text(path, text, good);
  int64_t number = 0;
  for (size_t at = text.starts_with("\xEF\xBB\xBF") ? 3 : 0; at < text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    const size_t next = end + 1;
    ++number;
    if (end > at && text[end - 1] == '\r') --end;
    const std::string_view line = text.substr(at, end - at);
    if (!std::all_of(line.begin(), line.end(), is_space)) {
      lines_.push_back({static_cast<int64_t>(at), static_cast<int64_t>(end), number});
      if (json_) read(lines_.back());
    }
    at = next;
  }
  if (lines_.empty())
    fail(ErrorCode::data, "prompts in " + path, "none",
         json_ ? kForm : "a prompt a line, or objects in a .jsonl file");
}

std::string PromptFile::read(const Line& line) const {
  const auto begin = static_cast<size_t>(line.begin), end = static_cast<size_t>(line.end);
  const std::string_view text = std::string_view(text_).substr(begin, end - begin);
  if (!json_) return std::string(text);
  const nlohmann::json j = parse_json(text, path_, line.number);
  const std::string where = fmt::format("{}:{}", path_, line.number);
  if (!j.is_object()) fail(ErrorCode::data, "a JSON object in " + where, json_brief(j), kForm);
  if (!j.contains("prompt")) fail(ErrorCode::data, "\"prompt\" in " + where, "no such key", kForm);
  const nlohmann::json& prompt = j["prompt"];
  if (!prompt.is_string())
    fail(ErrorCode::data, "\"prompt\" as a string in " + where, json_brief(prompt), kForm);
  return prompt.get<std::string>();
}

std::string PromptFile::prompt(int64_t i) const {
  return read(lines_[static_cast<size_t>(i)]);
}

std::string PromptFile::where(int64_t i) const {
  return fmt::format("{}:{}", path_, lines_[static_cast<size_t>(i)].number);
}

}  // namespace snug
