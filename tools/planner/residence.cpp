#include "tools/planner/residence.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "optim/settings.h"

namespace snug {

namespace {

// Weights with the host are updated where the optimizer's state is, and read as they are.
void check_params(const RunConfig& config, const PlanRequest& r) {
  if (r.offload_params != "cpu") return;
  if (r.offload_optimizer == "none")
    fail(ErrorCode::usage, "the optimizer's state with the host too, for offload_params",
         fmt::format("offload_optimizer: none ({})", config.where("offload_optimizer")),
         "offload_optimizer=cpu, or offload_params=none");
  if (r.packed_weights.value_or(WeightPacking::none) != WeightPacking::none)
    fail(ErrorCode::usage, "no packed copies of weights that rest with the host",
         fmt::format("packed_weights: {} ({})", config.packed_weights,
                     config.where("packed_weights")),
         "packed_weights=none, or offload_params=none");
}

bool has_frozen_tables(const PlanRequest& r) {
  const ParamTable& table = r.model->params();
  return table.tables_first() < table.flat_elements();
}

// A table that is trained has a gradient, and one that the head or DoRA shares is read whole.
void check_embedding(const RunConfig& config, const PlanRequest& r) {
  if (r.offload_embedding != "cpu" || has_frozen_tables(r)) return;
  const bool tied = r.model->spec().tied, norms = adapter_reads_whole(r.model->adapters(), "wte");
  fail(ErrorCode::usage, "a frozen embedding that the head does not share, for offload_embedding",
       fmt::format("offload_embedding: cpu ({}), and an embedding that is {}",
                   config.where("offload_embedding"),
                   tied    ? "the head too"
                   : norms ? "read whole for the norms of its columns"
                           : "trained"),
       tied                          ? "offload_embedding=auto"
       : norms                       ? "offload_embedding=auto, or peft=lora"
       : r.model->adapters().empty() ? "offload_embedding=auto, or freeze=wte"
                                     : "offload_embedding=auto, or modules_to_save without it");
}

std::vector<std::string> tries_embedding(const PlanRequest& r) {
  if (!r.use_host || r.zero == 3 || !has_frozen_tables(r)) return {};
  return {"cpu"};
}

}  // namespace

std::span<const ResidenceKey> residence_keys() {
  static constexpr ResidenceKey keys[] = {
      {.name = "offload_params",
       .asked = &Asked::offload_params,
       .decided = &Homes::offload_params,
       .what = "the layers' weights",
       .check = check_params},
      {.name = "offload_embedding",
       .asked = &Asked::offload_embedding,
       .decided = &Homes::offload_tables,
       .what = "the frozen embedding",
       .beside = "embedding with the host",
       .check = check_embedding,
       .tries = tries_embedding,
       .of_blocks = false},
      {.name = "offload_gradients",
       .asked = &Asked::offload_gradients,
       .decided = &Homes::offload_gradients,
       .what = "the layers' gradients"},
      {.name = "offload_optimizer",
       .asked = &Asked::offload_optimizer,
       .decided = &Homes::offload_optimizer,
       .what = "the optimizer's state",
       .filed = &Homes::states_on_disk},
      {.name = "offload_update",
       .asked = &Asked::offload_update,
       .decided = &Homes::update_on_host,
       .device = "gpu",
       .on_host = "updates by the host",
       .on_device = "updates by the device"},
  };
  return keys;
}

bool rests_away(const Homes& homes) {
  for (const ResidenceKey& key : residence_keys())
    if (homes.*key.decided) return true;
  return false;
}

std::string rests_with_host(const Decisions& d) {
  std::vector<const char*> list;
  for (const ResidenceKey& key : residence_keys())
    if (key.what != nullptr && d.*key.decided) list.push_back(key.what);
  std::string text;
  for (size_t i = 0; i < list.size(); ++i)
    text += (i == 0 ? "" : i + 1 < list.size() ? ", " : " and ") + std::string(list[i]);
  return text;
}

void check_residence(const Decisions& d, const std::string& where, const std::string& advice) {
  const auto refuse = [&](const std::string& expected, const std::string& found) {
    fail(ErrorCode::data, fmt::format("{} in {}", expected, where), found, advice);
  };
  const auto value = [](bool away) { return away ? "cpu" : "none"; };
  const char* const update = d.update_in_backward ? kUpdateInBackward : kUpdateBehind;
  if (d.states_on_disk && (d.update_in_backward || d.offload_params))
    refuse(
        fmt::format("update {} and offload_params none for offload_optimizer disk", kUpdateBehind),
        fmt::format("update {}, offload_params {}", update, value(d.offload_params)));
  if (d.update_on_host && !(d.offload_optimizer && d.offload_gradients))
    refuse("offload_optimizer cpu and offload_gradients cpu for offload_update cpu",
           fmt::format("offload_optimizer {}, offload_gradients {}", value(d.offload_optimizer),
                       value(d.offload_gradients)));
  if (d.delayed_update && (!d.update_on_host || d.offload_params))
    refuse("offload_update cpu and offload_params none for updates one step late",
           fmt::format("offload_update {}, offload_params {}", d.update_on_host ? "cpu" : "gpu",
                       value(d.offload_params)));
  if (d.offload_params && (!d.offload_optimizer || d.packed_weights != WeightPacking::none))
    refuse("offload_optimizer cpu and packed_weights none for offload_params cpu",
           fmt::format("offload_optimizer {}, packed_weights {}", value(d.offload_optimizer),
                       to_string(d.packed_weights)));
  if (d.update_in_backward && d.offload_gradients)
    refuse(fmt::format("update {} for offload_gradients cpu", kUpdateBehind),
           fmt::format("\"{}\"", update));
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
  if (r.global_batch <= 0) return false;
  if (r.offload_update == "cpu") return true;
  if (r.settings.target == Place::cpu) return false;
  return r.offload_update == "auto" && r.use_host && cost.host() != nullptr &&
         can_update_on_host(r.optimizer);
}

bool may_delay_updates(const PlanRequest& r) {
  const OptimFacts* facts = find_optimizer(r.optimizer.name);
  return r.delayed_update.value_or(r.stale_update) && (facts == nullptr || !facts->keeps_others);
}

bool may_update_at_once(const PlanRequest& r) {
  return !r.delayed_update.value_or(false) && r.settings.target != Place::cpu;
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

std::string host_update_text(const HostUpdate& u, bool late) {
  if (u.bytes == 0) return "";
  return fmt::format(
      "the host updates: {} moved in {} a step, {:.1f} GB/s ({}){}", human_bytes(u.bytes),
      human_seconds(u.seconds), static_cast<double>(u.bytes) / u.seconds / 1e9, u.cost,
      late ? ", beside the next step: that changes numbers (allow: stale_update)" : "");
}

nlohmann::json host_update_json(const HostUpdate& u) {
  if (u.bytes == 0) return nullptr;
  return {{"seconds", u.seconds}, {"bytes", u.bytes}, {"prediction", u.cost}};
}

}  // namespace snug
