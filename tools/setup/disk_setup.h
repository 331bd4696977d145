// What a run's keys say of the disk that its states rest on.
#pragma once

#include "tools/config/run_config.h"
#include "tools/costs/cost_model.h"
#include "tools/planner/plan.h"

namespace snug {

// States pass between the disk and memory that the host computes on: throws usage or unsupported where
// offload_optimizer: disk does not go with what else is asked for; says what is nothing without it.
void check_disk(const RunConfig& config, const PlanRequest& r);

// The folder, and the rate of the disk that it is on: that of disk_bandwidth, or what snug calibrate found.
// Says where the folder is memory that no budget counts.
void settle_disk(const RunConfig& config, PlanRequest& r, CostModel& cost);

}  // namespace snug
