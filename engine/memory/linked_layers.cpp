#include "engine/memory/linked_layers.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/core/error.h"
#include "engine/memory/sort_bytes.h"

namespace snug {
namespace {

constexpr double kRounding = 1e-12;  // of seconds summed in another order

void check(const LinkedProblem& p) {
  const size_t n = p.options.size();
  require(n > 0 && p.layers > 0, "a stack with layers and options");
  require(p.pairs.size() == n * n && p.alone.size() == n, "a peak for every pair of options");
  for (const LinkedOption& o : p.options) {
    require(o.saved >= 0 && o.backward >= 0 && o.coming >= 0 && o.host >= 0,
            "options whose bytes are 0 or more");
    require(o.before_sent >= 0 && o.after_arrival >= 0 && o.to_host >= 0 && o.to_device >= 0 &&
                o.forward_seconds >= o.before_sent && o.backward_seconds >= o.after_arrival,
            "options whose seconds are 0 or more, and of a whole no more than it");
  }
  for (size_t a = 0; a < n; ++a)
    for (size_t b = 0; b < n; ++b) {
      const LinkedPair& pair = p.pair(static_cast<int>(a), static_cast<int>(b));
      require(pair.after_sent >= 0 && pair.after_sent <= p.options[b].forward_seconds,
              "a wait inside the forward");
      require(p.options[a].linked() ? pair.forward >= p.alone[b]
                                    : pair.forward == p.alone[b] && pair.after_sent == 0.0,
              "no less in a forward behind a link than alone");
    }
}

// Ends of compute and link, of forward and, reversed, of backward.
struct Times {
  double f = 0, h = 0, p = 0, q = 0;

  // Behind a layer of another option, `pair`.
  Times then(const LinkedOption& o, double after_sent) const {
    Times t;
    t.f = std::max(f + o.forward_seconds, h + after_sent);
    t.h = std::max(h, f + o.before_sent) + o.to_host;
    t.p = std::max(p + o.backward_seconds, q);
    t.q = std::max(q, p + o.after_arrival) + o.to_device;
    // A link that is done before compute is as good as one that is done with it.
    t.h = std::max(t.h, t.f);
    t.q = std::max(t.q, t.p);
    return t;
  }
  double seconds(double hidden) const { return h + std::max(p, q - hidden); }
};

struct Label {
  int64_t bytes = 0, host = 0;
  Times times;
  double bound = 0;
  int32_t parent = -1, option = -1, changes = 0;
};

// Compute weighs `compute` of the forward and `back` of the backward, the link the rest: forward
// takes as long as either, so any share of both is no more; bytes have a price. `least` is what a
// layer takes at least then.
struct Prices {
  double compute = 1, back = 1, byte = 0, host = 0;
  double least = 0;

  double of(const LinkedOption& o) const {
    return compute * o.forward_seconds + (1 - compute) * o.to_host + back * o.backward_seconds +
           (1 - back) * o.to_device + byte * static_cast<double>(o.saved) +
           host * static_cast<double>(o.host);
  }
};

// Whether a layer could run so at all, were it alone.
bool has_room(const LinkedProblem& p, size_t option) {
  return std::max(p.alone[option], p.options[option].backward) <= p.limit;
}

// Fewest bytes that a layer leaves on the device; kNoLimit: none has room.
int64_t least_saved(const LinkedProblem& p) {
  int64_t few = kNoLimit;
  for (size_t i = 0; i < p.options.size(); ++i)
    if (has_room(p, i)) few = std::min(few, p.options[i].saved);
  return few;
}

// Whether the least that layers leave has room; if not, nothing has.
bool may_fit(const LinkedProblem& p) {
  const int64_t few = least_saved(p);
  return few < kNoLimit && few * p.layers + p.tail <= p.limit;
}

class Bound {
 public:
  // What is `enough` or more need not be the most: then nothing but the root is asked.
  explicit Bound(const LinkedProblem& p, double enough = INFINITY)
      : p_(p),
        list_(unbeaten(p)),
        room_(static_cast<double>(p.limit - p.tail)),
        host_room_(static_cast<double>(p.host_limit)),
        enough_(enough) {
    // Without the link, then the best shares, and prices around both: a label that has used more or
    // less than its part has another best price.
    Prices plain;
    best_byte(plain);
    add(plain);
    if (value(plain) >= enough_) return;
    prices_.clear();
    Prices best = plain;
    if (std::any_of(p.options.begin(), p.options.end(),
                    [](const LinkedOption& o) { return o.linked(); })) {
      best = golden([&](double host) {
        Prices q;
        q.host = host;
        return shares(q);
      });
      if (value(best) >= enough_) {
        add(best);
        return;
      }
    }
    for (const Prices& q : {best, plain}) {
      add(q);
      if (q.byte > 0)
        for (const double factor : {0.0, 0.6, 0.9, 1.1, 1.6}) {
          Prices near = q;
          near.byte *= factor;
          add(near);
        }
    }
    for (const double share : {0.0, 1.0}) {
      Prices one = best, other = best;
      one.compute = share;
      other.back = share;
      for (Prices* q : {&one, &other}) {
        best_byte(*q);
        add(*q);
      }
    }
    fill_columns();
  }

