#include "tools/infer/generation_output.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/text/unicode.h"

namespace snug {
namespace {

using nlohmann::json;

std::string shown(const Tokenizer& tokenizer, int32_t id) {
  return sanitize_utf8(tokenizer.token_bytes(id));
}

// The shortest digits that are this float; JSON has no infinity.
json number(float x) {
  return std::isfinite(x) ? json(std::stod(fmt::format("{}", x))) : json(nullptr);
}

json chance_json(const Tokenizer& tokenizer, const TokenChance& c) {
  return {{"id", c.id}, {"token", shown(tokenizer, c.id)}, {"logprob", number(c.logprob)}};
}

}  // namespace

const char* finish_reason(GenerationEnd end) {
  switch (end) {
    case GenerationEnd::length:
      return "length";
    case GenerationEnd::stop_token:
      return "eos";
    case GenerationEnd::stopped:
      return "stop";
    case GenerationEnd::cache_full:
      return "positions";
    case GenerationEnd::no_token:
      return "no_token";
  }
  require(false, "a reason for the end of a text");
  return "";
}

std::string text_json(const GeneratedText& text, const GenerationRequest& request,
                      const Tokenizer& tokenizer, const std::optional<std::string>& prompt) {
  json j = {{"index", text.prompt},
            {"sequence", text.sequence},
            {"text", text.text},
            {"tokens", text.ids},
            {"prompt_tokens", text.prompt_tokens},
            {"finish_reason", finish_reason(text.end)}};
  if (prompt) j["prompt"] = sanitize_utf8(*prompt);
  if (request.beam_search()) j["score"] = text.score;
  if (request.options.logprobs >= 0) {
    json list = json::array();
    // Each group has fewer than asked for if the vocabulary has.
    const size_t tokens = text.ids.size(), size = tokens ? text.chances.size() / tokens : 0;
    for (size_t i = 0; i < tokens; ++i) {
      const TokenChance* c = text.chances.data() + i * size;
      json entry = chance_json(tokenizer, c[0]);
      json top = json::array();
      for (size_t k = 1; k < size; ++k) top.push_back(chance_json(tokenizer, c[k]));
      entry["top"] = std::move(top);
      list.push_back(std::move(entry));
    }
    j["logprobs"] = std::move(list);
  }
  return j.dump();
}

std::string chances_text(const GeneratedText& text, const Tokenizer& tokenizer) {
  std::string out;
  const size_t tokens = text.ids.size(), size = tokens ? text.chances.size() / tokens : 0;
  for (size_t i = 0; i < tokens; ++i) {
    const TokenChance* c = text.chances.data() + i * size;
    out += fmt::format("{:9.4f}  {}", c[0].logprob, json(shown(tokenizer, c[0].id)).dump());
    for (size_t k = 1; k < size; ++k)
      out += fmt::format("{}{} {:.4f}", k == 1 ? "   of " : ", ",
                         json(shown(tokenizer, c[k].id)).dump(), c[k].logprob);
    out += "\n";
  }
  return out;
}

}  // namespace snug
