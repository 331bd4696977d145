// The pictures of the plan, as HTML fragments.
#pragma once

#include <string>

#include "tools/report/report.h"
#include "tools/report/step_view.h"

namespace snug {

inline constexpr int kPictureColumns = 600;

// Memory over one step: stacked bands, the lines of arena, budget and lower bound, the peak and
// what holds it, a readout by category, and a table of the same.
std::string memory_picture(const Plan& plan, const StepView& view);
// Every tensor as a rectangle: x as above, y its address. What is too small to see is merged.
std::string address_picture(const Plan& plan, const StepView& view);
// What was measured minus what was planned, over the run.
std::string measured_picture(const Plan& plan, const ReportRun& run);

// The bytes that no packing of these programs can be below: base and lower bound of the program
// that sets the height. 0 without programs.
int64_t arena_lower_bound(const Plan& plan);

// Whether every tensor has an offset.
bool is_packed(const Schedule& schedule);

// Style sheet and script of the page.
const char* page_style();
const char* page_script();

}  // namespace snug
