// Keys that mean something for some tasks only.
#pragma once

#include <string>
#include <vector>

#include "layers/parts/spec.h"
#include "tools/config/run_config.h"

namespace snug {

// Throws usage for every key whose value asks for something that the model's task does not have,
// all at once; `token_rows`: a causal one whose data is rows of tokens; `looks`: nothing is trained,
// so that nothing but the data need be there. Returns lines about keys that ask for what is done
// anyhow.
std::vector<std::string> check_task_keys(const RunConfig& config, const ModelSpec& spec,
                                         bool token_rows, bool looks = false);

// Throws usage for a metric_for_best_model that the model's task does not have.
void check_metric(const RunConfig& config, const ModelSpec& spec);

}  // namespace snug
