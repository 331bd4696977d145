// Files and texts made to take time or memory: everything stays linear in its size, or is refused.
#include <nlohmann/json.hpp>

#include "engine/text/bpe_model.h"
#include "engine/text/components.h"
#include "engine/text/text_bound.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_spec.h"
#include "tests/engine/text/helpers.h"

namespace snug {
namespace {

using nlohmann::json;

json parts(const std::string& name) {
  static const json all = json::parse(slurp(golden("text_components.json")));
  for (const auto& one : all["tokenizers"]) {
    if (one["name"] == name) return one["json"];
  }
  return {};
}

// One word under every model.
void encode_long_words(size_t bytes) {
  const TestFolder folder;
  std::vector<Tokenizer> all;
  for (const char* name : {"bert", "unigram", "unigram_bytes", "llama2", "clip", "words"}) {
    all.push_back(Tokenizer::load(folder.write("t.json", parts(name).dump())));
  }
  for (const char* name : {"gpt2", "llama3", "qwen", "o200k", "prefix"}) {
    all.push_back(Tokenizer::load(golden(std::string("tokenizer_") + name + ".json")));
  }
  for (const char* unit : {"a", "\u0301\u0323", " ", "\n", "한", "'s", "\u2581", "1", "A"}) {
    std::string text;
    while (text.size() < bytes) text += unit;
    for (const Tokenizer& t : all) EXPECT_LE(t.encode(text).size(), text.size() + 1);
  }
}

TEST(Hostile, OneLongWord) {
  encode_long_words(20000);
}

// Quadratic work would take minutes.
TEST(SlowHostile, OneWordOfAThirdOfAMegabyte) {
  encode_long_words(300000);
}

TEST(SlowHostile, ManyAddedTokens) {
  const TestFolder folder;
  json j = parts("llama2");
  const int first = 5000;
  for (int i = 0; i < 100000; ++i) {
    j["added_tokens"].push_back({{"id", first + i},
                                 {"content", "<t" + std::to_string(i) + ">"},
                                 {"lstrip", true},
                                 {"rstrip", true},
                                 {"normalized", i % 2 == 0}});
  }
  const Tokenizer t = Tokenizer::load(folder.write("t.json", j.dump()));
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "<t" + std::to_string(i * 5) + ">   <t";
  EXPECT_GT(t.encode(text).size(), 20000u);
  EXPECT_EQ(t.encode("<t7>").at(0), first + 7);
}

TEST(Hostile, LongAddedTokensAreRefused) {
  const TestFolder folder;
  json j = parts("llama2");
  j["added_tokens"].push_back({{"id", 5000}, {"content", std::string(1025, 'a')}});
  expect_error([&] { Tokenizer::load(folder.write("t.json", j.dump())); }, ErrorCode::unsupported,
               "added tokens of at most 1024 bytes", "one of 1025 bytes, id 5000",
               "shorten the token");
}

// A word of as many characters as are allowed is read, one more is unknown; bytes do not count.
TEST(Hostile, TheLongestWordOfWordPiece) {
  const TestFolder folder;
  json j = parts("bert");
  j["model"]["max_input_chars_per_word"] = 3;
  for (const char* piece : {"a", "##a", "\xea\xb0\x80", "##\xea\xb0\x80"})
    if (!j["model"]["vocab"].contains(piece))
      j["model"]["vocab"][piece] = j["model"]["vocab"].size();
  j["normalizer"] = nullptr;
  const Tokenizer t = Tokenizer::load(folder.write("t.json", j.dump()));
  const auto unknown = static_cast<int32_t>(*t.token_to_id("[UNK]"));
  for (const std::string one : {"a", "\xea\xb0\x80"}) {
    EXPECT_EQ(t.encode(one + one + one).size(), 3u);
    EXPECT_EQ(t.encode(one + one + one + one), std::vector<int32_t>{unknown});
  }
}

// Without a post-processor a pair stands side by side, its second text of type 1.
TEST(Hostile, PairsWithoutAPostProcessorHaveTypes) {
  const TestFolder folder;
  json j = parts("bert");
  j["post_processor"] = nullptr;
  const Tokenizer t = Tokenizer::load(folder.write("t.json", j.dump()));
  const std::vector<int32_t> a = {5, 6}, b = {7};
  const TokenSequence s = t.with_special_tokens(a, b);
  EXPECT_EQ(s.ids, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(s.type_ids, (std::vector<int32_t>{0, 0, 1}));
}

TEST(Hostile, LimitsOfModels) {
  const TestFolder folder;
  const auto load = [&](const json& j) { Tokenizer::load(folder.write("t.json", j.dump())); };
  json j = parts("bert");
  j["model"]["max_input_chars_per_word"] = 5000;
  expect_error([&] { load(j); }, ErrorCode::unsupported, "max_input_chars_per_word from 0 to 4096",
               "5000", "100");
  j = parts("unigram");
  j["model"]["vocab"].push_back({std::string(2000, 'b'), -3.0});
  expect_error([&] { load(j); }, ErrorCode::unsupported, "pieces of at most 1024 bytes",
               "one of 2000 bytes", "remove the piece");
  j = parts("unigram");
  j["model"]["vocab"].push_back(j["model"]["vocab"][3]);
  expect_error([&] { load(j); }, ErrorCode::data, "pieces that are different", "again", "");
  j = parts("unigram");
  j["model"]["vocab"][3] = {"x"};
  expect_error([&] { load(j); }, ErrorCode::data, "pieces as [\"token\", score]", "piece 3", "");
  j = parts("unigram");
  j["model"]["unk_id"] = 99999;
  expect_error([&] { load(j); }, ErrorCode::data, "an unk_id in the vocabulary", "99999", "");
}

TEST(Hostile, DeepAndLongSequences) {
  const auto deep = [](const char* key, json leaf) {
    for (int i = 0; i < 200; ++i) leaf = {{"type", "Sequence"}, {key, json::array({leaf})}};
    return leaf.dump();
  };
  bool byte_level = false;
  EXPECT_FALSE(parse_normalizer(deep("normalizers", {{"type", "NFC"}}), "t").empty());
  parse_pre_tokenizer(deep("pretokenizers", {{"type", "Whitespace"}}), "t", byte_level);
  EXPECT_FALSE(parse_decoder(deep("decoders", {{"type", "Fuse"}}), "t").empty());
  const auto wide = [](const char* key, const char* type) {
    json list = json::array();
    for (int i = 0; i < 70; ++i) list.push_back({{"type", type}});
    return json{{"type", "Sequence"}, {key, list}}.dump();
  };
  expect_error([&] { parse_normalizer(wide("normalizers", "NFC"), "t"); }, ErrorCode::unsupported,
               "at most 64 normalizer steps", "more", "fewer");
  expect_error([&] { parse_decoder(wide("decoders", "Fuse"), "t"); }, ErrorCode::unsupported,
               "at most 64 decoder steps", "more", "fewer");
  const char* two = R"({"type": "Sequence", "processors": [
      {"type": "BertProcessing", "sep": ["a", 1], "cls": ["b", 2]},
      {"type": "BertProcessing", "sep": ["a", 1], "cls": ["b", 2]}]})";
  expect_error([&] { parse_post_processor(two, "t"); }, ErrorCode::unsupported,
               "one post_processor that adds tokens", "after another", "join them");
}

