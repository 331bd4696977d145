// The tokens that end a text, as a model folder says it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layers/parts/spec.h"

namespace snug {

// eos_token_id, a number or a list, of generation_config.json, else of config.json; ids that the
// model does not have are left out. Nothing: neither file says it. Throws data on a broken file.
std::optional<std::vector<int32_t>> model_stop_tokens(const std::string& folder,
                                                      const ModelSpec& spec);

}  // namespace snug
