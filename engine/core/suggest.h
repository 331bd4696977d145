// "Did you mean": the nearest known word to one that is not known.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace snug {

// Edits from one word to another: insertions, deletions, replacements and swaps of neighbours
// (optimal string alignment), upper and lower case being equal.
int edit_distance(std::string_view a, std::string_view b);

// The known word at the smallest distance, the first of equals; empty if none is near: more edits
// than a third of the longer word (at least 1).
std::string_view closest(std::string_view word, const std::vector<std::string_view>& known);

// "did you mean X?", or `otherwise` if nothing is near.
std::string suggestion(std::string_view word, const std::vector<std::string_view>& known,
                       std::string_view otherwise);

}  // namespace snug
