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
    : path_(path), json_(unpacked_name(path).ends_with(".jsonl")) {
  TextReader reader(path);
  for (std::string_view line; reader.next_line(line, INT32_MAX);) {
    if (std::all_of(line.begin(), line.end(), is_space)) continue;
    const auto begin = static_cast<int64_t>(text_.size());
    text_ += line;
    lines_.push_back({begin, static_cast<int64_t>(text_.size()), reader.line()});
    if (json_) read(lines_.back());
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
