#include "tools/config/patterns.h"

#include <fmt/format.h>

#include "engine/core/error.h"

namespace snug {

Patterns parse_patterns(const Key& key, const ConfigNode& node) {
  const std::string example = fmt::format("{}='{}'", key.name, key.example);
  if (node.kind != ConfigNode::Kind::map)
    fail(ErrorCode::usage, fmt::format("a map of modules to numbers for {}", key.name),
         node.describe(), example);
  const bool whole = key.name == "rank_pattern";
  Patterns patterns;
  for (const ConfigNode::Entry& entry : node.entries) {
    const std::string what = fmt::format("{} of {}", entry.key, key.name);
    patterns.emplace_back(
        entry.key, whole ? static_cast<double>(to_integer(entry.value, what, key.range, example))
                         : to_number(entry.value, what, key.range, example));
  }
  return patterns;
}

std::string patterns_text(const Patterns& patterns) {
  std::string out;
  for (const auto& [pattern, value] : patterns)
    out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", yaml_text(pattern), value);
  return out.empty() ? "" : "{" + out + "}";
}

Patterns patterns_of(const Key& key, const std::string& text) {
  return text.empty() ? Patterns()
                      : parse_patterns(key, parse_config_node(text, std::string(key.name), false));
}

}  // namespace snug
