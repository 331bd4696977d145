// Batches that the user fixed and that no plan has room for: known without recording one, which of
// a hundred million rows takes minutes and gigabytes by its chunks of logits.
#pragma once

#include <optional>

#include "engine/core/error.h"
#include "tools/planner/plan.h"

namespace snug {

// False if what lies between the layers alone is more than the budget, or than is free, of a fixed
// batch of more than PlanSearch::kMostRows rows. In training that is the input of every layer,
// unless they are offloaded: else of one.
bool has_batch_room(const PlanRequest& request);
// Throws out_of_memory then.
void check_batch_room(const PlanRequest& request);
// What it would throw.
std::optional<Error> batch_refusal(const PlanRequest& request);

}  // namespace snug
