// Data that is given twice: what a run learns twice as often without being told, and what it is
// evaluated on though it learned it.
#pragma once

#include <string>
#include <vector>

#include "tools/config/run_config.h"

namespace snug {

// Sentences for the user, none as a rule: a file that train_data names twice, two files of it with the
// same bytes, and files of eval_data that have the path or the bytes of one of train_data. Files
// are compared to their ends only where sizes and first 64 KiB are equal. Never throws.
std::vector<std::string> same_files(const RunConfig& config);

}  // namespace snug
