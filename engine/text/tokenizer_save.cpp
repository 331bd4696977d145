// Writes what tokenizer_load.cpp reads. Merges are written as "a b" strings: old and new versions
// of the `tokenizers` library read them.
#include <algorithm>
#include <string>
#include <system_error>
#include <vector>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/text/json_text.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_spec.h"

namespace snug {
namespace {

std::string quote(const std::string& text) {
  return Json(text).dump();
}
const char* boolean(bool b) {
  return b ? "true" : "false";
}

// The text is put together by hand: a JSON object would sort the vocabulary by token, not by id.
std::string vocab_json(const TokenizerSpec& spec, const char* separator) {
  std::vector<std::pair<int32_t, const std::string*>> sorted;
  sorted.reserve(spec.vocab.size());
  for (const auto& [token, id] : spec.vocab) sorted.emplace_back(id, &token);
  std::sort(sorted.begin(), sorted.end());
  std::string out = "{";
  for (const auto& [id, token] : sorted) {
    out += (out.size() == 1 ? "" : ",") + std::string(separator) + quote(*token) + ": " +
           std::to_string(id);
  }
  return out + "}";
}

std::string added_json(const TokenizerSpec& spec) {
  std::vector<AddedToken> sorted = spec.added;
  std::sort(sorted.begin(), sorted.end(), [](auto& a, auto& b) { return a.id < b.id; });
  std::string out = "[";
  for (const AddedToken& t : sorted) {
    out += (out.size() == 1 ? "" : ",") + std::string("\n    {\"id\": ") + std::to_string(t.id) +
           ", \"content\": " + quote(t.content) + ", \"single_word\": " + boolean(t.single_word) +
           ", \"lstrip\": " + boolean(t.lstrip) + ", \"rstrip\": " + boolean(t.rstrip) +
           ", \"normalized\": " + boolean(t.normalized) + ", \"special\": " + boolean(t.special) +
           "}";
  }
  return out + "]";
}

std::string merges_json(const Tokenizer& tokenizer) {
  const auto& merges = tokenizer.spec().merges;
  const auto text = [&](int32_t id) { return std::string(tokenizer.token_text(id)); };
  // Only a token outside the byte alphabet can hold a space; then strings would be ambiguous.
  const bool spaces = std::any_of(merges.begin(), merges.end(), [&](const auto& m) {
    return (text(m[0]) + text(m[1])).find(' ') != std::string::npos;
  });
  std::string out = "[";
  for (const auto& [left, right] : merges) {
    out += out.size() == 1 ? "\n      " : ",\n      ";
    out += spaces ? "[" + quote(text(left)) + ", " + quote(text(right)) + "]"
                  : quote(text(left) + " " + text(right));
  }
  return out + "]";
}

std::string tokenizer_json(const Tokenizer& tokenizer) {
  const TokenizerSpec& s = tokenizer.spec();
  std::string out = "{\n  \"version\": \"1.0\",\n";
  out += "  \"truncation\": " + s.truncation + ",\n  \"padding\": " + s.padding + ",\n";
  out += "  \"added_tokens\": " + added_json(s) + ",\n";
  out += "  \"normalizer\": " + s.normalizer + ",\n";
  out += "  \"pre_tokenizer\": " + s.pre_tokenizer + ",\n";
  out += "  \"post_processor\": " + s.post_processor + ",\n";
  out += "  \"decoder\": " + (s.decoder == "null" ? TokenizerSpec{}.decoder : s.decoder) + ",\n";
  out += "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": ";
  out += s.unk_token.empty() ? "null" : quote(s.unk_token);
  out += ",\n    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n";
  out += std::string("    \"fuse_unk\": ") + boolean(s.fuse_unk) + ",\n";
  out += "    \"byte_fallback\": false,\n";
  out += std::string("    \"ignore_merges\": ") + boolean(s.ignore_merges) + ",\n";
  out += "    \"vocab\": " + vocab_json(s, "\n      ") + ",\n";
  out += "    \"merges\": " + merges_json(tokenizer) + "\n  }\n}\n";
  return out;
}

std::string config_json(const TokenizerSpec& spec) {
  Json config = parse_json(spec.config, spec.origin);
  if (!config.is_object()) config = Json::object();
  const auto missing = [&](const char* key) { return !config.contains(key); };
  if (missing("tokenizer_class")) config["tokenizer_class"] = "PreTrainedTokenizerFast";
  if (missing("clean_up_tokenization_spaces")) config["clean_up_tokenization_spaces"] = false;
  const auto role = [&](const char* key, const std::optional<std::string>& token) {
    // A config that was read may describe the token as an object; it is right and stays.
    if (token && (missing(key) || config[key].is_null())) config[key] = *token;
  };
  role("eos_token", spec.eos_token);
  role("bos_token", spec.bos_token);
  role("pad_token", spec.pad_token);
  role("unk_token", spec.unk_role);
  return config.dump(2) + "\n";
}

}  // namespace

void Tokenizer::save_json(const std::filesystem::path& file) const {
  write_atomic(file.string(), tokenizer_json(*this));
}

void Tokenizer::save(const std::filesystem::path& folder) const {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    fail(ErrorCode::device, "a folder to write the tokenizer to",
         "'" + folder.string() + "': " + error.message(), "choose another folder");
  }
  std::string merges = "#version: 0.2\n";
  for (const auto& [left, right] : spec().merges) {
    merges += std::string(token_text(left)) + " " + std::string(token_text(right)) + "\n";
  }
  write_atomic((folder / "vocab.json").string(), vocab_json(spec(), "") + "\n");
  write_atomic((folder / "merges.txt").string(), merges);
  write_atomic((folder / "tokenizer_config.json").string(), config_json(spec()));
  write_atomic((folder / "tokenizer.json").string(), tokenizer_json(*this));
}

}  // namespace snug
