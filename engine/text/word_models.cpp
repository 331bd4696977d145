#include "engine/text/word_models.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "engine/core/error.h"
#include "engine/text/unicode.h"

namespace snug {

void PrefixTree::add(std::string_view key, int32_t value) {
  int32_t node = 0;
  for (const char c : key) {
    int32_t& next = edges_[pair_key(node, static_cast<uint8_t>(c))];
    if (next == 0) {  // node 0 is the root and nobody's child
      next = static_cast<int32_t>(values_.size());
      values_.push_back(-1);
    }
    node = next;
  }
  values_[static_cast<size_t>(node)] = value;
}

std::array<int32_t, 256> byte_token_ids(const StringMap<int32_t>& vocab) {
  std::array<int32_t, 256> ids{};
  for (unsigned b = 0; b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", b);
    const auto it = vocab.find(std::string_view(name));
    ids[b] = it == vocab.end() ? -1 : it->second;
  }
  return ids;
}

double score_as_read(double value) {
  char text[40];
  const auto written =
      std::to_chars(text, text + sizeof text, value, std::chars_format::scientific);
  uint64_t digits = 0;
  int exponent = 0;
  bool fraction = false;
  const char* p = text;
  for (; p < written.ptr && *p != 'e'; ++p) {
    if (*p == '.') {
      fraction = true;
    } else if (*p >= '0' && *p <= '9') {
      digits = digits * 10 + static_cast<uint64_t>(*p - '0');
      exponent -= fraction;
    }
  }
  if (p == written.ptr) return value;  // not finite
  int shift = 0;
  const char* const number = p[1] == '+' ? p + 2 : p + 1;
  std::from_chars(number, written.ptr, shift);
  exponent += shift;
  if (std::abs(exponent) > 308) return value;
  const std::string power = "1e" + std::to_string(std::abs(exponent));
  double scale = 1;
  std::from_chars(power.data(), power.data() + power.size(), scale);
  const auto whole = static_cast<double>(digits);
  return std::copysign(exponent >= 0 ? whole * scale : whole / scale, value);
}

WordPieceModel::WordPieceModel(const StringMap<int32_t>& vocab, std::string_view prefix,
                               int64_t max_chars, std::optional<int32_t> unk)
    : max_chars_(static_cast<size_t>(max_chars)), unk_(unk) {
  for (const auto& [token, id] : vocab) {
    first_.add(token, id);
    if (token.starts_with(prefix) && token.size() > prefix.size()) {
      later_.add(std::string_view(token).substr(prefix.size()), id);
    }
  }
}

void WordPieceModel::encode_word(std::string_view word, WordScratch& scratch,
                                 std::vector<int32_t>& out) const {
  const bool cached = word.size() <= WordCache::kMaxWordBytes;
  if (cached && scratch.cache.find(word, out)) return;
  const size_t before = out.size();
  const auto characters = static_cast<size_t>(std::count_if(
      word.begin(), word.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
  bool stuck = characters > max_chars_;
  for (size_t begin = 0; begin < word.size() && !stuck;) {
    size_t length = 0;
    int32_t id = -1;
    const PrefixTree& tree = begin == 0 ? first_ : later_;
    tree.for_each_prefix(word.substr(begin), [&](size_t n, int32_t value) {
      length = n;
      id = value;
    });
    stuck = id < 0;
    if (!stuck) out.push_back(id);
    begin += length;
  }
  if (stuck) {
    out.resize(before);
    if (unk_) out.push_back(*unk_);
  }
  if (cached) scratch.cache.insert(word, out, before);
}

UnigramModel::UnigramModel(const std::vector<Piece>& pieces, std::optional<int32_t> unk,
                           bool byte_fallback)
    : unk_(unk), byte_fallback_(byte_fallback) {
  double least = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    ids_[pieces[i].text] = static_cast<int32_t>(i);
    scores_.push_back(pieces[i].score);
    least = i == 0 ? pieces[i].score : std::min(least, pieces[i].score);
  }
  for (const auto& [text, id] : ids_) tree_.add(text, id);
  unk_score_ = least - 10.0;
  bytes_ = byte_token_ids(ids_);
}

void UnigramModel::push(std::string_view text, std::vector<int32_t>& out) const {
  const auto it = ids_.find(text);
  if (it != ids_.end()) {
    out.push_back(it->second);
    return;
  }
  const auto has = [&](char c) { return bytes_[static_cast<uint8_t>(c)] >= 0; };
  if (byte_fallback_ && std::all_of(text.begin(), text.end(), has)) {
    for (const char c : text) out.push_back(bytes_[static_cast<uint8_t>(c)]);
  } else if (unk_) {
    out.push_back(*unk_);
  }
}

void UnigramModel::encode_word(std::string_view word, WordScratch& scratch,
                               std::vector<int32_t>& out) const {
  const bool cached = word.size() <= WordCache::kMaxWordBytes;
  if (cached && scratch.cache.find(word, out)) return;
  if (word.size() >= INT32_MAX) {
    fail(ErrorCode::data, "a word below 2 GiB", std::to_string(word.size()) + " bytes in one word",
         "break the text into documents");
  }
  const size_t before = out.size();
  auto& best = scratch.best;  // by the byte a path ends at
  best.assign(word.size() + 1, {});
  const auto offer = [&](size_t from, size_t to, double score, bool unknown) {
    auto& target = best[to];
    if (target.from >= 0 && score <= target.score) return;
    target = {score, static_cast<int32_t>(from), unknown};
  };
  for (size_t at = 0; at < word.size();) {
    const double here = best[at].score;
    const size_t length = decode_utf8(word, at).length;
    bool single = false;
    tree_.for_each_prefix(word.substr(at), [&](size_t n, int32_t id) {
      offer(at, at + n, here + scores_[static_cast<size_t>(id)], unk_ && id == *unk_);
      single = single || n == length;
    });
    if (!single) offer(at, at + length, here + unk_score_, true);
    at += length;
  }
  // Backwards, joining unknown neighbours.
  auto& cuts = scratch.cuts;
  cuts.clear();
  for (size_t end = word.size(); end > 0;) {
    size_t begin = static_cast<size_t>(best[end].from);
    while (best[end].unknown && begin > 0 && best[begin].unknown) {
      begin = static_cast<size_t>(best[begin].from);
    }
    cuts.push_back({static_cast<int32_t>(begin), static_cast<int32_t>(end)});
    end = begin;
  }
  for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
    push(word.substr(static_cast<size_t>((*cut)[0]), static_cast<size_t>((*cut)[1] - (*cut)[0])),
         out);
  }
  if (cached) scratch.cache.insert(word, out, before);
}

void WordLevelModel::encode_word(std::string_view word, WordScratch&,
                                 std::vector<int32_t>& out) const {
  const auto it = vocab_.find(word);
  if (it != vocab_.end()) {
    out.push_back(it->second);
  } else if (unk_) {
    out.push_back(*unk_);
  }
}

}  // namespace snug
