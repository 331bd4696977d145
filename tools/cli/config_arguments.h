// What train, plan and bench take: --config FILE, --print-config and key=value.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/config/run_config.h"

namespace snug {

class ArgumentParser;

struct ConfigArguments {
  RunConfig config;
  std::string config_path;             // empty: none
  std::vector<std::string> overrides;  // as given
  bool proceed = true;  // false: help or the configuration was printed, and nothing is left to do
};

// `examples` are command lines for help. `more` may add flags of the subcommand. Throws as
// load_config does.
ConfigArguments parse_config_arguments(std::string_view command, std::string_view summary,
                                       const std::vector<std::string>& examples,
                                       const std::vector<std::string>& arguments,
                                       const std::function<void(ArgumentParser&)>& more = nullptr);

}  // namespace snug
