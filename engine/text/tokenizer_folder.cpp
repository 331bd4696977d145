// Tokenizers that stand as vocabulary files beside their configuration, in the form of each class
// of transformers 5 that is known here.
#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <string>
#include <utility>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/text/tokenizer_files.h"
#include "engine/text/unicode.h"

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

constexpr const char *kGpt2 = "GPT2Tokenizer", *kQwen2 = "Qwen2Tokenizer", *kBert = "BertTokenizer";

// The class that a model has where no file names one. Models with one of their own are not here.
constexpr std::pair<const char*, const char*> kModels[] = {
    {"gpt2", kGpt2},       {"gpt_neo", kGpt2},       {"gptj", kGpt2},
    {"opt", kGpt2},        {"phi", kGpt2},           {"codegen", kGpt2},
    {"starcoder2", kGpt2}, {"qwen2", kQwen2},        {"qwen2_moe", kQwen2},
    {"qwen2_vl", kQwen2},  {"qwen2_5_vl", kQwen2},   {"qwen2_audio", kQwen2},
    {"qwen3", kQwen2},     {"qwen3_moe", kQwen2},    {"qwen3_next", kQwen2},
    {"qwen3_vl", kQwen2},  {"qwen3_vl_moe", kQwen2}, {"bert", kBert},
    {"distilbert", kBert}, {"electra", kBert},       {"convbert", kBert},
    {"mobilebert", kBert}, {"squeezebert", kBert}};
// Other names of BertTokenizer.
constexpr const char* kBertNames[] = {"DistilBertTokenizer", "ElectraTokenizer",
                                      "MobileBertTokenizer", "SqueezeBertTokenizer"};

// The class that tokenizer_config.json names, else config.json, else the one of its model_type, as
// AutoTokenizer has it; the first of `known` where none does. A last "Fast" means nothing. Throws
// unsupported for a class that is not one of `known`.
std::string class_of(const fs::path& folder, const SpecialTokens& tokens,
                     std::initializer_list<const char*> known, const char* files) {
  std::string where = tokens.config_path();
  std::string said = json_string(tokens.config(), "tokenizer_class", where);
  const std::string model = (folder / "config.json").string();
  if (is_there(model)) {
    const Json config = parse_json_file(model);
    const std::string type = json_string(config, "model_type", model);
    const auto of_model = std::find_if(std::begin(kModels), std::end(kModels),
                                       [&](const auto& entry) { return type == entry.first; });
    if (said.empty()) {
      where = model;
      said = json_string(config, "tokenizer_class", model);
    }
    if (said.empty() && !type.empty() && of_model == std::end(kModels))
      fail(ErrorCode::unsupported,
           "a tokenizer_class in tokenizer_config.json, or a model_type whose class is known",
           model + ": model_type " + type, kSaveAsJson);
    // A class of other files says nothing of these: a model of GPT-2's form may go with a
    // vocab.txt. Folders of Qwen2 name wrong classes: transformers takes that of the model.
    if (of_model != std::end(kModels) && (said.empty() || type == "qwen2") &&
        std::find(known.begin(), known.end(), std::string_view(of_model->second)) != known.end())
      said = of_model->second;
  }
  if (said.empty()) return *known.begin();
  std::string name = said;
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  if (std::find(std::begin(kBertNames), std::end(kBertNames), name) != std::end(kBertNames))
    name = kBert;
  std::string all;
  for (const char* one : known) {
    if (name == one) return name;
    all += (all.empty() ? "" : " or ") + std::string(one);
  }
  fail(ErrorCode::unsupported, all + " for " + files, where + ": " + said, kSaveAsJson);
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
           path + ":" + std::to_string(id + 1) + ": \"" + beginning_utf8(line, 100) +
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
  if (!spec.vocab.contains(spec.unk_token))
    fail(ErrorCode::data, "unk_token as a line of vocab.txt",
         path + ": no \"" + spec.unk_token + "\"",
         "name the vocabulary's own as unk_token in tokenizer_config.json");
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
  const std::string name =
      merges ? class_of(folder, tokens, {kGpt2, kQwen2}, "vocab.json and merges.txt")
             : class_of(folder, tokens, {kBert}, "vocab.txt");
  const bool qwen = name == kQwen2;
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
