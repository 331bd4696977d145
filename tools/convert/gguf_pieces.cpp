// SentencePiece's BPE for llama.cpp: src/llama-vocab.cpp, llm_tokenizer_spm.
#include <fmt/format.h>

#include <unordered_map>
#include <unordered_set>

#include "engine/core/error.h"
#include "engine/io/json.h"
#include "engine/text/tokenizer_spec.h"
#include "tools/convert/gguf_tokenizer.h"

namespace snug {
namespace {

using nlohmann::json;

constexpr const char* kSpace = "\xe2\x96\x81";  // U+2581, which stands for a space

[[noreturn]] void refuse(const TokenizerSpec& spec, const std::string& expected,
                         const std::string& found) {
  fail(ErrorCode::unsupported, expected, fmt::format("{} in {}", found, spec.origin),
       "--to hf keeps the tokenizer as it is");
}

// The steps of a component, without those that do nothing.
std::vector<json> steps_of(const json& j, const char* list) {
  std::vector<json> steps;
  if (!j.is_object()) return steps;
  if (j.value("type", "") != "Sequence") return {j};
  for (const json& step : j.value(list, json::array()))
    for (json& inner : steps_of(step, list)) steps.push_back(std::move(inner));
  return steps;
}

bool is_prepend(const json& j) {
  return j.value("type", "") == "Prepend" && j.value("prepend", "") == kSpace;
}

bool is_space_mark(const json& j) {
  return j.value("type", "") == "Replace" && j.value("pattern", json()) == json{{"String", " "}} &&
         j.value("content", "") == kSpace;
}

// Cuts at spaces of a text that has none left.
bool is_idle_split(const json& j) {
  return j.value("type", "") == "Split" && j.value("pattern", json()) == json{{"String", " "}};
}

void read_steps(const TokenizerSpec& spec, GgufPieces& out) {
  const std::vector<json> normalizer = steps_of(gguf_component(spec.normalizer), "normalizers"),
                          pre = steps_of(gguf_component(spec.pre_tokenizer), "pretokenizers");
  bool marked = false;
  for (const json& step : normalizer) {
    const std::string type = step.value("type", "");
    if (is_prepend(step) && !marked)
      out.space_before = true;
    else if (is_space_mark(step))
      marked = true;
    else
      refuse(spec, "a normaliser that puts a space before the text or U+2581 for spaces, or none",
             type);
  }
  for (const json& step : pre) {
    if (marked && is_idle_split(step)) continue;
    const std::string type = step.value("type", "");
    if (marked || type != "Metaspace" || step.value("replacement", "") != kSpace)
      refuse(spec, "no splitting before the merges, or Metaspace", type);
    if (step.value("split", true)) refuse(spec, "Metaspace with split: false", "split: true");
    const std::string scheme = step.value("prepend_scheme", "always");
    out.space_before = scheme != "never";
    out.again_after = scheme != "first";
    out.always = false;
    marked = true;
  }
  if (!marked) refuse(spec, "U+2581 for spaces, as SentencePiece has it", "spaces as they are");
}

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

bool is_byte_token(std::string_view text) {
  return text.size() == 6 && text.starts_with("<0x") && text.ends_with(">");
}

GgufPieces gguf_pieces_of(const Tokenizer& tokenizer) {
  const TokenizerSpec& spec = tokenizer.spec();
  if (spec.model != ModelType::bpe || !spec.byte_fallback)
    refuse(spec, "a byte-level BPE tokenizer, or BPE with byte_fallback, for GGUF",
           "one of another kind");
  if (!spec.continuing_prefix.empty() || !spec.end_suffix.empty() || spec.ignore_merges)
    refuse(spec, "BPE without marks of words and with ignore_merges: false",
           spec.ignore_merges ? "ignore_merges: true" : "marks of words");
  for (int byte = 0; byte < 256; ++byte)
    if (!tokenizer.token_to_id(fmt::format("<0x{:02X}>", byte)))
      refuse(spec, "a token for every byte", fmt::format("no <0x{:02X}>", byte));
  GgufPieces out;
  read_steps(spec, out);

  // A token's score is that of the merges that make it, which must therefore stand together; and all
  // ways to make it must be there, since llama.cpp knows no others.
  std::unordered_map<int32_t, int64_t> rank;
  std::unordered_set<uint64_t> merges;
  int32_t last = -1;
  for (const auto& [left, right] : spec.merges) {
    const std::string text =
        std::string(tokenizer.token_text(left)) + std::string(tokenizer.token_text(right));
    const int32_t id = tokenizer.token_to_id(text).value();
    if (id != last && !rank.emplace(id, static_cast<int64_t>(rank.size())).second)
      refuse(spec, "merges in the order of the tokens they make, as SentencePiece's",
             fmt::format("those of \"{}\" in several places", text));
    merges.insert(pair_of(left, right));
    last = id;
  }
  std::unordered_set<int32_t> added;
  for (const AddedToken& token : spec.added) added.insert(token.id);
  out.scores.assign(static_cast<size_t>(tokenizer.vocab_size()), 0.0f);
  auto next = static_cast<int64_t>(rank.size());
  for (int64_t i = 0; i < tokenizer.vocab_size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string_view text = tokenizer.token_text(id);
    if (text.empty() || added.count(id) || is_byte_token(text)) continue;
    const auto at = rank.find(id);
    out.scores[static_cast<size_t>(i)] =
        -static_cast<float>(at != rank.end() ? at->second : next++);
    for (size_t k = 1; k < text.size(); ++k) {
      if ((static_cast<unsigned char>(text[k]) & 0xc0) == 0x80) continue;  // inside a character
      const auto left = tokenizer.token_to_id(text.substr(0, k)),
                 right = tokenizer.token_to_id(text.substr(k));
      if (left && right && !added.count(*left) && !added.count(*right) &&
          !merges.count(pair_of(*left, *right)))
        refuse(spec, "a merge for every two tokens that make a third, as SentencePiece has them",
               fmt::format("none of \"{}\" and \"{}\"", text.substr(0, k), text.substr(k)));
    }
  }
  return out;
}

}  // namespace snug
