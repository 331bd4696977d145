// The keys of adapters, and what they ask of each other, by the table of layers/adapters/kinds.h.
#pragma once

#include <vector>

#include "tools/config/keys.h"

namespace snug {

class Complaints;

std::vector<Key> adapter_keys();
// Adds those that would have no effect beside `peft`, code usage.
void check_adapter_keys(const RunConfig& config, Complaints& complaints);

}  // namespace snug
