// Tokenizers that say they may be given a text in pieces: cut where the corpus cuts, the pieces
// give the ids of the whole. And those that say no, in whole documents.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "engine/core/error.h"
#include "engine/data/corpus.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "engine/text/components.h"
#include "engine/text/normalizer.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/tokenizer.h"
#include "engine/text/unicode.h"
#include "tests/engine/io/packed.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/support/folders.h"

namespace snug {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

std::string golden(const std::string& name) {
  return source_folder() + "/tests/golden/" + name;
}

// Characters that steps of tokenizers treat unlike each other: white space and what becomes it,
// what vanishes, marks, prepending and joining characters, an ideograph, an emoji.
const std::string kParts[] = {"a",      "Bc",     "7",      ".",      "!?",     "'s",   "/",
                              " ",      " ",      " ",      "\n",     "\n",     "\t",   "\r",
                              "\u0301", "\u00b4", "\u200b", "\u3000", "\u00a0", "\x01", "\u0600",
                              "한",     "中",     "😀",      "\u2581", "<t>",    "word", "\u0130"};

std::string random_text(std::mt19937_64& rng, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += kParts[rng() % std::size(kParts)];
  return text;
}

// The white space that has the two clean places around it is told apart as the corpus does it.
bool visible(std::string_view text, size_t at, bool before) {
  if (before) {
    if (at == 0) return false;
    do --at;
    while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80);
  }
  return at < text.size() && !is_white_space(decode_utf8(text, at).code);
}

// A place of the first two kinds that piece_cuts.h names.
bool clean(std::string_view text, size_t at) {
  if (text[at - 1] == '\n')
    return visible(text, at - 1, true) && visible(text, at, false) && text[at] != '/';
  return text[at] == ' ' && visible(text, at, true) && visible(text, at + 1, false);
}

// The pieces of a text between its clean places, all or, by the generator, some of them.
std::vector<std::string_view> cut(std::string_view text, std::mt19937_64& rng) {
  std::vector<std::string_view> out;
  size_t begin = 0;
  for (size_t at = 1; at < text.size(); ++at) {
    if (!clean(text, at) || rng() % 4 == 0) continue;
    out.push_back(text.substr(begin, at - begin));
    begin = at;
  }
  out.push_back(text.substr(begin));
  return out;
}

TEST(PieceCuts, AreWhereTheCorpusCuts) {
  std::mt19937_64 rng(1);
  int found = 0;
  for (int trial = 0; trial < 500; ++trial) {
    const std::string text = random_text(rng, 120);
    const size_t at = first_chunk(text, 80).size();
    bool any = false;  // else the cut is of the last two kinds
    for (size_t i = 41; i <= 80; ++i) any = any || clean(text, i);
    EXPECT_EQ(clean(text, at), any) << text;
    found += any;
  }
  EXPECT_GT(found, 100);
}

// All ids of texts of many kinds, whole and in pieces; the number of texts that differ.
int differing(const Tokenizer& tokenizer, int texts) {
  std::mt19937_64 rng(7);
  int differ = 0;
  for (int i = 0; i < texts; ++i) {
    const std::string text = random_text(rng, 40);
    Ids joined;
    for (const std::string_view piece : cut(text, rng)) tokenizer.encode(piece, joined);
    const bool same = joined == tokenizer.encode(text);
    differ += !same;
    if (!same && tokenizer.safe_in_pieces()) ADD_FAILURE() << "another for " << json(text).dump();
  }
  return differ;
}

