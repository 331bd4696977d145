#include "engine/text/bpe_trainer.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <fstream>
#include <map>
#include <mutex>
#include <queue>
#include <unordered_map>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/threads.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/flat_map.h"
#include "engine/text/tokenizer_spec.h"
#include "engine/text/unicode.h"

namespace snug {
namespace {

struct Word {
  std::vector<int32_t> ids;
  int64_t count = 0;
};

// Indices of words that may hold a pair, ascending. Some may have lost it since: merging then finds
// nothing there.
using Places = std::vector<uint32_t>;

struct Candidate {
  uint64_t pair = 0;
  int64_t count = 0;
  Places places;
};

struct WorseCandidate {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.count != b.count ? a.count < b.count : a.pair > b.pair;  // keys order as (left, right)
  }
};

class WordCounter : public PieceSink {
 public:
  explicit WordCounter(WordCounts& words) : words_(words) {}
  void piece(std::string_view text) override { words_.add(text, 1); }

 private:
  WordCounts& words_;
};

void note(Places& places, uint32_t word) {
  if (places.empty() || places.back() != word) places.push_back(word);
}

// The state of learning: words as ids, counts of pairs, and a queue of candidates whose counts may
// be out of date (they are refreshed when they come up).
class Learner {
 public:
  explicit Learner(std::vector<Word> words) : words_(std::move(words)) {
    FlatMap64<Places> places;
    for (uint32_t w = 0; w < words_.size(); ++w) {
      const auto& ids = words_[w].ids;
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        const uint64_t pair = pair_key(ids[i], ids[i + 1]);
        counts_[pair] += words_[w].count;
        note(places[pair], w);
      }
    }
    push_all(places);
  }

  // The next pair to merge; false if none reaches `least`.
  bool next(int64_t least, Candidate& best) {
    while (!queue_.empty()) {
      best = queue_.top();
      queue_.pop();
      const int64_t count = counts_[best.pair];
      if (best.count == count) return best.count >= std::max<int64_t>(least, 1);
      best.count = count;
      queue_.push(std::move(best));
    }
    return false;
  }

  void merge(const Candidate& best, int32_t merged) {
    FlatMap64<Places> places;
    for (const uint32_t w : best.places) merge_word(w, best.pair, merged, places);
    push_all(places);
  }

 private:
  void push_all(FlatMap64<Places>& places) {
    places.for_each([&](uint64_t pair, Places& words) {
      const int64_t count = counts_[pair];
      if (count > 0) queue_.push({pair, count, std::move(words)});
    });
  }

  // Each merge changes the counts of the pairs to its left and right. The merged pair's own count
  // is left as it is, on purpose: `tokenizers` does so, and where two merges make the same token
  // the remainder decides what comes up later.
  void merge_word(uint32_t w, uint64_t pair, int32_t merged, FlatMap64<Places>& places) {
    auto& ids = words_[w].ids;
    const int64_t count = words_[w].count;
    const auto left = static_cast<int32_t>(pair >> 32), right = static_cast<int32_t>(pair);
    const auto change = [&](int32_t a, int32_t b, int64_t by) {
      counts_[pair_key(a, b)] += by;
      if (by > 0) note(places[pair_key(a, b)], w);
    };
    size_t out = 0;
    for (size_t i = 0; i < ids.size(); ++out) {
      if (ids[i] != left || i + 1 >= ids.size() || ids[i + 1] != right) {
        ids[out] = ids[i++];
        continue;
      }
      if (out > 0) {
        change(ids[out - 1], left, -count);
        change(ids[out - 1], merged, count);
      }
      i += 2;
      if (i < ids.size()) {
        change(right, ids[i], -count);
        change(merged, ids[i], count);
      }
      ids[out] = merged;
    }
    ids.resize(out);
  }

  std::vector<Word> words_;
  FlatMap64<int64_t> counts_;
  std::priority_queue<Candidate, std::vector<Candidate>, WorseCandidate> queue_;
};

