#include "engine/memory/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "engine/core/error.h"
#include "engine/memory/sort_bytes.h"

namespace snug {
namespace {

constexpr double kRounding = 1e-12;  // of seconds summed in another order

struct Label {
  int64_t bytes = 0, host = 0;
  double seconds = 0;
  double bound = 0;
  int32_t parent = -1;  // label of the layer before
  int32_t option = -1;
};

void check(const LayerProblem& p) {
  for (const auto& kind : p.kinds) {
    require(!kind.empty(), "every kind of layer to have an option");
    for (const LayerOption& o : kind)
      require(o.saved >= 0 && o.transient >= 0 && o.host >= 0 && o.link >= 0 && o.compute >= 0,
              "options whose bytes and seconds are 0 or more");
  }
  for (const int k : p.layers)
    require(k >= 0 && k < static_cast<int>(p.kinds.size()), "layers of kinds that exist");
  require(p.tail >= 0, "a tail of 0 bytes or more");
}

const std::vector<LayerOption>& options_of(const LayerProblem& p, size_t layer) {
  return p.kinds[static_cast<size_t>(p.layers[layer])];
}

// seconds >= sum of (seconds + price * saved + host_price * host) - price * room - ...: a bound for
// every price >= 0. Sums over the layers from each one on.
struct Priced {
  double price = 0, host_price = 0;
  std::vector<double> rest;  // rest[l]: layers l.. ; rest[L] = 0
};

std::vector<double> least_of_kinds(const LayerProblem& p, double byte_price, double host_price) {
  std::vector<double> least(p.kinds.size());
  for (size_t k = 0; k < p.kinds.size(); ++k) {
    least[k] = INFINITY;
    for (const LayerOption& o : p.kinds[k])
      least[k] = std::min(least[k], o.seconds() + byte_price * static_cast<double>(o.saved) +
                                        host_price * static_cast<double>(o.host));
  }
  return least;
}

Priced price(const LayerProblem& p, double byte_price, double host_price) {
  const std::vector<double> least = least_of_kinds(p, byte_price, host_price);
  Priced priced{byte_price, host_price, std::vector<double>(p.layers.size() + 1, 0.0)};
  for (size_t l = p.layers.size(); l-- > 0;)
    priced.rest[l] = priced.rest[l + 1] + least[static_cast<size_t>(p.layers[l])];
  return priced;
}

class Bound {
 public:
  explicit Bound(const LayerProblem& p)
      : room_(static_cast<double>(p.limit - p.tail)),
        host_room_(static_cast<double>(p.host_limit)) {
    add(price(p, 0, 0));
    if (p.limit < kNoLimit) search(p, false);
    if (p.host_limit < kNoLimit) search(p, true);
  }
  // Of every way to go on from layer `l` with so much used and spent; of what is above the ceiling
  // no more than that it is.
  double operator()(size_t l, int64_t bytes, int64_t host, double seconds, double ceiling) const {
    double best = 0;
    for (const Priced& q : prices_) {
      best = std::max(
          best,
          q.rest[l] - (q.price > 0 ? q.price * (room_ - static_cast<double>(bytes)) : 0) -
              (q.host_price > 0 ? q.host_price * (host_room_ - static_cast<double>(host)) : 0));
      if (seconds + best > ceiling) break;
    }
    return seconds + best;
  }

 private:
  void add(Priced q) { prices_.push_back(std::move(q)); }
  double value(const LayerProblem& p, double byte_price, double host_price) const {
    const std::vector<double> least = least_of_kinds(p, byte_price, host_price);
    double sum = 0;
    for (size_t l = p.layers.size(); l-- > 0;) sum += least[static_cast<size_t>(p.layers[l])];
    return sum - (byte_price > 0 ? byte_price * room_ : 0) -
           (host_price > 0 ? host_price * host_room_ : 0);
  }
  // The bound is concave in the price: a ternary search over its logarithm. What stands beside the
  // best price serves labels that have used more or less than their share.
  void search(const LayerProblem& p, bool host) {
    double least = INFINITY, most = 0;
    for (const auto& kind : p.kinds)
      for (const LayerOption& a : kind)
        for (const LayerOption& b : kind) {
          const int64_t bytes = host ? a.host - b.host : a.saved - b.saved;
          const double slope = (b.seconds() - a.seconds()) / static_cast<double>(bytes);
          if (bytes > 0 && slope > 0) {
            least = std::min(least, slope);
            most = std::max(most, slope);
          }
        }
    if (most == 0) return;
    const auto at = [&](double x) {
      return host ? price(p, byte_price_, std::exp(x)) : price(p, std::exp(x), 0);
    };
    const auto value_at = [&](double x) {
      return host ? value(p, byte_price_, std::exp(x)) : value(p, std::exp(x), 0);
    };
    double low = std::log(least) - 1e-3, high = std::log(most) + 1e-3;
    const double from = low, to = high;
    for (int i = 0; i < 60 && high - low > 1e-6; ++i) {
      const double a = low + (high - low) / 3, b = high - (high - low) / 3;
      const bool rises = value_at(a) < value_at(b);
      (rises ? low : high) = rises ? a : b;
    }
    const double best = (low + high) / 2;
    if (!host) byte_price_ = std::exp(best);
    for (const double x : {best, best - 0.1, best + 0.1, best - 0.5, best + 0.5, from, to})
      add(at(x));
  }

