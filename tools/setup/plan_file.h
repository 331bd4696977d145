// A plan that is followed: the file `snug plan --json` prints and a run writes as plan.json, read
// back. Whatever changes programs comes from it, and the plan made from that must have its hash.
//
// Three things guard it: a seal over the text, which an edit breaks; what the plan was made for
// (model, keys, machine), compared by name so that the message can say what differs; and the hash,
// which nothing that is recorded otherwise passes.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/blas/kernel_table.h"
#include "tools/planner/plan.h"

namespace snug {

struct RunSetup;

struct PlanFile {
  std::string path, hash;
  PlanFacts made_for;
  std::string instruction_set, attention;
  int64_t threads = 0, accumulation = 0;
  std::vector<KernelChoice> kernels;
  ComputesOn computes_on;
  Decisions decisions;  // what the file says of them; the rest follows from the configuration
};

// Throws data, with `advice`, if the text of a plan was changed since it was written.
void check_seal(const nlohmann::json& plan, const std::string& path, const std::string& advice);
// What a plan says that it was made for. Throws data.
PlanFacts read_made_for(const nlohmann::json& plan, const std::string& path);
// Throws data on updates in backward that the request rules out.
void check_update(const Decisions& decisions, const PlanRequest& request, const std::string& path);

// Throws data on what is no plan, a plan of a newer format, or one whose text was changed; usage on
// one that does not fit or was made for a described device.
PlanFile read_plan_file(const std::string& path);

// Decisions of plan.json's object `decisions`. Throws data.
Decisions read_decisions(const nlohmann::json& decisions, const std::string& where);
// Leaves the planner nothing to choose.
void fix_decisions(const Decisions& decisions, PlanRequest& request);

// Makes the request ask for this plan and no other. Throws usage, naming the first key, on another
// model, configuration or machine, and on a key that contradicts the plan.
void follow_plan(const PlanFile& file, RunSetup& setup);

}  // namespace snug
