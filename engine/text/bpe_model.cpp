#include "engine/text/bpe_model.h"

#include <algorithm>
#include <cstring>

#include "engine/core/error.h"
#include "engine/text/unicode.h"

namespace snug {
namespace {

// Up to here a scan beats the heap; words of natural text almost never exceed it.
constexpr size_t kScanLimit = 40;

}  // namespace

uint64_t hash_word(std::string_view word) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15ull;
  uint64_t hash = word.size() * kMultiplier;
  const char* p = word.data();
  size_t left = word.size();
  while (left > 0) {
    uint64_t part = 0;
    const size_t n = std::min<size_t>(left, 8);
    std::memcpy(&part, p, n);
    hash = (hash ^ part) * kMultiplier;
    hash ^= hash >> 32;
    p += n;
    left -= n;
  }
  return hash | 1;  // 0 marks a free slot
}

WordCache::WordCache() : slots_(kMaxWords * 2) {}

size_t WordCache::place(std::string_view word, uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t i = (hash >> 1) & mask;
  while (slots_[i].hash != 0) {
    const Slot& s = slots_[i];
    if (s.hash == hash && s.word_bytes == word.size() &&
        std::memcmp(words_.data() + s.word_at, word.data(), word.size()) == 0) {
      break;
    }
    i = (i + 1) & mask;
  }
  return i;
}

bool WordCache::find(std::string_view word, std::vector<int32_t>& out) {
  const Slot& s = slots_[place(word, hash_word(word))];
  if (s.hash == 0) return false;
  const int32_t* first = ids_.data() + s.ids_at;
  out.insert(out.end(), first, first + s.ids_count);
  return true;
}

void WordCache::insert(std::string_view word, const std::vector<int32_t>& ids, size_t first) {
  if (count_ >= kMaxWords || words_.size() + word.size() > kMaxBytes) {
    std::fill(slots_.begin(), slots_.end(), Slot{});
    count_ = 0;
    words_.clear();
    ids_.clear();
  }
  const uint64_t hash = hash_word(word);
  Slot& s = slots_[place(word, hash)];
  if (s.hash != 0) return;
  s = {hash, static_cast<uint32_t>(words_.size()), static_cast<uint32_t>(word.size()),
       static_cast<uint32_t>(ids_.size()), static_cast<uint32_t>(ids.size() - first)};
  words_ += word;
  ids_.insert(ids_.end(), ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end());
  ++count_;
}

BpeModel::BpeModel(const std::array<int32_t, 256>& byte_ids, std::optional<int32_t> unk,
                   bool fuse_unk)
    : byte_ids_(byte_ids), unk_(unk), fuse_unk_(fuse_unk) {}

void BpeModel::add_merge(int32_t left, int32_t right, uint32_t rank, int32_t merged) {
  merges_[pair_key(left, right)] = {rank, merged};
}

void BpeModel::merge_by_scan(std::vector<int32_t>& ids) const {
  // ranks[i] belongs to the pair (i, i+1); only the two pairs beside a merge change.
  uint32_t ranks[kScanLimit];
  size_t n = ids.size();
  const auto rank_at = [&](size_t i) {
    if (i + 1 >= n) return UINT32_MAX;
    const Merge* m = merges_.find(pair_key(ids[i], ids[i + 1]));
    return m ? m->rank : UINT32_MAX;
  };
  for (size_t i = 0; i < n; ++i) ranks[i] = rank_at(i);
  while (n > 1) {
    const size_t best = static_cast<size_t>(std::min_element(ranks, ranks + n) - ranks);
    if (ranks[best] == UINT32_MAX) break;
    ids[best] = merges_.find(pair_key(ids[best], ids[best + 1]))->id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    std::copy(ranks + best + 2, ranks + n, ranks + best + 1);
    --n;
    ranks[best] = rank_at(best);
    if (best > 0) ranks[best - 1] = rank_at(best - 1);
  }
}

