// Inner parts of the packer: not for other folders. Sizes and offsets here are in units of the
// alignment, and time is counted in sections.
//
// A section is a maximal set of tensors that are all alive together: one begins where a birth
// follows a death. Two tensors overlap in time exactly if they share a section, and the lower bound
// is the largest sum over a section, so nothing is lost and most problems shrink.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace snug::packing {

inline constexpr int64_t kNoLayout = std::numeric_limits<int64_t>::max();

struct Item {
  int32_t first = 0, last = 0;  // alive in the sections [first, last)
  int64_t size = 0;             // units, > 0
};

inline bool overlap(const Item& a, const Item& b) {
  return a.first < b.last && b.first < a.last;
}

// A layout of a list of items: units. height == kNoLayout: none yet.
struct Layout {
  std::vector<int64_t> offsets;
  int64_t height = kNoLayout;
  const char* method = "";
};

// splitmix64: the same numbers on every platform, unlike the library's distributions.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  // In [0, n), n > 0.
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }

 private:
  uint64_t state_;
};

enum class Fit {
  lowest,      // the lowest gap that is large enough, at its lower end
  tightest,    // the gap that leaves least over, at its lower end
  random_high  // a random gap that is large enough, at its upper end (or on top of everything)
};

// Places items one at a time in an order, each in a gap between the already placed items that
// overlap it in time. Few items are looked through; of `many` or more those that overlap are found
// by an index over sections. The layouts and the steps that are counted are the same.
class Placer {
 public:
  static constexpr size_t kMany = 4096;
  explicit Placer(std::span<const Item> items, size_t many = kMany);

  // False (and offsets of no use) as soon as an item would end above `limit`. `steps` is increased
  // by the work done. Not for Fit::random_high.
  bool place(std::span<const int32_t> order, Fit fit, int64_t limit, int64_t& steps);
  // The same, where the first `kept` of the order stand as in `from`, which was placed in the same
  // fit below the same limit: they are not looked for again. `steps` counts them all the same.
  bool place(std::span<const int32_t> order, Fit fit, int64_t limit, int64_t& steps,
             const Placer& from, size_t kept);
  // The same without a limit, with a fit for each place in the order.
  void place(std::span<const int32_t> order, std::span<const Fit> fits, Random& random);

  const std::vector<int64_t>& offsets() const { return offsets_; }
  int64_t height() const { return height_; }

 private:
  struct Placed {
    int32_t first, last;
    int64_t offset, end;
  };

  // Lists of what is placed: one begins at each key.
  struct Lists {
    struct Entry {
      int32_t placed, next;
    };
    std::vector<int32_t> heads;
    std::vector<Entry> entries;
    void clear(size_t keys);
    void add(size_t key, int32_t placed);
  };

  void clear();
  int64_t find(const Item& item, Fit fit, Random* random);
  void put(int32_t index, int64_t offset);
  bool place_rest(std::span<const int32_t> order, Fit fit, int64_t limit, int64_t& steps);
  bool indexed() const { return leaves_ > 0; }

  std::span<const Item> items_;
  std::vector<Placed> placed_;      // ascending offsets; in the order if there is an index
  std::vector<int32_t> positions_;  // of each of them in the order, if there is none
  std::vector<int64_t> offsets_;
  int64_t height_ = 0;
  // The index: by the section in which a life begins, and by the nodes of a tree over the sections
  // that make it up. What is alive in a section stands above its leaf.
  size_t leaves_ = 0;  // a power of 2; 0: no index
  Lists begins_, covers_;
  std::vector<Placed> near_;
};

// The best of a portfolio of orders and fits; stops at the first layout no higher than `goal`.
// `order` and `fit` receive what gave the best one. With `best` already holding a layout only lower
// ones are taken.
void pack_greedy(std::span<const Item> items, int64_t goal, Layout& best,
                 std::vector<int32_t>& order, Fit& fit);

// Improves `best` by moving items that touch the top earlier in the order, until `goal` or the
// steps are used up. `steps` counts down.
void pack_local(std::span<const Item> items, int64_t goal, Layout& best,
                std::vector<int32_t>& order, Fit fit, int64_t& steps);

// Improves `best` by exact search between `goal` (no layout is lower than it needs to be) and
// best.height - 1. True: best is now at most `goal` or proved to be the lowest possible.
bool pack_exact(std::span<const Item> items, int64_t goal, Layout& best, int64_t& steps);

// Renumbers sections so that each is a maximal set of items alive together. `sections` is the
// number before; returns the number after. times[s], if asked for, is an old section in which all
// of new section s is alive.
int32_t compress(std::span<Item> items, int32_t sections, std::vector<int32_t>* times = nullptr);

// live[s]: the sum of the sizes alive in section s; one more entry of 0 at the end.
std::vector<int64_t> live_sums(std::span<const Item> items);

}  // namespace snug::packing
