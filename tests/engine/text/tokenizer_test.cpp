#include "engine/text/tokenizer.h"

#include <nlohmann/json.hpp>
#include <thread>

#include "engine/text/tokenizer_spec.h"
#include "tests/engine/text/helpers.h"

namespace snug {
namespace {

using Ids = std::vector<int32_t>;
const std::vector<std::string> kForms = {"gpt2", "llama3", "qwen", "o200k", "prefix"};

Tokenizer form(const std::string& name) {
  return Tokenizer::load(golden("tokenizer_" + name + ".json"));
}

// Bytes "a" "b" "c" "ab" and a special token; the rest of the byte alphabet is missing on purpose.
nlohmann::json tiny() {
  return nlohmann::json::parse(R"({
    "added_tokens": [{"id": 5, "content": "<|endoftext|>", "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "post_processor": null, "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4},
              "merges": ["a b", ["ab", "c"]]}})");
}

TEST(Tokenizer, IdsEqualHuggingFace) {
  const auto cases = nlohmann::json::parse(slurp(golden("text_golden.json")))["cases"];
  ASSERT_GT(cases.size(), 60u);
  for (const std::string& name : kForms) {
    const Tokenizer tokenizer = form(name);
    for (const auto& c : cases) {
      const std::string text = c["text"];
      EXPECT_EQ(tokenizer.encode(text), c["ids"][name].get<Ids>()) << name << ": " << text;
    }
  }
}

TEST(Tokenizer, RoundTripOfAnyText) {
  std::mt19937 rng(11);
  const Tokenizer gpt2 = form("gpt2"), o200k = form("o200k");
  for (int i = 0; i < 300; ++i) {
    const std::string text = random_text(rng, static_cast<int>(rng() % 200));
    EXPECT_EQ(gpt2.decode(gpt2.encode(text)), text);
    EXPECT_EQ(o200k.decode(o200k.encode(text)), text);
    const std::string bytes = random_bytes(rng, static_cast<int>(rng() % 200));
    EXPECT_EQ(gpt2.decode(gpt2.encode(bytes)), sanitize_utf8(bytes));
  }
  const std::string corpus = slurp(golden("text_corpus.txt"));
  for (const std::string& word : {std::string(100000, 'a'), std::string(100000, ' '), corpus}) {
    EXPECT_EQ(gpt2.decode(gpt2.encode(word)), word);
  }
}

TEST(Tokenizer, DecodeTakesAnyIds) {
  const Tokenizer t = form("gpt2");
  std::mt19937 rng(12);
  Ids ids = {-1, INT32_MIN, INT32_MAX, static_cast<int32_t>(t.vocab_size())};
  EXPECT_EQ(t.decode(ids), "");
  for (int i = 0; i < 1000; ++i) ids.push_back(static_cast<int32_t>(rng()) % 800);
  std::string joined;
  for (const int32_t id : ids) joined += t.token_bytes(id);
  EXPECT_EQ(t.decode(ids), joined);
  EXPECT_EQ(t.decode(Ids{0, 1}, true), std::string(t.token_bytes(1)));
  EXPECT_EQ(t.decode(Ids{0}), "<|endoftext|>");
}

// A word that is a token is that one before any merge, without an alphabet of bytes too: as Hugging Face
// tokenizers 0.23 has it.
TEST(Tokenizer, WholeWordsComeBeforeMerges) {
  for (const bool whole : {false, true}) {
    const TestFolder folder;
    const nlohmann::json json = {
        {"version", "1.0"},
        {"added_tokens", nlohmann::json::array()},
        {"model",
         {{"type", "BPE"},
          {"vocab", {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"abc", 4}, {"bc", 5}}},
          {"merges", {"a b", "b c"}},
          {"ignore_merges", whole}}},
        {"pre_tokenizer", {{"type", "WhitespaceSplit"}}}};
    const Tokenizer t = Tokenizer::load(folder.write("tok.json", json.dump()));
    EXPECT_EQ(t.encode("abc cab"), whole ? (Ids{4, 2, 3}) : (Ids{3, 2, 2, 3}));
  }
}