  double root() const {
    double most = 0;
    for (const Prices& q : prices_) most = std::max(most, value(q));
    return most;
  }
  // Of every way to go on with `rest` layers. Most of a search is here: every price at once.
  double operator()(const Times& t, int64_t bytes, int64_t host, int64_t rest) const {
    const double left = room_ - static_cast<double>(bytes), layers = static_cast<double>(rest);
    const double host_left = host_room_ - static_cast<double>(host), q = t.q - p_.hidden;
    const double own = t.f + t.p;
    Lanes most = {own, own, own, own};
    for (size_t i = 0; i < kPrices / kLanes; ++i) {
      Lanes v = columns_.compute[i] * t.f + columns_.link[i] * t.h + columns_.back[i] * t.p +
                columns_.link_back[i] * q + layers * columns_.least[i] - columns_.byte[i] * left;
      if (host_priced_) v -= columns_.host[i] * host_left;
      most = most > v ? most : v;
    }
    return std::max({most[0], most[1], most[2], most[3]});
  }
  // Options that a choice faster than the ceiling may have anywhere.
  std::vector<int> useful(double ceiling) const {
    std::vector<int> list;
    for (size_t i = 0; i < p_.options.size(); ++i) {
      bool good = has_room(p_, i);
      for (const Prices& q : prices_)
        good = good && value(q) + (q.of(p_.options[i]) - q.least) <= ceiling * (1 + kRounding);
      if (good) list.push_back(static_cast<int>(i));
    }
    return list;
  }

 private:
  static constexpr size_t kPrices = 16;  // as many as there may be
  static constexpr size_t kLanes = 4;
  using Lanes = double __attribute__((vector_size(kLanes * sizeof(double))));
  using Column = std::array<Lanes, kPrices / kLanes>;