TEST(PieceCuts, WellKnownTokenizersSayWhatHolds) {
  const TempFolder tmp;
  for (const auto& [name, safe] :
       {std::pair("gpt2", true), std::pair("llama3", true), std::pair("qwen", true),
        std::pair("o200k", true), std::pair("lines", true), std::pair("prefix", false)}) {
    SCOPED_TRACE(name);
    json j = parse_json_file(golden(std::string("tokenizer_") + name + ".json"));
    j["added_tokens"] = json::array({j["added_tokens"][0]});  // of their other tests, with lstrip
    write_atomic(tmp / "t.json", j.dump());
    const Tokenizer t = Tokenizer::load(tmp / "t.json");
    EXPECT_EQ(t.safe_in_pieces(), safe);
    EXPECT_EQ(differing(t, 400) == 0, safe);
  }
  const json all = parse_json_file(golden("text_components.json"));
  int yes = 0, no = 0;
  for (const json& one : all["tokenizers"]) {
    SCOPED_TRACE(one["name"].get<std::string>());
    write_atomic(tmp / "t.json", one["json"].dump());
    const Tokenizer t = Tokenizer::load(tmp / "t.json");
    const bool differ = differing(t, 400) > 0;
    EXPECT_TRUE(!differ || !t.safe_in_pieces());
    const std::string name = one["name"];
    if (name == "llama2" || name == "unigram") {
      EXPECT_TRUE(differ);
    }
    EXPECT_TRUE(name != "bert" || t.safe_in_pieces());
    ++(t.safe_in_pieces() ? yes : no);
  }
  EXPECT_GT(yes, 0);
  EXPECT_GT(no, 1);
}

TEST(PieceCuts, AddedTokensThatReachOverACutAreSeen) {
  const TempFolder tmp;
  const auto with = [&](const json& token, const json& normalizer = nullptr) {
    json j = parse_json_file(golden("tokenizer_gpt2.json"));
    j["normalizer"] = normalizer;
    if (!normalizer.is_null()) j["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
    json full = {{"id", 9000},      {"content", "<t>"}, {"single_word", false},
                 {"lstrip", false}, {"rstrip", false},  {"normalized", false},
                 {"special", true}};
    full.update(token);
    j["added_tokens"].push_back(full);
    write_atomic(tmp / "t.json", j.dump());
    return Tokenizer::load(tmp / "t.json");
  };
  EXPECT_TRUE(with(json::object()).safe_in_pieces());
  EXPECT_TRUE(with({{"single_word", true}}).safe_in_pieces());
  EXPECT_EQ(differing(with({{"single_word", true}}), 400), 0);
  // A normaliser may put a second blank beside the one at a cut.
  const json bert = {{"type", "BertNormalizer"},
                     {"clean_text", true},
                     {"handle_chinese_chars", true},
                     {"strip_accents", nullptr},
                     {"lowercase", true}};
  EXPECT_TRUE(with({{"content", "  "}}, bert).safe_in_pieces());
  EXPECT_FALSE(with({{"content", "  "}, {"normalized", true}}, bert).safe_in_pieces());
  EXPECT_TRUE(with({{"content", "  "}, {"normalized", true}}).safe_in_pieces());
  EXPECT_TRUE(with({{"content", "    "}}).safe_in_pieces());
  EXPECT_EQ(differing(with({{"content", "  "}}), 400), 0);
  for (const json& token :
       {json{{"lstrip", true}}, json{{"rstrip", true}}, json{{"content", "a a"}},
        json{{"content", ".\na"}}, json{{"content", "\na"}}, json{{"content", "a "}}}) {
    SCOPED_TRACE(token.dump());
    const Tokenizer t = with(token);
    EXPECT_FALSE(t.safe_in_pieces());
    EXPECT_GT(differing(t, 4000), 0);
  }
}

// Normalisers and pre-tokenizers put together at random: where the two say yes, the pieces of the
// parts are those of the whole. No is often cautious, yes must be true.
class Collect : public PieceSink {
 public:
  void piece(std::string_view text) override { pieces.emplace_back(text); }
  std::vector<std::string> pieces;
};

void add_random(Normalizer& n, std::mt19937_64& rng) {
  switch (rng() % 12) {
    case 0:
      return n.add_form(static_cast<NormalForm>(rng() % 4));
    case 1:
      return n.add_lowercase();
    case 2:
      return n.add_strip_accents();
    case 3:
      return n.add_nmt();
    case 4:
      return n.add_strip(rng() % 2, rng() % 2);
    case 5:
      return n.add_bert({.clean_text = rng() % 2 == 0, .strip_accents = rng() % 2 == 0});
    case 6:
      return n.add_prepend(rng() % 2 ? "" : "\u2581");
    case 7:
      return n.add_replace(kParts[rng() % std::size(kParts)], kParts[rng() % 10]);
    case 8:
      return n.add_replace("a", rng() % 2 ? "" : " ");
    case 9:
      return n.add_replace_pattern("\\s+", " ", "test");
    default:
      return;  // often fewer steps
  }
}

void add_random(PreTokenizer& p, std::mt19937_64& rng) {
  const auto behavior = static_cast<SplitBehavior>(rng() % 5);
  const auto known = static_cast<KnownPattern>(1 + rng() % 5);
  switch (rng() % 14) {
    case 0:
      return p.add_prefix_space();
    case 1:
      return p.add_gpt2();
    case 2:
    case 3:
      return p.add_pattern(pattern_of(known), SplitBehavior::isolated, false, "test");
    case 4:
      return p.add_pattern("[^ ]+|a", behavior, rng() % 2, "test");
    case 5:
      return p.add_literal(rng() % 2 ? "a " : kParts[rng() % std::size(kParts)], behavior,
                           rng() % 2);
    case 6:
      return p.add_digits(rng() % 2);
    case 7:
      return p.add_whitespace_split();
    case 8:
    case 9:
      return p.add_punctuation(behavior);
    case 10:
      return p.add_whitespace();
    case 11:
      return p.add_bert();
    case 12:
      return p.add_fixed_length(1 + rng() % 5);
    default:
      return p.add_metaspace("\u2581", static_cast<PreTokenizer::Prepend>(rng() % 3), rng() % 2);
  }
}

TEST(PieceCuts, RandomPipelinesThatSayYesAreRight) {
  std::mt19937_64 rng(3);
  RegexScratch scratch;
  int yes = 0, compared = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    Normalizer n;
    PreTokenizer p;
    for (uint64_t i = rng() % 3; i > 0; --i) add_random(n, rng);
    for (uint64_t i = rng() % 4; i > 0; --i) add_random(p, rng);
    if (!p.splits_at(n.at_cuts())) continue;
    ++yes;
    for (int i = 0; i < 40; ++i) {
      const std::string text = random_text(rng, 30);
      Collect whole, parts;
      p.split(n.apply(text, scratch), scratch, whole);
      for (const std::string_view piece : cut(text, rng))
        p.split(n.apply(piece, scratch), scratch, parts);
      ASSERT_EQ(parts.pieces, whole.pieces)
          << json(text).dump() << " of " << json(n.canonical()).dump() << " and "
          << json(p.canonical()).dump();
      ++compared;
    }
  }
  EXPECT_GT(yes, 500);
  EXPECT_GT(compared, 20000);
}