TEST(Tokenizer, TokensAndRoles) {
  const Tokenizer t = form("gpt2");
  EXPECT_EQ(t.vocab_size(), 700);
  EXPECT_EQ(t.merge_count(), 700 - 257);
  EXPECT_EQ(t.eos_id(), 0);
  EXPECT_EQ(t.bos_id(), 0);
  EXPECT_FALSE(t.pad_id() || t.unk_id());
  EXPECT_TRUE(t.is_special(0));
  EXPECT_FALSE(t.is_special(1) || t.is_special(-1) || t.is_special(100000));
  const auto the = t.token_to_id("\u0120the");
  ASSERT_TRUE(the);
  EXPECT_EQ(t.token_bytes(*the), " the");
  EXPECT_EQ(t.token_text(*the), "\u0120the");
  EXPECT_FALSE(t.token_to_id(" the"));
  Ids out = {7};
  t.encode(" the", out);
  EXPECT_EQ(out, (Ids{7, *the}));
}

TEST(Tokenizer, SavedAndLoadedIsTheSame) {
  const std::string corpus = slurp(golden("text_corpus.txt"));
  std::vector<uint64_t> prints;
  for (const std::string& name : kForms) {
    const TestFolder folder;
    const Tokenizer t = form(name);
    t.save(folder / "deep/er");
    t.save_json(folder / "one.json");
    for (const Tokenizer& u :
         {Tokenizer::load(folder / "deep/er"), Tokenizer::load(folder / "deep/er/tokenizer.json"),
          Tokenizer::load(folder / "one.json")}) {
      EXPECT_EQ(u.fingerprint(), t.fingerprint()) << name;
      EXPECT_EQ(u.encode(corpus), t.encode(corpus)) << name;
      EXPECT_EQ(u.vocab_size(), t.vocab_size());
      EXPECT_EQ(u.eos_id(), t.eos_id());
      EXPECT_EQ(u.spec().post_processor, t.spec().post_processor);
    }
    prints.push_back(t.fingerprint());
    // Nothing but the four files: no temporary name is left.
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "deep/er")) {
      files += entry.is_regular_file();
    }
    EXPECT_EQ(files, 4);
  }
  std::sort(prints.begin(), prints.end());
  EXPECT_EQ(std::unique(prints.begin(), prints.end()), prints.end());
}

TEST(Tokenizer, VocabAndMergesAlone) {
  const TestFolder folder;
  const Tokenizer t = form("gpt2");
  t.save(folder.path());
  std::filesystem::remove(folder / "tokenizer.json");
  std::filesystem::remove(folder / "tokenizer_config.json");
  const Tokenizer u = Tokenizer::load(folder.path());
  EXPECT_EQ(u.fingerprint(), t.fingerprint());
  EXPECT_EQ(u.eos_id(), 0);
  EXPECT_TRUE(u.is_special(0));
  // Without the version line, with CRLF, the same.
  std::string merges = slurp(folder / "merges.txt");
  merges = merges.substr(merges.find('\n') + 1);
  std::string crlf;
  for (const char c : merges) crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  folder.write("merges.txt", crlf);
  EXPECT_EQ(Tokenizer::load(folder.path()).fingerprint(), t.fingerprint());
}

