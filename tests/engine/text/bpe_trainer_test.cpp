#include "engine/text/bpe_trainer.h"

#include <map>
#include <nlohmann/json.hpp>

#include "engine/text/tokenizer_spec.h"
#include "engine/text/word_counts.h"
#include "tests/engine/text/helpers.h"

namespace snug {
namespace {

void expect_same(const Tokenizer& ours, const Tokenizer& theirs) {
  ASSERT_EQ(ours.vocab_size(), theirs.vocab_size());
  for (int32_t id = 0; id < ours.vocab_size(); ++id) {
    ASSERT_EQ(ours.token_text(id), theirs.token_text(id)) << id;
  }
  ASSERT_EQ(ours.merge_count(), theirs.merge_count());
  for (size_t i = 0; i < ours.spec().merges.size(); ++i) {
    ASSERT_EQ(ours.spec().merges[i], theirs.spec().merges[i]) << "merge " << i;
  }
  EXPECT_EQ(ours.fingerprint(), theirs.fingerprint());
}

TEST(BpeTrainer, MergesEqualHuggingFace) {
  const std::string corpus = slurp(golden("text_corpus.txt"));
  expect_same(train_bpe({corpus}, {.vocab_size = 700, .special_tokens = {"<|endoftext|>"}}),
              Tokenizer::load(golden("tokenizer_gpt2.json")));
}

TEST(BpeTrainer, LineByLineEqualsTrainingFromFiles) {
  BpeTrainer trainer({.vocab_size = 600, .min_frequency = 2});
  trainer.feed_file(golden("text_corpus.txt"));
  expect_same(trainer.train(), Tokenizer::load(golden("tokenizer_lines.json")));
}

TEST(BpeTrainer, ByHand) {
  // "aaab" x 3, "ab" x 2: (a,a) 6 before (a,b) 5; then (aa,a) 3 and (a,b) 5 -> "ab".
  BpeTrainer trainer({.vocab_size = 260, .special_tokens = {"<x>"}});
  trainer.add_word("aaab", 3);
  trainer.add_word("ab", 2);
  trainer.add_word("", 2);
  trainer.add_word("zz", 0);
  EXPECT_EQ(trainer.distinct_words(), 2);
  const Tokenizer t = trainer.train();
  EXPECT_EQ(t.vocab_size(), 260);
  EXPECT_EQ(t.token_text(0), "<x>");
  EXPECT_EQ(t.token_text(1), "!");  // the first character of the alphabet
  EXPECT_EQ(t.token_text(257), "aa");
  EXPECT_EQ(t.token_text(258), "ab");
  EXPECT_EQ(t.token_text(259), "aaab");
  EXPECT_EQ(t.eos_id(), 0);
}

TEST(BpeTrainer, EqualCountsTakeTheSmallerPair) {
  BpeTrainer trainer({.vocab_size = 257, .special_tokens = {}});
  trainer.add_word("zy", 4);
  trainer.add_word("bc", 4);
  trainer.add_word("ba", 4);
  EXPECT_EQ(trainer.train().token_text(256), "ba");
}

TEST(BpeTrainer, StopsWhereTheCorpusEnds) {
  int64_t done = 0, wanted = 0;
  BpeTrainerOptions options{.vocab_size = 5000};
  options.progress = [&](int64_t d, int64_t w) { done = d, wanted = w; };
  const Tokenizer t = train_bpe({"abab", "ab"}, options);
  EXPECT_EQ(t.vocab_size(), 257 + 2);  // "ab", "abab"
  EXPECT_EQ(t.merge_count(), 2);
  EXPECT_EQ(done, 259);
  EXPECT_EQ(wanted, 5000);
  options.min_frequency = 2;
  EXPECT_EQ(train_bpe({"abab", "ab"}, options).vocab_size(), 257 + 1);
  EXPECT_EQ(train_bpe({}, options).vocab_size(), 257);
}

// As Python's open() yields lines: the last one has no line break where the file has none.
TEST(BpeTrainer, FilesHaveTheLineBreaksThatTheyHave) {
  const TestFolder folder;
  const auto words = [&](const char* text) {
    std::ofstream(folder / "lines.txt", std::ios::binary) << text;
    BpeTrainer trainer({});
    trainer.feed_file(folder / "lines.txt");
    return trainer.distinct_words();
  };
  EXPECT_EQ(words("ab"), 1);
  EXPECT_EQ(words("ab\n"), 2);
  EXPECT_EQ(words("ab\nab"), 2);
}

TEST(BpeTrainer, AnyBytesTrain) {
  std::mt19937 rng(8);
  BpeTrainer trainer({.vocab_size = 400, .special_tokens = {"<|endoftext|>", "!", "ab"}});
  for (int i = 0; i < 50; ++i) trainer.feed(random_bytes(rng, 300) + "abab");
  const Tokenizer t = trainer.train();
  EXPECT_EQ(t.vocab_size(), 400);
  const std::string text = random_text(rng, 500);
  EXPECT_EQ(t.decode(t.encode(text)), text);
  const TestFolder folder;
  t.save(folder.path());
  EXPECT_EQ(Tokenizer::load(folder.path()).fingerprint(), t.fingerprint());
}

TEST(BpeTrainer, Errors) {
  const auto make = [](BpeTrainerOptions o) { return [o] { BpeTrainer t(o); }; };
  expect_error(make({.vocab_size = 256}), ErrorCode::usage, "vocab_size from 257", "vocab_size 256",
               "512 or more");
  expect_error(make({.vocab_size = int64_t{1} << 40}), ErrorCode::usage, "to 16777216",
               "vocab_size 1099511627776", "512");
  expect_error(make({.special_tokens = {"a", "a"}}), ErrorCode::usage, "special tokens that are",
               "twice \"a\"", "name each once");
  expect_error(make({.special_tokens = {""}}), ErrorCode::usage, "non-empty UTF-8", "\"\"", "");
  expect_error(make({.special_tokens = {"\xFF"}}), ErrorCode::usage, "UTF-8", "\uFFFD", "");
  BpeTrainer trainer({});
  expect_error([&] { trainer.feed_file("/nowhere/x.txt"); }, ErrorCode::data,
               "a readable text file", "'/nowhere/x.txt' cannot be opened", "check the path");
  // The first page of a process is never mapped: reading it is an error of the system.
  expect_error([&] { trainer.feed_file("/proc/self/mem"); }, ErrorCode::data,
               "a readable text file", "'/proc/self/mem': reading stopped", "check the disk");
}

TEST(BpeTrainer, ThreadsGiveTheSameTokenizer) {
  const std::string corpus = slurp(golden("text_corpus.txt"));
  std::vector<std::string_view> documents;
  for (size_t at = 0; at < corpus.size(); at += 97) {
    documents.push_back(std::string_view(corpus).substr(at, 97));
  }
  BpeTrainer serial({.vocab_size = 500}), parallel({.vocab_size = 500});
  for (const auto document : documents) serial.feed(document);
  parallel.feed_batch(documents, 3);
  EXPECT_EQ(parallel.distinct_words(), serial.distinct_words());
  expect_same(parallel.train(), serial.train());
}

// What several threads counted adds up, whichever of them counted what.
TEST(WordCounts, CountsOfTwoAddUp) {
  WordCounts a, b, both;
  std::map<std::string, int64_t> truth;
  for (int i = 0; i < 9000; ++i) {  // more than the first table holds
    const std::string word = "w" + std::to_string(i % 5000);
    const int64_t count = 1 + i % 7;
    (i % 3 == 0 ? a : b).add(word, count);
    truth[word] += count;
  }
  both.add(b);
  both.add(a);
  a.add(b);
  for (const WordCounts* c : {&a, &both}) {
    EXPECT_EQ(c->size(), static_cast<int64_t>(truth.size()));
    for (const auto& [word, count] : truth) ASSERT_EQ(c->count(word), count) << word;
    for (const WordCounts::Entry& e : c->entries())
      ASSERT_EQ(e.count, truth.at(std::string(c->text(e))));
  }
  EXPECT_EQ(a.count("w5000"), 0);
}

// Nothing of a tokenizer depends on the order of what it learns from.
TEST(BpeTrainer, TheOrderOfLinesDoesNotShow) {
  const std::string corpus = slurp(golden("text_corpus.txt"));
  std::vector<std::string_view> lines;
  for (size_t at = 0, end; at < corpus.size(); at = end + 1) {
    end = std::min(corpus.find('\n', at), corpus.size() - 1);
    lines.push_back(std::string_view(corpus).substr(at, end + 1 - at));
  }
  const std::vector<std::string_view> reversed(lines.rbegin(), lines.rend());
  expect_same(train_bpe(reversed, {.vocab_size = 500}), train_bpe(lines, {.vocab_size = 500}));
}

TEST(WordPieceTrainer, VocabularyEqualsHuggingFace) {
  const auto truth =
      nlohmann::json::parse(slurp(golden("text_components.json")))["word_piece_training"];
  BpeTrainer trainer({.vocab_size = 150,
                      .special_tokens = bert_special_tokens(),
                      .model = TrainedModel::word_piece,
                      .lowercase = false});
  for (const auto& [word, count] : truth["words"].items()) {
    trainer.add_word(word, count.get<int64_t>());
  }
  const Tokenizer t = trainer.train();
  ASSERT_EQ(t.vocab_size(), 150);
  for (const auto& token : truth["vocab"])
    EXPECT_TRUE(t.token_to_id(token.get<std::string>())) << token;
  ASSERT_GT(truth["ids"].size(), 120u);
  for (const auto& [token, id] : truth["ids"].items()) EXPECT_EQ(t.token_to_id(token), id) << token;
}

TEST(WordPieceTrainer, TextBecomesATokenizerThatLoads) {
  BpeTrainer trainer({.vocab_size = 30,
                      .special_tokens = bert_special_tokens(),
                      .model = TrainedModel::word_piece,
                      .limit_alphabet = 4});
  trainer.feed("The thé THE, that THAT z");  // e h t most often, then a
  const Tokenizer t = trainer.train();
  const auto id = [&](const char* token) { return t.token_to_id(token).value_or(-1); };
  EXPECT_EQ(id("a"), 5);
  EXPECT_EQ(id("t"), 8);
  EXPECT_EQ(id("##h"), 11);
  EXPECT_EQ(id("##z"), -1);
  EXPECT_GE(id("the"), 13);
  EXPECT_EQ(t.encode("Thé z that"), (std::vector<int32_t>{id("the"), id("[UNK]"), id("that")}));
  EXPECT_EQ(t.decode(t.encode("that the")), "that the");
  EXPECT_EQ(t.with_special_tokens(t.encode("the")).ids, (std::vector<int32_t>{2, id("the"), 3}));
  const TestFolder folder;
  t.save(folder / "out");
  EXPECT_EQ(Tokenizer::load(folder / "out").fingerprint(), t.fingerprint());
  // vocab.txt alone says as much, with transformers' settings around it.
  std::filesystem::remove(folder / "out/tokenizer.json");
  const Tokenizer u = Tokenizer::load(folder / "out");
  EXPECT_EQ(u.fingerprint(), t.fingerprint());
  EXPECT_EQ(u.pad_id(), 0);
  EXPECT_EQ(u.with_special_tokens(u.encode("the")).ids, t.with_special_tokens(t.encode("the")).ids);
  std::ofstream(folder / "out/vocab.txt") << "[UNK]\na\n\nb\n";
  expect_error([&] { Tokenizer::load(folder / "out"); }, ErrorCode::data,
               "a different token on every line", "vocab.txt:3: \"\"", "published");
}

// Characters take of vocab_size what special tokens leave, and no more.
TEST(WordPieceTrainer, AnAlphabetOfMoreThanTheVocabularyIsCut) {
  BpeTrainer trainer({.vocab_size = 8,
                      .special_tokens = bert_special_tokens(),
                      .model = TrainedModel::word_piece});
  trainer.feed("abcdefg");
  const Tokenizer t = trainer.train();
  EXPECT_EQ(t.vocab_size(), 8);
  EXPECT_EQ(t.token_text(7), "c");
  EXPECT_FALSE(t.token_to_id("d"));
}

TEST(WordPieceTrainer, Errors) {
  const auto make = [](int64_t size, std::vector<std::string> specials, int64_t limit) {
    return [=] {
      BpeTrainer({.vocab_size = size,
                  .special_tokens = specials,
                  .model = TrainedModel::word_piece,
                  .limit_alphabet = limit});
    };
  };
  expect_error(make(100, {"[UNK]", "[SEP]"}, 10), ErrorCode::usage, "[UNK], [CLS] and [SEP]",
               "no [CLS]", "leave special_tokens out");
  expect_error(make(100, bert_special_tokens(), 0), ErrorCode::usage, "limit_alphabet of at least",
               "0", "1000");
  expect_error(make(5, bert_special_tokens(), 9), ErrorCode::usage,
               "vocab_size from 6 (5 special tokens)", "vocab_size 5", "");
}

}  // namespace
}  // namespace snug
