// Reads tokenizer.json, and the older vocab.json + merges.txt and vocab.txt, with the roles from
// tokenizer_config.json and special_tokens_map.json. The formats are those of Hugging Face
// `tokenizers` and `transformers`.
#include <algorithm>
#include <string>
#include <utility>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/text/json_text.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_spec.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

const char* const kEndOfText = "<|endoftext|>";
const char* const kRepair = "repair the file or export the tokenizer again";

int32_t id_of(const Json& value, const std::string& what, const std::string& origin) {
  if (!value.is_number_integer()) {
    fail(ErrorCode::data, "an integer id", origin + ": " + what + " has " + value.type_name(),
         kRepair);
  }
  // Out of range for 32 bits becomes -1, which build refuses by name.
  const bool fits =
      value.is_number_unsigned() ? value.get<uint64_t>() <= INT32_MAX : value.get<int64_t>() >= 0;
  return fits ? value.get<int32_t>() : -1;
}

void read_vocab(const Json& vocab, const std::string& origin, TokenizerSpec& spec) {
  if (!vocab.is_object()) {
    fail(ErrorCode::data, "a vocabulary {\"token\": id, ...}", origin + ": " + vocab.type_name(),
         kRepair);
  }
  spec.vocab.reserve(vocab.size());
  for (const auto& [token, id] : vocab.items()) {
    spec.vocab.emplace(token, id_of(id, "token \"" + token + "\"", origin));
  }
}

void add_merge(std::string_view left, std::string_view right, const std::string& where,
               TokenizerSpec& spec) {
  std::array<int32_t, 2> pair{};
  for (size_t i = 0; i < 2; ++i) {
    const std::string_view part = i == 0 ? left : right;
    const auto it = spec.vocab.find(part);
    if (it == spec.vocab.end()) {
      fail(ErrorCode::data, "merges of tokens that are in the vocabulary",
           where + ": \"" + std::string(part.substr(0, 100)) + "\"",
           "use the vocabulary and the merges of the same tokenizer");
    }
    pair[i] = it->second;
  }
  spec.merges.push_back(pair);
}

// "a b": tokens written this way hold no space, so exactly one separates the two.
void add_merge_line(std::string_view line, const std::string& where, TokenizerSpec& spec) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    fail(ErrorCode::data, "a merge of two tokens with one space between",
         where + ": \"" + std::string(line.substr(0, 100)) + "\"", kRepair);
  }
  add_merge(line.substr(0, space), line.substr(space + 1), where, spec);
}

void read_merges(const Json& merges, const std::string& origin, TokenizerSpec& spec) {
  if (!merges.is_array()) {
    fail(ErrorCode::data, "a list of merges", origin + ": " + merges.type_name(), kRepair);
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
           kRepair);
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
         origin + ": " + vocab.type_name(), kRepair);
  }
  for (const Json& entry : vocab) {
    const auto id = static_cast<int32_t>(spec.scores.size());
    const std::string where = origin + ": piece " + std::to_string(id);
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      fail(ErrorCode::data, "pieces as [\"token\", score]", where + ": " + json_brief(entry),
           kRepair);
    }
    const auto& token = entry[0].get_ref<const std::string&>();
    if (!spec.vocab.emplace(token, id).second) {
      fail(ErrorCode::data, "pieces that are different", where + ": \"" + token + "\" again",
           kRepair);
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
         kRepair);
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
    fail(ErrorCode::data, "a list \"added_tokens\"", origin + ": " + added.type_name(), kRepair);
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

void read_vocab_and_merges(const fs::path& folder, TokenizerSpec& spec) {
  const fs::path vocab = folder / "vocab.json", merges = folder / "merges.txt";
  read_vocab(parse_json_file(vocab.string()), vocab.string(), spec);
  const std::string text = read_file(merges.string());
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    add_merge_line(line, merges.string() + ":" + std::to_string(number), spec);
  }
}

