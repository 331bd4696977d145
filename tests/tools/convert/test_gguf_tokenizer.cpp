// Tokenizers as GGUF keys: the names of splitting rules, the scores of pieces, types and roles of tokens.
#include <gtest/gtest.h>

#include <functional>

#include "engine/io/files.h"
#include "engine/io/json.h"
#include "engine/text/tokenizer_spec.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/support/errors.h"
#include "tests/support/folders.h"
#include "tools/convert/gguf_tokenizer.h"

namespace snug {
namespace {

using nlohmann::json;

constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

json split(const char* pattern) {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"},
             {"pattern", {{"Regex", pattern}}},
             {"behavior", "Isolated"},
             {"invert", false}},
            byte_level(false)}}};
}

Tokenizer with_rule(const json& pre, bool whole_words) {
  TokenizerSpec spec;
  spec.vocab = {{"a", 0}, {"b", 1}};
  spec.pre_tokenizer = pre.dump();
  spec.ignore_merges = whole_words;
  return Tokenizer::build(spec);
}

TEST(GgufTokenizer, RulesHaveTheNamesOfLlamaCpp) {
  const json digits = {
      {"type", "Sequence"},
      {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, byte_level(true)}}};
  json runs = digits;
  runs["pretokenizers"][0]["individual_digits"] = false;
  struct Row {
    json pre;
    bool whole_words;
    const char* name;
  };
  for (const Row& row : std::vector<Row>{{byte_level(true), false, "gpt-2"},
                                         {byte_level(true), true, "gpt-2"},  // with a note
                                         {digits, false, "smollm"},
                                         {runs, false, ""},
                                         {split(kLlama3), true, "llama-bpe"},
                                         {split(kLlama3), false, "dbrx"},
                                         {split(kQwen2), false, "qwen2"},
                                         {split(kTekken), true, "tekken"},
                                         {split("a|b"), false, ""}})
    EXPECT_EQ(gguf_splitting_rule(with_rule(row.pre, row.whole_words)), row.name) << row.pre;
  EXPECT_TRUE(gguf_splitting_of("llama-bpe").whole_words);
  EXPECT_FALSE(gguf_splitting_of("dbrx").whole_words);
  EXPECT_TRUE(gguf_splitting_of("tekken").ascii_case);
  EXPECT_FALSE(gguf_splitting_of("another").known);
}

// A tokenizer of pieces from tests/golden/make_gguf_golden.py, changed, from a file of its own.
class Pieces : public testing::Test {
 protected:
  Pieces()
      : golden_(parse_json_file(source_folder() + "/tests/golden/gguf_pieces.json", 1 << 22)) {}
  Tokenizer tokenizer(const std::function<void(json&)>& change = [](json&) {}) const {
    json j = golden_["tokenizer"];
    change(j);
    const std::string path = folder_ / "tokenizer.json";
    write_json_file(path, j);
    return Tokenizer::load(path);
  }
  json golden_;
  TempFolder folder_;
};

TEST_F(Pieces, ScoresAreSentencePieces) {
  const Tokenizer t = tokenizer();
  const GgufPieces pieces = gguf_pieces_of(t);
  ASSERT_EQ(pieces.scores.size(), static_cast<size_t>(t.vocab_size()));
  int64_t compared = 0;
  for (const auto& [text, score] : golden_["scores"].items()) {
    const int32_t id = t.token_to_id(text).value();
    EXPECT_EQ(pieces.scores[static_cast<size_t>(id)], score.get<float>()) << text;
    ++compared;
  }
  EXPECT_GT(compared, 50);
  // SentencePiece's score of a piece is minus its place among those that are no control and no byte:
  // behind all that merges make come the characters.
  for (const char* character : {"\u2581", "e", "t", "<"}) {
    const int32_t id = t.token_to_id(character).value();
    EXPECT_EQ(pieces.scores[static_cast<size_t>(id)], static_cast<float>(259 - id)) << character;
  }
  EXPECT_EQ(t.token_to_id("<").value(), 459);
  EXPECT_TRUE(pieces.space_before);
  EXPECT_TRUE(pieces.again_after);
  EXPECT_TRUE(pieces.always);
}

