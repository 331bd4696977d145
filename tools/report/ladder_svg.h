// The picture of a ladder alone, an SVG file.
#pragma once

#include <string>
#include <string_view>

#include "tools/planner/ladder.h"

namespace snug {

// What begins a picture of a ladder and hardly another file.
inline constexpr std::string_view kLadderMark =
    "<title>Predicted tokens/s by memory budget</title>";

// Stairs over a logarithmic axis of budgets.
std::string ladder_svg(const Ladder& ladder);

}  // namespace snug
