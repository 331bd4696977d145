#include "quant/map_lines.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "quant/codec.h"

namespace snug {
namespace {

// The bounds above 0, of magnitudes, and what is known of their lines.
struct Maker {
  MapLines& lines;
  int zero = 0;  // the entry of 0
  int count = 0;
  std::array<float, kMaxCodes> bounds{};  // no heap: a step may be the first to ask

  // Of line k in a register's arithmetic.
  int32_t at(size_t k, float a) const {
    return static_cast<int32_t>(
        std::min(std::fma(a, lines.slope[k], lines.offset[k]), lines.last[k]));
  }
  int32_t entry_steps(size_t k, float a, bool negative) const {
    const int32_t t = at(k, a);
    return lines.is_signed ? (negative ? -t : t) + lines.middle : t;
  }
  // Whether all of the line between bounds is right or asked for: of magnitudes above bounds[from], up to
  // bounds[to], which the next line has, or without end.
  bool holds(size_t k, int from, int to) const {
    for (const bool negative : {false, true}) {
      if (negative && !lines.is_signed) break;
      const int sign = negative ? -1 : 1;
      const float end = from < 0 ? MapLines::kLeast : bounds[static_cast<size_t>(from)];
      const int32_t first =
          entry_steps(k, from < 0 || negative ? end : std::nextafter(end, 2.0f), negative);
      if (first >> 16 != zero + sign * (from + 1) &&
          !near(first, zero + (negative ? -from : from + 1)))
        return false;
      for (int j = from + 1; j < to; ++j) {
        const float b = bounds[static_cast<size_t>(j)];
        const float other = std::nextafter(b, negative ? 0.0f : 2.0f);
        const int whole = zero + (negative ? -j : j + 1);
        if (!near(entry_steps(k, b, negative), whole) ||
            !near(entry_steps(k, other, negative), whole))
          return false;
      }
    }
    return true;
  }
  // Of the loops' one test.
  bool near(int32_t steps, int whole) const {
    return steps >> 16 == whole && (steps & 0xffff) < 2 * lines.window;
  }

  // A line whose entries begin with from + 1 above bounds[from], and whose bounds end before `to`.
  bool draw(size_t k, int from, int to) {
    const double steps = MapLines::kSteps;
    // What t has beside the entry: signed, nearest counts from its middle.
    const double shift = lines.is_signed ? -steps / 2 : lines.window;
    const int base = lines.is_signed ? 0 : zero;
    const int inside = to - from - 1;
    const double top = steps * (base + to) + (lines.is_signed ? 0.0 : steps / 2);
    lines.last[k] = static_cast<float>(top);
    lines.slope[k] = 0;
    lines.offset[k] = static_cast<float>(top);
    if (inside == 0) return holds(k, from, to);
    const auto bound = [&](int j) { return double{bounds[static_cast<size_t>(j)]}; };
    const double width = inside == 1 ? (bound(to - 1) - bound(from)) * 1.25
                                     : (bound(to - 1) - bound(from + 1)) / (inside - 1);
    lines.slope[k] = static_cast<float>(steps / width);
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (int j = from + 1; j < to; ++j) {
      const double rest = steps * (base + j + 1) + shift - double{lines.slope[k]} * bound(j);
      low = std::min(low, rest);
      high = std::max(high, rest);
    }
    lines.offset[k] = static_cast<float>((low + high) / 2);
    return holds(k, from, to);
  }
};

// Whether the bounds below 0 are those above it, as far as they go.
bool symmetric(const CodeBook& book, const Maker& maker) {
  for (int k = 0; k < maker.zero; ++k)
    if (k >= maker.count ||
        book.bounds[maker.zero - 1 - k] != float_key(-maker.bounds[static_cast<size_t>(k)]))
      return false;
  return true;
}

bool make(MapLines& lines, const CodeBook& book, int32_t window) {
  lines = {};
  lines.book = &book;
  for (int k = 0; k < book.size; ++k)
    if (book.codes[k] != k) return false;
  for (int code = 0; code < kMaxCodes; ++code)
    for (int byte = 0; byte < 4; ++byte)
      lines.planes[byte][code] =
          static_cast<uint8_t>(std::bit_cast<uint32_t>(book.values[code]) >> (8 * byte));
  Maker maker{lines, nearest_entry(book, 0)};
  for (int k = maker.zero; k + 1 < book.size; ++k)
    maker.bounds[static_cast<size_t>(maker.count++)] = float_of_key(book.bounds[k]);
  if (book.size != kMaxCodes || !symmetric(book, maker)) return false;
  lines.window = window;
  lines.is_signed = maker.zero > 0;
  lines.middle =
      lines.is_signed ? maker.zero * MapLines::kSteps + MapLines::kSteps / 2 + window : 0;
  const auto octave_of = [](float a) { return std::bit_cast<uint32_t>(a) >> 23; };
  if (maker.bounds[0] <= MapLines::kLeast ||
      octave_of(maker.bounds[static_cast<size_t>(maker.count - 1)]) > 127)
    return false;
  std::fill_n(lines.ends, MapLines::kOctaves, 0xffffffffu);
  // As far as a line reaches, and then the next.
  size_t k = 0;
  for (int from = -1; from < maker.count;) {
    if (k == MapLines::kLines) return false;
    int to = from + 1;
    if (!maker.draw(k, from, to)) return false;
    while (from >= 0 && to < maker.count && maker.draw(k, from, to + 1)) ++to;
    if (!maker.draw(k, from, to)) return false;
    ++k;
    if (to == maker.count) break;
    const float end = maker.bounds[static_cast<size_t>(to)];
    const uint32_t octave = octave_of(end);
    uint32_t& key = lines.ends[octave % MapLines::kOctaves];
    if (key != 0xffffffffu) return false;
    key = std::bit_cast<uint32_t>(end) * (lines.is_signed ? 2 : 1);
    for (uint32_t o = octave + 1; o < 128; ++o)
      lines.first[o % MapLines::kOctaves] = static_cast<int32_t>(k);
    from = to;
  }
  return lines.found = true;
}

}  // namespace

void search_entries(const CodeBook& book, uint64_t which, const float* x, float factor,
                    uint8_t* codes) {
  for (; which != 0; which &= which - 1) {
    const int i = std::countr_zero(which);
    codes[i] = static_cast<uint8_t>(nearest_entry(book, float_key(x[i] * factor)));
  }
}

const MapLines* map_lines(const CodeBook& book) {
  constexpr size_t kMost = 8;
  static const auto all = [] {
    std::array<MapLines, kMost> list{};
    size_t n = 0;
    for (const Codec& c : codecs())
      if (c.book != nullptr && c.rule == ScaleRule::absmax && n < kMost)
        for (int32_t window = 2; window <= 64; window *= 2)
          if (make(list[n], *c.book, window)) {
            ++n;
            break;
          }
    return list;
  }();
  for (const MapLines& lines : all)
    if (lines.found && lines.book == &book) return &lines;
  return nullptr;
}

}  // namespace snug
