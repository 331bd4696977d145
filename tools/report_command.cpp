// snug report: the page of a run from what its folder holds, and of several runs side by side.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "tools/checkpoint/output_folder.h"
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

void tell_notes(const ReportRun& run) {
  for (const std::string& note : run.notes) fmt::print(stderr, "Note: {}\n", note);
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
    for (size_t k = 0; k < i; ++k) {
      std::error_code error;
      if (!std::filesystem::equivalent(folders[i], folders[k], error)) continue;
      std::string rest = "snug report";
      for (size_t other = 0; other < folders.size(); ++other)
        if (other != i) rest += " " + shell_word(folders[other]);
      fail(ErrorCode::usage, "each run once",
           folders[i] == folders[k]
               ? folders[i] + " twice"
               : fmt::format("{} and {}, which are one", folders[k], folders[i]),
           rest);
    }
  if (output.empty()) output = folders.size() == 1 ? folders[0] + "/report.html" : "runs.html";
  check_output_file(output, "--output", overwrite, kReportMark);
  check_output_is_no_input(output, "--output", folders, kReportMark);
  if (folders.size() == 1) {
    const ReportRun run = read_run(folders[0]);
    tell_notes(run);
    const std::string old = folders[0] + "/report.html";
    const std::string before = file_exists(old) ? read_file(old) : std::string();
    std::string page = before.empty() ? "" : renewed_report(before, run);
    // One of a plan, as an earlier version drew it, has pictures that the log alone has not.
    if (page.empty() && output == old && !overwrite &&
        before.find("<footer>") != std::string::npos) {
      output = folders[0] + "/report-story.html";
      check_output_file(output, "--output", overwrite, kReportMark);
      fmt::print(stderr,
                 "Note: {} has pictures of memory that cannot be kept in a new page; it stays, and "
                 "the new page is {}. --overwrite replaces it.\n",
                 old, output);
    }
    if (page.empty())
      page = story_page(run, fmt::format("The pictures of memory: snug plan --config "
                                         "{}/config.resolved.yaml --picture plan.html",
                                         folders[0]));
    write_atomic(output, page);
  } else {
    std::vector<ComparedRun> runs;
    for (const std::string& folder : folders) {
      runs.push_back(read_compared_run(folder));
      tell_notes(runs.back().run);
    }
    write_atomic(output, side_by_side_html(runs));
  }
  fmt::print("{}\n", output);
  return 0;
}

}  // namespace snug
