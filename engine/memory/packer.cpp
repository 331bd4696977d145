// The public side of the packer: checks, the bound, and the order in which the parts are tried.
#include "engine/memory/packer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <string>

#include "engine/core/error.h"
#include "engine/memory/packer_parts.h"

namespace snug {
namespace packing {

int32_t compress(std::span<Item> items, int32_t sections, std::vector<int32_t>* times) {
  std::vector<int32_t> birth(sections + 1, 0), death(sections + 1, 0);
  for (const Item& item : items) birth[item.first] = death[item.last] = 1;
  if (times) times->clear();
  int32_t count = 0;
  bool after_death = true;
  // From here on birth[s] and death[s] hold the new number of the boundary s.
  for (int32_t s = 0; s <= sections; ++s) {
    if (death[s]) {
      after_death = true;
      death[s] = count;
    }
    if (!birth[s]) continue;
    if (after_death) {
      ++count;
      if (times) times->push_back(s);
      after_death = false;
    }
    birth[s] = count - 1;
    if (times) times->back() = s;  // only after its last birth is all of the section alive
  }
  for (Item& item : items) item = {birth[item.first], death[item.last], item.size};
  return count;
}

std::vector<int64_t> live_sums(std::span<const Item> items) {
  int32_t sections = 0;
  for (const Item& item : items) sections = std::max(sections, item.last);
  std::vector<int64_t> live(sections + 1, 0);
  for (const Item& item : items) {
    live[item.first] += item.size;
    live[item.last] -= item.size;
  }
  std::partial_sum(live.begin(), live.end(), live.begin());
  return live;
}

namespace {

// Items that can be packed on their own, above `base`.
struct Block {
  std::vector<int32_t> ids;  // into the whole list of items
  std::vector<Item> items;   // with sections of their own
  int64_t base = 0;
  Layout best;
  std::vector<int32_t> order;
  Fit fit = Fit::lowest;

