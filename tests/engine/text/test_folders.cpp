// Folders as transformers reads them: tests/golden/text_make_folders.py.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_spec.h"
#include "tests/engine/text/helpers.h"

namespace snug {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

// The file beside a case's own that hold its vocabulary.
void write_form(const TestFolder& folder, const std::string& form, const Json& bert) {
  if (form == "bert") {
    std::string lines;
    for (const Json& token : bert) lines += token.get<std::string>() + "\n";
    folder.write("vocab.txt", lines);
    return;
  }
  fs::copy_file(golden("tokenizer_gpt2.json"), folder / "tokenizer.json");
  if (form == "json") return;
  Tokenizer::load(folder / "tokenizer.json").save(folder.path());
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) fs::remove(folder / name);
  if (form == "qwen2") folder.write("config.json", R"({"model_type": "qwen2"})");
}

bool is_spoken_of(const Json& files, const char* role) {
  const Json config = files.value("tokenizer_config.json", Json::object());
  const Json map = files.value("special_tokens_map.json", Json::object());
  return config.contains(role) || (map.contains(role) && !config.contains("added_tokens_decoder"));
}

TEST(Folders, AreReadAsTransformersDoes) {
  const Json golden_cases = Json::parse(slurp(golden("text_folders.json")));
  int compared = 0, refused = 0;
  for (const Json& c : golden_cases["cases"]) {
    const TestFolder folder;
    write_form(folder, c["form"], golden_cases["bert"]);
    for (const auto& [name, content] : c["files"].items()) folder.write(name, content.dump());
    SCOPED_TRACE(c["form"].get<std::string>() + " " + c["files"].dump());
    if (c.contains("error")) {  // either way, but no crash
      try {
        Tokenizer::load(folder.path());
      } catch (const Error&) {
      }
      continue;
    }
    if (c["moved"] == true) {  // not silently another id than the file says
      expect_error([&] { Tokenizer::load(folder.path()); }, ErrorCode::data, "the id ",
                   ".json: ", "tokenizer.json");
      ++refused;
      continue;
    }
    if (c["absent"] == true) {  // a model made with that tokenizer.json has no row for it
      expect_error([&] { Tokenizer::load(folder.path()); }, ErrorCode::data,
                   "_token in the vocabulary", "is not", "added_tokens");
      ++refused;
      continue;
    }
    try {
      const Tokenizer t = Tokenizer::load(folder.path());
      Json added = Json::object();
      for (const AddedToken& a : t.spec().added)
        added[std::to_string(a.id)] = {a.content,     a.lstrip,     a.rstrip,
                                       a.single_word, a.normalized, a.special};
      EXPECT_EQ(added, c["added"]);
      const auto role = [&](const char* key, const std::optional<std::string>& token) {
        // Our own rule for a tokenizer.json of which no file says more.
        if (c["form"] == "json" && !is_spoken_of(c["files"], key)) return;
        EXPECT_EQ(token ? Json(*token) : Json(), c["roles"][key]) << key;
      };
      role("bos_token", t.spec().bos_token);
      role("eos_token", t.spec().eos_token);
      role("pad_token", t.spec().pad_token);
      role("unk_token", t.spec().unk_role);
      for (const Json& text : c["texts"]) {
        const std::vector<int32_t> ids = t.encode(text[0].get<std::string>());
        EXPECT_EQ(Json(ids), text[1]) << text[0];
        EXPECT_EQ(Json(t.with_special_tokens(ids).ids), text[2]) << text[0];
      }
      ++compared;
    } catch (const Error& e) {
      ADD_FAILURE() << e.what();
    }
  }
  EXPECT_GT(compared, 100);
  EXPECT_GT(refused, 3);
}

// A class whose words or whose ends are others is not read as one that is known.
TEST(Folders, AClassThatIsNotKnownIsRefused) {
  const TestFolder folder;
  write_form(folder, "gpt2", {});
  const auto refused = [&](const char* file, const std::string& content, const char* wanted,
                           const char* found) {
    folder.write(file, content);
    expect_error([&] { Tokenizer::load(folder.path()); }, ErrorCode::unsupported, wanted, found,
                 "tokenizer.json");
    fs::remove(folder / file);
  };
  for (const char* name : {"GPT2Tokenizer", "GPT2TokenizerFast"}) {
    folder.write("tokenizer_config.json", Json{{"tokenizer_class", name}}.dump());
    EXPECT_EQ(Tokenizer::load(folder.path()).eos_id(), 0);
  }
  fs::remove(folder / "tokenizer_config.json");
  const char* known = "GPT2Tokenizer or Qwen2Tokenizer for vocab.json and merges.txt";
  refused("tokenizer_config.json", R"({"tokenizer_class": "RobertaTokenizerFast"})", known,
          "tokenizer_config.json: RobertaTokenizerFast");
  const char* model = "a tokenizer_class in tokenizer_config.json, or a model_type whose class";
  for (const char* type : {"roberta", "bart", "whisper", "qwen3_5", "none of ours"})
    refused("config.json", Json{{"model_type", type}}.dump(), model,
            (std::string("config.json: model_type ") + type).c_str());
  refused("config.json", R"({"tokenizer_class": "BertTokenizer"})", known,
          "config.json: BertTokenizer");
  refused("config.json", R"({"tokenizer_class": "CTRLTokenizer"})", known,
          "config.json: CTRLTokenizer");
  for (const char* name : {"vocab.json", "merges.txt"}) fs::remove(folder / name);
  folder.write("vocab.txt", "[UNK]\n[CLS]\n[SEP]\n");
  refused("tokenizer_config.json", R"({"tokenizer_class": "MPNetTokenizer"})",
          "BertTokenizer for vocab.txt", "MPNetTokenizer");
  refused("config.json", R"({"model_type": "mpnet"})", model, "config.json: model_type mpnet");
  for (const char* type : {"bert", "electra", "gpt2"}) {  // the last has other files
    folder.write("config.json", Json{{"model_type", type}}.dump());
    EXPECT_EQ(Tokenizer::load(folder.path()).unk_id(), 0);
  }
  for (const char* name : {"BertTokenizer", "DistilBertTokenizerFast", "ElectraTokenizer"}) {
    folder.write("tokenizer_config.json", Json{{"tokenizer_class", name}}.dump());
    EXPECT_EQ(Tokenizer::load(folder.path()).unk_id(), 0);
  }
  folder.write("tokenizer_config.json", R"({"sep_token": null})");
  expect_error([&] { Tokenizer::load(folder.path()); }, ErrorCode::data,
               "a sep_token, which BERT's tokenizer needs", "tokenizer_config.json: none",
               "default");
}