// vocab.txt of BERT: a token a line, its id the number of the line. The rest is what transformers'
// BertTokenizerFast puts around such a vocabulary.
void read_vocab_txt(const fs::path& folder, TokenizerSpec& spec) {
  const std::string path = (folder / "vocab.txt").string();
  const std::string text = read_file(path);
  spec.model = ModelType::word_piece;
  spec.unk_token = "[UNK]";
  spec.continuing_prefix = "##";
  int32_t id = 0;
  for (size_t begin = 0; begin < text.size(); ++id) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty() || !spec.vocab.emplace(line, id).second) {
      fail(ErrorCode::data, "a different token on every line",
           path + ":" + std::to_string(id + 1) + ": \"" + std::string(line.substr(0, 100)) +
               (line.empty() ? "\"" : "\" again"),
           "use the vocab.txt of the model as it was published");
    }
  }
  Json config = Json::object();
  std::error_code error;
  if (fs::exists(folder / "tokenizer_config.json", error)) {
    config = parse_json_file((folder / "tokenizer_config.json").string());
  }
  const auto setting = [&](const char* key, bool absent) {
    return json_bool(config, key, absent, (folder / "tokenizer_config.json").string());
  };
  const bool lower = setting("do_lower_case", true);
  spec.normalizer = Json{
      {"type", "BertNormalizer"},
      {"clean_text", true},
      {"handle_chinese_chars", setting("tokenize_chinese_chars", true)},
      {"strip_accents", setting("strip_accents", lower)},
      {"lowercase",
       lower}}.dump();
  spec.pre_tokenizer = R"({"type":"BertPreTokenizer"})";
  spec.decoder = R"({"type":"WordPiece","prefix":"##","cleanup":true})";
  for (const char* token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
    const auto it = spec.vocab.find(std::string_view(token));
    if (it == spec.vocab.end()) continue;
    spec.added.push_back({.id = it->second, .content = token, .special = true});
  }
  const auto cls = spec.vocab.find(std::string_view("[CLS]")),
             sep = spec.vocab.find(std::string_view("[SEP]"));
  if (cls == spec.vocab.end() || sep == spec.vocab.end()) return;
  spec.post_processor = Json{{"type", "BertProcessing"},
                             {"cls", {"[CLS]", cls->second}},
                             {"sep", {"[SEP]", sep->second}}}
                            .dump();
}

// A token in a config file is a string or an object with "content"; null and absent say nothing.
std::optional<std::string> token_in(const Json& config, const char* key,
                                    const std::string& origin) {
  const Json& value = json_member(config, key, origin);
  std::string token =
      value.is_object() ? json_string(value, "content", origin) : json_string(config, key, origin);
  if (token.empty()) return std::nullopt;
  return token;
}

struct Role {
  const char* key;
  std::optional<std::string> TokenizerSpec::*token;
};
constexpr Role kRoles[] = {{"eos_token", &TokenizerSpec::eos_token},
                           {"bos_token", &TokenizerSpec::bos_token},
                           {"pad_token", &TokenizerSpec::pad_token},
                           {"unk_token", &TokenizerSpec::unk_role}};

bool is_added(const TokenizerSpec& spec, const std::string& token) {
  return std::any_of(spec.added.begin(), spec.added.end(),
                     [&](const AddedToken& t) { return t.content == token; });
}

void add_special(TokenizerSpec& spec, const std::string& token) {
  const auto it = spec.vocab.find(token);
  if (it == spec.vocab.end() || is_added(spec, token)) return;
  spec.added.push_back({.id = it->second, .content = token, .special = true});
}

// Ids as decimal keys: {"50256": {"content": ...}}.
void read_added_decoder(const Json& config, const std::string& origin, TokenizerSpec& spec) {
  const Json& tokens = json_member(config, "added_tokens_decoder", origin);
  if (tokens.is_null()) return;
  if (!tokens.is_object()) {
    fail(ErrorCode::data, "an object \"added_tokens_decoder\"", origin + ": " + tokens.type_name(),
         kRepair);
  }
  StringMap<bool> known;  // thousands of tokens: not searched one by one
  for (const AddedToken& token : spec.added) known.emplace(token.content, true);
  for (const auto& [key, entry] : tokens.items()) {
    const bool digits =
        !key.empty() && key.size() <= 9 &&
        std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) {
      fail(ErrorCode::data, "ids as keys of \"added_tokens_decoder\"", origin + ": \"" + key + "\"",
           kRepair);
    }
    AddedToken token = read_added(entry, std::stoi(key), origin);
    if (known.emplace(token.content, true).second) spec.added.push_back(std::move(token));
  }
}

