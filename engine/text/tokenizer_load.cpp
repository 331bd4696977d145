// Reads tokenizer.json, of Hugging Face `tokenizers`, and what stands beside it. Older forms are in
// tokenizer_folder.cpp.
#include <algorithm>
#include <string>
#include <utility>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_files.h"
#include "engine/text/unicode.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

void add_merge(std::string_view left, std::string_view right, const std::string& where,
               TokenizerSpec& spec) {
  std::array<int32_t, 2> pair{};
  for (size_t i = 0; i < 2; ++i) {
    const std::string_view part = i == 0 ? left : right;
    const auto it = spec.vocab.find(part);
    if (it == spec.vocab.end()) {
      fail(ErrorCode::data, "merges of tokens that are in the vocabulary",
           where + ": \"" + beginning_utf8(part, 100) + "\"",
           "use the vocabulary and the merges of the same tokenizer");
    }
    pair[i] = it->second;
  }
  spec.merges.push_back(pair);
}

}  // namespace

int32_t id_of(const Json& value, const std::string& what, const std::string& origin) {
  if (!value.is_number_integer()) {
    fail(ErrorCode::data, "an integer id", origin + ": " + what + " has " + value.type_name(),
         kRepairFile);
  }
  // Out of range for 32 bits becomes -1, which build refuses by name.
  const bool fits =
      value.is_number_unsigned() ? value.get<uint64_t>() <= INT32_MAX : value.get<int64_t>() >= 0;
  return fits ? value.get<int32_t>() : -1;
}

void read_vocab(const Json& vocab, const std::string& origin, TokenizerSpec& spec) {
  if (!vocab.is_object()) {
    fail(ErrorCode::data, "a vocabulary {\"token\": id, ...}", origin + ": " + vocab.type_name(),
         kRepairFile);
  }
  spec.vocab.reserve(vocab.size());
  for (const auto& [token, id] : vocab.items()) {
    spec.vocab.emplace(token, id_of(id, "token \"" + token + "\"", origin));
  }
}

void add_merge_line(std::string_view line, const std::string& where, TokenizerSpec& spec) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    fail(ErrorCode::data, "a merge of two tokens with one space between",
         where + ": \"" + beginning_utf8(line, 100) + "\"", kRepairFile);
  }
  add_merge(line.substr(0, space), line.substr(space + 1), where, spec);
}

namespace {

void read_merges(const Json& merges, const std::string& origin, TokenizerSpec& spec) {
  if (!merges.is_array()) {
    fail(ErrorCode::data, "a list of merges", origin + ": " + merges.type_name(), kRepairFile);
  }
  spec.merges.reserve(merges.size());
  for (const Json& merge : merges) {
    const std::string where = origin + ": merge " + std::to_string(spec.merges.size());
    if (merge.is_string()) {
      add_merge_line(merge.get_ref<const std::string&>(), where, spec);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      add_merge(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>(),
                where, spec);
    } else {
      fail(ErrorCode::data, "merges as \"a b\" or [\"a\", \"b\"]", where + ": " + json_brief(merge),
           kRepairFile);
    }
  }
}

void read_bpe(const Json& model, const std::string& origin, TokenizerSpec& spec) {
  const Json& dropout = json_member(model, "dropout", origin);
  if (dropout.is_number() && dropout.get<double>() != 0.0) {
    fail(ErrorCode::unsupported, "a BPE model without dropout",
         origin + ": dropout " + dropout.dump() + " makes ids random",
         "set \"dropout\" of the model to null");
  }
  spec.continuing_prefix = json_string(model, "continuing_subword_prefix", origin);
  spec.end_suffix = json_string(model, "end_of_word_suffix", origin);
  spec.byte_fallback = json_bool(model, "byte_fallback", false, origin);
  spec.unk_token = json_string(model, "unk_token", origin);
  spec.fuse_unk = json_bool(model, "fuse_unk", false, origin);
  spec.ignore_merges = json_bool(model, "ignore_merges", false, origin);
  read_vocab(json_member(model, "vocab", origin), origin, spec);
  read_merges(json_member(model, "merges", origin), origin, spec);
}

// [["token", score], ...] in the order of ids.
void read_unigram(const Json& model, const std::string& origin, TokenizerSpec& spec) {
  const Json& vocab = json_member(model, "vocab", origin);
  if (!vocab.is_array()) {
    fail(ErrorCode::data, "a Unigram vocabulary [[\"token\", score], ...]",
         origin + ": " + vocab.type_name(), kRepairFile);
  }
  for (const Json& entry : vocab) {
    const auto id = static_cast<int32_t>(spec.scores.size());
    const std::string where = origin + ": piece " + std::to_string(id);
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      fail(ErrorCode::data, "pieces as [\"token\", score]", where + ": " + json_brief(entry),
           kRepairFile);
    }
    const auto& token = entry[0].get_ref<const std::string&>();
    if (!spec.vocab.emplace(token, id).second) {
      fail(ErrorCode::data, "pieces that are different", where + ": \"" + token + "\" again",
           kRepairFile);
    }
    spec.scores.push_back(entry[1].get<double>());
  }
  spec.byte_fallback = json_bool(model, "byte_fallback", false, origin);
  const auto unk = get_int(model, "unk_id", origin, -1);
  if (unk < 0) return;
  for (const auto& [token, id] : spec.vocab) {
    if (id == unk) spec.unk_token = token;
  }
  if (spec.unk_token.empty()) {
    fail(ErrorCode::data, "an unk_id in the vocabulary", origin + ": " + std::to_string(unk),
         kRepairFile);
  }
}

