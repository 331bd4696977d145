// The keys of adapters, and what they ask of each other, by the table of layers/adapters/kinds.h.
#pragma once

#include <string_view>
#include <vector>

#include "tools/config/keys.h"

namespace snug {

class Complaints;

std::vector<Key> adapter_keys();
// Whether a key says how the base beside adapters rests, whatever these are: in 4 bits or 8.
bool is_base_form_key(std::string_view name);
// Adds those that would have no effect beside `peft`, code usage.
void check_adapter_keys(const RunConfig& config, Complaints& complaints);

}  // namespace snug