// As transformers 5.23 reads such folders: AutoTokenizer gives these ids.
TEST(Tokenizer, AddedTokensBesideVocabAndMerges) {
  const TestFolder folder;
  const Tokenizer t = form("gpt2");
  t.save(folder.path());
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    std::filesystem::remove(folder / name);
  const auto V = static_cast<int32_t>(t.vocab_size());
  const auto number = [](int32_t id) { return std::to_string(id); };
  const auto load = [&] { return Tokenizer::load(folder.path()); };
  const std::string text = "<tool><|im_end|>";

  folder.write("added_tokens.json",
               "{\"<|im_end|>\": " + number(V + 1) + ", \"<tool>\": " + number(V) + "}");
  EXPECT_EQ(load().encode(text), (Ids{V, V + 1}));
  EXPECT_FALSE(load().is_special(V));
  EXPECT_EQ(load().vocab_size(), V + 2);
  folder.write("special_tokens_map.json",
               R"({"eos_token": "<|im_end|>", "mask_token": "<m>",
                   "additional_special_tokens": ["<tool>", {"content": "<x>", "rstrip": true}]})");
  EXPECT_EQ(load().encode(text + "<m><x>  t"), (Ids{V, V + 1, V + 2, V + 3, t.encode("t").at(0)}));
  EXPECT_EQ(load().eos_id(), V + 1);
  EXPECT_FALSE(load().is_special(V));  // the list of the map is looked at too late for it
  for (int32_t id = V + 1; id < V + 4; ++id) EXPECT_TRUE(load().is_special(id)) << id;
  // The decoder of the config says it all.
  folder.write("tokenizer_config.json", R"({"added_tokens_decoder": {")" + number(V) +
                                            R"(": {"content": "<|im_end|>", "special": true}}})");
  EXPECT_EQ(load().encode("<|im_end|>"), Ids{V});
  EXPECT_EQ(load().vocab_size(), V + 1);
  std::filesystem::remove(folder / "special_tokens_map.json");
  folder.write("tokenizer_config.json", R"({"additional_special_tokens": ["<|end|>"]})");
  EXPECT_TRUE(load().is_special(V + 2));
  EXPECT_EQ(load().encode(text + "<|end|>"), (Ids{V, V + 1, V + 2}));
  load().save(folder / "saved");
  EXPECT_EQ(Tokenizer::load(folder / "saved").encode(text + "<|end|>"), (Ids{V, V + 1, V + 2}));

  const auto refused = [&](const char* file, const std::string& content, const std::string& wanted,
                           const std::string& found, const std::string& advice) {
    folder.write(file, content);
    expect_error([&] { load(); }, ErrorCode::data, wanted, found, advice);
  };
  refused("tokenizer_config.json", R"({"additional_special_tokens": [7]})",
          "a token in \"additional_special_tokens\"", "tokenizer_config.json: 7", "repair");
  refused("tokenizer_config.json", R"({"extra_special_tokens": 7})",
          "a list \"extra_special_tokens\"", "tokenizer_config.json: number", "repair");
  folder.write("tokenizer_config.json", "{}");
  refused("added_tokens.json", "{\"<tool>\": " + number(V + 5) + "}",
          "the id " + number(V) + " for \"<tool>\"", "added_tokens.json: " + number(V + 5),
          "tokenizer.json");
  refused("added_tokens.json", "[]", "added tokens {\"token\": id", "added_tokens.json: array",
          "repair");
}

TEST(Tokenizer, RolesFromConfigFiles) {
  const TestFolder folder;
  form("llama3").save_json(folder / "tokenizer.json");
  EXPECT_EQ(Tokenizer::load(folder.path()).eos_id(), 0);
  folder.write(
      "tokenizer_config.json",
      R"({"eos_token": {"content": "<|end|>"}, "bos_token": null, "model_max_length": 9})");
  folder.write("special_tokens_map.json", R"({"pad_token": "<mask>"})");
  const Tokenizer t = Tokenizer::load(folder.path());
  EXPECT_EQ(t.eos_id(), t.token_to_id("<|end|>"));
  EXPECT_FALSE(t.bos_id());  // null in the config means none
  EXPECT_EQ(t.pad_id(), t.token_to_id("<mask>"));
  t.save(folder / "again");
  const auto config = nlohmann::json::parse(slurp(folder / "again/tokenizer_config.json"));
  EXPECT_EQ(config["model_max_length"], 9);
  EXPECT_EQ(config["eos_token"]["content"], "<|end|>");
  EXPECT_EQ(config["pad_token"], "<mask>");
  EXPECT_EQ(config["tokenizer_class"], "PreTrainedTokenizerFast");
  // The map wins, as in transformers, unless the config has added_tokens_decoder.
  folder.write("special_tokens_map.json", R"({"eos_token": "<|endo", "pad_token": "<mask>"})");
  EXPECT_EQ(Tokenizer::load(folder.path()).eos_id(), t.token_to_id("<|endo"));
  folder.write("tokenizer_config.json", R"({"eos_token": "<|end|>", "added_tokens_decoder": {}})");
  EXPECT_EQ(Tokenizer::load(folder.path()).eos_id(), t.token_to_id("<|end|>"));
  EXPECT_FALSE(Tokenizer::load(folder.path()).pad_id());
  folder.write("special_tokens_map.json", "{}");
  folder.write("tokenizer_config.json", R"({"eos_token": "<nowhere>"})");
  expect_error([&] { Tokenizer::load(folder.path()); }, ErrorCode::data,
               "eos_token in the vocabulary", "\"<nowhere>\" is not", "added_tokens");
}

TEST(Tokenizer, AddPrefixSpaceOfTheConfigWins) {
  const TestFolder folder;
  form("gpt2").save(folder.path());
  folder.write("tokenizer_config.json", R"({"add_prefix_space": true})");
  const Tokenizer t = Tokenizer::load(folder.path());
  EXPECT_EQ(t.encode("the"), t.encode(" the"));
  EXPECT_NE(t.fingerprint(), form("gpt2").fingerprint());
}

