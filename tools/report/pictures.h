// The pictures of the plan, as HTML fragments.
#pragma once

#include <string>

#include "tools/report/plot.h"
#include "tools/report/report.h"
#include "tools/report/step_view.h"

namespace snug {

inline constexpr int kPictureColumns = 600;

// Memory over one step: stacked bands, the lines of arena, budget and lower bound, the peak and
// what holds it, a readout by category, and a table of the same.
std::string memory_picture(const Plan& plan, const StepView& view);
// What rests where: a bar for the arena, for the host's and for the disk, to one scale. Empty where the arena
// is all there is.
std::string tiers_picture(const Plan& plan);
// Every tensor as a rectangle: x as above, y its address. What is too small to see is merged.
std::string address_picture(const Plan& plan, const StepView& view);
// When each stream works: a lane for each, x as above. Empty where only one stream is used.
std::string lanes_picture(const StepView& view, int (*stream_of)(const OpRecord&) = op_stream);
// Tokens a second against budgets, what the next rung up and down change, and a table. Empty
// without rungs.
std::string ladder_picture(const std::vector<ReportRung>& ladder);

// The bytes that no packing of these programs can be below: base and lower bound of the program
// that sets the height. 0 without programs.
int64_t arena_lower_bound(const Plan& plan);

// Under the x axis of these pictures: what its widths are.
std::string axis_title(const StepView& view);
// The names of the programs below a picture, and the cuts between them.
void draw_segments(Plot& plot, const StepView& view, int height);

// Whether every tensor has an offset.
bool is_packed(const Schedule& schedule);

// Style sheet and script of the page.
const char* page_style();
const char* page_script();

}  // namespace snug
