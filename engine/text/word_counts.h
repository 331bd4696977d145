// How often each word occurs: the words in one block of memory, found through a table of hashes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

class WordCounts {
 public:
  WordCounts();
  void add(std::string_view word, int64_t count);
  void add(const WordCounts& other);
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  // 0 for a word that was never added.
  int64_t count(std::string_view word) const;

  // In the order in which the words were first added; the text is valid until the next add.
  struct Entry {
    uint64_t at = 0;
    int64_t count = 0;
    uint32_t bytes = 0;
    uint32_t hash = 0;
  };
  const std::vector<Entry>& entries() const { return entries_; }
  std::string_view text(const Entry& e) const { return {words_.data() + e.at, e.bytes}; }

 private:
  size_t place(std::string_view word, uint32_t hash) const;
  void grow();

  std::string words_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> table_;  // index of the entry plus one, 0: free
};

}  // namespace snug
