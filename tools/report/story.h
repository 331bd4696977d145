// The part of a page that is about learning: what was trained on what machine when, the loss with
// its best step, which weights final/ holds, what the model wrote, and the memory that was measured
// beside the plan of the leg that was then going. It needs no plan, only what a run's folder says.
#pragma once

#include <string>
#include <vector>

#include "tools/report/plot.h"
#include "tools/report/report.h"

namespace snug {

// Empty if nothing is known of the run.
std::string story_html(const ReportRun& run);
// Resident bytes of the arena less those that the plan of their leg has; `engine_bytes` is the plan
// of a run that has no legs. Empty without samples of it.
std::string measured_picture(const ReportRun& run, int64_t engine_bytes);

// A page of that alone, where nothing was drawn of a plan; `note` stands below it.
std::string story_page(const ReportRun& run, const std::string& note);

// "1234 bytes (1.21 KiB) more".
std::string difference_text(int64_t difference);
std::string verdict(const char* css, const char* mark, const std::string& html);
// The engine bytes planned at that moment; -1: not known.
int64_t planned_at(const ReportRun& run, double seconds, int64_t engine_bytes);
Series series_of(const ReportRun& run, const std::string& label, const std::string& css,
                 double ReportMetric::*field);
// From <!DOCTYPE to <main>, with the heading.
std::string page_head(const std::string& title);

}  // namespace snug
