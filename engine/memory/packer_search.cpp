// Exact search: is there a layout of height at most T?
//
// Of all such layouts take one with the least sum of offsets. In it every item rests on the bottom
// or on an item that overlaps it in time, so placing the items in order of (offset, number) puts
// each at its floor: the highest end among the overlapping items placed before. The search
// therefore places items at their floors in ascending (offset, number), and prunes with these
// facts:
//  - Dominance. If some open item c fits between its floor and the offset of the next item, then c
//    would end up above and could move down: that layout has no least sum. So the next item must
//    lie below floor(c) + size(c) for every open c.
//  - Twins. Items of equal life and size are placed in ascending number.
//  - Bound. In one section the open items stack without overlap, each above its floor and above the
//    last offset. For every floor f: f + (sizes of the section's open items with floor >= f) <= T.
//  - Split. Open items that fall apart in time are separate problems; if one has no solution, no
//    solution of the others helps.
#include <algorithm>
#include <numeric>

#include "engine/memory/packer_parts.h"

namespace snug::packing {
namespace {

// Neighbour lists beyond this many entries would cost more memory than the search is worth.
constexpr int64_t kMaxNeighbours = 8'000'000;
constexpr size_t kMaxItems = 4096;  // also the depth of the recursion

enum class Outcome { found, impossible, out_of_steps };

class Search {
 public:
  // `rank` gives the numbers: rank[k] is the item with number k.
  Search(std::span<const Item> items, std::vector<int32_t> rank) : rank_(std::move(rank)) {
    const auto n = static_cast<int32_t>(items.size());
    items_.reserve(n);
    for (const int32_t i : rank_) items_.push_back(items[i]);
    int32_t sections = 0;
    for (const Item& item : items_) sections = std::max(sections, item.last);
    load_.assign(sections, 0);
    start_.assign(n + 1, 0);
    twin_.assign(n, -1);
    for (int32_t a = 0; a < n; ++a) {
      for (int32_t b = 0; b < n; ++b) {
        if (a == b || !overlap(items_[a], items_[b])) continue;
        neighbours_.push_back(b);
        if (b < a && items_[a].first == items_[b].first && items_[a].last == items_[b].last &&
            items_[a].size == items_[b].size)
          twin_[a] = b;
      }
      start_[a + 1] = static_cast<int64_t>(neighbours_.size());
    }
  }

  Outcome run(int64_t target, int64_t& steps) {
    target_ = target;
    steps_ = steps;
    floor_.assign(items_.size(), 0);
    offset_.assign(items_.size(), -1);
    trail_.clear();
    std::vector<int32_t> open(items_.size());
    std::iota(open.begin(), open.end(), 0);
    std::stable_sort(open.begin(), open.end(),
                     [&](int32_t a, int32_t b) { return items_[a].first < items_[b].first; });
    const Outcome outcome = solve(open, 0, -1);
    steps = std::max<int64_t>(0, steps_);
    return outcome;
  }

  // After Outcome::found, in the caller's numbering.
  Layout layout() const {
    Layout result{std::vector<int64_t>(items_.size()), 0, "exact search over canonical layouts"};
    for (size_t k = 0; k < items_.size(); ++k) {
      result.offsets[rank_[k]] = offset_[k];
      result.height = std::max(result.height, offset_[k] + items_[k].size);
    }
    return result;
  }

 private:
  // `open` ascends in first section. Leaves offsets set if found, else everything as it was.
  Outcome solve(const std::vector<int32_t>& open, int64_t last_offset, int32_t last_number) {
    if (open.empty()) return Outcome::found;
    const size_t mark = trail_.size();
    size_t begin = 0;
    int32_t reach = items_[open[0]].last;
    std::vector<int32_t> part;
    for (size_t k = 1; k <= open.size(); ++k) {
      if (k < open.size() && items_[open[k]].first < reach) {
        reach = std::max(reach, items_[open[k]].last);
        continue;
      }
      if (begin == 0 && k == open.size()) return branch(open, last_offset, last_number);
      part.assign(open.begin() + begin, open.begin() + k);
      const Outcome outcome = branch(part, last_offset, last_number);
      if (outcome != Outcome::found) {
        undo(mark);
        return outcome;
      }
      begin = k;
      if (k < open.size()) reach = items_[open[k]].last;
    }
    return Outcome::found;
  }

  Outcome branch(const std::vector<int32_t>& open, int64_t last_offset, int32_t last_number) {
    if (steps_ <= 0) return Outcome::out_of_steps;
    int64_t below = kNoLayout;
    for (const int32_t i : open) below = std::min(below, floor_[i] + items_[i].size);
    if (below <= last_offset || !within_bound(open, last_offset)) return Outcome::impossible;

    std::vector<int32_t> next;
    for (const int32_t i : open) {
      const bool in_order =
          floor_[i] > last_offset || (floor_[i] == last_offset && i > last_number);
      const bool twin_waits = twin_[i] >= 0 && offset_[twin_[i]] < 0;
      if (in_order && !twin_waits && floor_[i] < below) next.push_back(i);
    }
    std::sort(next.begin(), next.end(), [&](int32_t a, int32_t b) {
      return floor_[a] != floor_[b] ? floor_[a] < floor_[b] : a < b;
    });
    std::vector<int32_t> rest;
    rest.reserve(open.size());
    for (const int32_t i : next) {
      const size_t mark = trail_.size();
      const int64_t offset = floor_[i];
      place(i, offset);
      rest.clear();
      for (const int32_t k : open)
        if (k != i) rest.push_back(k);
      const Outcome outcome = solve(rest, offset, i);
      if (outcome == Outcome::found) return outcome;
      undo(mark);
      if (outcome == Outcome::out_of_steps) return outcome;
    }
    return Outcome::impossible;
  }

