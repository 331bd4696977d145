#include "tools/setup/rank_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "engine/core/error.h"
#include "engine/device/processors.h"
#include "tools/planner/plan_search.h"
#include "tools/setup/setup.h"

namespace snug {

int rank_threads(const RunConfig& config) {
  if (config.ranks <= 1 || config.threads > 0) return resolve_threads(config.threads);
  return std::max(1, find_processors().threads() / static_cast<int>(config.ranks));
}

void settle_ranks(const RunConfig& config, PlanRequest& r) {
  const auto refuse = [&](const char* key, const std::string& value, const char* instead) {
    fail(ErrorCode::unsupported,
         fmt::format("what ranks have on their devices, with ranks: {} ({})", config.ranks,
                     config.where("ranks")),
         fmt::format("{}: {} ({})", key, value, config.where(key)),
         fmt::format("{}={}, or ranks=1", key, instead));
  };
  if (r.settings.target == Place::cuda)
    fail(ErrorCode::unsupported, "ranks on the place cpu, whose memory they share",
         fmt::format("ranks: {} ({}) on a GPU", config.ranks, config.where("ranks")),
         "device=cpu, or ranks=1");
  for (auto [key, value] :
       {std::pair("offload", &r.offload), std::pair("offload_optimizer", &r.offload_optimizer),
        std::pair("offload_params", &r.offload_params),
        std::pair("offload_gradients", &r.offload_gradients)}) {
    if (*value == "auto") *value = "none";
    if (*value != "none") refuse(key, *value, "none");
  }
  r.use_host = r.paged_states = false;
  r.zero = config.zero == "auto" ? 1 : config.zero[0] - '0';
  if (r.zero < 3) return;
  if (r.packed_weights.value_or(WeightPacking::none) != WeightPacking::none)
    refuse("packed_weights", config.packed_weights, "none");
  r.packed_weights = WeightPacking::none;
}

void choose_zero(PlanRequest& r) {
  if (r.global_batch <= 0) return;
  const auto packing = r.packed_weights;
  for (r.zero = 1; r.zero < 3; ++r.zero) {
    PlanSearch search(r);
    if (make_plan(r, search).fits) return;
  }
  if (packing.value_or(WeightPacking::none) != WeightPacking::none) r.zero = 2;
  if (r.zero == 3) r.packed_weights = WeightPacking::none;
}

void refuse_ranks(const RunConfig& config, const char* command) {
  if (config.ranks <= 1) return;
  fail(ErrorCode::usage, fmt::format("one rank for snug {}", command),
       fmt::format("ranks: {} ({})", config.ranks, config.where("ranks")),
       "ranks=1; snug train and snug plan take several");
}

}  // namespace snug