TEST_F(Pieces, SpacesBeforeTheText) {
  const json metaspace = {{"type", "Metaspace"},
                          {"replacement", "\u2581"},
                          {"prepend_scheme", "first"},
                          {"split", false}};
  const auto ends = [&](const json& normalizer, const json& pre) {
    const GgufPieces p = gguf_pieces_of(tokenizer([&](json& j) {
      j["normalizer"] = normalizer;
      j["pre_tokenizer"] = pre;
    }));
    return std::pair(p.space_before, p.again_after);
  };
  json scheme = metaspace;
  EXPECT_EQ(ends(nullptr, metaspace), std::pair(true, false));
  scheme["prepend_scheme"] = "always";
  EXPECT_EQ(ends(nullptr, scheme), std::pair(true, true));
  scheme["prepend_scheme"] = "never";
  EXPECT_EQ(ends(nullptr, scheme), std::pair(false, true));
  const json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  EXPECT_EQ(ends(replace, nullptr), std::pair(false, true));
  const json gemma = {{"type", "Split"},
                      {"pattern", {{"String", " "}}},
                      {"behavior", "MergedWithPrevious"},
                      {"invert", false}};
  EXPECT_EQ(ends(replace, gemma), std::pair(false, true));
}

// llama.cpp puts one before every text that begins, which is said where the tokenizer does not.
TEST_F(Pieces, ASpaceThatLlamaCppAddsIsSaid) {
  const auto said = [&](const char* scheme) {
    const Tokenizer t = tokenizer([&](json& j) {
      if (scheme == nullptr) return;
      j["normalizer"] = nullptr;
      j["pre_tokenizer"] = {{"type", "Metaspace"},
                            {"replacement", "\u2581"},
                            {"prepend_scheme", scheme},
                            {"split", false}};
    });
    ModelSpec model;
    model.V = t.vocab_size();
    GgufMetadata out;
    std::string all;
    for (const std::string& note : add_gguf_tokenizer(t, model, "", "nowhere", out)) all += note;
    return all;
  };
  const std::string words = "puts no space before a text that begins with one";
  EXPECT_EQ(said(nullptr).find(words), std::string::npos) << "SentencePiece's own";
  EXPECT_EQ(said("never").find(words), std::string::npos);
  EXPECT_NE(said("always").find(words + "; llama.cpp does"), std::string::npos) << said("always");
  EXPECT_NE(said("first").find(words + ", nor after special tokens inside a text; llama.cpp does"),
            std::string::npos)
      << said("first");
}

TEST_F(Pieces, OthersAreRefused) {
  struct Row {
    const char* words;
    std::function<void(json&)> change;
  };
  const Row rows[] = {
      {"BPE with byte_fallback", [](json& j) { j["model"]["byte_fallback"] = false; }},
      {"ignore_merges: true", [](json& j) { j["model"]["ignore_merges"] = true; }},
      {"no <0x0A>",
       [](json& j) {
         json& vocab = j["model"]["vocab"];
         vocab["<0x0a>"] = vocab["<0x0A>"];
         vocab.erase("<0x0A>");
       }},
      {"a normaliser that puts a space before the text or U+2581 for spaces, or none",
       [](json& j) {
         j["normalizer"] = {{"type", "NFKC"}};
       }},
      {"spaces as they are", [](json& j) { j["normalizer"] = nullptr; }},
      {"split: true",
       [](json& j) {
         j["normalizer"] = nullptr;
         j["pre_tokenizer"] = {{"type", "Metaspace"},
                               {"replacement", "\u2581"},
                               {"prepend_scheme", "first"},
                               {"split", true}};
       }},
      {"no splitting before the merges",
       [](json& j) {
         j["pre_tokenizer"] = {{"type", "Whitespace"}};
       }},
      {"in several places",
       [](json& j) {  // one of a token's ways goes to the end
         json& merges = j["model"]["merges"];
         const auto made = [](const json& m) {
           return m[0].get<std::string>() + m[1].get<std::string>();
         };
         for (size_t i = 1; i < merges.size(); ++i)
           if (made(merges[i]) == made(merges[i - 1]) && i + 1 < merges.size()) {
             const json moved = merges[i];
             merges.erase(i);
             merges.push_back(moved);
             return;
           }
         FAIL() << "no token with two ways to it";
       }},
      {"none of \"", [](json& j) { j["model"]["merges"].erase(j["model"]["merges"].size() - 1); }},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.words);
    test::expect_error(ErrorCode::unsupported, {row.words, "try:"},
                       [&] { gguf_pieces_of(tokenizer(row.change)); });
  }
}