  bool within_bound(const std::vector<int32_t>& open, int64_t last_offset) {
    by_floor_.assign(open.begin(), open.end());
    std::sort(by_floor_.begin(), by_floor_.end(),
              [&](int32_t a, int32_t b) { return floor_[a] > floor_[b]; });
    int32_t low = items_[open[0]].first, high = low;
    for (const int32_t i : open) high = std::max(high, items_[i].last);
    std::fill(load_.begin() + low, load_.begin() + high, 0);
    steps_ -= high - low + 16 * static_cast<int64_t>(open.size());
    for (const int32_t i : by_floor_) {
      const int64_t room = target_ - std::max(floor_[i], last_offset);
      steps_ -= items_[i].last - items_[i].first;
      for (int32_t s = items_[i].first; s < items_[i].last; ++s)
        if ((load_[s] += items_[i].size) > room) return false;
    }
    return true;
  }

  void place(int32_t i, int64_t offset) {
    trail_.push_back({i, -1});
    offset_[i] = offset;
    const int64_t end = offset + items_[i].size;
    steps_ -= start_[i + 1] - start_[i];
    for (int64_t k = start_[i]; k < start_[i + 1]; ++k) {
      const int32_t other = neighbours_[k];
      if (offset_[other] >= 0 || floor_[other] >= end) continue;
      trail_.push_back({other, floor_[other]});
      floor_[other] = end;
    }
  }

  void undo(size_t mark) {
    while (trail_.size() > mark) {
      const Change change = trail_.back();
      trail_.pop_back();
      if (change.floor < 0)
        offset_[change.item] = -1;
      else
        floor_[change.item] = change.floor;
    }
  }

  struct Change {
    int32_t item;
    int64_t floor;  // the floor before, or -1: the item was placed
  };

  std::vector<int32_t> rank_;
  std::vector<Item> items_;
  std::vector<int64_t> start_;  // neighbours of a: neighbours_[start_[a] .. start_[a + 1])
  std::vector<int32_t> neighbours_;
  std::vector<int32_t> twin_;  // the equal item with the next smaller number, or -1
  std::vector<int64_t> floor_, offset_, load_;
  std::vector<int32_t> by_floor_;
  std::vector<Change> trail_;
  int64_t target_ = 0, steps_ = 0;
};

std::vector<int32_t> ranking(std::span<const Item> items, int kind) {
  std::vector<double> key(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    const double life = items[i].last - items[i].first, size = static_cast<double>(items[i].size);
    key[i] = kind == 0 ? life * size : kind == 1 ? size : life;
  }
  std::vector<int32_t> result(items.size());
  std::iota(result.begin(), result.end(), 0);
  std::stable_sort(result.begin(), result.end(),
                   [&](int32_t a, int32_t b) { return key[a] > key[b]; });
  return result;
}

}  // namespace

bool pack_exact(std::span<const Item> items, int64_t goal, Layout& best, int64_t& steps) {
  if (best.height <= goal) return true;
  if (items.size() > kMaxItems) return false;
  // Looking at all pairs is the first cost of a search; without the steps for it there is none.
  const auto n = static_cast<int64_t>(items.size());
  constexpr int kRankings = 3;
  if (steps < 2 * kRankings * n * n) return false;
  steps -= kRankings * n * n;
  int64_t pairs = 0;
  for (const Item& a : items)
    for (const Item& b : items) pairs += overlap(a, b);
  if (pairs > kMaxNeighbours) return false;

  // Different numberings look in different corners first; any of them settles the question.
  std::vector<Search> searches;
  for (int kind = 0; kind < kRankings; ++kind) searches.emplace_back(items, ranking(items, kind));

  int64_t proved = goal;  // no layout lower than this need be looked for
  int64_t least = goal;   // lowest target still worth trying
  while (best.height > least && steps > 0) {
    // First the goal itself, then the middle of what is left, at last one unit below the best.
    const int64_t target = least == goal ? goal : least + (best.height - 1 - least) / 2;
    const bool last = target == best.height - 1;
    Outcome outcome = Outcome::out_of_steps;
    for (int kind = 0; kind < kRankings && outcome == Outcome::out_of_steps; ++kind) {
      const int64_t share = steps / (kRankings - kind) / (last ? 1 : 2);
      int64_t left = share;
      outcome = searches[kind].run(target, left);
      steps -= share - left + 1;
      if (outcome == Outcome::found) best = searches[kind].layout();
    }
    if (outcome == Outcome::impossible) proved = target + 1;
    if (outcome != Outcome::found) least = target + 1;
  }
  return best.height <= proved;
}

}  // namespace snug::packing
