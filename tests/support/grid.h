// Grids of cases: whole in Release. Under AddressSanitizer, which takes up to nine times as long and
// looks for accesses that any case of a kind makes, every fourth case and the last.
#pragma once

#include <iterator>
#include <vector>

#include "engine/core/sanitizers.h"

namespace snug::test {

template <class List>
auto grid(const List& all) {
  std::vector<std::decay_t<decltype(*std::begin(all))>> some;
  size_t at = 0;
  const auto size = std::size(all);
  for (const auto& one : all) {
    if (!SNUG_ADDRESS_SANITIZER || at % 4 == 0 || at + 1 == size) some.push_back(one);
    ++at;
  }
  return some;
}

}  // namespace snug::test