TEST(Tokenizer, FingerprintCountsWhatDecidesIds) {
  const TestFolder folder;
  const auto print = [&](const nlohmann::json& j) {
    return Tokenizer::load(folder.write("t.json", j.dump())).fingerprint();
  };
  const uint64_t base = print(tiny());
  auto j = tiny();
  j["decoder"] = nullptr;
  j["pre_tokenizer"]["trim_offsets"] = false;
  j["model"]["merges"] = {"a b", "ab c"};
  EXPECT_EQ(print(j), base);
  j = tiny();
  j["model"]["merges"].erase(1);
  EXPECT_NE(print(j), base);
  j = tiny();
  j["pre_tokenizer"]["use_regex"] = false;
  EXPECT_NE(print(j), base);
  j = tiny();
  j["normalizer"] = {{"type", "NFC"}};
  EXPECT_NE(print(j), base);
  j = tiny();
  j["added_tokens"][0]["lstrip"] = true;
  EXPECT_NE(print(j), base);
  j = tiny();
  std::swap(j["model"]["vocab"]["a"], j["model"]["vocab"]["c"]);
  EXPECT_NE(print(j), base);
}

// What is unknown costs 10 more than the rarest piece: ids of tokenizers 0.22, which knows "cd", "e" (-26)
// for better than "<unk>", "de" (-31).
TEST(Tokenizer, AnUnknownCharacterCostsMoreThanTheRarestPiece) {
  const TestFolder folder;
  const Tokenizer t = Tokenizer::load(
      folder.write("unigram.json",
                   R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
          "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
          "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false,
                    "vocab": [["<unk>", 0.0], ["cd", -13.0], ["e", -13.0], ["de", -1.0],
                              ["z", -20.0]]}})"));
  EXPECT_EQ(t.encode("cde"), (Ids{1, 2}));
  EXPECT_EQ(t.encode("xde"), (Ids{0, 3}));
  EXPECT_EQ(t.encode("cdxe"), (Ids{1, 0, 2}));
  EXPECT_EQ(t.encode("czzde"), (Ids{0, 4, 4, 3}));
}

TEST(Tokenizer, ManyThreadsGiveTheSameIds) {
  const Tokenizer t = form("llama3");
  const std::string corpus = slurp(golden("text_corpus.txt"));
  const Ids wanted = t.encode(corpus);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 50; ++k) wrong += t.encode(corpus) != wanted;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(TokenizerErrors, Paths) {
  const TestFolder folder;
  const auto load = [](const std::filesystem::path& p) { return [p] { Tokenizer::load(p); }; };
  expect_error(load(folder.path()), ErrorCode::data, "a folder with tokenizer.json",
               "has none of them", "check the path");
  expect_error(load(folder / "no.json"), ErrorCode::data, "a tokenizer.json file", "does not exist",
               "snug tokenizer train");
  std::filesystem::create_directories(folder / "x/tokenizer.json");
  expect_error(load(folder / "x"), ErrorCode::data, "x/tokenizer.json", "a folder",
               "path of a file");
  expect_error([&] { form("gpt2").save(folder.write("file", "") / "sub"); }, ErrorCode::device,
               "a folder to write", "file/sub", "another folder");
}

