// Tokenizers that stand as vocabulary files beside their configuration, in the form of each class
// of transformers 5 that is known here.
#include <algorithm>
#include <string>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/text/tokenizer_files.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

// Of Qwen2Tokenizer.
constexpr const char* kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool has_merges(const fs::path& folder) {
  return is_there(folder / "vocab.json") && is_there(folder / "merges.txt");
}

// The class as tokenizer_config.json names it, else config.json, else the one that its model_type
// has; empty where none does. A last "Fast" means nothing.
std::string class_of(const fs::path& folder, const SpecialTokens& tokens, std::string* where) {
  *where = tokens.config_path();
  std::string name = json_string(tokens.config(), "tokenizer_class", *where);
  const std::string model = (folder / "config.json").string();
  if (name.empty() && is_there(model)) {
    *where = model;
    const Json config = parse_json_file(model);
    name = json_string(config, "tokenizer_class", model);
    const std::string type = json_string(config, "model_type", model);
    if (name.empty() && (type.starts_with("qwen2") || type.starts_with("qwen3")))
      name = "Qwen2Tokenizer";
    if (name.empty() && type == "roberta") name = "RobertaTokenizer";
  }
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
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

void read_gpt2(const fs::path& folder, SpecialTokens& tokens, TokenizerSpec& spec) {
  read_vocab_and_merges(folder, spec);
  for (const char* role : {"bos_token", "eos_token", "unk_token"})
    tokens.set_default(role, kEndOfText);
}

void read_qwen2(const fs::path& folder, SpecialTokens& tokens, TokenizerSpec& spec) {
  read_vocab_and_merges(folder, spec);
  for (const char* role : {"eos_token", "unk_token", "pad_token"})
    tokens.set_default(role, kEndOfText);
  const bool prefix = json_bool(tokens.config(), "add_prefix_space", false, tokens.config_path());
  spec.normalizer = R"({"type":"NFC"})";
  spec.pre_tokenizer = Json{{"type", "Sequence"},
                            {"pretokenizers",
                             {{{"type", "Split"},
                               {"pattern", {{"Regex", kQwenPattern}}},
                               {"behavior", "Isolated"},
                               {"invert", false}},
                              {{"type", "ByteLevel"},
                               {"add_prefix_space", prefix},
                               {"trim_offsets", true},
                               {"use_regex", false}}}}}
                           .dump();
}

// vocab.txt of BERT: a token a line, its id the number of the line.
void read_bert(const fs::path& folder, SpecialTokens& tokens, TokenizerSpec& spec) {
  const std::string path = (folder / "vocab.txt").string();
  const std::string text = read_file(path);
  spec.model = ModelType::word_piece;
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
  const auto setting = [&](const char* key, bool absent) {
    return json_bool(tokens.config(), key, absent, tokens.config_path());
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
  tokens.set_default("unk_token", "[UNK]");
  tokens.set_default("sep_token", "[SEP]");
  tokens.set_default("pad_token", "[PAD]");
  tokens.set_default("cls_token", "[CLS]");
  tokens.set_default("mask_token", "[MASK]");
  for (const char* role : {"unk_token", "cls_token", "sep_token"})
    if (!tokens.role(role))
      fail(ErrorCode::data, std::string("a ") + role + ", which BERT's tokenizer needs",
           tokens.config_path() + ": none", "leave the key out: it has a default");
  spec.unk_token = *tokens.role("unk_token");
}

int32_t id_in(const TokenizerSpec& spec, const std::string& token) {
  const auto it = std::find_if(spec.added.begin(), spec.added.end(),
                               [&](const AddedToken& t) { return t.content == token; });
  require(it != spec.added.end(), "a role's token among the added ones");
  return it->id;
}

std::string bert_processor(const SpecialTokens& tokens, const TokenizerSpec& spec) {
  const std::string cls = *tokens.role("cls_token"), sep = *tokens.role("sep_token");
  return Json{{"type", "BertProcessing"},
              {"cls", {cls, id_in(spec, cls)}},
              {"sep", {sep, id_in(spec, sep)}}}
      .dump();
}

// What add_bos_token and add_eos_token ask for.
std::string ends_processor(const SpecialTokens& tokens, const TokenizerSpec& spec) {
  const auto wanted = [&](const char* key, const char* role) -> std::optional<std::string> {
    if (!json_bool(tokens.config(), key, false, tokens.config_path())) return std::nullopt;
    return tokens.role(role);
  };
  const auto bos = wanted("add_bos_token", "bos_token"), eos = wanted("add_eos_token", "eos_token");
  if (!bos && !eos) return "null";
  Json single = Json::array(), pair = Json::array(), special = Json::object();
  const auto add = [&](Json& to, const std::optional<std::string>& token, int type) {
    if (!token) return;
    to.push_back({{"SpecialToken", {{"id", *token}, {"type_id", type}}}});
    special[*token] = {{"id", *token}, {"ids", {id_in(spec, *token)}}, {"tokens", {*token}}};
  };
  const auto sequence = [](const char* name, int type) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  add(single, bos, 0);
  single.push_back(sequence("A", 0));
  add(single, eos, 0);
  pair = single;
  add(pair, bos, 1);
  pair.push_back(sequence("B", 1));
  add(pair, eos, 1);
  return Json{{"type", "TemplateProcessing"},
              {"single", single},
              {"pair", pair},
              {"special_tokens", special}}
      .dump();
}

}  // namespace

bool holds_vocabulary_files(const fs::path& folder) {
  return has_merges(folder) || is_there(folder / "vocab.txt");
}

void read_vocabulary_files(const fs::path& folder, SpecialTokens& tokens, TokenizerSpec& spec) {
  const bool merges = has_merges(folder);
  std::string where;
  const std::string name = class_of(folder, tokens, &where);
  const bool qwen = name == "Qwen2Tokenizer";
  const bool known = merges
                         ? name.empty() || name == "GPT2Tokenizer" || qwen
                         : name.empty() || name == "BertTokenizer" || name == "DistilBertTokenizer";
  if (!known)
    fail(ErrorCode::unsupported,
         merges ? "GPT2Tokenizer or Qwen2Tokenizer for vocab.json and merges.txt"
                : "BertTokenizer or DistilBertTokenizer for vocab.txt",
         where + ": " + name, kSaveAsJson);
  if (qwen)
    read_qwen2(folder, tokens, spec);
  else if (merges)
    read_gpt2(folder, tokens, spec);
  else
    read_bert(folder, tokens, spec);
  tokens.add_to(spec, qwen, true);
  spec.post_processor = merges ? ends_processor(tokens, spec) : bert_processor(tokens, spec);
}

}  // namespace snug