  double value(const Prices& q) const {
    return static_cast<double>(p_.layers) * q.least - (q.byte > 0 ? q.byte * room_ : 0.0) -
           (q.host > 0 ? q.host * host_room_ : 0.0) - (1 - q.back) * p_.hidden;
  }
  void add(Prices q) {
    set_least(q);
    prices_.push_back(q);
  }
  void fill_columns() {
    require(!prices_.empty() && prices_.size() <= kPrices, "as many prices as there is room for");
    for (size_t i = 0; i < kPrices; ++i) {
      const Prices& q = prices_[i < prices_.size() ? i : 0];
      const size_t group = i / kLanes, lane = i % kLanes;
      columns_.compute[group][lane] = q.compute;
      columns_.link[group][lane] = 1 - q.compute;
      columns_.back[group][lane] = q.back;
      columns_.link_back[group][lane] = 1 - q.back;
      columns_.least[group][lane] = q.least;
      columns_.byte[group][lane] = std::max(q.byte, 0.0);
      columns_.host[group][lane] = std::max(q.host, 0.0);
      host_priced_ |= q.host > 0;
    }
  }
  void set_least(Prices& q) const {
    q.least = INFINITY;
    for (const LinkedOption& o : list_) q.least = std::min(q.least, q.of(o));
  }
  // Those that have room on their own, and that none beats in what a bound looks at.
  static std::vector<LinkedOption> unbeaten(const LinkedProblem& p) {
    const auto beats = [](const LinkedOption& a, const LinkedOption& b) {
      return a.saved <= b.saved && a.host <= b.host && a.forward_seconds <= b.forward_seconds &&
             a.backward_seconds <= b.backward_seconds && a.to_host <= b.to_host &&
             a.to_device <= b.to_device;
    };
    std::vector<LinkedOption> list;
    for (size_t i = 0; i < p.options.size(); ++i) {
      const LinkedOption& o = p.options[i];
      if (!has_room(p, i)) continue;
      if (std::any_of(list.begin(), list.end(), [&](const LinkedOption& a) { return beats(a, o); }))
        continue;
      std::erase_if(list, [&](const LinkedOption& a) { return beats(o, a); });
      list.push_back(o);
    }
    return list;
  }
  // The price of a byte that makes the value largest: the slope of the lower hull of the options'
  // (bytes, cost) where a layer has its share of the room.
  void best_byte(Prices& q) const {
    q.byte = 0;
    costs_.clear();
    for (const LinkedOption& o : list_) costs_.push_back(q.of(o));
    const double share = room_ / static_cast<double>(p_.layers);
    constexpr size_t kNone = SIZE_MAX;
    size_t left = kNone, right = kNone;
    const auto saved = [&](size_t i) { return static_cast<double>(list_[i].saved); };
    for (size_t i = 0; i < list_.size(); ++i) {
      size_t& side = saved(i) <= share ? left : right;
      if (side == kNone || costs_[i] < costs_[side]) side = i;
    }
    if (left != kNone && right != kNone && costs_[right] < costs_[left]) {
      for (int round = 0; round < 64; ++round) {
        q.byte = (costs_[left] - costs_[right]) / (saved(right) - saved(left));
        const auto priced = [&](size_t i) { return costs_[i] + q.byte * saved(i); };
        size_t least = left;
        for (size_t i = 0; i < list_.size(); ++i)
          if (priced(i) < priced(least)) least = i;
        if (priced(least) >= priced(left) * (1 - 1e-12)) break;
        (saved(least) <= share ? left : right) = least;
      }
    }
    set_least(q);
  }
  // The best of both shares, by one inside the other: the value is concave.
  Prices shares(const Prices& from) const {
    const auto search = [&](auto&& at) {
      constexpr double kGolden = 0.6180339887498949;
      double low = 0, high = 1;
      double a = high - kGolden * (high - low), b = low + kGolden * (high - low);
      Prices at_a = at(a), at_b = at(b), best = at(1.0);
      for (int i = 0; i < 9; ++i) {
        const bool left = value(at_a) >= value(at_b);
        if (value(left ? at_a : at_b) > value(best)) best = left ? at_a : at_b;
        if (value(best) >= enough_) return best;
        if (left) {
          high = b;
          b = a;
          at_b = at_a;
          at_a = at(a = high - kGolden * (high - low));
        } else {
          low = a;
          a = b;
          at_a = at_b;
          at_b = at(b = low + kGolden * (high - low));
        }
      }
      return best;
    };
    return search([&](double compute) {
      return search([&](double back) {
        Prices q = from;
        q.compute = compute;
        q.back = back;
        best_byte(q);
        return q;
      });
    });
  }
  // Over the price of a byte with the host, where those are bounded.
  template <class F>
  Prices golden(F&& at) const {
    Prices best = at(0.0);
    if (p_.host_limit >= kNoLimit) return best;
    double slowest = 0;
    int64_t fewest = kNoLimit;
    for (const LinkedOption& o : p_.options) {
      slowest = std::max(slowest, o.forward_seconds + o.backward_seconds);
      if (o.host > 0) fewest = std::min(fewest, o.host);
    }
    double price = slowest / static_cast<double>(fewest);
    for (int i = 0; i < 8; ++i, price /= 3) {
      const Prices q = at(price);
      if (value(q) > value(best)) best = q;
    }
    return best;
  }

  const LinkedProblem& p_;
  std::vector<LinkedOption> list_;
  mutable std::vector<double> costs_;
  double room_, host_room_, enough_;
  std::vector<Prices> prices_;
  struct Columns {
    Column compute, link, back, link_back, least, byte, host;
  };
  Columns columns_;
  bool host_priced_ = false;
};

// Labels that none beats: within one last option, and by those behind no link, which what follows
// minds least.
class Sieve {
 public:
  explicit Sieve(const LinkedProblem& p) : p_(p), of_(p.options.size() + 1) {}

  // Indices of them.
  const std::vector<int32_t>& unbeaten(const std::vector<Label>& labels) {
    order_.clear();
    for (const Label& a : labels) order_.push_back({a.bytes, a.host, a.times.f + a.times.p, &a});
    sort();
    for (std::vector<Kept>& list : of_) list.clear();
    kept_.clear();
    for (const Key& key : order_) {
      const Times& t = key.label->times;
      const Kept here{key.host, {key.sum, t.f + t.q, t.h + t.p, t.h + t.q}};
      const auto option = static_cast<size_t>(key.label->option);
      const bool linked = p_.options[option].linked();
      if (beaten(of_.back(), here) || (linked && beaten(of_[option], here))) continue;
      of_[linked ? option : p_.options.size()].push_back(here);
      kept_.push_back(static_cast<int32_t>(key.label - labels.data()));
    }
    return kept_;
  }

