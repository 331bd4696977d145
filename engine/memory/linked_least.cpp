// The smallest peak of a stack whose layers may go any way: whether there is a choice under a limit
// is answered layer by layer, with the fewest bytes that each last option can have saved, and the
// least limit found by halves.
#include <algorithm>

#include "engine/core/error.h"
#include "engine/memory/linked_layers.h"

namespace snug {
namespace {

// What layers up to one have saved and sent.
struct Saved {
  int64_t bytes = 0, host = 0;
  int32_t parent = -1, option = -1;
};

class Least {
 public:
  explicit Least(const LinkedProblem& p) : p_(p), few_(kNoLimit) {
    for (const LinkedOption& o : p.options) few_ = std::min(few_, o.saved);
  }

  // The last layer runs beside what all others saved, and so does what is between the passes.
  int64_t at_least() const {
    int64_t last = kNoLimit;
    for (size_t k = 0; k < p_.options.size(); ++k)
      last = std::min(last, std::max(p_.alone[k], p_.options[k].backward));
    return few_ * (p_.layers - 1) + std::max(last, few_ + p_.tail);
  }

  // A choice that keeps `limit`; empty if there is none.
  std::vector<int> under(int64_t limit) const {
    std::vector<std::vector<Saved>> labels(1, std::vector<Saved>(1));
    for (int64_t l = 0; l < p_.layers; ++l) {
      // What follows minds the last option only where that one has a link.
      std::vector<std::vector<Saved>> of(p_.options.size() + 1);
      const int64_t rest = p_.layers - l - 1;
      const std::vector<Saved>& now = labels.back();
      for (size_t from = 0; from < now.size(); ++from)
        for (size_t k = 0; k < p_.options.size(); ++k) {
          Saved next;
          if (!extend(now[from], k, rest, limit, next)) continue;
          next.parent = static_cast<int32_t>(from);
          next.option = static_cast<int32_t>(k);
          insert(of[p_.options[k].linked() ? k : p_.options.size()], next);
        }
      labels.emplace_back();
      for (const std::vector<Saved>& list : of)
        labels.back().insert(labels.back().end(), list.begin(), list.end());
      if (labels.back().empty()) return {};
    }
    std::vector<int> choice(static_cast<size_t>(p_.layers));
    int32_t at = 0;
    for (size_t l = choice.size(); l > 0; --l) {
      const Saved& s = labels[l][static_cast<size_t>(at)];
      choice[l - 1] = s.option;
      at = s.parent;
    }
    return choice;
  }

 private:
  bool extend(const Saved& at, size_t k, int64_t rest, int64_t limit, Saved& next) const {
    const LinkedOption& o = p_.options[k];
    next.bytes = at.bytes + o.saved;
    next.host = at.host + o.host;
    if (next.host > p_.host_limit || next.bytes + rest * few_ + p_.tail > limit) return false;
    const bool first = at.option < 0;
    const int64_t coming = first ? 0 : p_.options[static_cast<size_t>(at.option)].coming;
    const int64_t forward = first ? p_.alone[k] : p_.pair(at.option, static_cast<int>(k)).forward;
    if (at.bytes + std::max(forward, coming + o.backward) > limit) return false;
    return rest > 0 || !o.linked() || next.bytes + p_.tail_back + o.coming <= limit;
  }
  // Those of the fewest bytes, and, where the host's are bounded, of fewer of these.
  void insert(std::vector<Saved>& list, const Saved& next) const {
    const bool bounded = p_.host_limit < kNoLimit;
    const auto beats = [&](const Saved& a, const Saved& b) {
      return a.bytes <= b.bytes && (!bounded || a.host <= b.host);
    };
    if (std::any_of(list.begin(), list.end(), [&](const Saved& s) { return beats(s, next); }))
      return;
    std::erase_if(list, [&](const Saved& s) { return beats(next, s); });
    list.push_back(next);
  }

  const LinkedProblem& p_;
  int64_t few_;
};

}  // namespace

LinkedSolution least_linked(const LinkedProblem& p, int64_t below) {
  require(!p.options.empty() && p.layers > 0, "a stack with layers and options");
  LinkedSolution best;
  const Least least(p);
  const auto look = [&](int64_t limit) {
    std::vector<int> choice = least.under(limit);
    if (choice.empty()) return false;
    best = evaluate_linked(p, std::move(choice));
    best.feasible = true;  // of the limit that is looked for, not of the problem's
    return true;
  };
  // Nothing keeps `low`; nearly always there is nothing below `below` either.
  int64_t low = least.at_least() - 1;
  if (below - 1 <= low || !look(below - 1)) return best;
  while (best.peak - low > 1) {
    const int64_t middle = low + (best.peak - low) / 2;
    if (!look(middle)) low = middle;
  }
  return best;
}

}  // namespace snug
