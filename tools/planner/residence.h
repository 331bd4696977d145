// What of training may be the host's, as data: of each choice the key, the field of what is asked and of
// what is decided, its words, what it cannot be with and whether a search tries it. Each is a row of
// decision_table.h too, which files and texts read. What runs of blocks leave there slot by slot is
// `offload`, which has a language of its own.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/config/run_config.h"
#include "tools/planner/plan.h"

namespace snug {

struct ResidenceKey {
  const char* name;
  std::string Asked::*asked;
  bool Homes::*decided;
  const char* device = "none";  // its value where nothing of it is the host's; else cpu
  const char* what = nullptr;  // rests: "the layers' weights"; null: nothing does, and words say it
  const char *on_host = nullptr, *on_device = nullptr;
  // What may rest in a file below both.
  bool Homes::*filed = nullptr;
  // As in Decision.
  const char* beside = nullptr;
  void (*check)(const RunConfig& config, const PlanRequest& r) = nullptr;
  std::vector<std::string> (*tries)(const PlanRequest& r) = nullptr;
  bool of_blocks = true;

  bool on_file(const Decisions& d) const { return filed != nullptr && d.*filed; }
  const char* value(const Decisions& d) const {
    return on_file(d) ? "disk" : d.*decided ? "cpu" : device;
  }
  void set(std::string_view value, Decisions& d) const {
    d.*decided = value == "cpu";
    if (filed != nullptr) d.*filed = value == "disk";
  }
  std::string words(const Decisions& d) const {  // "the layers' weights with the host"
    if (what == nullptr) return d.*decided ? on_host : on_device;
    return what + std::string(on_file(d)   ? " on disk"
                              : d.*decided ? " with the host"
                                           : " on the device");
  }
};
std::span<const ResidenceKey> residence_keys();

// Throws data naming `where`, which says them, where two do not go together.
void check_residence(const Decisions& d, const std::string& where, const std::string& advice);
// Whether the host has something of a plan that is no run of slots.
bool rests_away(const Homes& homes);
// "the layers' weights and the optimizer's state": what always rests there; empty: nothing.
std::string rests_with_host(const Decisions& d);
// "offload: none, offload_optimizer: cpu": what a plan offloads by.
std::string offloaded_keys(const Decisions& d);

// The kernels of a device and loops of the host give an update the same bits: but for products of
// matrices, whose sums have the order of whatever library computes them.
bool can_update_on_host(const OptimizerConfig& optimizer);
// Whether a plan's states rest on disk, where an update behind backward alone has them.
inline bool states_on_disk(const PlanRequest& r) {
  return r.global_batch > 0 && r.offload_optimizer == "disk";
}
// Whether a search looks at such updates: asked for, or left to it where the cost model has a host, whose
// rate is calibrated, described or assumed; the plan says which.
bool looks_at_host_updates(const PlanRequest& r, const CostModel& cost);
// Whether a search looks at updates by the host that are one step late (Homes::delayed_update), and at
// those that are not: on the place cpu there are none, since its cores have one thing to do at a time.
bool may_delay_updates(const PlanRequest& r);
bool may_update_at_once(const PlanRequest& r);

// What the disk takes for the update of a step, at the cost model's rate. "on disk: 8.00 GB of optimizer
// state, read and written in 16.0 s a step at 1.00 GB/s (disk_bandwidth)"; empty: nothing is there. And null.
DiskTraffic disk_traffic(const Program& update, int64_t bytes, const CostModel& cost);
std::string disk_text(const DiskTraffic& traffic);
nlohmann::json disk_json(const DiskTraffic& traffic);

// What the host takes for the update of a step.
HostUpdate host_update(const Program& update, const CostModel& cost);
// "the host updates: 2.10 GB moved in 0.14 s a step at 15.0 GB/s (calibrated on this machine)"; empty: it
// does not. And null.
std::string host_update_text(const HostUpdate& update, bool late);
nlohmann::json host_update_json(const HostUpdate& update);

}  // namespace snug
