#include "tools/setup/disk_setup.h"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/core/error.h"
#include "optim/optimizer.h"
#include "tools/calibrate/disk_calibration.h"
#include "tools/session/device_choice.h"
#include "tools/session/tell.h"

namespace snug {
namespace {

// The folder, or the one that it will be made in.
std::string there_already(const std::string& folder) {
  std::error_code error;
  std::filesystem::path at = std::filesystem::absolute(folder, error);
  while (!std::filesystem::is_directory(at, error) && at.has_relative_path()) at = at.parent_path();
  return at.string();
}

}  // namespace

void check_disk(const RunConfig& config, const PlanRequest& r) {
  if (r.offload_optimizer != "disk") {
    if (!config.plan.empty()) return;  // which may say so
    for (const char* key : {"offload_disk", "disk_bandwidth"})
      if (config.origins.count(key) > 0)
        tell(stderr, "Note: {} ({}) is nothing without offload_optimizer: disk.\n", key,
             config.where(key));
    return;
  }
  const std::string asked =
      fmt::format("offload_optimizer: disk ({})", config.where("offload_optimizer"));
  if (r.settings.target != Place::cpu)
    fail(ErrorCode::unsupported, "device: cpu for offload_optimizer: disk",
         config.target.empty()
             ? fmt::format("{}, device: {}", asked, device_word(r.settings.target))
             : fmt::format("{}, target: {}", asked, config.target),
         config.target.empty() ? "offload_optimizer=cpu, or device=cpu" : "offload_optimizer=cpu");
  if (r.ranks > 1)
    fail(ErrorCode::unsupported, "one rank for offload_optimizer: disk",
         fmt::format("{}, ranks: {} ({})", asked, config.ranks, config.where("ranks")),
         "ranks=1, or offload_optimizer=cpu");
  if (r.offload_params == "cpu")
    fail(ErrorCode::usage, "offload_optimizer: auto or cpu for offload_params: cpu",
         fmt::format("{}, offload_params: cpu ({})", asked, config.where("offload_params")),
         "offload_params=none, or offload_optimizer=cpu");
  if (!config.offload_disk.empty() && config.target.empty() &&
      access(config.offload_disk.c_str(), W_OK | X_OK) != 0)
    fail(ErrorCode::usage, "offload_disk as a folder that is there and can be written to",
         fmt::format("{} ({}): {}", config.offload_disk, config.where("offload_disk"),
                     std::strerror(errno)),
         "leave offload_disk out, for output_dir");
  if (make_optimizer(r.optimizer)->state_names().empty())
    fail(ErrorCode::usage, "an optimizer with states for offload_optimizer: disk",
         fmt::format("{}, optim: {}", asked, config.optim),
         "offload_optimizer=none, or sgd_momentum=0.9");
}

void settle_disk(const RunConfig& config, PlanRequest& r, CostModel& cost) {
  r.settings.disk_folder = !config.offload_disk.empty() ? config.offload_disk
                           : config.output_dir.empty()  ? "."
                                                        : config.output_dir;
  if (config.disk_bandwidth > 0)
    cost.state_disk(static_cast<double>(config.disk_bandwidth), "disk_bandwidth");
  // A target's disk is not this machine's.
  if (r.offload_optimizer != "disk" || !config.target.empty()) return;
  const std::string folder = there_already(r.settings.disk_folder);
  struct statfs info {};
  if (statfs(folder.c_str(), &info) == 0 &&
      (info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC))
    tell(stderr,
         "Note: {} is in memory (tmpfs), which no budget counts; offload_disk=FOLDER on a disk.\n",
         r.settings.disk_folder);
  if (config.disk_bandwidth > 0) return;
  const std::string disk = disk_of(folder);
  std::string ignored;
  const auto known = read_disk_calibration(disk_calibration_path(disk), disk, &ignored);
  if (!ignored.empty()) tell(stderr, "Note: {}.\n", ignored);
  if (known) cost.state_disk(known->rate(), "calibrated");
}

}  // namespace snug