 private:
  struct Key {
    int64_t bytes, host;
    double sum;
    const Label* label;
  };
  struct Kept {
    int64_t host;
    std::array<double, 4> sums;
  };

  // By bytes, then by the rest where those are equal.
  void sort() {
    sort_by_bytes(order_, spare_);
    const auto before = [](const Key& x, const Key& y) {
      if (x.host != y.host) return x.host < y.host;
      if (x.sum != y.sum) return x.sum < y.sum;
      const Label &a = *x.label, &b = *y.label;
      if (a.changes != b.changes) return a.changes < b.changes;
      if (a.option != b.option) return a.option < b.option;
      return a.parent < b.parent;
    };
    for (auto first = order_.begin(), last = first; first != order_.end(); first = last) {
      while (last != order_.end() && last->bytes == first->bytes) ++last;
      std::sort(first, last, before);
    }
  }
  // By one of those before it, which have no more bytes.
  static bool beaten(std::vector<Kept>& list, const Kept& label) {
    std::array<double, 4> most;
    for (size_t k = 0; k < 4; ++k) most[k] = label.sums[k] * (1 + kRounding);
    for (size_t i = 0; i < list.size(); ++i) {
      bool beats = list[i].host <= label.host;
      for (size_t k = 0; k < 4; ++k) beats &= list[i].sums[k] <= most[k];
      if (!beats) continue;
      // What beats one mostly beats the next: it is asked sooner from then on.
      std::swap(list[i], list[i / 2]);
      return true;
    }
    return false;
  }

  const LinkedProblem& p_;
  std::vector<Key> order_, spare_;
  std::vector<std::vector<Kept>> of_;  // by last option; the last: behind no link
  std::vector<int32_t> kept_;
};

// What a label and an option make, by its bound.
struct Key {
  double bound;
  int32_t from, option;
};

// Those of the lowest bounds; whether some were dropped.
bool keep_best(std::vector<Key>& keys, int64_t most) {
  if (static_cast<int64_t>(keys.size()) <= most) return false;
  std::nth_element(keys.begin(), keys.begin() + most, keys.end(),
                   [](const Key& a, const Key& b) { return a.bound < b.bound; });
  keys.resize(static_cast<size_t>(most));
  return true;
}

// The end of the last layer: what is between the passes.
int64_t tail_peak(const LinkedProblem& p, int64_t bytes, const LinkedOption& last) {
  return bytes + std::max(p.tail, last.linked() ? p.tail_back + last.coming : 0);
}

class Search {
 public:
  Search(const LinkedProblem& p, const Bound& bound) : p_(p), bound_(bound) {}

  LinkedSolution run(double ceiling, int64_t most) {
    LinkedSolution best;
    const std::vector<int> useful = bound_.useful(ceiling);
    const int64_t few = least_saved(p_);
    std::vector<std::vector<Label>> labels(1, std::vector<Label>(1));
    std::vector<Key> keys;
    std::vector<Label> next;
    Sieve sieve(p_);
    for (int64_t l = 0; l < p_.layers; ++l) {
      const std::vector<Label>& now = labels.back();
      const int64_t rest = p_.layers - l - 1;
      keys.clear();
      for (size_t from = 0; from < now.size(); ++from)
        for (const int k : useful) {
          Label label;
          if (!extend(now[from], k, rest, few, label)) continue;
          const double bound = bound_(label.times, label.bytes, label.host, rest);
          if (bound <= ceiling) keys.push_back({bound, static_cast<int32_t>(from), k});
        }
      // Sorting out what is beaten takes the square of the number: not of all there may be.
      best.cut |= keep_best(keys, 16 * most);
      next.resize(keys.size());
      for (size_t i = 0; i < keys.size(); ++i) {
        const Label& at = now[static_cast<size_t>(keys[i].from)];
        Label& label = next[i];
        extend(at, keys[i].option, rest, few, label);
        label.bound = keys[i].bound;
        label.parent = keys[i].from;
        label.option = keys[i].option;
        label.changes = at.changes + (l == 0 || at.option != label.option);
      }
      keys.clear();
      for (const int32_t i : sieve.unbeaten(next))
        keys.push_back({next[static_cast<size_t>(i)].bound, i, 0});
      best.cut |= keep_best(keys, most);
      labels.emplace_back();
      for (const Key& key : keys) labels.back().push_back(next[static_cast<size_t>(key.from)]);
    }
    int32_t at = -1;
    double least = INFINITY;
    const std::vector<Label>& last = labels.back();
    for (size_t i = 0; i < last.size(); ++i) {
      const double seconds = last[i].times.seconds(p_.hidden);
      const bool same = at >= 0 && std::abs(seconds - least) <= kRounding * least;
      if (same ? last[i].changes < last[static_cast<size_t>(at)].changes : seconds < least) {
        at = static_cast<int32_t>(i);
        least = seconds;
      }
    }
    if (at < 0 || least >= ceiling) return best;
    std::vector<int> choice(static_cast<size_t>(p_.layers));
    for (size_t l = choice.size(); l > 0; --l) {
      const Label& label = labels[l][static_cast<size_t>(at)];
      choice[l - 1] = label.option;
      at = label.parent;
    }
    const bool cut = best.cut;
    best = evaluate_linked(p_, std::move(choice));
    best.cut = cut;
    return best;
  }