// Tokens in the order of their ids.
class Vocabulary {
 public:
  explicit Vocabulary(StringMap<int32_t>& ids) : ids_(ids) {}
  int32_t add(const std::string& token) {
    const auto [it, is_new] = ids_.emplace(token, static_cast<int32_t>(texts_.size()));
    if (is_new) texts_.push_back(token);
    return it->second;
  }
  const std::string& text(int32_t id) const { return texts_[static_cast<size_t>(id)]; }
  int64_t size() const { return static_cast<int64_t>(texts_.size()); }

 private:
  StringMap<int32_t>& ids_;
  std::vector<std::string> texts_;
};

// Sorted, so that nothing depends on the order of a hash table or on threads.
std::vector<std::pair<std::string_view, int64_t>> sorted_words(const WordCounts& counts) {
  std::vector<std::pair<std::string_view, int64_t>> sorted;
  sorted.reserve(counts.entries().size());
  for (const auto& e : counts.entries()) sorted.emplace_back(counts.text(e), e.count);
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

// Merges pairs until the vocabulary has the size asked for; `prefix` is dropped from the right
// part.
std::vector<std::array<int32_t, 2>> learn(std::vector<Word> words, const BpeTrainerOptions& options,
                                          std::string_view prefix, Vocabulary& tokens) {
  Learner learner(std::move(words));
  Candidate best;
  std::vector<std::array<int32_t, 2>> merges;
  while (tokens.size() < options.vocab_size && learner.next(options.min_frequency, best)) {
    const auto left = static_cast<int32_t>(best.pair >> 32),
               right = static_cast<int32_t>(best.pair);
    std::string_view tail = tokens.text(right);
    if (tail.starts_with(prefix)) tail.remove_prefix(prefix.size());
    const int32_t merged = tokens.add(tokens.text(left) + std::string(tail));
    merges.push_back({left, right});
    learner.merge(best, merged);
    if (options.progress && merges.size() % 256 == 0) {
      options.progress(tokens.size(), options.vocab_size);
    }
  }
  if (options.progress) options.progress(tokens.size(), options.vocab_size);
  return merges;
}

}  // namespace

std::vector<std::string> bert_special_tokens() {
  return {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
}

BpeTrainer::BpeTrainer(BpeTrainerOptions options) : options_(std::move(options)) {
  const bool pieces = options_.model == TrainedModel::word_piece;
  if (pieces) {
    normalizer_.add_bert({.strip_accents = options_.lowercase, .lowercase = options_.lowercase});
    splitter_.add_bert();
  } else {
    splitter_.add_gpt2();
  }
  auto sorted = options_.special_tokens;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    const bool repeated = i > 0 && sorted[i] == sorted[i - 1];
    if (sorted[i].empty() || !is_valid_utf8(sorted[i]) || repeated) {
      fail(ErrorCode::usage, "special tokens that are different, non-empty UTF-8",
           (repeated ? "twice \"" : "\"") + sanitize_utf8(sorted[i]) + "\"",
           repeated ? "name each once" : "leave this one out");
    }
  }
  for (const char* needed : {"[UNK]", "[CLS]", "[SEP]"}) {
    if (!pieces || std::binary_search(sorted.begin(), sorted.end(), needed)) continue;
    fail(ErrorCode::usage, "special tokens with [UNK], [CLS] and [SEP] for WordPiece",
         std::string("no ") + needed, "leave special_tokens out, or name all of them");
  }
  if (pieces && options_.limit_alphabet < 1) {
    fail(ErrorCode::usage, "limit_alphabet of at least 1", std::to_string(options_.limit_alphabet),
         "limit_alphabet 1000");
  }
  const auto specials = static_cast<int64_t>(sorted.size());
  const int64_t least = (pieces ? 1 : 256) + specials;
  if (options_.vocab_size < least || options_.vocab_size > (1 << 24)) {
    fail(ErrorCode::usage,
         "vocab_size from " + std::to_string(least) + (pieces ? " (" : " (256 bytes and ") +
             std::to_string(specials) + " special tokens) to 16777216",
         "vocab_size " + std::to_string(options_.vocab_size),
         "vocab_size 512 or more; common sizes are 8192 to 65536");
  }
}

