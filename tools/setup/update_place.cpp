#include "tools/setup/update_place.h"

#include <fmt/format.h>

#include "engine/core/error.h"
#include "tools/planner/residence.h"

namespace snug {

void settle_update(const RunConfig& config, PlanRequest& r) {
  const bool cpu = r.settings.target == Place::cpu, pinned = r.delayed_update.value_or(false);
  if (pinned && config.offload_update == "gpu")
    fail(ErrorCode::usage, "offload_update: auto or cpu for updates by the host one step late",
         fmt::format("offload_update: gpu ({})", config.where("offload_update")),
         "offload_update=cpu");
  if (pinned) r.offload_update = "cpu";
  if (r.offload_update != "cpu") {
    if (cpu) r.offload_update = "gpu";
    return;
  }
  const std::string asked =
      fmt::format("offload_update: {} ({})", r.offload_update, config.where("offload_update"));
  if (cpu && !may_delay_updates(r))
    fail(ErrorCode::unsupported, "a GPU beside the host for offload_update: cpu",
         asked + ", device: cpu, where the host is the device and its cores update already",
         "offload_update=auto, which asks for nothing there");
  if (!can_update_on_host(r.optimizer))
    fail(ErrorCode::unsupported,
         "an optimizer whose update by the host has the bits of the device's, for offload_update: "
         "cpu",
         fmt::format("optim: {} ({}), whose products of matrices a device sums in another order",
                     config.optim, config.where("optim")),
         "offload_update=gpu, or optim=adamw");
  for (const ResidenceKey& key : residence_keys()) {
    if (key.decided != &Homes::offload_optimizer && key.decided != &Homes::offload_gradients)
      continue;
    if (config.*key.asked == "none")
      fail(ErrorCode::usage, fmt::format("{}: auto or cpu for offload_update: cpu", key.name),
           fmt::format("{}, {}: none ({})", asked, key.name, config.where(key.name)),
           fmt::format("{}=cpu, or offload_update=gpu", key.name));
    r.*key.asked = "cpu";
  }
}

}  // namespace snug
