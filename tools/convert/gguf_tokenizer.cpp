#include "tools/convert/gguf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <unordered_map>
#include <unordered_set>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "engine/text/tokenizer_spec.h"
#include "layers/models/stop_tokens.h"

namespace snug {
namespace {

using nlohmann::json;

// The dialogue form of a folder, as newer and older files have it.
std::string chat_template(const TokenizerSpec& spec, const std::string& folder) {
  const std::string path = folder + "/chat_template.jinja";
  if (file_exists(path)) return read_file(path, 1 << 24);
  const json config = gguf_component(spec.config);
  if (config.is_object() && config.contains("chat_template") && config["chat_template"].is_string())
    return config["chat_template"].get<std::string>();
  return "";
}

// Of a tokenizer whose words are bytes in a printable alphabet.
bool byte_level(const TokenizerSpec& spec) {
  return spec.model == ModelType::bpe &&
         spec.pre_tokenizer.find("\"ByteLevel\"") != std::string::npos;
}

// model, pre and what readers do otherwise.
void add_rule(const Tokenizer& tokenizer, const std::string& pre, GgufMetadata& out,
              std::vector<std::string>& notes) {
  const TokenizerSpec& spec = tokenizer.spec();
  const std::string found = gguf_splitting_rule(tokenizer);
  if (pre.empty() && found.empty())
    fail(ErrorCode::unsupported,
         "a splitting rule that GGUF has a name for: that of GPT-2, SmolLM, Llama 3, Qwen 2, o200k "
         "or "
         "Tekken",
         fmt::format("another one in {}", spec.origin),
         "--pre NAME names the one to use, if your reader has it");
  if (!pre.empty() && pre != found)
    notes.push_back(fmt::format("tokenizer.ggml.pre is {}, as asked; the tokenizer's rule is {}",
                                pre, found.empty() ? "none that has a name" : found));
  const std::string& rule = pre.empty() ? found : pre;
  // llama.cpp goes by the rule's name. Of rules we do not have nothing is known.
  const GgufSplitting splitting = gguf_splitting_of(rule);
  if (splitting.known && spec.ignore_merges != splitting.whole_words)
    notes.push_back(fmt::format(
        "the tokenizer has ignore_merges {}, llama.cpp with {} {}: ids of some words may differ",
        spec.ignore_merges, rule, splitting.whole_words));
  if (splitting.ascii_case)
    notes.push_back(fmt::format(
        "llama.cpp with {} knows the case of ASCII letters alone: ids of some words in other "
        "letters may differ",
        rule));
  const json normalizer = gguf_component(spec.normalizer);
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
}

// Texts and types of V ids: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
void add_tokens(const Tokenizer& tokenizer, int64_t V, bool pieces, GgufMetadata& out) {
  const TokenizerSpec& spec = tokenizer.spec();
  std::unordered_map<int32_t, const AddedToken*> added;
  for (const AddedToken& token : spec.added) added.emplace(token.id, &token);
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  std::unordered_set<std::string> seen;  // llama.cpp ends itself where two tokens have one text
  for (int64_t i = 0; i < V; ++i) {
    const auto id = static_cast<int32_t>(i);
    const auto at = added.find(id);
    const std::string_view text = i < tokenizer.vocab_size() ? tokenizer.token_text(id) : "";
    if (pieces && text == spec.unk_token && !text.empty()) {
      tokens.emplace_back(text);
      types.push_back(2);
    } else if (at != added.end()) {
      tokens.push_back(at->second->content);
      types.push_back(at->second->special ? 3 : 4);
    } else {
      tokens.push_back(text.empty() ? fmt::format("[PAD{}]", i) : std::string(text));
      types.push_back(text.empty() ? 5 : pieces && is_byte_token(text) ? 6 : 1);
    }
    if (!seen.insert(tokens.back()).second)
      fail(ErrorCode::data, "a text of its own for every token",
           fmt::format("two with \"{}\" in {}", tokens.back(), spec.origin),
           "take one of them out of the tokenizer");
  }
  out.add("tokenizer.ggml.tokens", tokens);
  out.add("tokenizer.ggml.token_type", types);
}

// What llama.cpp takes a model of Phi-3 by, and the tokens it then looks for: of these all but the first
// keep the blanks behind them, and every other special token takes them.
constexpr std::array<std::string_view, 2> kPhiNames = {"phi-3", "phi3"};
constexpr std::array<std::string_view, 4> kPhiTokens = {"</s>", "<unk>", "<s>", "<|endoftext|>"};

}  // namespace

json gguf_component(const std::string& text) {
  return json::parse(text, nullptr, false);
}

std::vector<std::string> check_gguf_name(const Tokenizer& tokenizer, const std::string& name) {
  std::string lower = name;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool phi = std::any_of(kPhiNames.begin(), kPhiNames.end(), [&](std::string_view part) {
    return lower.find(part) != std::string::npos;
  });
  for (const std::string_view text : kPhiTokens)
    if (phi && !tokenizer.token_to_id(text))
      fail(ErrorCode::usage,
           "a name without phi3 or phi-3, by which llama.cpp takes the tokenizer for Phi-3's",
           fmt::format("\"{}\" and a tokenizer without {} in {}", name, text,
                       tokenizer.spec().origin),
           "--name with another");
  std::string others;
  for (const AddedToken& token : tokenizer.spec().added) {
    const bool takes = phi && std::find(kPhiTokens.begin() + 1, kPhiTokens.end(), token.content) ==
                                  kPhiTokens.end();
    if (token.lstrip || token.single_word || token.rstrip != takes)
      others += fmt::format("{}{}", others.empty() ? "" : ", ", token.content);
  }
  if (others.empty()) return {};
  return {
      fmt::format("GGUF does not say which tokens take the blanks beside them, and llama.cpp does "
                  "it otherwise for {}: ids "
                  "there may differ",
                  others)};
}

std::vector<std::string> add_gguf_tokenizer(const Tokenizer& tokenizer, const ModelSpec& model,
                                            const std::string& pre, const std::string& folder,
                                            GgufMetadata& out) {
  const TokenizerSpec& spec = tokenizer.spec();
  std::vector<std::string> notes;
  const bool pieces = !byte_level(spec);
  if (pieces) {
    GgufPieces own = gguf_pieces_of(tokenizer);
    if (!pre.empty())
      fail(ErrorCode::usage, "--pre for a tokenizer whose words are bytes",
           fmt::format("--pre {} and one of pieces in {}", pre, folder), "leave --pre out");
    if (own.space_before && !own.always)
      notes.push_back(fmt::format(
          "this tokenizer puts no space before a text that begins with one{}; llama.cpp does",
          own.again_after ? "" : ", nor after special tokens inside a text"));
    own.scores.resize(static_cast<size_t>(model.V), 0.0f);
    out.add("tokenizer.ggml.model", "llama");
    out.add("tokenizer.ggml.pre", "default");
    out.add("tokenizer.ggml.scores", own.scores);
    out.add("tokenizer.ggml.add_space_prefix", own.space_before);
  } else {
    add_rule(tokenizer, pre, out, notes);
  }
  add_tokens(tokenizer, model.V, pieces, out);
  if (!pieces) {
    std::vector<std::string> merges;
    merges.reserve(spec.merges.size());
    for (const auto& [left, right] : spec.merges)
      merges.push_back(
          fmt::format("{} {}", tokenizer.token_text(left), tokenizer.token_text(right)));
    out.add("tokenizer.ggml.merges", merges);
  }
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
    notes.push_back(fmt::format(
        "neither the tokenizer nor the model says which token ends a text: llama.cpp then takes "
        "{}",
        pieces ? 2 : 11));
  // llama.cpp ends a text at each of three.
  std::vector<int32_t> others;
  for (const int32_t id : stops)
    if (id != eos) others.push_back(id);
  std::string more;
  for (size_t k = 2; k < others.size(); ++k)
    more += fmt::format("{}{}", more.empty() ? "" : ", ", others[k]);
  if (!more.empty())
    notes.push_back(fmt::format(
        "the model stops at {} as well; the file names three tokens that end a text, {}, {} and {}",
        more, *eos, others[0], others[1]));
  role("bos", bos);
  role("eos", eos);
  role("eot", others.empty() ? eos : others[0]);
  if (others.size() > 1) role("eom", others[1]);
  role("unknown", tokenizer.unk_id());
  role("padding", tokenizer.pad_id());
  // What the configuration says, else what the post-processor puts around a text. bos is said also
  // when false: some splitting rules have another default.
  const json config = gguf_component(spec.config);
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