void BpeTrainer::count(std::string_view document, Counter& counter) const {
  std::string valid;
  if (!is_valid_utf8(document)) {
    valid = sanitize_utf8(document);
    document = valid;
  }
  std::string normal;
  if (!normalizer_.empty()) {
    normal = normalizer_.apply(document, counter.scratch);
    document = normal;
  }
  WordCounter sink(counter.words);
  splitter_.split(document, counter.scratch, sink);
}

void BpeTrainer::feed(std::string_view document) {
  count(document, counter_);
}

void BpeTrainer::feed_batch(std::span<const std::string_view> documents, int threads) {
  const auto workers = std::min(static_cast<size_t>(std::max(threads, 1)), documents.size());
  std::vector<Counter> others(workers > 1 ? workers - 1 : 0);
  std::atomic<size_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  run_on_threads(workers, [&](size_t i) {
    Counter& counter = i == 0 ? counter_ : others[i - 1];
    try {
      for (size_t d; (d = next.fetch_add(1)) < documents.size();) count(documents[d], counter);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next = documents.size();
    }
  });
  if (error) std::rethrow_exception(error);
  for (const Counter& counter : others) counter_.words.add(counter.words);
}

void BpeTrainer::feed_file(const std::filesystem::path& path) {
  std::error_code error;
  std::ifstream file;
  if (std::filesystem::is_regular_file(path, error)) file.open(path, std::ios::binary);
  if (!file.is_open() || !file) {
    fail(ErrorCode::data, "a readable text file", "'" + path.string() + "' cannot be opened",
         "check the path and its permissions");
  }
  std::string line;
  while (std::getline(file, line)) {
    if (!file.eof()) line += '\n';
    feed(line);
  }
  if (file.bad()) {
    fail(ErrorCode::data, "a readable text file", "'" + path.string() + "': reading stopped",
         "check the disk and copy the file again");
  }
}

void BpeTrainer::add_word(std::string_view word, int64_t count) {
  if (word.empty() || count <= 0) return;
  counter_.words.add(word, count);
}

Tokenizer BpeTrainer::train() const {
  return options_.model == TrainedModel::bpe ? train_bpe() : train_word_piece();
}

Tokenizer BpeTrainer::train_bpe() const {
  TokenizerSpec spec;
  spec.origin = "the trained tokenizer";
  Vocabulary tokens(spec.vocab);
  for (const std::string& token : options_.special_tokens) {
    spec.added.push_back({.id = tokens.add(token), .content = token, .special = true});
  }
  std::vector<std::string> characters;
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    characters.push_back(bytes_to_alphabet({&byte, 1}));
  }
  std::vector<std::string> ordered = characters;
  std::sort(ordered.begin(), ordered.end());  // UTF-8 sorts as code points do
  for (const std::string& c : ordered) tokens.add(c);
  std::array<int32_t, 256> byte_ids{};
  for (size_t b = 0; b < 256; ++b) byte_ids[b] = spec.vocab.find(characters[b])->second;

  std::vector<Word> words;
  for (const auto& [bytes, count] : sorted_words(counter_.words)) {
    Word word{.ids = {}, .count = count};
    for (const char c : bytes) word.ids.push_back(byte_ids[static_cast<uint8_t>(c)]);
    words.push_back(std::move(word));
  }
  const auto merges = learn(std::move(words), options_, "", tokens);

  // A pair can come up twice (see Learner::merge_word); the later rank is the one that counts.
  FlatMap64<size_t> last(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) last[pair_key(merges[i][0], merges[i][1])] = i;
  for (size_t i = 0; i < merges.size(); ++i) {
    if (*last.find(pair_key(merges[i][0], merges[i][1])) == i) spec.merges.push_back(merges[i]);
  }
  if (!options_.special_tokens.empty()) {
    spec.eos_token = spec.bos_token = options_.special_tokens.front();
  }
  return Tokenizer::build(std::move(spec));
}

