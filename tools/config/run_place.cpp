#include "tools/config/run_place.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "engine/core/error.h"
#include "engine/io/files.h"

namespace snug {

namespace fs = std::filesystem;

namespace {

// Absolute, without a slash at the end; links only followed if `real`.
fs::path whole_path(const std::string& path, bool real) {
  std::error_code error;
  fs::path whole = fs::absolute(path, error).lexically_normal();
  if (real) whole = fs::weakly_canonical(whole, error);
  return whole.has_filename() ? whole : whole.parent_path();
}

// `path` in `to` if it is in `from`, whether it is there or a pattern; else as it is.
bool follow(std::string& path, const std::string& from, const std::string& to) {
  if (path.empty()) return false;
  for (const bool real : {false, true}) {
    const fs::path inner = whole_path(path, real).lexically_relative(whole_path(from, real));
    if (inner.empty() || *inner.begin() == "..") continue;
    path = inner == "." ? to : (fs::path(to) / inner).string();
    return true;
  }
  return false;
}

}  // namespace

void follow_moved_run(RunConfig& config, const std::string& path) {
  const fs::path file(path);
  if (file.filename() != "config.resolved.yaml") return;
  fs::path folder = file.parent_path();
  if (folder.empty() || folder == ".") folder = fs::current_path();
  if (!file_exists((folder / "metrics.jsonl").string()) &&
      !file_exists((folder / "plan.json").string()))
    return;
  std::string old;
  try {
    old = load_config(path, {}).output_dir;
  } catch (const Error&) {  // a file that the command line completes is not what a run wrote
    return;
  }
  const std::string here = folder.string();
  if (old.empty() || whole_path(old, true) == whole_path(here, true)) return;
  const bool elsewhere = config.where("output_dir") == kCommandLine;
  std::error_code error;
  if (config.overwrite && !elsewhere)
    fail(ErrorCode::usage,
         fmt::format("output_dir on the command line beside overwrite, for the file of a run that "
                     "was moved or copied from {}",
                     old),
         fmt::format("output_dir: {} ({}), and the file is in {}", old, config.where("output_dir"),
                     here),
         fmt::format("output_dir={}, or the output_dir you mean", here));
  const bool resumes = !config.resume.empty();
  if (!resumes && fs::exists(old, error)) return;
  std::vector<std::string> followed;
  const auto take = [&](const char* key, std::string& value) {
    if (config.where(key) != kCommandLine && follow(value, old, here) &&
        std::find(followed.begin(), followed.end(), key) == followed.end())
      followed.emplace_back(key);
  };
  if (resumes) take("output_dir", config.output_dir);
  take("model", config.model);
  take("tokenizer", config.tokenizer);
  for (std::string& source : config.train_data) take("train_data", source);
  for (std::string& source : config.eval_data) take("eval_data", source);
  take("token_cache", config.token_cache);
  take("plan", config.plan);
  if (!followed.empty())
    config.notes.push_back(fmt::format("the run of {} lies in {} now, and so {} there: {}", old,
                                       here, followed.size() == 1 ? "does" : "do",
                                       fmt::join(followed, ", ")));
}

}  // namespace snug