TEST(WholeDocuments, ComeInOnePieceUpToALimit) {
  const TempFolder tmp;
  std::string text;
  while (text.size() < 3'000'000) text += "some words and\n";
  write_atomic(tmp / "a.txt", text);
  write_atomic(tmp / "b.jsonl", "{\"text\":\"" + std::string(2'000'000, 'q') + "\"}\n");
  const auto pieces = [&](const std::string& name, bool whole) {
    std::vector<size_t> sizes;
    for_each_piece({{tmp / name, true}}, {.whole = whole},
                   [&](std::string_view piece, bool) { sizes.push_back(piece.size()); });
    return sizes;
  };
  EXPECT_EQ(pieces("a.txt", true), (std::vector<size_t>{text.size()}));
  EXPECT_EQ(pieces("b.jsonl", true), (std::vector<size_t>{2'000'000}));
  EXPECT_GE(pieces("a.txt", false).size(), 3u);
  const std::string most(static_cast<size_t>(kMaxRecordBytes), 'a');
  write_atomic(tmp / "most.txt.zst", test::zstd(most));
  EXPECT_EQ(pieces("most.txt.zst", true), (std::vector<size_t>{most.size()}));
  write_atomic(tmp / "more.txt.zst", test::zstd(most + "a"));
  EXPECT_ERROR(pieces("more.txt.zst", true), ErrorCode::data,
               "a document of at most 67108864 bytes in " + (tmp / "more.txt.zst"), "a longer one",
               "a document a line");
  const std::vector<CorpusFile> files = {{tmp / "a.txt", true}};
  EXPECT_NE(corpus_fingerprint(files, {.whole = true}), corpus_fingerprint(files, {}));
}

}  // namespace
}  // namespace snug