Tokenizer BpeTrainer::train_word_piece() const {
  TokenizerSpec spec;
  spec.origin = "the trained tokenizer";
  spec.model = ModelType::word_piece;
  spec.unk_token = spec.unk_role.emplace("[UNK]");
  spec.continuing_prefix = "##";
  Vocabulary tokens(spec.vocab);
  for (const std::string& token : options_.special_tokens) {
    spec.added.push_back({.id = tokens.add(token), .content = token, .special = true});
  }
  const auto sorted = sorted_words(counter_.words);
  // The characters, and which of them stand inside a word.
  struct Use {
    int64_t count = 0;
    bool inside = false;
  };
  std::map<char32_t, Use> uses;
  for (const auto& [text, count] : sorted) {
    for (size_t at = 0; at < text.size();) {
      const Utf8Char c = decode_utf8(text, at);
      Use& use = uses[c.code];
      use.count += count;
      use.inside = use.inside || at > 0;
      at += c.length;
    }
  }
  std::vector<std::pair<int64_t, char32_t>> frequent;
  for (const auto& [code, use] : uses) frequent.emplace_back(-use.count, code);
  std::sort(frequent.begin(), frequent.end());
  for (size_t i = static_cast<size_t>(options_.limit_alphabet); i < frequent.size(); ++i) {
    uses.erase(frequent[i].second);
  }
  std::unordered_map<char32_t, int32_t> first, later;
  const auto add = [&](char32_t code, const char* prefix, auto& ids) {
    std::string token = prefix;
    append_utf8(token, code);
    if (tokens.size() < options_.vocab_size) ids[code] = tokens.add(token);
  };
  for (const auto& [code, use] : uses) add(code, "", first);
  for (const auto& [code, use] : uses) {
    if (use.inside) add(code, "##", later);
  }
  std::vector<Word> words;
  for (const auto& [text, count] : sorted) {
    Word word{.ids = {}, .count = count};
    for (size_t at = 0; at < text.size();) {
      const Utf8Char c = decode_utf8(text, at);
      const auto& ids = at > 0 ? later : first;
      const auto it = ids.find(c.code);
      if (it != ids.end()) word.ids.push_back(it->second);
      at += c.length;
    }
    words.push_back(std::move(word));
  }
  learn(std::move(words), options_, spec.continuing_prefix, tokens);

  const std::string lower = options_.lowercase ? "true" : "false";
  spec.normalizer = R"({"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,)"
                    R"("strip_accents":null,"lowercase":)" +
                    lower + "}";
  spec.pre_tokenizer = R"({"type":"BertPreTokenizer"})";
  spec.decoder = R"({"type":"WordPiece","prefix":"##","cleanup":true})";
  const auto cls = std::to_string(spec.vocab.find("[CLS]")->second),
             sep = std::to_string(spec.vocab.find("[SEP]")->second);
  spec.post_processor =
      R"({"type":"BertProcessing","sep":["[SEP]",)" + sep + R"(],"cls":["[CLS]",)" + cls + "]}";
  spec.config = R"({"tokenizer_class":"BertTokenizerFast","do_lower_case":)" + lower +
                R"(,"cls_token":"[CLS]","sep_token":"[SEP]")" +
                (spec.vocab.contains("[MASK]") ? R"(,"mask_token":"[MASK]"})" : "}");
  spec.bos_token = "[CLS]";
  spec.eos_token = "[SEP]";
  if (spec.vocab.contains("[PAD]")) spec.pad_token = "[PAD]";
  return Tokenizer::build(std::move(spec));
}

Tokenizer train_bpe(const std::vector<std::string_view>& documents, BpeTrainerOptions options) {
  BpeTrainer trainer(std::move(options));
  for (const std::string_view document : documents) trainer.feed(document);
  return trainer.train();
}

}  // namespace snug
