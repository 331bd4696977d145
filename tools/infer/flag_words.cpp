#include "tools/infer/flag_words.h"

#include <fmt/format.h>

#include <cctype>
#include <string_view>

#include "engine/core/error.h"

namespace snug {
namespace {

struct Word {
  std::string_view key, flag;
};

constexpr Word kWords[] = {
    {"text_pair_column", "--text-pair-column"},
    {"text_column", "--text-column"},
    {"label_column", "--label-column"},
    {"max_length", "--max-length"},
    {"quoting=", "--quoting "},
    {"precision=", "--precision "},
    {"task=", "--task "},
    {"loss_type=", "--loss-type "},
    {"task as ", "--task as "},
    // Of the folder, not of these commands.
    {"name it with tokenizer,", "copy the tokenizer's files into the model's folder,"},
    {"model=gpt2", "a --model of another type"},
    {"model=bert-base", "a --model of another type"},
    {"set problem_type to multi_label_classification, or leave it out",
     "labels of the problem_type in the model's config.json"},
    {", or set problem_type to single_label_classification", ""},
    {", or set problem_type to regression", ""},
};

// Of a name or a path: what stands between such letters is no word of its own.
bool of_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '/' ||
         c == '.' || c == '"';
}

}  // namespace

std::string in_flags(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Word* found = nullptr;
    for (const Word& word : kWords) {
      if (found || !std::string_view(text).substr(at).starts_with(word.key)) continue;
      const size_t end = at + word.key.size();
      const char before = at > 0 ? text[at - 1] : ' ', behind = end < text.size() ? text[end] : ' ';
      const bool begins = !of_name(before) || !of_name(word.key.front());
      const bool ends = !of_name(behind) || !of_name(word.key.back());  // else a value follows
      if (begins && ends) found = &word;
    }
    out += found ? found->flag : std::string_view(text).substr(at, 1);
    at += found ? found->key.size() : 1;
  }
  return out;
}

void with_flags(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    const std::string expected = in_flags(e.expected()), advice = in_flags(e.advice());
    if (expected == e.expected() && advice == e.advice()) throw;
    // Set by a flag, it is told as one.
    std::string found = e.found();
    if (found.starts_with("task: ") && found.ends_with(" (--task)"))
      found = "--task " + found.substr(6, found.size() - 6 - 9);
    fail(e.code(), expected, found, advice);
  }
}

}  // namespace snug
