// What keys ask of each other, once all of them are read.
#pragma once

#include "tools/config/run_config.h"

namespace snug {

class Complaints;

// Adds contradictions and keys that would have no effect beside the others, code usage; a message
// names each key with its value and place.
void check_config(const RunConfig& config, Complaints& complaints);
// The part of it that asks what `device` has. With a target and device: auto that is for the target
// to say, and check_config leaves it out.
void check_device(const RunConfig& config);

}  // namespace snug
