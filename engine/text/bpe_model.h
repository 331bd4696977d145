// Byte-pair encoding of one word, over bytes or characters: the pair of the lowest rank is merged
// first, leftmost first among equals, until no pair has a rank (Sennrich et al. 2016; over bytes as
// in GPT-2).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/text/flat_map.h"

namespace snug {

// Lets string maps be searched by string_view.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};
template <class V>
using StringMap = std::unordered_map<std::string, V, StringHash, std::equal_to<>>;

// Never 0. The same on every machine of one byte order.
uint64_t hash_word(std::string_view word);

// Remembers the ids of words already seen. Bounded: when full it forgets everything and starts
// over, which costs one encoding per word again.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 64;   // longer words are not kept
  static constexpr size_t kMaxWords = 1 << 16;  // the whole stays under 9 MB
  static constexpr size_t kMaxBytes = 1024 * 1024;

  WordCache();
  // Appends the ids of the word to `out` and returns true if it is known.
  bool find(std::string_view word, std::vector<int32_t>& out);
  // Keeps ids [first, ids.size()) for the word.
  void insert(std::string_view word, const std::vector<int32_t>& ids, size_t first);

 private:
  struct Slot {
    uint64_t hash = 0;  // 0: free
    uint32_t word_at = 0, word_bytes = 0, ids_at = 0, ids_count = 0;
  };
  size_t place(std::string_view word, uint64_t hash) const;

  std::vector<Slot> slots_;
  size_t count_ = 0;
  std::string words_;
  std::vector<int32_t> ids_;
};

// What one thread needs while encoding.
struct WordScratch {
  WordCache cache;
  int64_t max_word = INT64_MAX;  // bytes of the longest word that is taken
  struct Node {
    int32_t id, previous, next;
  };
  struct Candidate {
    uint32_t rank;
    int32_t at, left, right;  // node and the two ids seen when it was found
  };
  std::vector<Node> nodes;
  std::vector<Candidate> heap;
  std::vector<int32_t> ids;
  // Of UnigramModel: the best way to reach a byte, and where the pieces are.
  struct Best {
    double score = 0;
    int32_t from = -1;
    bool unknown = false;
  };
  std::vector<Best> best;
  std::vector<std::array<int32_t, 2>> cuts;
  // True after a word of more than a few hundred kilobytes: too much to keep for the next one.
  bool large() const {
    constexpr size_t kKept = 1 << 18;
    return std::max({nodes.capacity(), heap.capacity(), ids.capacity(), best.capacity(),
                     cuts.capacity()}) > kKept;
  }
};

class WordModel {
 public:
  virtual ~WordModel() = default;
  // Appends the ids of one word, which is valid UTF-8 and not empty.
  virtual void encode_word(std::string_view word, WordScratch& scratch,
                           std::vector<int32_t>& out) const = 0;
};

class BpeModel : public WordModel {
 public:
  using Scratch = WordScratch;

  // byte_ids: the id of each single byte, -1 where the vocabulary has none. Such bytes become
  // `unk` (one for a run of them if fuse_unk) or, without unk, vanish.
  BpeModel(const std::array<int32_t, 256>& byte_ids, std::optional<int32_t> unk, bool fuse_unk);

  // A model over characters instead of bytes: every character is looked up, with `prefix` before it
  // if it is not the first of its word and `suffix` after it if it is the last. One that is not in
  // the vocabulary becomes its bytes <0x..>, if byte_fallback and all are there, or unk.
  struct Characters {
    StringMap<int32_t> vocab;
    std::string prefix, suffix;
    bool byte_fallback = false;
    std::array<int32_t, 256> bytes{};
  };
  void use_characters(Characters characters) { characters_ = std::move(characters); }

  // Pair (left, right) becomes `merged`; a smaller rank goes first. A repeated pair takes the last.
  void add_merge(int32_t left, int32_t right, uint32_t rank, int32_t merged);
  // A word of the vocabulary is taken whole before any merge (ignore_merges of Llama 3).
  void use_whole_words(StringMap<int32_t> words) { whole_ = std::move(words); }

  void encode_word(std::string_view word, WordScratch& scratch,
                   std::vector<int32_t>& out) const override;

  // The two ways to run the merges, equal in result: by scanning for words of a few bytes, with a
  // heap for long ones (O(n log n), a word can be megabytes). Public for the tests that compare
  // them.
  void merge_by_scan(std::vector<int32_t>& ids) const;
  void merge_by_heap(std::vector<int32_t>& ids, Scratch& scratch) const;

 private:
  struct Merge {
    uint32_t rank = 0;
    int32_t id = 0;
  };

  std::array<int32_t, 256> byte_ids_;
  std::optional<int32_t> unk_;
  bool fuse_unk_;
  FlatMap64<Merge> merges_;
  StringMap<int32_t> whole_;
  std::optional<Characters> characters_;

  void split_bytes(std::string_view word, std::vector<int32_t>& ids) const;
  void split_characters(std::string_view word, std::vector<int32_t>& ids) const;
};

}  // namespace snug