  int64_t top() const { return base + best.height; }
};

// Two reductions that keep the lowest height, repeated until neither applies:
//  - items that fall apart in time are independent;
//  - an item alive in every section lies across the whole width of any layout, so what is above it
//    can slide below it: it may lie at the bottom.
// Offsets of bottom items are final.
std::vector<Block> reduce(const std::vector<Item>& all, std::vector<int64_t>& offsets) {
  std::vector<Block> leaves, todo(1);
  todo[0].ids.resize(all.size());
  std::iota(todo[0].ids.begin(), todo[0].ids.end(), 0);
  std::stable_sort(todo[0].ids.begin(), todo[0].ids.end(),
                   [&](int32_t a, int32_t b) { return all[a].first < all[b].first; });
  for (const int32_t i : todo[0].ids) todo[0].items.push_back(all[i]);

  while (!todo.empty()) {
    Block block = std::move(todo.back());
    todo.pop_back();
    if (block.items.empty()) continue;
    int32_t sections = 0;
    for (const Item& item : block.items) sections = std::max(sections, item.last);
    sections = compress(block.items, sections);

    std::vector<Block> parts(1);
    int32_t reach = 0;
    int64_t base = block.base;
    for (size_t k = 0; k < block.items.size(); ++k) {
      const Item& item = block.items[k];
      if (item.first == 0 && item.last == sections) {
        offsets[block.ids[k]] = base;
        base += item.size;
        continue;
      }
      if (item.first >= reach && !parts.back().ids.empty()) parts.emplace_back();
      reach = std::max(reach, item.last);
      parts.back().ids.push_back(block.ids[k]);
      parts.back().items.push_back(item);
    }
    if (parts.size() == 1 && parts[0].ids.size() == block.ids.size()) {
      leaves.push_back(std::move(block));
      continue;
    }
    for (Block& part : parts) {
      part.base = base;
      todo.push_back(std::move(part));
    }
  }
  return leaves;
}

// The blocks where greedy orders miss the bound: search the highest one until the bound is met, the
// highest block is proved to be as low as it can be, or the steps are used up.
PackProof search_blocks(std::vector<Block>& blocks, int64_t bound, int64_t steps) {
  for (;;) {
    const auto highest =
        std::max_element(blocks.begin(), blocks.end(),
                         [](const Block& a, const Block& b) { return a.top() < b.top(); });
    Block& block = *highest;
    if (block.top() <= bound) return PackProof::lower_bound;
    const auto above = std::count_if(blocks.begin(), blocks.end(),
                                     [&](const Block& b) { return b.top() > bound; });
    const int64_t before = block.top(), goal = bound - block.base;
    const int64_t share = steps / above;
    // A short exact search settles small blocks and, within some million steps, most training steps
    // of a dozen layers; the long one comes after the local search, which finds good layouts of
    // large blocks sooner.
    int64_t brief = share / 4, local = share / 2, rest = share - brief - local;
    steps -= share;
    bool settled = pack_exact(block.items, goal, block.best, brief);
    if (!settled) {
      local += brief;
      pack_local(block.items, goal, block.best, block.order, block.fit, local);
      rest += local;
      settled = pack_exact(block.items, goal, block.best, rest);
    } else {
      rest += brief + local;
    }
    steps += std::max<int64_t>(0, rest);
    if (block.top() <= bound) continue;
    const bool still_highest = std::all_of(blocks.begin(), blocks.end(),
                                           [&](const Block& b) { return b.top() <= block.top(); });
    if (still_highest) return settled ? PackProof::exhausted : PackProof::none;
    if (block.top() == before) return PackProof::none;
  }
}

struct Problem {
  std::vector<int32_t> ids;  // the intervals that take room
  std::vector<Item> items;   // the same, compressed
  int32_t sections = 0;
  std::vector<int64_t> times;  // a moment in each section
};

Problem make_problem(std::span<const Interval> intervals, int64_t alignment) {
  require(alignment >= 1, "pack: alignment of at least 1");
  require(intervals.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max() / 2),
          "pack: fewer than 2^30 intervals");
  Problem problem;
  std::vector<int64_t> moments;
  // No sum of offsets and sizes below can overflow then.
  constexpr int64_t kMaxTotal = int64_t{1} << 62;
  int64_t total = alignment <= kMaxTotal / 4 ? 0 : kMaxTotal;
  for (size_t i = 0; i < intervals.size(); ++i) {
    const Interval& x = intervals[i];
    if (x.bytes < 0 || x.died < x.born)
      fail(ErrorCode::internal, "intervals with bytes >= 0 and born <= died",
           fmt::format("interval {}: born {}, died {}, bytes {}", i, x.born, x.died, x.bytes),
           "this is a defect in Snug: please report it with the command you ran");
    if (x.bytes == 0 || x.born == x.died) continue;
    const int64_t units = x.bytes / alignment + (x.bytes % alignment != 0);
    int64_t rounded = 0;
    if (__builtin_mul_overflow(units, alignment, &rounded) || rounded > kMaxTotal - total)
      fail(ErrorCode::out_of_memory, "tensors of less than 2^62 bytes in all",
           fmt::format("tensor {} of {} bytes passes it", i, x.bytes),
           "check the sizes of the model and of the batch");
    total += rounded;
    problem.ids.push_back(static_cast<int32_t>(i));
    problem.items.push_back({0, 0, units});
    moments.push_back(x.born);
    moments.push_back(x.died);
  }
  std::sort(moments.begin(), moments.end());
  moments.erase(std::unique(moments.begin(), moments.end()), moments.end());
  const auto rank = [&](int64_t moment) {
    return static_cast<int32_t>(std::lower_bound(moments.begin(), moments.end(), moment) -
                                moments.begin());
  };
  for (size_t k = 0; k < problem.ids.size(); ++k) {
    problem.items[k].first = rank(intervals[problem.ids[k]].born);
    problem.items[k].last = rank(intervals[problem.ids[k]].died);
  }
  std::vector<int32_t> times;
  problem.sections = compress(problem.items, static_cast<int32_t>(moments.size()), &times);
  for (const int32_t t : times) problem.times.push_back(moments[t]);
  return problem;
}

}  // namespace
}  // namespace packing

using namespace packing;  // NOLINT: the parts are made for this file

const char* to_string(PackProof proof) {
  switch (proof) {
    case PackProof::lower_bound:
      return "lower_bound";
    case PackProof::exhausted:
      return "exhausted";
    case PackProof::none:
      return "none";
  }
  fail(ErrorCode::internal, "a PackProof", std::to_string(static_cast<int>(proof)), "report this");
}

Packing pack(std::span<const Interval> intervals, const PackOptions& options) {
  require(options.seconds >= 0, "pack: seconds of at least 0");
  const Problem problem = make_problem(intervals, options.alignment);
  const std::vector<Item>& items = problem.items;

  Packing result;
  result.offsets.assign(intervals.size(), 0);
  result.method = "nothing to place";
  if (items.empty()) return result;

  const std::vector<int64_t> live = live_sums(items);
  const auto peak = std::max_element(live.begin(), live.end()) - live.begin();
  const int64_t bound = live[peak];
  result.lower_bound = bound * options.alignment;
  result.peak_time = problem.times[peak];
  for (size_t k = 0; k < items.size(); ++k)
    if (items[k].first <= peak && peak < items[k].last) result.witness.push_back(problem.ids[k]);

  Layout best;
  std::vector<int32_t> order;
  Fit fit = Fit::lowest;
  pack_greedy(items, bound, best, order, fit);
  result.proof = PackProof::none;
  const auto steps = static_cast<int64_t>(std::min(options.seconds * kPackStepsPerSecond, 1e18));
  if (best.height > bound && steps > 0) {
    std::vector<int64_t> offsets(items.size(), 0);
    std::vector<Block> blocks = reduce(items, offsets);
    for (Block& block : blocks)
      pack_greedy(block.items, bound - block.base, block.best, block.order, block.fit);
    const PackProof proof = search_blocks(blocks, bound, steps);
    int64_t highest = 0;
    const char* method = "";
    for (const Block& block : blocks) {
      for (size_t k = 0; k < block.ids.size(); ++k)
        offsets[block.ids[k]] = block.base + block.best.offsets[k];
      if (block.top() > highest) {
        highest = block.top();
        method = block.best.method;
      }
    }
    // Of all items: one that the reduction placed may end above every block.
    int64_t height = 0;
    for (size_t k = 0; k < items.size(); ++k) height = std::max(height, offsets[k] + items[k].size);
    // Greedy orders can do better on the whole than block by block, as long as nothing is proved.
    if (height < best.height) best = {std::move(offsets), height, method};
    if (best.height == height) result.proof = proof;
  }
  if (best.height == bound) result.proof = PackProof::lower_bound;

  for (size_t k = 0; k < items.size(); ++k)
    result.offsets[problem.ids[k]] = best.offsets[k] * options.alignment;
  result.height = best.height * options.alignment;
  result.method = best.method;
  return result;
}