// AutoTokenizer of transformers 5.23: the class that is named, else that of the model; Qwen2's
// model has its own whatever is named.
TEST(Folders, TheModelNamesTheClassWhereNothingElseDoes) {
  // "12" is one word for GPT-2 and two for Qwen2.
  const auto is_qwen = [](const char* model, const char* tokenizer) {
    const TestFolder folder;
    folder.write("vocab.json", R"({"1": 0, "2": 1, "12": 2})");
    folder.write("merges.txt", "1 2\n");
    folder.write("config.json", model);
    folder.write("tokenizer_config.json", tokenizer);
    return Tokenizer::load(folder.path()).encode("12").size() == 2;
  };
  const char* none = "{}";
  const char* gpt2 = R"({"tokenizer_class": "GPT2Tokenizer"})";
  for (const char* type : {"gpt2", "gpt_neo", "gptj", "opt", "phi", "codegen", "starcoder2"})
    EXPECT_FALSE(is_qwen(Json{{"model_type", type}}.dump().c_str(), none)) << type;
  for (const char* type : {"qwen2", "qwen2_moe", "qwen2_5_vl", "qwen3", "qwen3_moe", "qwen3_next"})
    EXPECT_TRUE(is_qwen(Json{{"model_type", type}}.dump().c_str(), none)) << type;
  EXPECT_FALSE(is_qwen(none, none));
  EXPECT_FALSE(is_qwen(R"({"model_type": "llama"})", gpt2));
  EXPECT_FALSE(is_qwen(R"({"model_type": "qwen3"})", gpt2));
  EXPECT_TRUE(is_qwen(R"({"model_type": "qwen2"})", gpt2));
  EXPECT_TRUE(is_qwen(R"({"model_type": "gpt2"})", R"({"tokenizer_class": "Qwen2TokenizerFast"})"));
  EXPECT_TRUE(is_qwen(R"({"tokenizer_class": "Qwen2Tokenizer"})", none));
}

// transformers fails at the first word that is not known.
TEST(Folders, BertsUnknownTokenIsInTheVocabulary) {
  const TestFolder folder;
  folder.write("vocab.txt", "[CLS]\n[SEP]\nthe\n");
  expect_error([&] { Tokenizer::load(folder.path()); }, ErrorCode::data,
               "unk_token as a line of vocab.txt", "vocab.txt: no \"[UNK]\"",
               "tokenizer_config.json");
  folder.write("tokenizer_config.json", R"({"unk_token": "the"})");
  EXPECT_EQ(Tokenizer::load(folder.path()).encode("cat"), std::vector<int32_t>{2});
}

TEST(Folders, IdsEndWithThirtyTwoBits) {
  const TestFolder folder;
  folder.write("vocab.json", R"({"a": 0, "b": 1})");
  folder.write("merges.txt", "");
  folder.write("added_tokens.json", R"({"<x>": 2147483647})");
  expect_error([&] { Tokenizer::load(folder.path()); }, ErrorCode::data, "the id 2 for \"<x>\"",
               "2147483647", "tokenizer.json");
  folder.write("tokenizer.json",
               R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
                   "added_tokens": [{"id": 2147483647, "content": "<y>"}]})");
  folder.write("tokenizer_config.json", R"({"mask_token": "<m>"})");
  fs::remove(folder / "added_tokens.json");
  expect_error([&] { Tokenizer::load(folder.path()); }, ErrorCode::data,
               "leave room for those of added tokens", "none is left for \"<m>\"", "repair");
}

TEST(Folders, TwoNewTokensWithNamesOfTheirOwnAreRefused) {
  const TestFolder folder;
  write_form(folder, "gpt2", {});
  folder.write("tokenizer_config.json", R"({"image_token": "<i>", "audio_token": "<a>"})");
  expect_error([&] { Tokenizer::load(folder.path()); }, ErrorCode::unsupported,
               "at most one token with a name of its own", "tokenizer_config.json: \"<i>\"",
               "tokenizer.json");
}

}  // namespace
}  // namespace snug
