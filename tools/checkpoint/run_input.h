// What a run reads may lie in what it removes: the weights of an earlier run in the same folder, or
// its tokens.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tools/config/run_config.h"

namespace snug {

// The first input of `config` that is in one of `places` (files or folders, which need not be
// there), as a message names it: "model: run1/final (command line)"; empty if none is. Links are
// followed, the ones within a model folder too, patterns expanded. What cannot be read is passed
// over, since whoever opens it says so.
std::string input_within(const RunConfig& config, const std::vector<std::filesystem::path>& places);

// The same of what overwrite removes from output_dir; empty if that holds no run.
std::string input_of_old_run(const RunConfig& config);

}  // namespace snug