std::vector<int64_t> pack_random(std::span<const Interval> intervals, int64_t alignment,
                                 uint64_t seed) {
  const Problem problem = make_problem(intervals, alignment);
  const auto n = static_cast<int64_t>(problem.items.size());
  Random random(seed);
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  for (int64_t k = n - 1; k > 0; --k) std::swap(order[k], order[random.below(k + 1)]);
  std::vector<Fit> fits(n);
  for (Fit& fit : fits) fit = static_cast<Fit>(random.below(3));

  Placer placer(problem.items);
  placer.place(order, fits, random);
  std::vector<int64_t> offsets(intervals.size(), 0);
  for (int64_t k = 0; k < n; ++k) offsets[problem.ids[k]] = placer.offsets()[k] * alignment;
  return offsets;
}

void check_packing(std::span<const Interval> intervals, std::span<const int64_t> offsets,
                   int64_t alignment) {
  const char* report = "this is a defect in Snug: please report it with the command you ran";
  require(alignment >= 1, "check_packing: alignment of at least 1");
  if (intervals.size() != offsets.size())
    fail(ErrorCode::internal, fmt::format("{} offsets, one per tensor", intervals.size()),
         fmt::format("{} offsets", offsets.size()), report);

  struct Turn {
    int64_t time;
    bool birth;  // deaths come first: a tensor may take the place of one that dies as it is born
    int32_t index;
  };
  std::vector<Turn> events;
  for (size_t i = 0; i < intervals.size(); ++i) {
    if (offsets[i] < 0 || offsets[i] % alignment != 0)
      fail(ErrorCode::internal, fmt::format("offsets >= 0 that are multiples of {}", alignment),
           fmt::format("tensor {} at offset {}", i, offsets[i]), report);
    int64_t end = 0;
    if (intervals[i].bytes < 0 || __builtin_add_overflow(offsets[i], intervals[i].bytes, &end))
      fail(ErrorCode::internal, "tensors that end within 63 bits",
           fmt::format("tensor {} of {} bytes at offset {}", i, intervals[i].bytes, offsets[i]),
           report);
    if (intervals[i].bytes == 0 || intervals[i].born >= intervals[i].died) continue;
    events.push_back({intervals[i].born, true, static_cast<int32_t>(i)});
    events.push_back({intervals[i].died, false, static_cast<int32_t>(i)});
  }
  std::sort(events.begin(), events.end(), [](const Turn& a, const Turn& b) {
    if (a.time != b.time) return a.time < b.time;
    if (a.birth != b.birth) return b.birth;
    return a.index < b.index;
  });

  // The live tensors by offset. They never overlap, so a new one need only be compared with the two
  // beside it.
  std::map<int64_t, int32_t> live;
  const auto compare = [&](int32_t a, int32_t b) {
    const auto span = [&](int32_t i) {
      return fmt::format("tensor {}, bytes [{}, {}), alive [{}, {})", i, offsets[i],
                         offsets[i] + intervals[i].bytes, intervals[i].born, intervals[i].died);
    };
    if (offsets[a] < offsets[b] + intervals[b].bytes &&
        offsets[b] < offsets[a] + intervals[a].bytes)
      fail(ErrorCode::internal, "no two tensors alive at the same time to share a byte",
           span(std::min(a, b)) + " and " + span(std::max(a, b)), report);
  };
  for (const Turn& event : events) {
    if (!event.birth) {
      live.erase(offsets[event.index]);
      continue;
    }
    const auto next = live.lower_bound(offsets[event.index]);
    if (next != live.end()) compare(event.index, next->second);
    if (next != live.begin()) compare(event.index, std::prev(next)->second);
    live.emplace(offsets[event.index], event.index);
  }
}

}  // namespace snug
