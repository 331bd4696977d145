// From a configuration to a model and a question for the planner: everything that is known before a
// byte is reserved or a file is written.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/text/tokenizer.h"
#include "layers/models/family.h"
#include "tools/config/run_config.h"
#include "tools/trainer/plan.h"

namespace snug {

struct RunSetup {
  RunConfig config;
  std::optional<Tokenizer> tokenizer;
  std::string model_folder;  // weights to load; empty: random initialisation
  std::unique_ptr<Model> model;
  RunSizes sizes;
  PlanRequest request;
};

// Reads tokenizer and model config and checks that they belong together. Throws usage and data.
RunSetup make_setup(RunConfig config);

// Threads of the run: what was set, else the processors this process may use (affinity, cgroup
// quota).
int resolve_threads(int64_t configured);
// The budget: what was set, else what is free less a reserve, which `reserve` states.
int64_t resolve_memory(int64_t configured, int64_t* reserve);

}  // namespace snug
