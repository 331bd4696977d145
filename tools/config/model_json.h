// The model's map as the JSON text of a Hugging Face config.
#pragma once

#include <string>

#include "tools/config/config_node.h"

namespace snug {

// `map` is a map; `type` becomes model_type. Plain scalars take the type they look like (null,
// true, integer, number), quoted ones are strings. Throws usage if type and model_type differ.
std::string model_json(const ConfigNode& map);
// JSON text as one line of YAML that reads back to the same text.
std::string model_yaml(const std::string& json, const std::string& base);

}  // namespace snug
