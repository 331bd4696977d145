#include "engine/text/components.h"

#include <nlohmann/json.hpp>

#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_spec.h"
#include "engine/text/unicode.h"
#include "tests/engine/text/helpers.h"

namespace snug {
namespace {

using Ids = std::vector<int32_t>;
using Strings = std::vector<std::string>;

const nlohmann::json& truth() {
  static const auto all = nlohmann::json::parse(slurp(golden("text_components.json")));
  return all;
}

class Collect : public PieceSink {
 public:
  void piece(std::string_view text) override { pieces.emplace_back(text); }
  Strings pieces;
};

// Both ends of every range that BERT puts spaces around, as BertNormalizer of tokenizers 0.22 does.
TEST(Components, IdeographsEndWhereTheirBlocksEnd) {
  RegexScratch scratch;
  const Normalizer n = parse_normalizer(
      R"({"type": "BertNormalizer", "clean_text": false, "handle_chinese_chars": true,
          "strip_accents": false, "lowercase": false})",
      "test");
  const std::vector<char32_t> yes = {0x3400,  0x4DBF,  0x4E00,  0x9FFF,  0xF900,  0xFAFF,
                                     0x20000, 0x2A6DF, 0x2A700, 0x2B73F, 0x2B740, 0x2B81F,
                                     0x2B920, 0x2CEAF, 0x2F800, 0x2FA1F},
                              no = {0x33FF,  0x4DC0,  0x4DFF,  0xA000,  0xF8FF,  0xFB00,  0x1FFFF,
                                    0x2A6E0, 0x2A6FF, 0x2B820, 0x2B91F, 0x2CEB0, 0x2F7FF, 0x2FA20};
  for (const bool ideograph : {true, false})
    for (const char32_t code : ideograph ? yes : no) {
      std::string text;
      append_utf8(text, code);
      EXPECT_EQ(n.apply(text, scratch), ideograph ? " " + text + " " : text)
          << std::hex << static_cast<uint32_t>(code);
    }
}

TEST(Components, NormalizersEqualHuggingFace) {
  RegexScratch scratch;
  ASSERT_GT(truth()["normalizers"].size(), 15u);
  for (const auto& part : truth()["normalizers"]) {
    const Normalizer n = parse_normalizer(part["json"].dump(), "test");
    for (const auto& c : part["cases"]) {
      EXPECT_EQ(n.apply(c[0].get<std::string>(), scratch), c[1].get<std::string>())
          << part["json"] << c[0];
    }
  }
}

TEST(Components, PreTokenizersEqualHuggingFace) {
  RegexScratch scratch;
  ASSERT_GT(truth()["pre_tokenizers"].size(), 25u);
  for (const auto& part : truth()["pre_tokenizers"]) {
    bool byte_level = false;
    const PreTokenizer p = parse_pre_tokenizer(part["json"].dump(), "test", byte_level);
    EXPECT_FALSE(byte_level);
    for (const auto& c : part["cases"]) {
      Collect sink;
      p.split(c[0].get<std::string>(), scratch, sink);
      EXPECT_EQ(sink.pieces, c[1].get<Strings>()) << part["json"] << c[0];
    }
  }
}

TEST(Components, DecodersEqualHuggingFace) {
  ASSERT_GT(truth()["decoders"].size(), 10u);
  for (const auto& part : truth()["decoders"]) {
    const Decoder d = parse_decoder(part["json"].dump(), "test");
    for (const auto& c : part["cases"]) {
      EXPECT_EQ(d.apply(c[0].get<Strings>()), c[1].get<std::string>()) << part["json"] << c[0];
    }
  }
}

TEST(Components, TokenizersEqualHuggingFace) {
  const TestFolder folder;
  ASSERT_GT(truth()["tokenizers"].size(), 6u);
  for (const auto& one : truth()["tokenizers"]) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const Tokenizer t = Tokenizer::load(folder.write("t.json", one["json"].dump()));
    t.save(folder / "saved");
    const Tokenizer again = Tokenizer::load(folder / "saved/tokenizer.json");
    EXPECT_EQ(again.fingerprint(), t.fingerprint());
    for (const auto& c : one["cases"]) {
      const Ids ids = c[1].get<Ids>();
      EXPECT_EQ(t.encode(c[0].get<std::string>()), ids) << c[0];
      EXPECT_EQ(again.encode(c[0].get<std::string>()), ids) << c[0];
      EXPECT_EQ(t.decode(ids), c[2].get<std::string>()) << c[0];
    }
    const Ids a = t.encode("The boat"), b = t.encode("of the sea");
    EXPECT_EQ(t.with_special_tokens(a).ids, one["single"].get<Ids>());
    if (one["json"]["post_processor"].is_null()) continue;
    EXPECT_EQ(t.with_special_tokens(a, b).ids, one["pair"].get<Ids>());
    EXPECT_EQ(t.with_special_tokens(a, b).type_ids, one["types"].get<Ids>());
  }
}

// Pieces of a stream, joined, are the decoded text, apart from what happens at its start.
TEST(Components, TokenBytesInsideAText) {
  const TestFolder folder;
  for (const auto& one : truth()["tokenizers"]) {
    const std::string name = one["name"];
    if (name != "bert" && name != "unigram" && name != "llama2") continue;
    const Tokenizer t = Tokenizer::load(folder.write("t.json", one["json"].dump()));
    const Ids ids = t.encode("the little boat and the sea");
    std::string joined;
    for (const int32_t id : ids) joined += t.token_bytes(id);
    EXPECT_EQ(joined, " " + t.decode(ids)) << name;
  }
}

}  // namespace
}  // namespace snug
