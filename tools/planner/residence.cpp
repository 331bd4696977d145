#include "tools/planner/residence.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "optim/settings.h"

namespace snug {

std::span<const ResidenceKey> residence_keys() {
  static constexpr ResidenceKey keys[] = {
      {"offload_params", &RunConfig::offload_params, &PlanRequest::offload_params,
       &Decisions::offload_params, "none", "the layers' weights with the host",
       "the layers' weights on the device"},
      {"offload_embedding", &RunConfig::offload_embedding, &PlanRequest::offload_embedding,
       &Decisions::offload_tables, "none", "the frozen embedding with the host",
       "the frozen embedding on the device"},
      {"offload_gradients", &RunConfig::offload_gradients, &PlanRequest::offload_gradients,
       &Decisions::offload_gradients, "none", "the layers' gradients with the host",
       "the layers' gradients on the device"},
      {"offload_optimizer", &RunConfig::offload_optimizer, &PlanRequest::offload_optimizer,
       &Decisions::offload_optimizer, "none", "the optimizer's state with the host",
       "the optimizer's state on the device", &Decisions::states_on_disk,
       "the optimizer's state on disk"},
      {"offload_update", &RunConfig::offload_update, &PlanRequest::offload_update,
       &Decisions::update_on_host, "gpu", "updates by the host", "updates by the device"},
  };
  return keys;
}

void check_residence(const Decisions& d, const std::string& where, const std::string& advice) {
  if (d.states_on_disk && (d.update_in_backward || d.offload_params))
    fail(ErrorCode::data,
         fmt::format("update {} and offload_params none for offload_optimizer disk in {}",
                     kUpdateBehind, where),
         fmt::format("update {}, offload_params {}",
                     d.update_in_backward ? kUpdateInBackward : kUpdateBehind,
                     d.offload_params ? "cpu" : "none"),
         advice);
  if (d.update_on_host && !(d.offload_optimizer && d.offload_gradients))
    fail(ErrorCode::data,
         fmt::format("offload_optimizer cpu and offload_gradients cpu for offload_update cpu in {}",
                     where),
         fmt::format("offload_optimizer {}, offload_gradients {}",
                     d.offload_optimizer ? "cpu" : "none", d.offload_gradients ? "cpu" : "none"),
         advice);
}

std::string offloaded_keys(const Decisions& d) {
  std::string text = "offload: " + d.offload.text();
  for (const ResidenceKey& key : residence_keys()) {
    if (!(d.*key.decided) && !key.on_file(d)) continue;
    // Weights go with the state.
    if (key.decided == &Decisions::offload_optimizer && d.offload_params) continue;
    text += fmt::format(", {}: {}", key.name, key.value(d));
  }
  return text;
}

bool can_update_on_host(const OptimizerConfig& optimizer) {
  const OptimFacts* facts = find_optimizer(optimizer.name);
  return facts == nullptr || facts->reach != OptimReach::matrix;
}

bool looks_at_host_updates(const PlanRequest& r, const CostModel& cost) {
  if (r.global_batch <= 0 || r.settings.target == Place::cpu || r.ranks > 1) return false;
  if (r.offload_update == "cpu") return true;
  return r.offload_update == "auto" && r.use_host && cost.host() != nullptr &&
         can_update_on_host(r.optimizer);
}

DiskTraffic disk_traffic(const Program& update, int64_t bytes, const CostModel& cost) {
  DiskTraffic sum{.bytes = bytes};
  for (const OpRecord& op : update.ops)
    if (on_disk(op)) {
      sum.seconds += cost.seconds(op, 0);
      sum.moved += op.bytes;
    }
  if (sum.moved > 0) sum.rate = cost.rates().disk, sum.rate_from = cost.disk_from();
  return sum;
}

std::string disk_text(const DiskTraffic& t) {
  if (t.bytes == 0) return "";
  return fmt::format(
      "on disk: {} of optimizer state, of which {} are read and written in {} a step at "
      "{:.2f} GB/s ({})",
      human_bytes(t.bytes), human_bytes(t.moved), human_seconds(t.seconds), t.rate / 1e9,
      t.rate_from == "assumed"
          ? "assumed; disk_bandwidth= says another, snug calibrate disk=FOLDER measures it"
          : t.rate_from);
}

nlohmann::json disk_json(const DiskTraffic& t) {
  if (t.bytes == 0) return nullptr;
  return {{"bytes", t.bytes},
          {"bytes_a_step", t.moved},
          {"seconds_a_step", t.seconds},
          {"bytes_per_second", t.rate},
          {"rate", t.rate_from}};
}

HostUpdate host_update(const Program& update, const CostModel& cost) {
  HostUpdate sum;
  for (const OpRecord& op : update.ops)
    if (op.on_host) {
      sum.seconds += cost.seconds(op, 0);
      sum.bytes += op.bytes;
    }
  if (sum.bytes > 0) sum.cost = (cost.host() ? *cost.host() : cost).text();
  return sum;
}

std::string host_update_text(const HostUpdate& u) {
  if (u.bytes == 0) return "";
  return fmt::format("the host updates: {} moved in {} a step, {:.1f} GB/s ({})",
                     human_bytes(u.bytes), human_seconds(u.seconds),
                     static_cast<double>(u.bytes) / u.seconds / 1e9, u.cost);
}

nlohmann::json host_update_json(const HostUpdate& u) {
  if (u.bytes == 0) return nullptr;
  return {{"seconds", u.seconds}, {"bytes", u.bytes}, {"prediction", u.cost}};
}

}  // namespace snug
