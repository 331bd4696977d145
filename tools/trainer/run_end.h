// What a run that went on from its end is told: why nothing is left to do, and which key goes on.
#pragma once

#include <cstdint>
#include <string>

#include "tools/checkpoint/checkpoint.h"
#include "tools/config/run_config.h"

namespace snug {

struct RunEnd {
  std::string why;      // "it is at step 20, and max_steps is 20 (run.yaml:4)"
  std::string goes_on;  // "max_steps=40": overrides with which steps are left
};

// Of a run at `position` whose length is `total` steps (0: the clock's alone), of `samples` and
// `per_step` of them a step. Both empty if steps are left.
RunEnd run_end(const RunConfig& config, const RunPosition& position, int64_t total, int64_t samples,
               int64_t per_step);

}  // namespace snug
