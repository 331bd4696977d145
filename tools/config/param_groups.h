// param_groups: parameters with a learning rate or a weight decay of their own.
//
//   param_groups:
//     - {params: 'wte|wpe', learning_rate: 1.0e-4}
//     - {params: '\.bias$', weight_decay: 0.01}
#pragma once

#include <string>
#include <vector>

#include "tools/config/config_node.h"

namespace snug {

struct ParamGroup {
  std::string params;         // a regular expression, looked for in the names
  double learning_rate = -1;  // the highest of the schedule; below 0: the run's
  double weight_decay = -1;   // below 0: the run's, none of biases and norms
};

// Throws usage, with the place: a list of maps of these keys, with params and one of the others.
std::vector<ParamGroup> parse_groups(const ConfigNode& node);
// Flow YAML that parse_groups() reads back; empty without groups.
std::string groups_text(const std::vector<ParamGroup>& groups);
std::vector<ParamGroup> groups_of(const std::string& text);

}  // namespace snug
