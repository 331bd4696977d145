// What of training may be the host's, as data: of each choice the key, the field of the request and of
// the decisions, and its words. Each is a row of decision_table.h too, which files and texts read.
// What runs of blocks leave there slot by slot is `offload`, which has a language of its own.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "tools/config/run_config.h"
#include "tools/planner/plan.h"

namespace snug {

struct ResidenceKey {
  const char* name;
  std::string RunConfig::*given;
  std::string PlanRequest::*asked;
  bool Decisions::*decided;
  const char* device;               // its value where nothing of it is the host's; else cpu
  const char *on_host, *on_device;  // "the layers' weights with the host"

  const char* value(const Decisions& d) const { return d.*decided ? "cpu" : device; }
};
std::span<const ResidenceKey> residence_keys();

// Throws data naming `where`, which says them, where two do not go together.
void check_residence(const Decisions& d, const std::string& where, const std::string& advice);
// "offload: none, offload_optimizer: cpu": what a plan offloads by.
std::string offloaded_keys(const Decisions& d);

// The kernels of a device and loops of the host give an update the same bits: but for products of
// matrices, whose sums have the order of whatever library computes them.
bool can_update_on_host(const OptimizerConfig& optimizer);
// Whether a search looks at such updates: asked for, or left to it where the cost model has a host, whose
// rate is calibrated, described or assumed; the plan says which.
bool looks_at_host_updates(const PlanRequest& r, const CostModel& cost);

// What the host takes for the update of a step.
HostUpdate host_update(const Program& update, const CostModel& cost);
// "the host updates: 2.10 GB moved in 0.14 s a step at 15.0 GB/s (calibrated on this machine)"; empty: it
// does not. And null.
std::string host_update_text(const HostUpdate& update);
nlohmann::json host_update_json(const HostUpdate& update);

}  // namespace snug