// Without tokenizer.json: a token that is not in the vocabulary follows it, as transformers has it.
int32_t next_id(const TokenizerSpec& spec) {
  auto next = static_cast<int32_t>(spec.vocab.size());
  for (const AddedToken& token : spec.added) next = std::max(next, token.id + 1);
  return next;
}

// added_tokens.json: {"token": id}.
void read_added_tokens(const fs::path& path, TokenizerSpec& spec) {
  const std::string origin = path.string();
  const Json root = parse_json_file(origin);
  if (!root.is_object()) {
    fail(ErrorCode::data, "added tokens {\"token\": id, ...}", origin + ": " + root.type_name(),
         kRepair);
  }
  std::vector<std::pair<int32_t, std::string>> tokens;
  for (const auto& [token, id] : root.items()) {
    tokens.emplace_back(id_of(id, "token \"" + token + "\"", origin), token);
  }
  std::sort(tokens.begin(), tokens.end());
  int32_t next = next_id(spec);
  for (const auto& [id, token] : tokens) {
    if (is_added(spec, token)) continue;
    const auto it = spec.vocab.find(token);
    const int32_t right = it != spec.vocab.end() ? it->second : next++;
    if (id != right) {
      fail(ErrorCode::data,
           "the id " + std::to_string(right) + " for \"" + token +
               "\": that of the vocabulary, or the next one behind it",
           origin + ": " + std::to_string(id),
           "save the tokenizer as tokenizer.json, which may give any id");
    }
    spec.added.push_back({.id = id, .content = token, .normalized = true});
  }
}

// A token of a list in a config file, as a string or as an object.
void add_listed(const Json& entry, const char* key, const std::string& origin,
                TokenizerSpec& spec) {
  AddedToken token;
  if (entry.is_object()) {
    token = read_added(entry, -1, origin);
  } else if (entry.is_string()) {
    token.content = entry.get<std::string>();
  }
  if (token.content.empty()) {
    fail(ErrorCode::data, std::string("tokens in \"") + key + "\"",
         origin + ": " + json_brief(entry), kRepair);
  }
  token.special = true;
  if (!entry.is_object() || !entry.contains("normalized")) token.normalized = false;
  for (AddedToken& known : spec.added) {
    if (known.content != token.content) continue;
    if (!known.special) known.normalized = false;
    known.special = true;
    return;
  }
  const auto it = spec.vocab.find(token.content);
  token.id = it != spec.vocab.end() ? it->second : next_id(spec);
  spec.added.push_back(std::move(token));
}

void add_lists(const Json& config, const std::string& origin, TokenizerSpec& spec) {
  for (const Role& role : kRoles) {
    const auto token = token_in(config, role.key, origin);
    if (token && is_added(spec, *token)) add_listed(*token, role.key, origin, spec);
  }
  for (const char* key : {"sep_token", "cls_token", "mask_token"}) {
    if (const Json& token = json_member(config, key, origin); !token.is_null() && token != "") {
      add_listed(token, key, origin, spec);
    }
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const Json& list = json_member(config, key, origin);
    if (list.is_null()) continue;
    // The second may also be names with their tokens.
    if (!list.is_array() && !list.is_object()) {
      fail(ErrorCode::data, std::string("a list \"") + key + "\"", origin + ": " + list.type_name(),
           kRepair);
    }
    for (const Json& entry : list) add_listed(entry, key, origin, spec);
  }
}