// Any bytes as the map of a Precompiled normaliser: refused, or harmless.
TEST(Hostile, BrokenCharsMaps) {
  std::mt19937 rng(4);
  int taken = 0;
  for (int round = 0; round < 3000; ++round) {
    const uint32_t units = 1 + rng() % 300;
    std::string blob(4 + units * 4, '\0');
    const uint32_t bytes = rng() % 8 == 0 ? static_cast<uint32_t>(rng()) : units * 4;
    for (int i = 0; i < 4; ++i) blob[static_cast<size_t>(i)] = static_cast<char>(bytes >> 8 * i);
    for (size_t i = 4; i < blob.size(); ++i) blob[i] = static_cast<char>(rng() % 7 ? 0 : rng());
    blob += std::string("t\u00e9xt\0mo\u0301re", 13);
    try {
      const CharsMap map(blob, "test");
      std::string out;
      map.apply("Some text \u00e9\u0301 \U0001F468\u200D\U0001F469", out, 1 << 20);
      EXPECT_TRUE(is_valid_utf8(out));
      ++taken;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(taken, 1000);
}

// A map with one entry: 'a' becomes 5000 letters b. (The double array of Darts: unit 0 leads to
// 128 ^ 'a', whose leaf is unit 1.)
std::string long_map() {
  std::vector<uint32_t> units(226);
  units[0] = 128u << 10;
  units[128 ^ 'a'] = 'a' | 1u << 8 | 224u << 10;
  const auto bytes = static_cast<uint32_t>(4 * units.size());
  std::string blob(reinterpret_cast<const char*>(&bytes), 4);
  blob.append(reinterpret_cast<const char*>(units.data()), bytes);
  return blob + std::string(5000, 'b') + std::string(1, '\0');
}

json ten_times(const char* list, const json& step) {
  json steps = json::array();
  for (int i = 0; i < 20; ++i) steps.push_back(step);
  return {{"type", "Sequence"}, {list, steps}};
}

const json kTenLetters = {
    {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaaaa"}};
const json kTenMatches = {
    {"type", "Replace"}, {"pattern", {{"Regex", "[ab]"}}}, {"content", "aaaaaaaaaa"}};

// Twenty steps that make ten of one would make 10^20.
TEST(Hostile, NormalisedTextIsBounded) {
  EXPECT_EQ(text_bound(0), size_t{1} << 20);
  EXPECT_EQ(text_bound(1 << 10), size_t{2} << 20);
  EXPECT_EQ(text_bound(SIZE_MAX), size_t{1} << 30);
  RegexScratch scratch;
  for (const json& step : {kTenLetters, kTenMatches}) {
    const Normalizer n = parse_normalizer(ten_times("normalizers", step).dump(), "t");
    expect_error([&] { n.apply("a", scratch); }, ErrorCode::data,
                 "text that normalisation keeps below 1.00 MiB", "more than that of 1000000 bytes",
                 "break the text up");
    EXPECT_EQ(n.apply("c", scratch), "c");
  }
  Normalizer map;
  map.add_precompiled(long_map(), "t");
  EXPECT_EQ(map.apply("ca", scratch), "c" + std::string(5000, 'b'));
  expect_error([&] { map.apply(std::string(1000, 'a'), scratch, 1 << 20); }, ErrorCode::data,
               "text that normalisation keeps below 1.00 MiB", "of 1000 bytes", "normalizer");
  Normalizer prepend;
  prepend.add_prepend(std::string(2000, 'x'));
  expect_error([&] { prepend.apply("a", scratch, 1000); }, ErrorCode::data, "below 1000 B",
               "of 1 bytes", "break");
}

// A bound for every stretch between added tokens would be a bound times the stretches.
TEST(Hostile, NormalisedStretchesAreBoundedTogether) {
  const TestFolder folder;
  json j = parts("words");
  json steps = json::array();
  for (int i = 0; i < 5; ++i) steps.push_back(kTenLetters);
  j["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  j["added_tokens"].push_back({{"id", 5001}, {"content", "<t>"}, {"normalized", false}});
  const Tokenizer t = Tokenizer::load(folder.write("t.json", j.dump()));
  std::string text;
  for (int i = 0; i < 100; ++i) text += "<t>a";
  expect_error([&] { t.encode(text); }, ErrorCode::data, "text that normalisation keeps below",
               "more than that of ", "break the text up");
}

TEST(Hostile, DecodedTextIsBounded) {
  for (const json& step : {kTenLetters, kTenMatches}) {
    const Decoder d = parse_decoder(ten_times("decoders", step).dump(), "t");
    expect_error(
        [&] {
          d.apply({"c", "a", "a"});
        },
        ErrorCode::data, "tokens that the decoder keeps below 1.01 MiB", "more than that",
        "decode fewer");
    EXPECT_EQ(d.apply({"c", "d"}), "cd");
  }
  // Each token within the bound, together above it; and the same without a step.
  const Decoder once = parse_decoder(kTenLetters.dump(), "t");
  EXPECT_EQ(once.apply(std::vector<std::string>(100, "a"), 1000).size(), 1000u);
  for (const Decoder& d : {once, Decoder()})
    expect_error([&] { d.apply(std::vector<std::string>(501, "aa"), 1000); }, ErrorCode::data,
                 "below 1000 B", "more", "decoder of the tokenizer");
}

// What is done to every token at load is bounded by the token.
TEST(Hostile, TokensThatExplodeAtLoadAreRefused) {
  const TestFolder folder;
  json j = parts("words");
  j["model"]["vocab"]["aaaa"] = 5000;
  j["decoder"] = ten_times("decoders", kTenLetters);
  expect_error([&] { Tokenizer::load(folder.write("t.json", j.dump())); }, ErrorCode::data,
               "tokens that the decoder keeps below", "more", "");
  try {
    Tokenizer::load(folder / "t.json");
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("t.json, token \""), std::string::npos) << e.what();
  }
  j["decoder"] = nullptr;
  j["normalizer"] = ten_times("normalizers", kTenLetters);
  Tokenizer::load(folder.write("t.json", j.dump()));
  j["added_tokens"].push_back({{"id", 5001}, {"content", "xa"}, {"normalized", true}});
  expect_error([&] { Tokenizer::load(folder.write("t.json", j.dump())); }, ErrorCode::data,
               "text that normalisation keeps below 288 B", "more", "correct the normalizer");
}

// Tables have an entry for every id: a file of a hundred bytes must not make them gigabytes.
TEST(Hostile, IdsFarAboveTheNumberOfTokensAreRefused) {
  const TestFolder folder;
  const auto load = [&](int64_t id) {
    const json j = {{"model", {{"type", "WordLevel"}, {"vocab", {{"a", id}}}, {"unk_token", "a"}}}};
    return Tokenizer::load(folder.write("t.json", j.dump()));
  };
  EXPECT_EQ(load(65600).vocab_size(), 65601);  // 64 x (1 + 1024)
  for (const int64_t id : {65601, 16777216})
    expect_error([&] { load(id); }, ErrorCode::data, "token ids from 0 to 65600 among 1 tokens",
                 "id " + std::to_string(id) + " of token \"a\"", "repair the file");
}

// Short classes that are long lists of ranges in PCRE2's words.
TEST(Hostile, PatternsOfManyClassesAreRefused) {
  std::string pattern;
  while (pattern.size() < 60000) pattern += "\\W\\D";
  expect_error([&] { Regex(pattern, "t.json: pre_tokenizer"); }, ErrorCode::unsupported,
               "a split pattern that PCRE2 can run", "too many character classes", "rewrite");
}

// A scratch that a long word made large is not kept for the next text.
TEST(Hostile, LongWordsLeaveNoMemoryBehind) {
  WordScratch scratch;
  EXPECT_FALSE(scratch.large());
  scratch.nodes.reserve(1 << 19);
  EXPECT_TRUE(scratch.large());
}

TEST(Hostile, BatchesAreEncodedInOrder) {
  const Tokenizer t = Tokenizer::load(golden("tokenizer_llama3.json"));
  std::mt19937 rng(8);
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i) texts.push_back(random_text(rng, static_cast<int>(rng() % 300)));
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  for (const int threads : {0, 1, 3}) {
    const auto ids = t.encode_batch(views, threads);
    ASSERT_EQ(ids.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) ASSERT_EQ(ids[i], t.encode(texts[i]));
  }
  EXPECT_TRUE(t.encode_batch({}, 2).empty());
}

}  // namespace
}  // namespace snug