void BpeModel::merge_by_heap(std::vector<int32_t>& ids, Scratch& scratch) const {
  auto& nodes = scratch.nodes;
  auto& heap = scratch.heap;
  nodes.clear();
  heap.clear();
  if (ids.size() >= INT32_MAX) {
    fail(ErrorCode::data, "a word below 2 GiB", std::to_string(ids.size()) + " bytes in one word",
         "break the text into documents");
  }
  const auto n = static_cast<int32_t>(ids.size());
  // Else a long word holds both up to three times while they grow. Every merge takes a node away
  // and adds at most one candidate more than it takes: there are never more than two a node.
  nodes.reserve(ids.size());
  heap.reserve(2 * ids.size());
  for (int32_t i = 0; i < n; ++i) {
    nodes.push_back({ids[static_cast<size_t>(i)], i - 1, i + 1 < n ? i + 1 : -1});
  }
  const auto node = [&](int32_t i) -> Scratch::Node& { return nodes[static_cast<size_t>(i)]; };
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  const auto push = [&](int32_t at) {
    if (at < 0 || node(at).next < 0) return;
    const int32_t left = node(at).id, right = node(node(at).next).id;
    if (const Merge* m = merges_.find(pair_key(left, right))) {
      heap.push_back({m->rank, at, left, right});
      std::push_heap(heap.begin(), heap.end(), later);
    }
  };
  for (int32_t i = 0; i < n; ++i) push(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Candidate c = heap.back();
    heap.pop_back();
    Scratch::Node& left = node(c.at);
    // Stale: one of the two was merged since (a swallowed node has id -1).
    if (left.id != c.left || left.next < 0 || node(left.next).id != c.right) continue;
    Scratch::Node& right = node(left.next);
    left.id = merges_.find(pair_key(c.left, c.right))->id;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) node(left.next).previous = c.at;
    push(c.at);
    push(left.previous);
  }
  ids.clear();
  for (int32_t i = 0; i >= 0 && i < n; i = node(i).next) ids.push_back(node(i).id);
}

void BpeModel::split_bytes(std::string_view word, std::vector<int32_t>& ids) const {
  bool after_unk = false;
  for (const char c : word) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    if (id >= 0) {
      ids.push_back(id);
    } else if (unk_ && !(fuse_unk_ && after_unk)) {
      ids.push_back(*unk_);
    }
    after_unk = id < 0;
  }
}

void BpeModel::split_characters(std::string_view word, std::vector<int32_t>& ids) const {
  const Characters& c = *characters_;
  bool waiting = false;  // an unk that is written once the run of unknown characters ends
  std::string token;
  for (size_t at = 0; at < word.size();) {
    const size_t length = decode_utf8(word, at).length;
    token = at > 0 ? c.prefix : std::string();
    token += word.substr(at, length);
    at += length;
    if (at == word.size()) token += c.suffix;
    const auto it = c.vocab.find(token);
    if (it != c.vocab.end()) {
      if (waiting) ids.push_back(*unk_);
      waiting = false;
      ids.push_back(it->second);
      continue;
    }
    const auto has = [&](char b) { return c.bytes[static_cast<uint8_t>(b)] >= 0; };
    if (c.byte_fallback && std::all_of(token.begin(), token.end(), has)) {
      for (const char b : token) ids.push_back(c.bytes[static_cast<uint8_t>(b)]);
    } else if (unk_) {
      if (waiting && !fuse_unk_) ids.push_back(*unk_);
      waiting = true;
    }
  }
  if (waiting) ids.push_back(*unk_);
}

void BpeModel::encode_word(std::string_view word, Scratch& scratch,
                           std::vector<int32_t>& out) const {
  const bool cached = word.size() <= WordCache::kMaxWordBytes;
  if (cached && scratch.cache.find(word, out)) return;
  const size_t first = out.size();
  const auto whole = whole_.empty() ? whole_.end() : whole_.find(word);
  if (whole != whole_.end()) {
    out.push_back(whole->second);
  } else {
    auto& ids = scratch.ids;
    ids.clear();
    if (characters_) {
      split_characters(word, ids);
    } else {
      split_bytes(word, ids);
    }
    if (ids.size() <= kScanLimit) {
      merge_by_scan(ids);
    } else {
      merge_by_heap(ids, scratch);
    }
    out.insert(out.end(), ids.begin(), ids.end());
  }
  if (cached) scratch.cache.insert(word, out, first);
}

}  // namespace snug
