#include "engine/stores/windows.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/units.h"

namespace snug {
namespace {

constexpr int64_t kStep = 256;  // elements; spans begin at multiples of it

}  // namespace

int64_t usual_window(const ParamTable& table) {
  int64_t all = 0;
  for (const StateSpan& s : whole_parameter_spans(table)) all += s.elements;
  // Of the largest models at most 2048 windows: each is copies, ops and tensors of the plan.
  const int64_t most = std::max<int64_t>(4 << 20, round_up(ceil_div(all, 2048), kStep));
  return std::clamp<int64_t>(round_up(ceil_div(all, 16), kStep), 64 << 10, most);
}

std::vector<WindowCut> cut_windows(const ParamTable& table, bool whole, int64_t window,
                                   bool by_part, std::vector<StateSpan>& spans) {
  require(window > 0 && window % kStep == 0, "windows of a multiple of 256 elements");
  std::vector<WindowCut> windows;
  int before = -1;  // the parameter of the span before
  for (const StateSpan& s : whole_parameter_spans(table)) {
    const bool cut = by_part && before >= 0 && table[before].part != table[s.param].part;
    before = s.param;
    for (int64_t done = 0; done < s.elements;) {
      const int64_t begin = s.offset + done, least = whole ? s.elements : 1;
      // A window bridges what is not trained only where that is little.
      if (windows.empty() || (cut && done == 0) || begin + least - windows.back().begin > window ||
          begin - windows.back().end > window / 16) {
        windows.emplace_back();
        windows.back().first = spans.size();
        windows.back().begin = begin;
        if (by_part) windows.back().part = table[s.param].part;
      }
      WindowCut& w = windows.back();
      const int64_t n = whole ? s.elements : std::min(s.elements - done, w.begin + window - begin);
      w.holes |= (w.count > 0 && begin > w.end) || s.elements < table[s.param].elements();
      spans.push_back({s.param, s.group, begin, n});
      ++w.count;
      w.end = begin + round_up(n, kStep);
      done += n;
    }
  }
  return windows;
}

}  // namespace snug
