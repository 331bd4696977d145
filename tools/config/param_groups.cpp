#include "tools/config/param_groups.h"

#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/suggest.h"
#include "optim/optimizer.h"
#include "tools/config/values.h"

namespace snug {
namespace {

constexpr const char* kExample = "param_groups=[{params: wpe, learning_rate: 1.0e-4}]";
constexpr Range kAtLeastZero{.min = 0};

ParamGroup parse_group(const ConfigNode& node) {
  if (node.kind != ConfigNode::Kind::map)
    fail(ErrorCode::usage, "a map for each of param_groups", node.describe(), kExample);
  ParamGroup g;
  for (const ConfigNode::Entry& entry : node.entries) {
    const ConfigNode& value = entry.value;
    if (entry.key == "params") {
      if (value.kind != ConfigNode::Kind::scalar || value.text.empty())
        fail(ErrorCode::usage, "a regular expression for params of param_groups", value.describe(),
             kExample);
      g.params = value.text;
    } else if (entry.key == "learning_rate" || entry.key == "lr") {
      g.learning_rate =
          to_number(value, "learning_rate of param_groups", kAtLeastZero, "learning_rate: 1.0e-4");
    } else if (entry.key == "weight_decay") {
      g.weight_decay =
          to_number(value, "weight_decay of param_groups", kAtLeastZero, "weight_decay: 0.01");
    } else {
      fail(ErrorCode::usage, "params, learning_rate and weight_decay in param_groups",
           fmt::format("\"{}\" ({})", entry.key, entry.where),
           suggestion(entry.key, {"params", "learning_rate", "weight_decay"}, kExample));
    }
  }
  if (g.params.empty())
    fail(ErrorCode::usage, "params in each of param_groups: which parameters it is of",
         fmt::format("a map without ({})", node.where), kExample);
  if (g.learning_rate < 0 && g.weight_decay < 0)
    fail(ErrorCode::usage, "learning_rate or weight_decay in each of param_groups",
         fmt::format("params {} alone ({})", g.params, node.where), kExample);
  return g;
}

}  // namespace

std::vector<ParamGroup> parse_groups(const ConfigNode& node) {
  if (node.kind != ConfigNode::Kind::list)
    fail(ErrorCode::usage, "a list of maps for param_groups", node.describe(), kExample);
  std::vector<ParamGroup> groups;
  for (const ConfigNode& item : node.items) groups.push_back(parse_group(item));
  if (groups.size() > kMostOptimGroups)
    fail(ErrorCode::usage, fmt::format("at most {} param_groups", kMostOptimGroups),
         fmt::format("{} ({})", groups.size(), node.where),
         "join those of one rate and decay by | in one expression");
  return groups;
}

std::string groups_text(const std::vector<ParamGroup>& groups) {
  std::string out;
  for (const ParamGroup& g : groups) {
    out += fmt::format("{}{{params: {}", out.empty() ? "" : ", ", yaml_text(g.params));
    if (g.learning_rate >= 0) out += fmt::format(", learning_rate: {}", g.learning_rate);
    if (g.weight_decay >= 0) out += fmt::format(", weight_decay: {}", g.weight_decay);
    out += "}";
  }
  return out.empty() ? "" : "[" + out + "]";
}

std::vector<ParamGroup> groups_of(const std::string& text) {
  return text.empty() ? std::vector<ParamGroup>()
                      : parse_groups(parse_config_node(text, "param_groups", false));
}

}  // namespace snug
