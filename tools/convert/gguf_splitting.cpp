// Which of llama.cpp's splitting rules a byte-level tokenizer has: src/llama-vocab.cpp, llm_tokenizer_bpe.
#include <algorithm>
#include <iterator>

#include "engine/io/json.h"
#include "engine/text/tokenizer_spec.h"
#include "tools/convert/gguf_tokenizer.h"

namespace snug {
namespace {

using nlohmann::json;

// What stands before ByteLevel, and whether words of the vocabulary are taken whole.
constexpr std::string_view kOwn = "", kDigits = "digits";  // else a pattern
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
struct Rule {
  const char* name;
  std::string_view before;
  bool whole_words;
  bool ascii_case = false;  // llama.cpp knows the case of ASCII letters alone
};
constexpr Rule kRules[] = {
    {"gpt-2", kOwn, false},
    {"smollm", kDigits, false},
    {"llama-bpe", kLlama3, true},
    {"dbrx", kLlama3, false},
    {"qwen2",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     false},
    {"gpt-4o",
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     false, true},
    {"tekken",
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     true, true}};

bool is_byte_level(const json& j, bool use_regex) {
  return j.is_object() && j.value("type", "") == "ByteLevel" &&
         !j.value("add_prefix_space", true) && j.value("use_regex", true) == use_regex;
}

// The pattern of a Split that keeps what it matches apart, null for another step. These patterns match
// every character: keeping the matches and dropping what lies between them are the same.
json split_pattern(const json& split) {
  if (!split.is_object() || split.value("type", "") != "Split" || !split.contains("pattern") ||
      !split["pattern"].is_object() || !split["pattern"].contains("Regex"))
    return nullptr;
  const std::string behavior = split.value("behavior", "");
  const bool inverted = split.value("invert", false);
  if (!(behavior == "Isolated" && !inverted) && !(behavior == "Removed" && inverted))
    return nullptr;
  return split["pattern"]["Regex"];
}

// What stands before ByteLevel in the words of kRules; null for none of them.
json before_bytes(const json& pre) {
  if (is_byte_level(pre, true)) return kOwn;
  if (!pre.is_object() || pre.value("type", "") != "Sequence") return nullptr;
  const json steps = pre.value("pretokenizers", json::array());
  if (steps.size() != 2) return nullptr;
  if (is_byte_level(steps[1], true))
    return steps[0].is_object() && steps[0].value("type", "") == "Digits" &&
                   steps[0].value("individual_digits", false)
               ? json(kDigits)
               : json();
  return is_byte_level(steps[1], false) ? split_pattern(steps[0]) : json();
}

}  // namespace

std::string gguf_splitting_rule(const Tokenizer& tokenizer) {
  const TokenizerSpec& spec = tokenizer.spec();
  const json before = before_bytes(json::parse(spec.pre_tokenizer, nullptr, false));
  std::string name;  // of the pattern at least
  for (const Rule& rule : kRules) {
    if (before != rule.before) continue;
    if (rule.whole_words == spec.ignore_merges) return rule.name;
    name = rule.name;
  }
  return name;
}

GgufSplitting gguf_splitting_of(std::string_view name) {
  for (const Rule& rule : kRules)
    if (name == rule.name) return {true, rule.whole_words, rule.ascii_case};
  return {};
}

}  // namespace snug
