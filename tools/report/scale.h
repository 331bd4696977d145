// Plans of one configuration for more and more ranks, each with the share of a step that it has in the
// configuration: how far the work of one grows to that of many.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tools/planner/plan.h"

namespace snug {

struct ScaledPlan {
  int64_t ranks = 1;
  Plan plan;
  // Of tokens/s, the share of as many single ranks' that is left.
  double efficiency = 0;
};

struct Scale {
  std::vector<ScaledPlan> plans;
  std::string cost;
};

// "1..4096": the powers of two from the first to the last, and these two. Throws usage.
std::vector<int64_t> parse_scale(const std::string& text);
// Sets what each has of the first one's rate.
void settle_scale(Scale& scale);
std::string scale_text(const Scale& scale);
nlohmann::json scale_json(const Scale& scale);

inline constexpr std::string_view kScaleMark = "<title>Predicted tokens/s by ranks</title>";
// Tokens/s over ranks, both axes logarithmic, beside what no traffic would leave.
std::string scale_svg(const Scale& scale);

}  // namespace snug
