// Several runs on one page: their curves over each other and what differs in their configurations.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/report/report.h"

namespace snug {

// A run and its resolved configuration, nested keys joined by dots, in the order of the file.
struct ComparedRun {
  ReportRun run;
  std::vector<std::pair<std::string, std::string>> keys;
};

// A key of which not all runs say the same; "" where a run has none.
struct ConfigDifference {
  std::string key;
  std::vector<std::string> values;  // as many as there are runs
};
// In the order of the first run that has the key. output_dir, which names a run, is left out.
std::vector<ConfigDifference> config_differences(const std::vector<ComparedRun>& runs);

// The page, self-contained as report_html's. A curve is told apart by colour and by dashes.
std::string side_by_side_html(const std::vector<ComparedRun>& runs);

}  // namespace snug
