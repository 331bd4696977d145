// Plans of one run under several values of a key, side by side: what each holds at the peak by
// meaning, what a driver's tool would show, and why a saving may be nothing.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tools/costs/state_bytes.h"
#include "tools/planner/plan.h"

namespace snug {

struct ComparedPlan {
  std::string value;
  std::string refused;  // why there is no plan; empty: `plan` is one
  Plan plan;
  int64_t parameters = 0;  // of the model
  StateWeight state;       // bytes of optimizer state of one
};

struct Comparison {
  std::string key;
  std::vector<ComparedPlan> plans;  // in the order asked for; the first is what others are beside
};

// "optim=adamw,lion": the key and its values, at least two. Throws usage.
Comparison parse_comparison(std::string_view text);

// Of one plan: all that the process or the device has for the run, from before the first step to the
// end, since everything is reserved at once. Of the host arena nothing.
int64_t driver_bytes(const Plan& plan);

// Why the plan takes so much less, or more, or the same as the first: one sentence.
std::string saving_text(const Comparison& all, const ComparedPlan& one);

std::string comparison_text(const Comparison& all);
nlohmann::json comparison_json(const Comparison& all);

}  // namespace snug
