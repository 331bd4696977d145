// How ops over rows (N,C) share them among threads, and whether they write past the caches.
#pragma once

#include <algorithm>

#include "engine/core/view.h"

namespace snug {

// Rows of a task: some 16 Ki elements, an even number, for the loops take two rows together.
inline int64_t row_grain(int64_t c) {
  const int64_t rows = 16 * 1024 / std::max<int64_t>(c, 1);
  return rows > 2 ? rows / 2 * 2 : std::max<int64_t>(1, rows);
}

// Rows that are only written, in whole lines, and that no cache would keep until they are read:
// more than the second-level caches of two cores. Past them a store does not read its line first.
inline constexpr int64_t kPastCaches = 4 << 20;

// parts: of equal length, of which a row consists, each of whole lines.
inline bool goes_past_caches(const View& written, int64_t parts = 1) {
  const int64_t line = 64 * parts;
  return written.bytes() >= kPastCaches && written.shape[1] * size_of(written.dtype) % line == 0 &&
         reinterpret_cast<uintptr_t>(written.data) % 64 == 0;
}

}  // namespace snug
