// Commented configurations of the common jobs, which run as they are where the files they name are.
#pragma once

#include <string>
#include <string_view>

namespace snug {

// "pretrain", "fine-tune", ...: YAML. Throws usage on another name.
std::string_view example_config(std::string_view name);
std::string example_names();  // with commas

}  // namespace snug
