#include <algorithm>
#include <filesystem>

#include "engine/core/error.h"
#include "engine/data/token_file.h"
#include "engine/io/fingerprint.h"
#include "engine/io/json.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_spec.h"
#include "tools/convert/gguf_tokenizer.h"
#include "tools/inspect/kinds.h"

namespace snug {
namespace {

// The type of a component of tokenizer.json, a sequence with those of its parts.
std::string component_type(const std::string& text) {
  const nlohmann::json j = nlohmann::json::parse(text, nullptr, false);
  if (!j.is_object()) return "none";
  const std::string type = j.value("type", "");
  std::string parts;
  for (const char* list : {"pretokenizers", "normalizers", "processors", "decoders"})
    if (j.contains(list) && j[list].is_array())
      for (const nlohmann::json& part : j[list])
        parts += (parts.empty() ? "" : ", ") +
                 (part.is_object() ? part.value("type", "?") : std::string("?"));
  return parts.empty() ? type : type + "(" + parts + ")";
}

std::string model_text(const TokenizerSpec& spec) {
  switch (spec.model) {
    case ModelType::bpe:
      return spec.pre_tokenizer.find("\"ByteLevel\"") != std::string::npos ? "BPE, byte level"
                                                                           : "BPE, characters";
    case ModelType::word_piece:
      return "WordPiece";
    case ModelType::unigram:
      return "Unigram";
    case ModelType::word_level:
      return "WordLevel";
  }
  return "?";
}

}  // namespace

Facts inspect_tokenizer(const std::string& path) {
  const Tokenizer t = Tokenizer::load(path);
  const TokenizerSpec& spec = t.spec();
  Facts out = {{"kind", "tokenizer"}, {"path", path}};
  const std::string rule = gguf_splitting_rule(t);
  out["model"] = model_text(spec);
  out["vocab_size"] = t.vocab_size();
  out["merges"] = t.merge_count();
  out["splitting_rule"] = rule.empty() ? "of its own" : rule;
  out["normalizer"] = component_type(spec.normalizer);
  out["pre_tokenizer"] = component_type(spec.pre_tokenizer);
  out["post_processor"] = component_type(spec.post_processor);
  out["decoder"] = component_type(spec.decoder);
  out["fingerprint"] = fingerprint_text(t.fingerprint());
  Facts roles = Facts::object();
  const auto role = [&](const char* name, std::optional<int32_t> id) {
    roles[name] = id ? Facts(*id) : Facts(nullptr);
  };
  role("bos", t.bos_id());
  role("eos", t.eos_id());
  role("pad", t.pad_id());
  role("unk", t.unk_id());
  out["roles"] = roles;
  std::vector<AddedToken> added = spec.added;
  std::sort(added.begin(), added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  Facts rows = Facts::array();
  for (const AddedToken& token : added)
    rows.push_back({{"id", token.id}, {"content", token.content}, {"special", token.special}});
  out["added_tokens"] = rows;
  return out;
}

Facts inspect_tokens(const std::string& path, const InspectOptions& options) {
  TokenFile file(path);
  Facts out = {{"kind", "tokens"}, {"path", path}};
  const int64_t bytes = MappedFile(path).size();
  const bool raw = bytes == file.size() * file.token_bytes();
  out["layout"] = raw                       ? "uint16 without a header (nanoGPT)"
                  : file.token_bytes() == 4 ? "llm.c, Llama 3"
                                            : "llm.c, GPT-2";
  out["bytes"] = bytes;
  out["dtype"] = file.token_bytes() == 4 ? "uint32" : "uint16";
  out["tokens"] = file.size();
  const auto info = read_token_info(path);
  out["documents"] = file.documents() >= 0 ? Facts(file.documents()) : Facts(nullptr);
  // The header speaks for the tokens behind it; a side file may have been lost, or be of others.
  std::optional<int64_t> vocab_size = file.vocab_size();
  std::optional<uint64_t> tokenizer = file.tokenizer();
  if (!vocab_size && info) vocab_size = info->vocab_size;
  if (!tokenizer && info) tokenizer = info->tokenizer;
  out["vocab_size"] = vocab_size ? Facts(*vocab_size) : Facts(nullptr);
  out["tokenizer"] = tokenizer ? Facts(fingerprint_text(*tokenizer)) : Facts(nullptr);
  if (info && info->tokens != file.size())
    fail(ErrorCode::data,
         std::to_string(info->tokens) + " tokens in " + path + ", as its side file says",
         std::to_string(file.size()), "make the token file again from its text");
  if (options.stats) {
    // As every reader does: a damaged file has no statistics.
    file.check(vocab_size.value_or(INT64_MAX));
    int32_t least = INT32_MAX, most = INT32_MIN;
    std::vector<int32_t> ids(1 << 16);
    for (int64_t i = 0; i < file.size(); i += static_cast<int64_t>(ids.size())) {
      const int64_t n = std::min<int64_t>(static_cast<int64_t>(ids.size()), file.size() - i);
      file.copy(i, n, ids.data());
      const auto [low, high] = std::minmax_element(ids.begin(), ids.begin() + n);
      least = std::min(least, *low);
      most = std::max(most, *high);
    }
    out["min"] = file.size() > 0 ? Facts(least) : Facts(nullptr);
    out["max"] = file.size() > 0 ? Facts(most) : Facts(nullptr);
  }
  return out;
}

}  // namespace snug
