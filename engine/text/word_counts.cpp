#include "engine/text/word_counts.h"

#include "engine/core/error.h"
#include "engine/text/bpe_model.h"

namespace snug {

WordCounts::WordCounts() : table_(1 << 12) {}

size_t WordCounts::place(std::string_view word, uint32_t hash) const {
  const size_t mask = table_.size() - 1;
  size_t i = hash & mask;
  for (; table_[i] != 0; i = (i + 1) & mask) {
    const Entry& e = entries_[table_[i] - 1];
    if (e.hash == hash && text(e) == word) break;
  }
  return i;
}

void WordCounts::add(std::string_view word, int64_t count) {
  const auto hash = static_cast<uint32_t>(hash_word(word) >> 16);
  const size_t i = place(word, hash);
  if (table_[i] != 0) {
    entries_[table_[i] - 1].count += count;
    return;
  }
  if (entries_.size() >= UINT32_MAX / 4 || word.size() > UINT32_MAX / 2) {
    fail(ErrorCode::data, "a text with fewer than a billion different words, each below 2 GiB",
         std::to_string(entries_.size()) + " words, and one of " + std::to_string(word.size()) +
             " bytes",
         "train on a part of the text");
  }
  entries_.push_back({words_.size(), count, static_cast<uint32_t>(word.size()), hash});
  words_ += word;
  table_[i] = static_cast<uint32_t>(entries_.size());
  if (entries_.size() * 2 > table_.size()) grow();
}

void WordCounts::add(const WordCounts& other) {
  for (const Entry& e : other.entries_) add(other.text(e), e.count);
}

int64_t WordCounts::count(std::string_view word) const {
  const size_t i = place(word, static_cast<uint32_t>(hash_word(word) >> 16));
  return table_[i] == 0 ? 0 : entries_[table_[i] - 1].count;
}

void WordCounts::grow() {
  table_.assign(table_.size() * 2, 0);
  const size_t mask = table_.size() - 1;
  for (size_t e = 0; e < entries_.size(); ++e) {
    size_t i = entries_[e].hash & mask;
    while (table_[i] != 0) i = (i + 1) & mask;
    table_[i] = static_cast<uint32_t>(e + 1);
  }
}

}  // namespace snug
