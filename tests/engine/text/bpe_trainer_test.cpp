#include "engine/text/bpe_trainer.h"

#include "engine/text/tokenizer_spec.h"
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
               "twice \"a\"", "special_tokens");
  expect_error(make({.special_tokens = {""}}), ErrorCode::usage, "non-empty UTF-8", "\"\"", "");
  expect_error(make({.special_tokens = {"\xFF"}}), ErrorCode::usage, "UTF-8", "\uFFFD", "");
  BpeTrainer trainer({});
  expect_error([&] { trainer.feed_file("/nowhere/x.txt"); }, ErrorCode::data,
               "a readable text file", "'/nowhere/x.txt' cannot be opened", "check the path");
}

}  // namespace
}  // namespace snug