  double room_, host_room_, byte_price_ = 0;
  std::vector<Priced> prices_;
};

// The same where nothing is with the host: of equal bytes the fastest, if it is faster than all of
// fewer.
void drop_beaten_by_bytes(std::vector<Label>& labels) {
  struct Key {
    int64_t bytes;
    size_t index;
  };
  std::vector<Key> keys(labels.size()), spare;
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = {labels[i].bytes, i};
  sort_by_bytes(keys, spare);
  std::vector<Label> kept;
  for (size_t first = 0, end = 0; first < keys.size(); first = end) {
    const Label* best = &labels[keys[first].index];
    for (end = first + 1; end < keys.size() && keys[end].bytes == keys[first].bytes; ++end) {
      const Label& a = labels[keys[end].index];
      if (std::tie(a.seconds, a.parent, a.option) <
          std::tie(best->seconds, best->parent, best->option))
        best = &a;
    }
    if (kept.empty() || kept.back().seconds > best->seconds * (1 + kRounding))
      kept.push_back(*best);
  }
  labels = std::move(kept);
}

// Labels that none beats, by growing bytes. Walking in that order, what has passed is smaller; a
// staircase of (host, seconds) over what has passed says whether a label is beaten.
void drop_beaten(std::vector<Label>& labels) {
  if (std::all_of(labels.begin(), labels.end(), [](const Label& l) { return l.host == 0; }))
    return drop_beaten_by_bytes(labels);
  std::sort(labels.begin(), labels.end(), [](const Label& a, const Label& b) {
    if (a.bytes != b.bytes) return a.bytes < b.bytes;
    if (a.host != b.host) return a.host < b.host;
    if (a.seconds != b.seconds) return a.seconds < b.seconds;
    if (a.parent != b.parent) return a.parent < b.parent;
    return a.option < b.option;
  });
  std::map<int64_t, double> stairs;  // host -> seconds, falling
  size_t kept = 0;
  for (const Label& label : labels) {
    auto after = stairs.upper_bound(label.host);
    if (after != stairs.begin() && std::prev(after)->second <= label.seconds * (1 + kRounding))
      continue;
    while (after != stairs.end() && after->second >= label.seconds) after = stairs.erase(after);
    stairs[label.host] = label.seconds;
    labels[kept++] = label;
  }
  labels.resize(kept);
}

// The best of: the first a layers option A, the others B. Every condition is linear in a, so the
// a that are allowed are a range and the fastest is one of its ends.
std::vector<int> best_two_groups(const LayerProblem& p) {
  const auto L = static_cast<int64_t>(p.layers.size());
  if (L == 0 ||
      std::any_of(p.layers.begin(), p.layers.end(), [&](int k) { return k != p.layers.front(); }))
    return {};
  const std::vector<LayerOption>& options = options_of(p, 0);
  const auto floor_div = [](int64_t a, int64_t b) { return a / b - (a % b != 0 && a < 0); };
  double best = INFINITY;
  int64_t best_a = 0;
  size_t best_first = 0, best_second = 0;
  for (size_t i = 0; i < options.size(); ++i)
    for (size_t j = 0; j < options.size(); ++j) {
      const LayerOption &A = options[i], &B = options[j];
      int64_t low = i == j ? L : 1, high = i == j ? L : L - 1;
      // slope * a + fixed <= limit
      const auto at_most = [&](int64_t slope, int64_t fixed, int64_t limit) {
        if (limit >= kNoLimit) return;
        if (slope > 0)
          high = std::min(high, floor_div(limit - fixed, slope));
        else if (slope < 0)
          low = std::max(low, -floor_div(limit - fixed, -slope));
        else if (fixed > limit)
          high = -1;
      };
      at_most(A.saved, A.transient, p.limit);
      if (i != j) at_most(A.saved - B.saved, L * B.saved + B.transient, p.limit);
      at_most(A.saved - B.saved, L * B.saved + p.tail, p.limit);
      at_most(A.host - B.host, L * B.host, p.host_limit);
      if (low > high) continue;
      const int64_t a = A.seconds() <= B.seconds() ? high : low;
      const double seconds =
          static_cast<double>(a) * A.seconds() + static_cast<double>(L - a) * B.seconds();
      if (seconds < best * (1 - kRounding)) {
        best = seconds;
        best_a = a;
        best_first = i;
        best_second = j;
      }
    }
  if (best == INFINITY) return {};
  std::vector<int> choice;
  for (int64_t l = 0; l < L; ++l)
    choice.push_back(static_cast<int>(l < best_a ? best_first : best_second));
  return choice;
}

// Where the limit decides feasibility alone, fewer bytes are never worse: the option that saves
// least among those that pass.
bool possible(const LayerProblem& p, int64_t limit) {
  if (p.host_limit >= kNoLimit) {
    int64_t bytes = 0;
    for (size_t l = 0; l < p.layers.size(); ++l) {
      int64_t least = kNoLimit;
      for (const LayerOption& o : options_of(p, l))
        if (bytes + o.saved + o.transient <= limit) least = std::min(least, o.saved);
      if (least == kNoLimit) return false;
      bytes += least;
    }
    return bytes + p.tail <= limit;
  }
  std::vector<Label> labels(1);
  for (size_t l = 0; l < p.layers.size(); ++l) {
    std::vector<Label> next;
    for (const Label& from : labels)
      for (const LayerOption& o : options_of(p, l))
        if (from.bytes + o.saved + o.transient <= limit && from.host + o.host <= p.host_limit)
          next.push_back({from.bytes + o.saved, from.host + o.host, 0, 0, 0, 0});
    drop_beaten(next);
    labels = std::move(next);
  }
  return std::any_of(labels.begin(), labels.end(),
                     [&](const Label& label) { return label.bytes + p.tail <= limit; });
}

// Neighbours that are equal may swap their options. With the larger transient first no peak grows:
// of two neighbours the later one stands on the saved bytes of both. So a run of equal layers is as
// few groups as it has options.
void into_groups(const LayerProblem& p, std::vector<int>& choice) {
  for (size_t first = 0, end = 0; first < choice.size(); first = end) {
    while (end < choice.size() && p.layers[end] == p.layers[first]) ++end;
    const std::vector<LayerOption>& list = options_of(p, first);
    std::sort(choice.begin() + static_cast<int64_t>(first),
              choice.begin() + static_cast<int64_t>(end), [&](int a, int b) {
                const int64_t xa = list[static_cast<size_t>(a)].transient;
                const int64_t xb = list[static_cast<size_t>(b)].transient;
                return xa != xb ? xa > xb : a < b;
              });
  }
}

// The fastest choice below the ceiling, if there is one: what cannot end below it is dropped on the
// way, with room for the last layers' least bytes. `cut`: labels were dropped for their number.
LayerSolution search_labels(const LayerProblem& p, const Bound& bound, double ceiling, int64_t most,
                            bool* cut) {
  std::vector<int64_t> still(p.layers.size() + 1, 0);
  for (size_t l = p.layers.size(); l-- > 0;) {
    int64_t few = kNoLimit;
    for (const LayerOption& o : options_of(p, l)) few = std::min(few, o.saved);
    still[l] = still[l + 1] + few;
  }
  std::vector<std::vector<int>> efficient;  // of each kind
  efficient.reserve(p.kinds.size());
  for (const auto& kind : p.kinds) efficient.push_back(efficient_options(kind));
  std::vector<std::vector<Label>> labels(1, std::vector<Label>(1));
  for (size_t l = 0; l < p.layers.size(); ++l) {
    const std::vector<LayerOption>& list = options_of(p, l);
    const std::vector<int>& useful = efficient[static_cast<size_t>(p.layers[l])];
    std::vector<Label> next;
    for (size_t from = 0; from < labels[l].size(); ++from) {
      const Label& at = labels[l][from];
      for (const int k : useful) {
        const LayerOption& o = list[static_cast<size_t>(k)];
        const int64_t bytes = at.bytes + o.saved, host = at.host + o.host;
        if (bytes + o.transient > p.limit || bytes + still[l + 1] + p.tail > p.limit ||
            host > p.host_limit)
          continue;
        const double seconds = at.seconds + o.seconds();
        const double least = bound(l + 1, bytes, host, seconds, ceiling);
        if (least > ceiling) continue;
        next.push_back({bytes, host, seconds, least, static_cast<int32_t>(from), k});
      }
    }
    drop_beaten(next);
    if (static_cast<int64_t>(next.size()) > most) {
      *cut = true;
      std::nth_element(next.begin(), next.begin() + most, next.end(),
                       [](const Label& a, const Label& b) { return a.bound < b.bound; });
      next.resize(static_cast<size_t>(most));
    }
    labels.push_back(std::move(next));
  }
  const std::vector<Label>& last = labels.back();
  int32_t at = -1;
  for (size_t i = 0; i < last.size(); ++i)
    if (last[i].bytes + p.tail <= p.limit &&
        (at < 0 || last[i].seconds < last[static_cast<size_t>(at)].seconds))
      at = static_cast<int32_t>(i);
  LayerSolution best;
  if (at >= 0) {
    std::vector<int> choice(p.layers.size());
    for (size_t l = p.layers.size(); l > 0; --l) {
      const Label& label = labels[l][static_cast<size_t>(at)];
      choice[l - 1] = label.option;
      at = label.parent;
    }
    into_groups(p, choice);
    best = evaluate_layers(p, std::move(choice));
  }
  return best;
}

}  // namespace

LayerSolution evaluate_layers(const LayerProblem& p, std::vector<int> choice) {
  require(choice.size() == p.layers.size(), "one option a layer");
  LayerSolution s;
  for (size_t l = 0; l < choice.size(); ++l) {
    const LayerOption& o = options_of(p, l)[static_cast<size_t>(choice[l])];
    s.saved += o.saved;
    s.host += o.host;
    s.seconds += o.seconds();
    s.peak = std::max(s.peak, s.saved + o.transient);
    if (l == 0 || choice[l] != choice[l - 1] || p.layers[l] != p.layers[l - 1]) ++s.groups;
  }
  s.peak = std::max(s.peak, s.saved + p.tail);
  s.feasible = s.peak <= p.limit && s.host <= p.host_limit;
  s.choice = std::move(choice);
  return s;
}

LayerSolution solve_layers(const LayerProblem& p, const SolveOptions& options) {
  check(p);
  const Bound bound(p);
  const double least = bound(0, 0, 0, 0, INFINITY);
  LayerSolution pair;
  if (std::vector<int> choice = best_two_groups(p); !choice.empty()) {
    pair = evaluate_layers(p, std::move(choice));
    pair.bound = std::min(least, pair.seconds);
    pair.optimal = pair.seconds <= least * (1 + 1e-9);
    if (pair.seconds <= least * (1 + options.two_group_tolerance)) return pair;
  }

  // A narrow search first: a plan nearly as fast as the best lets the exact one drop nearly
  // everything.
  constexpr int64_t kNarrow = 100;
  bool cut = false;
  LayerSolution best = pair;
  for (const int64_t most : {kNarrow, options.most_labels}) {
    const double ceiling = best.feasible ? best.seconds * (1 - 1e-9) : INFINITY;
    cut = false;
    LayerSolution found = search_labels(p, bound, ceiling, most, &cut);
    if (found.feasible) best = std::move(found);
    if (!cut) break;
  }
  if (!best.feasible) return {};
  const bool keep_pair =
      pair.feasible && pair.seconds <= best.seconds * (1 + options.two_group_tolerance);
  LayerSolution result = keep_pair ? pair : best;
  result.bound = cut ? std::min(least, result.seconds) : best.seconds;
  result.optimal = !cut && result.seconds <= best.seconds * (1 + 1e-9);
  return result;
}

LayerSolution least_peak(const LayerProblem& problem) {
  check(problem);
  LayerProblem p = problem;
  int64_t low = -1, high = p.tail;  // not possible, possible
  for (size_t l = 0; l < p.layers.size(); ++l) {
    int64_t most = 0;
    for (const LayerOption& o : options_of(p, l)) most = std::max(most, o.saved + o.transient);
    high += most;
  }
  if (!possible(p, high)) return {};
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (possible(p, middle) ? high : low) = middle;
  }
  p.limit = high;
  SolveOptions exact;
  exact.two_group_tolerance = 0;
  return solve_layers(p, exact);
}

std::vector<int> efficient_options(std::span<const LayerOption> options) {
  std::vector<int> list;
  for (size_t i = 0; i < options.size(); ++i) {
    const LayerOption& a = options[i];
    bool beaten = false;
    for (size_t j = 0; j < options.size() && !beaten; ++j) {
      const LayerOption& b = options[j];
      const int64_t pa = a.saved + a.transient, pb = b.saved + b.transient;
      const double ta = a.seconds(), tb = b.seconds();
      if (b.saved > a.saved || pb > pa || b.host > a.host || tb > ta || i == j) continue;
      beaten = b.saved < a.saved || pb < pa || b.host < a.host || tb < ta || j < i;
    }
    if (!beaten) list.push_back(static_cast<int>(i));
  }
  return list;
}

std::string optimality_text(const LayerSolution& s) {
  if (!s.feasible) return "no choice fits";
  if (s.optimal) return "optimal within the layer model";
  return fmt::format("within {:.2f} % of the best possible within the layer model",
                     100.0 * s.gap() + 0.005);
}

}  // namespace snug
