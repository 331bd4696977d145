// A configuration as a tree of text: what stands in the YAML (or JSON) file and where, before
// anyone asks what it means.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace snug {

struct ConfigNode {
  enum class Kind { null, scalar, list, map };
  struct Entry;

  Kind kind = Kind::null;
  std::string text;     // of a scalar
  bool quoted = false;  // a scalar in quotes is text whatever it looks like
  std::string where;    // "run.yaml:7" or "command line"
  std::vector<ConfigNode> items;
  std::vector<Entry> entries;  // of a map, in the order of the file; keys are unique

  const ConfigNode* find(std::string_view key) const;
  ConfigNode* find(std::string_view key);
  // For messages: "ten" (run.yaml:7), nothing (run.yaml:7), a list (run.yaml:7).
  std::string describe() const;
};

struct ConfigNode::Entry {
  std::string key;
  std::string where;
  ConfigNode value;
};

// Parses one document of at most 1 MiB, 16 levels and 10000 nodes, without anchors, aliases and
// tags. Places are "origin:line", or `origin` alone if lines is false. Throws usage.
ConfigNode parse_config_node(const std::string& text, const std::string& origin, bool lines = true);

}  // namespace snug
