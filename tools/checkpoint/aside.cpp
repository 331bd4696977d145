#include "tools/checkpoint/aside.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "tools/checkpoint/output_folder.h"

namespace snug {

namespace fs = std::filesystem;

namespace {

// Whether the last report is of a run that came to an end after `step`.
bool ended_later(const std::string& output_dir, int64_t step) {
  try {
    const nlohmann::json memory = parse_json_file(output_dir + "/memory.json");
    const nlohmann::json state = parse_json_file(output_dir + "/trainer_state.json");
    return memory.is_object() && memory.value("finished", false) && state.is_object() &&
           state.value("global_step", int64_t{0}) > step;
  } catch (const std::exception&) {  // there is none, or it is no file of a run
    return false;
  }
}

}  // namespace

const std::string& Aside::folder() {
  for (int64_t n = 1; folder_.empty(); ++n) {
    const std::string path = fmt::format("{}/{}{}", output_dir_, kAsidePrefix, n);
    std::error_code error;
    if (fs::create_directory(path, error)) folder_ = path;
    if (error && !fs::exists(fs::symlink_status(path)))
      fail(ErrorCode::device, "to create " + path, error.message(), "free disk space");
  }
  return folder_;
}

void Aside::move(const std::string& name) {
  const std::string from = output_dir_ + "/" + name;
  std::error_code error;
  if (!fs::exists(fs::symlink_status(from, error))) return;
  const std::string to = folder() + "/" + name;
  fs::rename(from, to, error);
  if (error)
    fail(ErrorCode::device, fmt::format("to rename {} to {}", from, to), error.message(),
         "check the rights of output_dir");
  note(name);
}

void Aside::copy(const std::string& name) {
  if (file_exists(output_dir_ + "/" + name))
    copy_file(output_dir_ + "/" + name, folder() + "/" + name);
}

std::string Aside::text() const {
  return used() ? fmt::format("{}: {}", folder_, fmt::join(kept_, ", ")) : std::string();
}

void set_later_aside(Aside& aside, const std::string& output_dir, int64_t step) {
  const std::vector<std::string> later = later_checkpoints(output_dir, step);
  if (later.empty() && !ended_later(output_dir, step)) return;
  // Copied is what the run cannot be without until it writes its own.
  for (const char* name : {"config.resolved.yaml", "plan.json"}) aside.copy(name);
  for (const std::string& name : later) aside.move(name);
  for (const char* name : {"final", "report.html", "report-story.html", "memory.json", "trace.json",
                           "trainer_state.json"})
    aside.move(name);
}

}  // namespace snug