// llama.cpp goes by the model's name: tokens that take blanks, and files that it does not open.
TEST_F(Pieces, NamesOfPhi) {
  const auto notes = [&](const char* name, bool rstrip) {
    const Tokenizer t = tokenizer([&](json& j) {
      json& added = j["added_tokens"];
      added[2]["rstrip"] = added[3]["rstrip"] = rstrip;  // </s> and <end_of_turn>
      json text = added[0];
      text["id"] = 461;
      text["content"] = "<|endoftext|>";
      added.push_back(text);
    });
    std::string all;
    for (const std::string& note : check_gguf_name(t, name)) all += note;
    return all;
  };
  EXPECT_EQ(notes("Phi-3-mini", true), "");
  EXPECT_EQ(notes("mine", false), "");
  EXPECT_NE(notes("mine", true).find("otherwise for </s>, <end_of_turn>:"), std::string::npos);
  EXPECT_NE(notes("phi3-mine", false).find("otherwise for </s>, <end_of_turn>:"),
            std::string::npos);
  test::expect_error(ErrorCode::usage,
                     {"a name without phi3", "\"My-Phi-3\" and a tokenizer without <|endoftext|>"},
                     [&] { check_gguf_name(tokenizer(), "My-Phi-3"); });
}

// The keys of a tokenizer of pieces with tokens of every type and a model that ends in four ways.
TEST_F(Pieces, KeysTypesAndEnds) {
  const std::string folder = folder_ / "folder";
  std::filesystem::create_directories(folder);
  write_json_file(folder + "/generation_config.json", {{"eos_token_id", {2, 460, 461, 9}}});
  write_json_file(folder + "/tokenizer_config.json",
                  {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"chat_template", "{{ 1 }}"}});
  json j = golden_["tokenizer"];
  j["added_tokens"].push_back({{"id", 461},
                               {"content", "<tool>"},
                               {"single_word", false},
                               {"lstrip", false},
                               {"rstrip", true},
                               {"normalized", false},
                               {"special", false}});
  write_json_file(folder + "/tokenizer.json", j);
  const Tokenizer t = Tokenizer::load(folder);
  ModelSpec spec;
  spec.V = 465;
  GgufMetadata out;
  std::string notes;
  for (const std::string& note : add_gguf_tokenizer(t, spec, "", folder, out)) notes += note + "\n";
  EXPECT_NE(notes.find("the model stops at 9 as well; the file names three tokens that end a text, "
                       "2, 460 and 461"),
            std::string::npos)
      << notes;
  const GgufLayout layout(out, {});
  const std::string& header = layout.header();
  const GgufReader file("m", {reinterpret_cast<const uint8_t*>(header.data()), header.size()});
  const auto key = [&](const std::string& name) -> const GgufKey& {
    const GgufKey* const found = file.find_key("tokenizer." + name);
    if (!found) throw std::runtime_error("no " + name);
    return *found;
  };
  EXPECT_EQ(file.string(key("ggml.model")), "llama");
  EXPECT_EQ(file.string(key("ggml.pre")), "default");
  EXPECT_EQ(file.string(key("chat_template")), "{{ 1 }}");
  EXPECT_EQ(key("ggml.scores").count, 465);
  EXPECT_TRUE(file.boolean(key("ggml.add_space_prefix")));
  EXPECT_TRUE(file.boolean(key("ggml.add_bos_token")));
  for (const auto& [role, id] :
       {std::pair("bos", 1), std::pair("eos", 2), std::pair("eot", 460), std::pair("eom", 461)})
    EXPECT_EQ(file.integer(key(std::string("ggml.") + role + "_token_id")), id) << role;
  const std::vector<int64_t> types = file.integers(key("ggml.token_type"));
  const auto tokens = file.strings(key("ggml.tokens"));
  ASSERT_EQ(types.size(), 465u);
  EXPECT_EQ(types[0], 2);    // <unk>
  EXPECT_EQ(types[1], 3);    // <s>
  EXPECT_EQ(types[3], 6);    // <0x00>
  EXPECT_EQ(types[300], 1);  // a piece
  EXPECT_EQ(types[460], 3);  // <end_of_turn>
  EXPECT_EQ(types[461], 4);  // <tool>
  EXPECT_EQ(types[462], 5);
  EXPECT_EQ(tokens[462], "[PAD462]");
}

}  // namespace
}  // namespace snug
