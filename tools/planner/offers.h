// What would let a run fit that does not: keys that the user could change, each planned as it would
// then be, never estimated. Those that cost least come first.
//
// To add one: a row of the table in offers.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/planner/plan_search.h"

namespace snug {

// For a plan of `request` that does not fit: what lowers its minimum, what is enough before what is
// not. Where the host's memory does not suffice, what then fits the device and the host.
// With what the search that refused it has recorded, if given.
std::vector<Offer> plan_offers(
    const PlanRequest& request, const Plan& refused,
    const std::shared_ptr<Recordings>& recordings = std::make_shared<Recordings>());
// They in words, and the plan's advice, behind what `memory` it takes: each on a line of its own,
// those that suffice first. "recompute=auto (then memory of 524288 B, 512.00 KiB, is enough)".
std::string offers_text(const Plan& refused);

}  // namespace snug
