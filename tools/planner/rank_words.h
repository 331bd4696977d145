// What a plan says of several ranks.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tools/planner/plan.h"

namespace snug {

// What carries tensors between ranks that share no memory, as the key `transport` has it.
const char* transport_word(Place place);
// ", each with its piece of the optimizer's states"; empty: there is one.
const char* zero_words(const Decisions& decisions);
// A line of a plan's text: what collectives take of a step, and why. Empty: there is one rank.
std::string rank_text(const Plan& plan);
// The same in numbers.
nlohmann::json collectives_json(const Plan& plan);

}  // namespace snug
