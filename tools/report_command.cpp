// snug report: the page of a run from what its folder holds, and of several runs side by side.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "tools/cli/argument_parser.h"
#include "tools/cli/output_file.h"
#include "tools/commands.h"
#include "tools/report/story.h"
#include "tools/trainer/run_story.h"

namespace snug {
namespace {

// As it was typed, without slashes at its end.
std::string run_folder(std::string folder) {
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error))
    fail(ErrorCode::usage, "the folder of a run, which is output_dir of snug train", folder,
         "snug report run1");
  if (!file_exists(folder + "/metrics.jsonl") && !file_exists(folder + "/config.resolved.yaml")) {
    const std::string above = std::filesystem::path(folder).parent_path().string();
    const bool part = !above.empty() && file_exists(above + "/config.resolved.yaml");
    fail(ErrorCode::usage, "the folder of a run, with metrics.jsonl",
         fmt::format("{}, which has none", folder),
         part ? "snug report " + above : "output_dir of snug train");
  }
  return folder;
}

}  // namespace

int report_command(const Arguments& arguments) {
  std::vector<std::string> folders;
  std::string output;
  bool overwrite = false;
  ArgumentParser parser(
      "report",
      "draws the page of a run anew from what its folder holds, also while it goes and after it "
      "was killed; of several runs one page with their curves over each other and what differs in "
      "their configurations.");
  parser.positionals("RUN", folders, "folders of runs, output_dir of snug train")
      .required()
      .option("--output", output, "FILE",
              "where to write it; RUN/report.html of one run, runs.html of several, unless given")
      .flag("--overwrite", overwrite, "replace a file that is there, also if it is no such page")
      .example("snug report run1")
      .example("snug report run1 run2 run3 --output runs.html");
  if (!parser.parse(arguments)) return 0;
  for (std::string& folder : folders) folder = run_folder(folder);
  for (size_t i = 0; i < folders.size(); ++i)
    if (std::find(folders.begin(), folders.begin() + static_cast<int64_t>(i), folders[i]) !=
        folders.begin() + static_cast<int64_t>(i))
      fail(ErrorCode::usage, "each run once", folders[i] + " twice", "leave one of them out");
  if (output.empty()) output = folders.size() == 1 ? folders[0] + "/report.html" : "runs.html";
  check_output_file(output, "--output", overwrite, kReportMark);
  if (folders.size() == 1) {
    const ReportRun run = read_run(folders[0]);
    const std::string old = folders[0] + "/report.html";
    std::string page = file_exists(old) ? renewed_report(read_file(old), run) : std::string();
    if (page.empty())
      page = story_page(run, fmt::format("The pictures of memory: snug plan --config "
                                         "{}/config.resolved.yaml --picture plan.html",
                                         folders[0]));
    write_atomic(output, page);
  } else {
    std::vector<ComparedRun> runs;
    for (const std::string& folder : folders) runs.push_back(read_compared_run(folder));
    write_atomic(output, side_by_side_html(runs));
  }
  fmt::print("{}\n", output);
  return 0;
}

}  // namespace snug
