#include "engine/text/bpe_trainer.h"

#include <algorithm>
#include <fstream>
#include <queue>
#include <utility>

#include "engine/core/error.h"
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
  explicit WordCounter(StringMap<int64_t>& words) : words_(words) {}
  void piece(std::string_view text) override {
    const auto it = words_.find(text);
    if (it != words_.end()) {
      ++it->second;
    } else {
      words_.emplace(text, 1);
    }
  }

 private:
  StringMap<int64_t>& words_;
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

}  // namespace

BpeTrainer::BpeTrainer(BpeTrainerOptions options) : options_(std::move(options)) {
  splitter_.add_gpt2();
  auto sorted = options_.special_tokens;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    const bool repeated = i > 0 && sorted[i] == sorted[i - 1];
    if (sorted[i].empty() || !is_valid_utf8(sorted[i]) || repeated) {
      fail(ErrorCode::usage, "special tokens that are different, non-empty UTF-8",
           (repeated ? "twice \"" : "\"") + sanitize_utf8(sorted[i]) + "\"",
           "correct special_tokens");
    }
  }
  const auto specials = static_cast<int64_t>(sorted.size());
  if (options_.vocab_size < 256 + specials || options_.vocab_size > (1 << 24)) {
    fail(ErrorCode::usage,
         "vocab_size from " + std::to_string(256 + specials) + " (256 bytes and " +
             std::to_string(specials) + " special tokens) to 16777216",
         "vocab_size " + std::to_string(options_.vocab_size),
         "ask for a vocabulary of 512 or more; common sizes are 8192 to 65536");
  }
}

void BpeTrainer::feed(std::string_view document) {
  std::string valid;
  if (!is_valid_utf8(document)) {
    valid = sanitize_utf8(document);
    document = valid;
  }
  WordCounter counter(words_);
  splitter_.split(document, scratch_, counter);
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
  const auto it = words_.find(word);
  if (it != words_.end()) {
    it->second += count;
  } else {
    words_.emplace(word, count);
  }
}

Tokenizer BpeTrainer::train() const {
  TokenizerSpec spec;
  spec.origin = "the trained tokenizer";
  std::vector<std::string> tokens;  // by id
  const auto add_token = [&](const std::string& token) {
    const auto [it, is_new] = spec.vocab.emplace(token, static_cast<int32_t>(tokens.size()));
    if (is_new) tokens.push_back(token);
    return it->second;
  };
  for (const std::string& token : options_.special_tokens) {
    spec.added.push_back({.id = add_token(token), .content = token, .special = true});
  }
  std::vector<std::string> characters;
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    characters.push_back(bytes_to_alphabet({&byte, 1}));
  }
  std::vector<std::string> ordered = characters;
  std::sort(ordered.begin(), ordered.end());  // UTF-8 sorts as code points do
  for (const std::string& c : ordered) add_token(c);
  std::array<int32_t, 256> byte_ids{};
  for (size_t b = 0; b < 256; ++b) byte_ids[b] = spec.vocab.find(characters[b])->second;

  // Sorted, so that nothing depends on the order of a hash table.
  std::vector<std::pair<std::string_view, int64_t>> sorted(words_.begin(), words_.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<Word> words;
  words.reserve(sorted.size());
  for (const auto& [bytes, count] : sorted) {
    Word word{.ids = {}, .count = count};
    for (const char c : bytes) word.ids.push_back(byte_ids[static_cast<uint8_t>(c)]);
    words.push_back(std::move(word));
  }

  Learner learner(std::move(words));
  Candidate best;
  std::vector<std::array<int32_t, 2>> merges;
  const auto reached = [&] { return static_cast<int64_t>(tokens.size()); };
  while (reached() < options_.vocab_size && learner.next(options_.min_frequency, best)) {
    const auto left = static_cast<int32_t>(best.pair >> 32),
               right = static_cast<int32_t>(best.pair);
    const int32_t merged =
        add_token(tokens[static_cast<size_t>(left)] + tokens[static_cast<size_t>(right)]);
    merges.push_back({left, right});
    learner.merge(best, merged);
    if (options_.progress && merges.size() % 256 == 0) {
      options_.progress(reached(), options_.vocab_size);
    }
  }
  if (options_.progress) options_.progress(reached(), options_.vocab_size);

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

Tokenizer train_bpe(const std::vector<std::string_view>& documents, BpeTrainerOptions options) {
  BpeTrainer trainer(std::move(options));
  for (const std::string_view document : documents) trainer.feed(document);
  return trainer.train();
}

}  // namespace snug
