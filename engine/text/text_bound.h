// How much text a normaliser or a decoder may make of some: a few steps of Replace in a file of a
// hundred bytes can make any text of any other.
#pragma once

#include <algorithm>
#include <cstddef>

namespace snug {

// Of `bytes` bytes: a thousand times as many and 1 MiB, at most 1 GiB. (The longest of what Unicode
// itself does is eleven times.)
constexpr size_t text_bound(size_t bytes) {
  constexpr size_t kTimes = 1024, kMore = size_t{1} << 20, kMost = size_t{1} << 30;
  return std::min(kMost, kMore + kTimes * std::min(bytes, kMost / kTimes));
}

}  // namespace snug
