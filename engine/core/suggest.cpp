#include "engine/core/suggest.h"

#include <algorithm>

namespace snug {
namespace {

constexpr size_t kLongest = 64;  // longer words are no key of ours

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool is_number(std::string_view word) {
  return std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  const size_t columns = b.size() + 1;
  std::vector<int> rows(3 * columns);
  int* before = rows.data();
  int* last = before + columns;
  int* now = last + columns;
  for (size_t j = 0; j < columns; ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = static_cast<int>(i);
    for (size_t j = 1; j < columns; ++j) {
      const char x = lower(a[i - 1]), y = lower(b[j - 1]);
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (x != y)});
      if (i > 1 && j > 1 && x == lower(b[j - 2]) && y == lower(a[i - 2]))
        now[j] = std::min(now[j], before[j - 2] + 1);
    }
    int* const oldest = before;
    before = last;
    last = now;
    now = oldest;
  }
  return last[b.size()];
}

std::string_view closest(std::string_view word, const std::vector<std::string_view>& known) {
  std::string_view best;
  if (word.empty() || word.size() > kLongest) return best;
  int best_distance = 0;
  for (const std::string_view candidate : known) {
    if (is_number(word) && is_number(candidate)) continue;  // no slip of the other
    const int distance = edit_distance(word, candidate);
    const int limit =
        std::max<int>(1, static_cast<int>(std::max(word.size(), candidate.size())) / 3);
    if (distance > limit || (!best.empty() && distance >= best_distance)) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

std::string suggestion(std::string_view word, const std::vector<std::string_view>& known,
                       std::string_view otherwise) {
  const std::string_view near = closest(word, known);
  if (near.empty()) return std::string(otherwise);
  return "did you mean " + std::string(near) + "?";
}

}  // namespace snug