// What stands beside a vocabulary without tokenizer.json: added_tokens.json and the lists of
// special tokens. Where tokenizer_config.json has added_tokens_decoder, that and its own lists are
// all, as for transformers.
void read_added_files(const fs::path& folder, TokenizerSpec& spec) {
  std::error_code error;
  const auto there = [&](const char* name) { return fs::exists(folder / name, error); };
  const fs::path config_path = folder / "tokenizer_config.json",
                 map_path = folder / "special_tokens_map.json";
  Json config = Json::object(), map = Json::object();
  if (there("tokenizer_config.json")) config = parse_json_file(config_path.string());
  const bool decoder = !json_member(config, "added_tokens_decoder", config_path.string()).is_null();
  if (decoder) {
    read_added_decoder(config, config_path.string(), spec);
  } else if (there("added_tokens.json")) {
    read_added_tokens(folder / "added_tokens.json", spec);
  }
  add_lists(config, config_path.string(), spec);
  if (decoder || !there("special_tokens_map.json")) return;
  map = parse_json_file(map_path.string());
  add_lists(map, map_path.string(), spec);
}

void read_config(const fs::path& folder, TokenizerSpec& spec) {
  bool known[std::size(kRoles)] = {};  // a file spoke of the role, be it to say null
  std::error_code error;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const fs::path path = folder / name;
    if (!fs::exists(path, error)) continue;
    const std::string origin = path.string();
    const Json config = parse_json_file(path.string());
    if (!config.is_object()) {
      fail(ErrorCode::data, "a JSON object", origin + ": " + config.type_name(), kRepair);
    }
    for (size_t i = 0; i < std::size(kRoles); ++i) {
      auto& token = spec.*kRoles[i].token;
      if (!token) token = token_in(config, kRoles[i].key, origin);
      known[i] = known[i] || config.contains(kRoles[i].key);
    }
    if (std::string_view(name) != "tokenizer_config.json") continue;
    spec.config = config.dump();
    read_added_decoder(config, origin, spec);
    // transformers lets this key win over a ByteLevel pre-tokenizer, and so do we.
    Json pre_tokenizer = parse_json(spec.pre_tokenizer, spec.origin);
    if (pre_tokenizer.is_object() && pre_tokenizer.value("type", Json()) == "ByteLevel") {
      const bool now = json_bool(pre_tokenizer, "add_prefix_space", true, spec.origin);
      pre_tokenizer["add_prefix_space"] = json_bool(config, "add_prefix_space", now, origin);
      spec.pre_tokenizer = pre_tokenizer.dump();
    }
  }
  for (size_t i = 0; i < 2; ++i) {  // eos and bos
    auto& token = spec.*kRoles[i].token;
    const bool in_vocab = spec.vocab.contains(kEndOfText) || is_added(spec, kEndOfText);
    if (!token && !known[i] && in_vocab) token = kEndOfText;
  }
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
  const auto has = [&](const char* name) { return fs::exists(path / name, error); };
  const bool none = folder && !fs::exists(json, error);
  const bool pair = none && has("vocab.json") && has("merges.txt");
  const bool lines = none && !pair && has("vocab.txt");
  if (!fs::exists(path, error) || (none && !pair && !lines)) {
    fail(ErrorCode::data,
         "a tokenizer.json file, or a folder with tokenizer.json, vocab.json and merges.txt, or "
         "vocab.txt",
         "'" + path.string() + "' " + (folder ? "has none of them" : "does not exist"),
         "check the path, or train one with: snug tokenizer train");
  }
  TokenizerSpec spec;
  spec.origin = pair || lines ? path.string() : json.string();
  if (pair) {
    read_vocab_and_merges(path, spec);
  } else if (lines) {
    read_vocab_txt(path, spec);
  } else {
    read_tokenizer_json(json, spec);
  }
  if (pair || lines) read_added_files(path, spec);
  if (folder || json.filename() == "tokenizer.json") {
    read_config(folder ? path : json.parent_path(), spec);
    // A token with a role is cut out of the text whole, as transformers does when it loads one.
    for (const Role& role : kRoles) {
      if (spec.*role.token) add_special(spec, *(spec.*role.token));
    }
  } else if (spec.vocab.contains(kEndOfText) || is_added(spec, kEndOfText)) {
    spec.eos_token = spec.bos_token = kEndOfText;
  }
  return build(std::move(spec));
}

}  // namespace snug