// Each edit of a good file, and what its error must say.
TEST(TokenizerErrors, BrokenAndUnknownFiles) {
  const TestFolder folder;
  using Edit = std::function<void(nlohmann::json&)>;
  struct Case {
    Edit edit;
    ErrorCode code;
    const char *expected, *found;
  };
  const auto set = [](const char* pointer, const char* value) -> Edit {
    return [=](nlohmann::json& j) {
      j[nlohmann::json::json_pointer(pointer)] = nlohmann::json::parse(value);
    };
  };
  const ErrorCode data = ErrorCode::data, unsupported = ErrorCode::unsupported;
  const std::vector<Case> cases = {
      {set("/model", "null"), data, "a \"model\" in tokenizer.json", "t.json: null"},
      {set("/model/type", "\"Trie\""), unsupported, "a model of type BPE, WordPiece, Unigram",
       "\"Trie\""},
      {set("/model/type", "\"WordPiece\""), data, "an unk_token that is in", "\"[UNK]\""},
      {set("/model/type", "\"Unigram\""), data, "a Unigram vocabulary [[", "object"},
      {set("/model/type", "\"WordLevel\""), unsupported, "ByteLevel only before a BPE", "another"},
      {set("/model/dropout", "0.1"), unsupported, "a BPE model without dropout",
       "dropout 0.1 makes ids random"},
      {set("/model/end_of_word_suffix", "\"</w>\""), unsupported, "byte-level", "\"</w>\""},
      {set("/model/byte_fallback", "true"), unsupported, "byte-level", "byte_fallback true"},
      {set("/model/unk_token", "\"?\""), data, "an unk_token that is in", "\"?\""},
      {set("/model/vocab", "[]"), data, "a vocabulary {", "array"},
      {set("/model/vocab/a", "\"x\""), data, "an integer id", "token \"a\" has string"},
      {set("/model/vocab/a", "-4"), data, "token ids from 0 to", "id -1 of token \"a\""},
      {set("/model/vocab/a", "99999999999"), data, "token ids from 0", "of token \"a\""},
      {set("/model/vocab/a", "20000000"), data, "token ids from 0", "id 20000000 of token \"a\""},
      {set("/model/vocab/a", "1"), data, "a different id", "id 1 of both \"a\" and \"b\""},
      {set("/model/vocab/", "9"), data, "tokens that are non-empty", "of id 9"},
      {set("/model/merges", "{}"), data, "a list of merges", "object"},
      {set("/model/merges/1", "3"), data, "merges as \"a b\"", "merge 1: 3"},
      {set("/model/merges/1", "\"a\""), data, "one space between", "merge 1: \"a\""},
      {set("/model/merges/1", "\"a  b\""), data, "one space between", "merge 1"},
      {set("/model/merges/1", "\"a z\""), data, "merges of tokens that are in", "merge 1: \"z\""},
      {set("/model/merges/1", "\"c c\""), data, "merges whose result", "no token \"cc\""},
      {set("/normalizer", R"({"type": "Uppercase"})"), unsupported,
       "normalizer of type NFC, NFD, NFKC, NFKD, Lowercase", "\"Uppercase\""},
      {set("/pre_tokenizer", R"({"type": "UnicodeScripts"})"), unsupported,
       "pre_tokenizer of type ByteLevel, Split, Digits", "\"UnicodeScripts\""},
      {set("/normalizer", R"({"type": "Replace", "content": "x"})"), data, "a Replace pattern",
       "null"},
      {set("/normalizer", R"({"type": "Precompiled", "precompiled_charsmap": "!"})"), data,
       "in base64", "character code 33"},
      {set("/normalizer", R"({"type": "Precompiled", "precompiled_charsmap": "AAAA"})"), data,
       "a precompiled_charsmap with a trie", "3 bytes"},
      {set("/normalizer", R"({"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAD/"})"),
       data, "a precompiled_charsmap whose texts are UTF-8", "bytes that are not"},
      {set("/pre_tokenizer", R"({"type": "Metaspace", "replacement": "ab"})"), data,
       "one character as \"replacement\"", "ab"},
      {set("/pre_tokenizer",
           R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"})"),
       unsupported, "a prepend_scheme among", "\"last\""},
      {set("/post_processor", R"({"type": "BertProcessing", "cls": 1})"), data,
       "\"cls\": [token, id]", "1"},
      {set("/post_processor", R"({"type": "TemplateProcessing", "single": [3], "pair": []})"), data,
       "SpecialToken or Sequence", "3"},
      {set("/post_processor",
           R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B"}}], "pair": []})"),
       data, "a Sequence A in \"single\"", "\"B\""},
      {set("/post_processor",
           R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "a", "type_id": 0}}],
               "pair": [], "special_tokens": {"a": {"ids": [-1]}}})"),
       data, "ids of special_tokens in the post_processor", "\"a\": -1"},
      {set("/pre_tokenizer", R"({"type": "Sequence"})"), data,
       "a list \"pretokenizers\" in a Sequence", "null"},
      {set("/pre_tokenizer", R"({"type": "Sequence", "pretokenizers":
            [{"type": "ByteLevel"}, {"type": "Digits"}]})"),
       unsupported, "ByteLevel as the last", "\"Digits\" after it"},
      {set("/pre_tokenizer", R"({"type": "Split", "behavior": "Sideways", "pattern": {}})"),
       unsupported, "a Split behavior among Isolated", "\"Sideways\""},
      {set("/pre_tokenizer", R"({"type": "Split", "behavior": "Isolated", "pattern": 3})"), data,
       "a Split pattern", "3"},
      {set("/pre_tokenizer/use_regex", "1"), data, "true or false", "1"},
      {set("/post_processor", R"({"type": "Odd"})"), unsupported,
       "post_processor of type ByteLevel, TemplateProcessing", "\"Odd\""},
      {set("/decoder", R"({"type": "CTC"})"), unsupported, "decoder of type ByteLevel, WordPiece",
       "\"CTC\""},
      {set("/added_tokens", "3"), data, "a list \"added_tokens\"", "number"},
      {set("/added_tokens/0/id", "null"), data, "an integer id", "an added token has null"},
      {set("/added_tokens/0/id", "2"), data, "agree with the vocabulary", "gives to \"c\""},
      {set("/added_tokens/0/content", "\"ab\""), data, "agree with the vocabulary", "gives id 3"},
  };
  EXPECT_EQ(Tokenizer::load(folder.write("t.json", tiny().dump())).encode("abcab<|endoftext|>"),
            (Ids{4, 3, 5}));
  for (const Case& c : cases) {
    auto j = tiny();
    c.edit(j);
    const auto path = folder.write("t.json", j.dump());
    SCOPED_TRACE(c.expected);
    expect_error([&] { Tokenizer::load(path); }, c.code, c.expected, c.found, "");
  }
  const std::string good = tiny().dump();
  for (size_t n = 0; n < good.size(); n += 7) {  // cut anywhere: an error, never a crash
    const auto path = folder.write("t.json", good.substr(0, n));
    EXPECT_THROW(Tokenizer::load(path), Error) << n;
  }
  expect_error([&] { Tokenizer::load(folder.write("t.json", "[]")); }, ErrorCode::data,
               "a JSON object with \"model\"", "array", "Hugging Face");
}

