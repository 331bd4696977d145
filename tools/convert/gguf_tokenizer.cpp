#include "tools/convert/gguf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "engine/text/tokenizer_spec.h"
#include "layers/models/stop_tokens.h"

namespace snug {
namespace {

using nlohmann::json;

struct Rule {
  const char* name;
  std::string_view pattern;
};

constexpr Rule kRules[] = {
    {"llama-bpe",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"qwen2",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"gpt-4o",
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};

// The files of these components were checked when the tokenizer was built.
json component(const std::string& text) {
  return json::parse(text, nullptr, false);
}

bool is_byte_level(const json& j, bool use_regex) {
  return j.is_object() && j.value("type", "") == "ByteLevel" &&
         !j.value("add_prefix_space", true) && j.value("use_regex", true) == use_regex;
}

// The dialogue form of a folder, as newer and older files have it.
std::string chat_template(const TokenizerSpec& spec, const std::string& folder) {
  const std::string path = folder + "/chat_template.jinja";
  if (file_exists(path)) return read_file(path, 1 << 24);
  const json config = component(spec.config);
  if (config.is_object() && config.contains("chat_template") && config["chat_template"].is_string())
    return config["chat_template"].get<std::string>();
  return "";
}

}  // namespace

std::string gguf_splitting_rule(const Tokenizer& tokenizer) {
  const json pre = component(tokenizer.spec().pre_tokenizer);
  if (is_byte_level(pre, true)) return "gpt-2";
  if (!pre.is_object() || pre.value("type", "") != "Sequence") return "";
  const json steps = pre.value("pretokenizers", json::array());
  if (steps.size() != 2 || !is_byte_level(steps[1], false)) return "";
  const json& split = steps[0];
  if (!split.is_object() || split.value("type", "") != "Split" || !split.contains("pattern") ||
      !split["pattern"].is_object() || !split["pattern"].contains("Regex"))
    return "";
  // These patterns match every character: keeping the matches and dropping what lies between them
  // are the same.
  const std::string behavior = split.value("behavior", "");
  const bool inverted = split.value("invert", false);
  if (!(behavior == "Isolated" && !inverted) && !(behavior == "Removed" && inverted)) return "";
  for (const Rule& rule : kRules)
    if (split["pattern"]["Regex"] == rule.pattern) return rule.name;
  return "";
}

std::vector<std::string> add_gguf_tokenizer(const Tokenizer& tokenizer, const ModelSpec& model,
                                            const std::string& pre, const std::string& folder,
                                            GgufMetadata& out) {
  const TokenizerSpec& spec = tokenizer.spec();
  std::vector<std::string> notes;
  // The other models have other keys in the file, which no family written here goes with.
  if (spec.model != ModelType::bpe || spec.pre_tokenizer.find("\"ByteLevel\"") == std::string::npos)
    fail(ErrorCode::unsupported, "a byte-level BPE tokenizer for GGUF",
         fmt::format("one of another kind in {}", spec.origin),
         "--to hf keeps the tokenizer as it is");
  const std::string found = gguf_splitting_rule(tokenizer);
  if (pre.empty() && found.empty())
    fail(ErrorCode::unsupported,
         "a splitting rule that GGUF has a name for: that of GPT-2, Llama 3, Qwen 2 or o200k",
         fmt::format("another one in {}", spec.origin),
         "--pre NAME names the one to use, if your reader has it");
  if (!pre.empty() && pre != found)
    notes.push_back(fmt::format("tokenizer.ggml.pre is {}, as asked; the tokenizer's rule is {}",
                                pre, found.empty() ? "none that has a name" : found));
  const std::string& rule = pre.empty() ? found : pre;
  // llama.cpp goes by the rule's name. Of rules we do not have nothing is known.
  const bool known = rule == "gpt-2" || std::any_of(std::begin(kRules), std::end(kRules),
                                                    [&](const Rule& r) { return r.name == rule; });
  if (known && spec.ignore_merges != (rule == "llama-bpe"))
    notes.push_back(fmt::format(
        "the tokenizer has ignore_merges {}, llama.cpp with {} {}: ids of some words may differ",
        spec.ignore_merges, rule, !spec.ignore_merges));
  const json normalizer = component(spec.normalizer);
  if (normalizer.is_object()) {
    const std::string type = normalizer.value("type", "");
    if (type != "NFC")
      fail(ErrorCode::unsupported, "no normaliser, or NFC",
           fmt::format("{} in {}", type.empty() ? normalizer.dump() : type, spec.origin),
           "programs that read GGUF do not normalise; keep the Hugging Face folder");
    notes.emplace_back("the tokenizer's NFC is not part of GGUF: give readers text in that form");
  }

  out.add("tokenizer.ggml.model", "gpt2");
  out.add("tokenizer.ggml.pre", rule);
  std::unordered_map<int32_t, const AddedToken*> added;
  for (const AddedToken& token : spec.added) added.emplace(token.id, &token);
  // 1 normal, 3 control, 4 user defined, 5 unused.
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  for (int64_t i = 0; i < model.V; ++i) {
    const auto id = static_cast<int32_t>(i);
    const auto at = added.find(id);
    if (at != added.end()) {
      tokens.push_back(at->second->content);
      types.push_back(at->second->special ? 3 : 4);
      continue;
    }
    const std::string_view text = i < tokenizer.vocab_size() ? tokenizer.token_text(id) : "";
    tokens.push_back(text.empty() ? fmt::format("[PAD{}]", i) : std::string(text));
    types.push_back(text.empty() ? 5 : 1);
  }
  std::vector<std::string> merges;
  merges.reserve(spec.merges.size());
  for (const auto& [left, right] : spec.merges)
    merges.push_back(fmt::format("{} {}", tokenizer.token_text(left), tokenizer.token_text(right)));
  out.add("tokenizer.ggml.tokens", tokens);
  out.add("tokenizer.ggml.token_type", types);
  out.add("tokenizer.ggml.merges", merges);
  const auto role = [&](const char* key, std::optional<int32_t> id) {
    if (id) out.add(fmt::format("tokenizer.ggml.{}_token_id", key), static_cast<uint32_t>(*id));
  };
  const std::vector<int32_t> stops =
      model_stop_tokens(folder, model).value_or(std::vector<int32_t>());
  std::optional<int32_t> bos = tokenizer.bos_id(), eos = tokenizer.eos_id();
  if (!bos && model.bos_token >= 0 && model.bos_token < model.V)
    bos = static_cast<int32_t>(model.bos_token);
  if (!eos && !stops.empty()) eos = stops.front();
  if (!eos)
    notes.emplace_back(
        "neither the tokenizer nor the model says which token ends a text: llama.cpp then takes "
        "11");
  std::string more;
  for (const int32_t id : stops)
    if (id != eos) more += fmt::format("{}{}", more.empty() ? "" : ", ", id);
  if (!more.empty())
    notes.push_back(
        fmt::format("the model stops at {} as well; the file names one token that ends a text, {}",
                    more, *eos));
  role("bos", bos);
  role("eos", eos);
  role("eot", eos);
  role("unknown", tokenizer.unk_id());
  role("padding", tokenizer.pad_id());
  // What the configuration says, else what the post-processor puts around a text. bos is said also
  // when false: some splitting rules have another default.
  const json config = component(spec.config);
  const int32_t a_text = -1;
  std::vector<int32_t> around = tokenizer.with_special_tokens({&a_text, 1}).ids;
  if (around.empty()) around = {a_text};  // a post-processor may leave the text itself out
  const auto adds = [&](const char* key, std::optional<int32_t> token, int32_t at_the_end) {
    const json said = config.is_object() && config.contains(key) ? config[key] : json();
    return said.is_boolean() ? said.get<bool>() : token && *token == at_the_end;
  };
  out.add("tokenizer.ggml.add_bos_token", adds("add_bos_token", bos, around.front()));
  if (adds("add_eos_token", eos, around.back())) out.add("tokenizer.ggml.add_eos_token", true);
  if (const std::string text = chat_template(spec, folder); !text.empty())
    out.add("tokenizer.chat_template", text);
  return notes;
}

}  // namespace snug
