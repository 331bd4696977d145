// rank_pattern and alpha_pattern: numbers of the modules that regular expressions find, in the order that
// is written.
//
//   rank_pattern: {v_proj: 4, 'layers\\.0\\..*': 16}
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/config/keys.h"

namespace snug {

using Patterns = std::vector<std::pair<std::string, double>>;

// Throws usage, with the place: a map of numbers in the key's range, whole where it has `whole`.
Patterns parse_patterns(const Key& key, const ConfigNode& node);
// Flow YAML that patterns_of() reads back; empty without patterns.
std::string patterns_text(const Patterns& patterns);
Patterns patterns_of(const Key& key, const std::string& text);

}  // namespace snug