 private:
  // Bytes and times of a label behind `at`; whether it keeps the limits.
  bool extend(const Label& at, int k, int64_t rest, int64_t few, Label& label) const {
    const LinkedOption& o = p_.options[static_cast<size_t>(k)];
    label.bytes = at.bytes + o.saved;
    label.host = at.host + o.host;
    if (label.host > p_.host_limit || label.bytes + rest * few + p_.tail > p_.limit) return false;
    const bool first = at.option < 0;
    const int64_t coming = first ? 0 : p_.options[static_cast<size_t>(at.option)].coming;
    const int64_t forward =
        first ? p_.alone[static_cast<size_t>(k)] : p_.pair(at.option, k).forward;
    if (at.bytes + std::max(forward, coming + o.backward) > p_.limit) return false;
    if (rest == 0 && tail_peak(p_, label.bytes, o) > p_.limit) return false;
    label.times = at.times.then(o, first ? 0.0 : p_.pair(at.option, k).after_sent);
    return true;
  }

  const LinkedProblem& p_;
  const Bound& bound_;
};

}  // namespace

LinkedSolution evaluate_linked(const LinkedProblem& p, std::vector<int> choice) {
  require(static_cast<int64_t>(choice.size()) == p.layers, "one option a layer");
  LinkedSolution s;
  Times times;
  int64_t bytes = 0;
  for (size_t l = 0; l < choice.size(); ++l) {
    const LinkedOption& o = p.options[static_cast<size_t>(choice[l])];
    const bool first = l == 0;
    const int before = first ? 0 : choice[l - 1];
    const int64_t coming = first ? 0 : p.options[static_cast<size_t>(before)].coming;
    const int64_t forward =
        first ? p.alone[static_cast<size_t>(choice[l])] : p.pair(before, choice[l]).forward;
    s.peak = std::max(s.peak, bytes + std::max(forward, coming + o.backward));
    times = times.then(o, first ? 0.0 : p.pair(before, choice[l]).after_sent);
    bytes += o.saved;
    s.host += o.host;
  }
  s.peak = std::max(s.peak, tail_peak(p, bytes, p.options[static_cast<size_t>(choice.back())]));
  s.seconds = times.seconds(p.hidden);
  s.feasible = s.peak <= p.limit && s.host <= p.host_limit;
  s.choice = std::move(choice);
  return s;
}

LinkedSolution solve_linked(const LinkedProblem& p, double ceiling, int64_t most_labels) {
  check(p);
  LinkedSolution best;
  best.bound = ceiling;
  if (!may_fit(p)) return best;
  const Bound bound(p);
  const double least = bound.root();
  if (least >= ceiling) return best;
  // A narrow search first: what it finds lets the wide one drop nearly everything.
  constexpr int64_t kNarrow = 30;
  bool cut = false;
  for (const int64_t most : {std::min(kNarrow, most_labels), most_labels}) {
    const double below = best.feasible ? best.seconds * (1 - 1e-9) : ceiling;
    LinkedSolution found = Search(p, bound).run(below, most);
    cut = found.cut;
    if (found.feasible) best = std::move(found);
    if (!cut) break;
  }
  best.cut = cut;
  best.bound = cut ? least : best.feasible ? best.seconds : ceiling;
  return best;
}

double linked_bound(const LinkedProblem& p, double enough) {
  require(!p.options.empty() && p.layers > 0, "a stack with layers and options");
  return may_fit(p) ? Bound(p, enough).root() : INFINITY;
}

}  // namespace snug
