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

std::string string_or_null(const std::string& text) {
  return text.empty() ? "null" : quote(text);
}

std::string bpe_json(const Tokenizer& tokenizer) {
  const TokenizerSpec& s = tokenizer.spec();
  std::string out = "\"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": ";
  out += string_or_null(s.unk_token);
  out += ",\n    \"continuing_subword_prefix\": " + string_or_null(s.continuing_prefix);
  out += ",\n    \"end_of_word_suffix\": " + string_or_null(s.end_suffix) + ",\n";
  out += std::string("    \"fuse_unk\": ") + boolean(s.fuse_unk) + ",\n";
  out += std::string("    \"byte_fallback\": ") + boolean(s.byte_fallback) + ",\n";
  out += std::string("    \"ignore_merges\": ") + boolean(s.ignore_merges) + ",\n";
  out += "    \"vocab\": " + vocab_json(s, "\n      ") + ",\n";
  return out + "    \"merges\": " + merges_json(tokenizer);
}

std::string unigram_json(const Tokenizer& tokenizer) {
  const TokenizerSpec& s = tokenizer.spec();
  const auto unk = tokenizer.token_to_id(s.unk_token);
  std::string out = "\"type\": \"Unigram\",\n    \"unk_id\": ";
  out += unk ? std::to_string(*unk) : "null";
  out += std::string(",\n    \"byte_fallback\": ") + boolean(s.byte_fallback);
  out += ",\n    \"vocab\": [";
  std::vector<const std::string*> pieces(s.scores.size());
  for (const auto& [token, id] : s.vocab) pieces[static_cast<size_t>(id)] = &token;
  for (size_t id = 0; id < pieces.size(); ++id) {
    out += (id > 0 ? ",\n      [" : "\n      [") + quote(*pieces[id]) + ", " +
           Json(s.scores[id]).dump() + "]";
  }
  return out + "]";
}

std::string model_json(const Tokenizer& tokenizer) {
  const TokenizerSpec& s = tokenizer.spec();
  switch (s.model) {
    case ModelType::bpe:
      return bpe_json(tokenizer);
    case ModelType::unigram:
      return unigram_json(tokenizer);
    case ModelType::word_piece:
      return "\"type\": \"WordPiece\",\n    \"unk_token\": " + quote(s.unk_token) +
             ",\n    \"continuing_subword_prefix\": " + quote(s.continuing_prefix) +
             ",\n    \"max_input_chars_per_word\": " + std::to_string(s.max_word_chars) +
             ",\n    \"vocab\": " + vocab_json(s, "\n      ");
    case ModelType::word_level:
      return "\"type\": \"WordLevel\",\n    \"unk_token\": " + quote(s.unk_token) +
             ",\n    \"vocab\": " + vocab_json(s, "\n      ");
  }
  require(false, "an unknown model");
  return {};
}

bool is_byte_level(const TokenizerSpec& spec) {
  return spec.model == ModelType::bpe && spec.pre_tokenizer.find("ByteLevel") != std::string::npos;
}

std::string tokenizer_json(const Tokenizer& tokenizer) {
  const TokenizerSpec& s = tokenizer.spec();
  std::string out = "{\n  \"version\": \"1.0\",\n";
  out += "  \"truncation\": " + s.truncation + ",\n  \"padding\": " + s.padding + ",\n";
  out += "  \"added_tokens\": " + added_json(s) + ",\n";
  out += "  \"normalizer\": " + s.normalizer + ",\n";
  out += "  \"pre_tokenizer\": " + s.pre_tokenizer + ",\n";
  out += "  \"post_processor\": " + s.post_processor + ",\n";
  const bool no_decoder = s.decoder == "null" && is_byte_level(s);
  out += "  \"decoder\": " + (no_decoder ? TokenizerSpec{}.decoder : s.decoder) + ",\n";
  out += "  \"model\": {\n    " + model_json(tokenizer) + "\n  }\n}\n";
  return out;
}

std::string config_json(const TokenizerSpec& spec, int64_t longest) {
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
  // Of another model it may be more than this one takes, and where none was said it is 1e30.
  if (const Json& said = config.contains("model_max_length") ? config["model_max_length"] : Json();
      longest > 0 && !(said.is_number() && said.get<double>() <= static_cast<double>(longest)))
    config["model_max_length"] = longest;
  return config.dump(2) + "\n";
}

}  // namespace

void Tokenizer::save_json(const std::filesystem::path& file) const {
  write_atomic(file.string(), tokenizer_json(*this));
}

void Tokenizer::save(const std::filesystem::path& folder, int64_t longest) const {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    fail(ErrorCode::device, "a folder to write the tokenizer to",
         "'" + folder.string() + "': " + error.message(), "choose another folder");
  }
  const auto write = [&](const char* name, const std::string& text) {
    write_atomic((folder / name).string(), text);
  };
  if (spec().model == ModelType::bpe) {
    std::string merges = "#version: 0.2\n";
    for (const auto& [left, right] : spec().merges) {
      merges += std::string(token_text(left)) + " " + std::string(token_text(right)) + "\n";
    }
    write("vocab.json", vocab_json(spec(), "") + "\n");
    write("merges.txt", merges);
  } else if (spec().model == ModelType::word_piece &&
             static_cast<int64_t>(spec().vocab.size()) == vocab_size()) {
    // Without gaps and without tokens beside the vocabulary, a line a token says it all.
    std::string lines;
    for (int32_t id = 0; id < vocab_size(); ++id) lines += std::string(token_text(id)) + "\n";
    write("vocab.txt", lines);
  }
  write_atomic((folder / "tokenizer_config.json").string(), config_json(spec(), longest));
  write_atomic((folder / "tokenizer.json").string(), tokenizer_json(*this));
}

}  // namespace snug