TEST(TokenizerErrors, VocabAndMergesNameTheLine) {
  const TestFolder folder;
  folder.write("vocab.json", R"({"a": 0, "b": 1, "ab": 2})");
  folder.write("merges.txt", "#version: 0.2\na b\n\nab q\n");
  expect_error([&] { Tokenizer::load(folder.path()); }, ErrorCode::data, "merges of tokens",
               "merges.txt:4: \"q\"", "same tokenizer");
  folder.write("merges.txt", "a b\n");
  folder.write("tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "<s>"}}})");
  expect_error([&] { Tokenizer::load(folder.path()); }, ErrorCode::data, "ids as keys", "\"x\"",
               "");
  folder.write("tokenizer_config.json",
               R"({"added_tokens_decoder": {"3": {"content": "<s>", "special": true}}})");
  EXPECT_EQ(Tokenizer::load(folder.path()).encode("ab<s>"), (Ids{2, 3}));
}

// A long line is shown up to a character's end.
TEST(TokenizerErrors, LongLinesAreCutBetweenCharacters) {
  const TestFolder folder;
  std::string shown = "x";
  while (shown.size() < 99) shown += "\u00E9";
  const std::string line = shown + "\u00E9\u00E9";
  folder.write("vocab.json", R"({"a": 0, "b": 1})");
  const auto merges = [&](const std::string& text) {
    folder.write("merges.txt", text);
    expect_error([&] { Tokenizer::load(folder.path()); }, ErrorCode::data, "merge",
                 "merges.txt:1: \"" + shown + "\"", "");
  };
  merges(line + "\n");
  merges(line + " a\n");
  std::filesystem::remove(folder / "vocab.json");
  std::filesystem::remove(folder / "merges.txt");
  folder.write("vocab.txt", line + "\n" + line + "\n");
  expect_error([&] { Tokenizer::load(folder.path()); }, ErrorCode::data,
               "a different token on every line", "vocab.txt:2: \"" + shown + "\" again", "");
}

TEST(Tokenizer, FoldersThatHoldOne) {
  const TestFolder folder;
  EXPECT_FALSE(holds_tokenizer(folder.path()));
  EXPECT_FALSE(holds_tokenizer(folder / "none"));
  for (const char* name : {"tokenizer.json", "vocab.json", "vocab.txt"}) {
    folder.write(name, "{}");
    EXPECT_TRUE(holds_tokenizer(folder.path())) << name;
    std::filesystem::remove(folder / name);
  }
  folder.write("merges.txt", "");
  EXPECT_FALSE(holds_tokenizer(folder.path()));
}

}  // namespace
}  // namespace snug