void read_model(const Json& model, const std::string& origin, TokenizerSpec& spec) {
  if (!model.is_object()) {
    fail(ErrorCode::data, "a \"model\" in tokenizer.json", origin + ": " + model.type_name(),
         "check that this is a Hugging Face tokenizer.json");
  }
  const std::string type = json_string(model, "type", origin);
  if (type == "BPE" || (type.empty() && model.contains("merges"))) {
    read_bpe(model, origin, spec);
  } else if (type == "WordPiece") {
    spec.model = ModelType::word_piece;
    spec.unk_token = get_string(model, "unk_token", origin, "[UNK]");
    spec.continuing_prefix = get_string(model, "continuing_subword_prefix", origin, "##");
    spec.max_word_chars = get_int(model, "max_input_chars_per_word", origin, 100);
    read_vocab(json_member(model, "vocab", origin), origin, spec);
  } else if (type == "Unigram") {
    spec.model = ModelType::unigram;
    read_unigram(model, origin, spec);
  } else if (type == "WordLevel") {
    spec.model = ModelType::word_level;
    spec.unk_token = json_string(model, "unk_token", origin);
    read_vocab(json_member(model, "vocab", origin), origin, spec);
  } else {
    fail(ErrorCode::unsupported, "a model of type BPE, WordPiece, Unigram or WordLevel",
         origin + ": model of type \"" + type + "\"", "export the tokenizer as one of these");
  }
}

AddedToken read_added(const Json& entry, int32_t id, const std::string& origin) {
  AddedToken token;
  token.id = id;
  token.content = json_string(entry, "content", origin);
  token.single_word = json_bool(entry, "single_word", false, origin);
  token.lstrip = json_bool(entry, "lstrip", false, origin);
  token.rstrip = json_bool(entry, "rstrip", false, origin);
  token.special = json_bool(entry, "special", false, origin);
  token.normalized = json_bool(entry, "normalized", !token.special, origin);
  return token;
}

void read_tokenizer_json(const fs::path& path, TokenizerSpec& spec) {
  const std::string& origin = spec.origin;
  const Json root = parse_json_file(path.string());
  if (!root.is_object()) {
    fail(ErrorCode::data, "a JSON object with \"model\"", origin + ": " + root.type_name(),
         "check that this is a Hugging Face tokenizer.json");
  }
  read_model(json_member(root, "model", origin), origin, spec);
  const Json& added = json_member(root, "added_tokens", origin);
  if (!added.is_null() && !added.is_array()) {
    fail(ErrorCode::data, "a list \"added_tokens\"", origin + ": " + added.type_name(),
         kRepairFile);
  }
  for (const Json& entry : added) {
    const Json& id = json_member(entry, "id", origin);
    spec.added.push_back(read_added(entry, id_of(id, "an added token", origin), origin));
  }
  const auto component = [&](const char* key) { return json_member(root, key, origin).dump(); };
  spec.normalizer = component("normalizer");
  spec.pre_tokenizer = component("pre_tokenizer");
  spec.post_processor = component("post_processor");
  spec.decoder = component("decoder");
  spec.truncation = component("truncation");
  spec.padding = component("padding");
}

// transformers lets this key win over a ByteLevel pre-tokenizer, and so do we.
void use_prefix_space(const SpecialTokens& tokens, TokenizerSpec& spec) {
  Json pre_tokenizer = parse_json(spec.pre_tokenizer, spec.origin);
  if (!pre_tokenizer.is_object() || pre_tokenizer.value("type", Json()) != "ByteLevel") return;
  const bool now = json_bool(pre_tokenizer, "add_prefix_space", true, spec.origin);
  pre_tokenizer["add_prefix_space"] =
      json_bool(tokens.config(), "add_prefix_space", now, tokens.config_path());
  spec.pre_tokenizer = pre_tokenizer.dump();
}

}  // namespace

bool holds_tokenizer(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "tokenizer.json", error) || fs::exists(folder / "vocab.json", error) ||
         fs::exists(folder / "vocab.txt", error);
}

Tokenizer Tokenizer::load(const fs::path& path) {
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  const fs::path json = folder ? path / "tokenizer.json" : path;
  const bool none = folder && !fs::exists(json, error);
  if (!fs::exists(path, error) || (none && !holds_vocabulary_files(path))) {
    fail(ErrorCode::data,
         "a tokenizer.json file, or a folder with tokenizer.json, vocab.json and merges.txt, or "
         "vocab.txt",
         "'" + path.string() + "' " + (folder ? "has none of them" : "does not exist"),
         "check the path, or train one with: snug tokenizer train");
  }
  TokenizerSpec spec;
  spec.origin = none ? path.string() : json.string();
  if (!none) read_tokenizer_json(json, spec);
  const auto has = [&](const std::string& token) {
    return spec.vocab.contains(token) ||
           std::any_of(spec.added.begin(), spec.added.end(),
                       [&](const AddedToken& t) { return t.content == token; });
  };
  if (!folder && json.filename() != "tokenizer.json") {  // no other file is its own
    if (has(kEndOfText)) spec.eos_token = spec.bos_token = kEndOfText;
    return build(std::move(spec));
  }
  SpecialTokens tokens(folder ? path : json.parent_path());
  spec.config = tokens.config().dump();
  if (none) {
    read_vocabulary_files(path, tokens, spec);
  } else {
    for (const char* role : {"eos_token", "bos_token"})
      if (has(kEndOfText)) tokens.set_default(role, kEndOfText);
    tokens.add_to(spec, false, false);
  }
  use_prefix_space(tokens, spec);
  spec.eos_token = tokens.role("eos_token");
  spec.bos_token = tokens.role("bos_token");
  spec.pad_token = tokens.role("pad_token");
  spec.unk_role = tokens.role("unk_token");
  return build(std::move(spec));
}

}  // namespace snug
