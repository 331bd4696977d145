#include "tools/infer/generation_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/json.h"

namespace snug {
namespace {

// Keys that say nothing about how a text is made, or that others read.
constexpr const char* kLeft[] = {"transformers_version",
                                 "_from_model_config",
                                 "bos_token_id",
                                 "eos_token_id",
                                 "pad_token_id",
                                 "use_cache",
                                 "output_attentions",
                                 "output_hidden_states",
                                 "output_scores",
                                 "output_logits",
                                 "return_dict_in_generate",
                                 "max_length",
                                 "min_length",
                                 "decoder_start_token_id",
                                 "_commit_hash"};

// Values that ask for nothing.
bool idle(const std::string& key, const nlohmann::json& v) {
  if (v.is_null() || (v.is_array() && v.empty()) || (v.is_object() && v.empty())) return true;
  if (v.is_boolean()) return !v.get<bool>() || key == "remove_invalid_values";
  if (!v.is_number()) return false;
  const double x = v.get<double>();
  static constexpr const char* kOne[] = {"typical_p", "diversity_penalty", "num_beam_groups",
                                         "encoder_repetition_penalty"};
  for (const char* one : kOne)
    if (key == one && x == 1.0) return true;
  return x == 0.0;
}

}  // namespace

std::string use_generation_config(const std::string& folder,
                                  const std::function<bool(const char* flag)>& given,
                                  GenerationRequest& request) {
  const std::string path = folder + "/generation_config.json";
  if (!file_exists(path))
    fail(ErrorCode::usage, "generation_config.json for --use-generation-config",
         "none in " + folder, "leave the flag out");
  const nlohmann::json j = parse_json_file(path, 1 << 20);
  require_object(j, path);
  GenerationOptions& o = request.options;
  SamplingOptions& s = o.sampling;
  std::string said;
  const auto number = [&](const char* key, const char* flag, auto& to) {
    if (!j.contains(key) || j[key].is_null()) return;
    using T = std::remove_reference_t<decltype(to)>;
    T value;
    if constexpr (std::is_same_v<T, double>)
      value = get_number(j, key, path);
    else
      value = get_int(j, key, path);
    if (given(flag)) return;
    to = value;
    said += fmt::format("{}{} {}", said.empty() ? "" : ", ", key, value);
  };
  const bool samples = get_bool(j, "do_sample", path, false);
  const bool drawn = given("--temperature") ? s.temperature > 0 : samples;
  if (!given("--temperature")) {
    s.temperature = samples ? 1.0 : 0.0;
    if (!samples) said = "greedy (no do_sample)";
  }
  if (drawn) {
    if (!given("--temperature")) said = "do_sample";
    number("temperature", "--temperature", s.temperature);
    if (!given("--top-k")) s.top_k = 50;  // transformers' own
    number("top_k", "--top-k", s.top_k);
    number("top_p", "--top-p", s.top_p);
    number("min_p", "--min-p", s.min_p);
  }
  number("repetition_penalty", "--repetition-penalty", o.rules.repetition_penalty);
  number("no_repeat_ngram_size", "--no-repeat-ngram-size", o.rules.no_repeat_ngram_size);
  number("max_new_tokens", "--max-new-tokens", o.max_new_tokens);
  number("min_new_tokens", "--min-new-tokens", o.rules.min_new_tokens);
  std::string unknown;
  for (const auto& [key, value] : j.items()) {
    static constexpr const char* kTaken[] = {
        "do_sample",     "temperature",        "top_k",          "top_p",
        "min_p",         "repetition_penalty", "max_new_tokens", "no_repeat_ngram_size",
        "min_new_tokens"};
    const auto in = [&](const auto& list) {
      return std::find(std::begin(list), std::end(list), key) != std::end(list);
    };
    if (in(kTaken) || in(kLeft) || idle(key, value) ||
        ((key == "num_beams" || key == "num_return_sequences") && value == 1))
      continue;
    unknown += fmt::format("{}{}: {}", unknown.empty() ? "" : ", ", key, json_brief(value));
  }
  if (!unknown.empty())
    fail(ErrorCode::unsupported, "keys that snug generate has in " + path, unknown,
         "give flags in place of --use-generation-config");
  return said.empty() ? "nothing that differs" : said;
}

}  // namespace snug
