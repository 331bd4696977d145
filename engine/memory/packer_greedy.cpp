// Greedy orders and the local search over orders.
#include <algorithm>
#include <bit>
#include <numeric>

#include "engine/memory/packer_parts.h"

namespace snug::packing {

uint64_t Random::next() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

Placer::Placer(std::span<const Item> items, size_t many) : items_(items) {
  if (items.size() < many) return;
  int32_t sections = 1;
  for (const Item& item : items) sections = std::max(sections, item.last);
  leaves_ = std::bit_ceil(static_cast<size_t>(sections));
}

void Placer::Lists::clear(size_t keys) {
  heads.assign(keys, -1);
  entries.clear();
}

void Placer::Lists::add(size_t key, int32_t placed) {
  entries.push_back({placed, heads[key]});
  heads[key] = static_cast<int32_t>(entries.size()) - 1;
}

int64_t Placer::find(const Item& item, Fit fit, Random* random) {
  if (indexed()) {
    near_.clear();
    const auto take = [&](const Lists& lists, size_t key) {
      for (int32_t e = lists.heads[key]; e >= 0; e = lists.entries[static_cast<size_t>(e)].next)
        near_.push_back(placed_[static_cast<size_t>(lists.entries[static_cast<size_t>(e)].placed)]);
    };
    // Alive where it begins, or begun while it lives.
    for (size_t node = leaves_ + static_cast<size_t>(item.first); node > 0; node /= 2)
      take(covers_, node);
    for (int32_t s = item.first + 1; s < item.last; ++s) take(begins_, static_cast<size_t>(s));
    std::sort(near_.begin(), near_.end(),
              [](const Placed& a, const Placed& b) { return a.offset < b.offset; });
  }
  int64_t top = 0;  // everything below is taken or belongs to a gap already looked at
  int64_t found = -1, least_waste = kNoLayout, gaps = 0;
  for (const Placed& p : indexed() ? near_ : placed_) {
    if (p.first >= item.last || item.first >= p.last) continue;
    const int64_t waste = p.offset - top - item.size;
    if (waste >= 0) {
      if (fit == Fit::lowest) return top;
      if (fit == Fit::tightest) {
        if (waste < least_waste) {
          found = top;
          least_waste = waste;
          if (waste == 0) return found;
        }
      } else if (random->below(++gaps) == 0) {  // each of the gaps seen is equally likely
        found = p.offset - item.size;
      }
    }
    top = std::max(top, p.end);
  }
  if (fit == Fit::random_high && random->below(gaps + 1) == 0) return top;
  return found >= 0 ? found : top;
}

void Placer::clear() {
  placed_.clear();
  positions_.clear();
  placed_.reserve(items_.size());
  offsets_.assign(items_.size(), 0);
  height_ = 0;
  if (!indexed()) return;
  begins_.clear(leaves_);
  covers_.clear(2 * leaves_);
}

void Placer::put(int32_t index, int64_t offset) {
  const Item& item = items_[index];
  height_ = std::max(height_, offset + item.size);
  offsets_[index] = offset;
  const Placed placed{item.first, item.last, offset, offset + item.size};
  if (indexed()) {
    const auto number = static_cast<int32_t>(placed_.size());
    placed_.push_back(placed);
    begins_.add(static_cast<size_t>(item.first), number);
    size_t low = leaves_ + static_cast<size_t>(item.first),
           high = leaves_ + static_cast<size_t>(item.last);
    for (; low < high; low /= 2, high /= 2) {
      if (low % 2 == 1) covers_.add(low++, number);
      if (high % 2 == 1) covers_.add(--high, number);
    }
    return;
  }
  const auto at = std::upper_bound(placed_.begin(), placed_.end(), offset,
                                   [](int64_t value, const Placed& p) { return value < p.offset; });
  positions_.insert(positions_.begin() + (at - placed_.begin()),
                    static_cast<int32_t>(placed_.size()));
  placed_.insert(at, placed);
}

bool Placer::place(std::span<const int32_t> order, Fit fit, int64_t limit, int64_t& steps) {
  clear();
  return place_rest(order, fit, limit, steps);
}

bool Placer::place(std::span<const int32_t> order, Fit fit, int64_t limit, int64_t& steps,
                   const Placer& from, size_t kept) {
  if (indexed()) return place(order, fit, limit, steps);
  clear();
  for (size_t i = 0; i < from.placed_.size(); ++i) {
    const Placed& p = from.placed_[i];
    const auto position = static_cast<size_t>(from.positions_[i]);
    if (position >= kept) continue;
    placed_.push_back(p);
    positions_.push_back(from.positions_[i]);
    offsets_[order[position]] = p.offset;
    height_ = std::max(height_, p.end);
  }
  const auto n = static_cast<int64_t>(kept);
  steps += n * (n - 1) / 2 + 8 * n;
  return place_rest(order.subspan(kept), fit, limit, steps);
}

bool Placer::place_rest(std::span<const int32_t> order, Fit fit, int64_t limit, int64_t& steps) {
  for (const int32_t i : order) {
    steps += static_cast<int64_t>(placed_.size()) + 8;
    const int64_t offset = find(items_[i], fit, nullptr);
    if (offset + items_[i].size > limit) return false;
    put(i, offset);
  }
  return true;
}

void Placer::place(std::span<const int32_t> order, std::span<const Fit> fits, Random& random) {
  clear();
  for (size_t k = 0; k < order.size(); ++k) put(order[k], find(items_[order[k]], fits[k], &random));
}

namespace {

// What to sort by; ties by the longer life, then by the larger size.
enum class Order { life, size, area, born, died, load, load_size, load_area };

struct Recipe {
  Order order;
  Fit fit;
  const char* name;
};

// For nested lives the first recipe is optimal by construction: every item comes after all that
// enclose it and rests directly on them. "Fullest moment" sorts by the largest live sum that an
// item takes part in: the moments without slack are laid out first, in an empty arena, and the
// others around them. It meets the bound on almost every training step.
constexpr Recipe kRecipes[] = {
    {Order::life, Fit::lowest, "longest life first, lowest gap"},
    {Order::load, Fit::tightest, "fullest moment first, tightest gap"},
    {Order::load_size, Fit::tightest, "fullest moment and largest first, tightest gap"},
    {Order::load_area, Fit::tightest, "fullest moment and largest size x life first, tightest gap"},
    {Order::load, Fit::lowest, "fullest moment first, lowest gap"},
    {Order::load_size, Fit::lowest, "fullest moment and largest first, lowest gap"},
    {Order::size, Fit::tightest, "largest first, tightest gap"},
    {Order::area, Fit::tightest, "largest size x life first, tightest gap"},
    {Order::size, Fit::lowest, "largest first, lowest gap"},
    {Order::area, Fit::lowest, "largest size x life first, lowest gap"},
    {Order::life, Fit::tightest, "longest life first, tightest gap"},
    {Order::born, Fit::tightest, "earliest born first, tightest gap"},
    {Order::died, Fit::tightest, "latest dying first, tightest gap"},
    {Order::born, Fit::lowest, "earliest born first, lowest gap"},
    {Order::died, Fit::lowest, "latest dying first, lowest gap"},
};

std::vector<int32_t> sorted(std::span<const Item> items, Order order) {
  // Products as doubles: exact enough for a heuristic, the same on every machine, and no overflow.
  struct Key {
    double first = 0, second = 0;
  };
  std::vector<Key> keys(items.size());
  const std::vector<int64_t> live = live_sums(items);
  for (size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    const double life = item.last - item.first, size = static_cast<double>(item.size);
    const auto load = [&] {
      return static_cast<double>(
          *std::max_element(live.begin() + item.first, live.begin() + item.last));
    };
    switch (order) {
      case Order::life:
        keys[i] = {life};
        break;
      case Order::size:
        keys[i] = {size};
        break;
      case Order::area:
        keys[i] = {size * life};
        break;
      case Order::born:
        keys[i] = {-static_cast<double>(item.first)};
        break;
      case Order::died:
        keys[i] = {static_cast<double>(item.last)};
        break;
      case Order::load:
        keys[i] = {load()};
        break;
      case Order::load_size:
        keys[i] = {load(), size};
        break;
      case Order::load_area:
        keys[i] = {load(), size * life};
        break;
    }
  }
  std::vector<int32_t> result(items.size());
  std::iota(result.begin(), result.end(), 0);
  std::stable_sort(result.begin(), result.end(), [&](int32_t a, int32_t b) {
    if (keys[a].first != keys[b].first) return keys[a].first > keys[b].first;
    if (keys[a].second != keys[b].second) return keys[a].second > keys[b].second;
    const int32_t life_a = items[a].last - items[a].first, life_b = items[b].last - items[b].first;
    if (life_a != life_b) return life_a > life_b;
    return items[a].size > items[b].size;
  });
  return result;
}

}  // namespace

void pack_greedy(std::span<const Item> items, int64_t goal, Layout& best,
                 std::vector<int32_t>& order, Fit& fit) {
  Placer placer(items);
  int64_t steps = 0;
  for (const Recipe& recipe : kRecipes) {
    if (best.height <= goal) return;
    std::vector<int32_t> trial = sorted(items, recipe.order);
    if (!placer.place(trial, recipe.fit, best.height - 1, steps)) continue;
    best = {placer.offsets(), placer.height(), recipe.name};
    order = std::move(trial);
    fit = recipe.fit;
  }
}

void pack_local(std::span<const Item> items, int64_t goal, Layout& best,
                std::vector<int32_t>& order, Fit fit, int64_t& steps) {
  if (items.empty()) return;
  Placer placer(items), accepted(items);
  Random random(0x5eed);
  std::vector<int32_t> trial, touching;
  int64_t used = 0;
  // Orders of equal height are accepted too: plateaus are wide.
  const auto accept = [&] {
    std::swap(placer, accepted);
    const std::vector<int64_t>& offsets = accepted.offsets();
    if (accepted.height() < best.height)
      best = {offsets, accepted.height(), "local search over placement orders"};
    touching.clear();
    for (size_t p = 1; p < order.size(); ++p)
      if (offsets[order[p]] + items[order[p]].size == accepted.height())
        touching.push_back(static_cast<int32_t>(p));
  };
  int64_t height = kNoLayout;
  if (!placer.place(order, fit, kNoLayout - 1, used)) return;
  accept();
  height = accepted.height();
  while (best.height > goal && used < steps && !touching.empty()) {
    const int32_t from = touching[random.below(static_cast<int64_t>(touching.size()))];
    const auto to = static_cast<int32_t>(random.below(from));
    const Fit trial_fit =
        random.below(8) == 0 ? (fit == Fit::lowest ? Fit::tightest : Fit::lowest) : fit;
    trial = order;
    std::rotate(trial.begin() + to, trial.begin() + from, trial.begin() + from + 1);
    used += static_cast<int64_t>(order.size());
    // What stands before the move stands where it stood.
    const size_t kept = trial_fit == fit ? static_cast<size_t>(to) : 0;
    if (!placer.place(trial, trial_fit, height, used, accepted, kept)) continue;
    order.swap(trial);
    fit = trial_fit;
    accept();
    height = accepted.height();
  }
  steps -= used;
}

}  // namespace snug::packing
