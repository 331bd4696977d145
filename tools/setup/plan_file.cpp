#include "tools/setup/plan_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/io/fingerprint.h"
#include "engine/io/json.h"
#include "layers/models/recompute.h"
#include "tools/config/keys.h"
#include "tools/costs/kernel_choices.h"
#include "tools/planner/attention_choice.h"
#include "tools/planner/decision_table.h"
#include "tools/session/device_choice.h"
#include "tools/setup/pinned_kernels.h"
#include "tools/setup/setup.h"

namespace snug {
namespace {

constexpr const char* kAgain = "the file as snug plan --json or a run wrote it, or plan=null";
constexpr int64_t kMost = int64_t{1} << 40;  // of counts, so that no product overflows

[[noreturn]] void not_as(const PlanFile& file, std::string_view key, std::string_view before,
                         const std::string& now, const std::string& advice) {
  fail(ErrorCode::usage, fmt::format("{} as in the plan {}: {}", key, file.path, before), now,
       advice);
}

// What a fact of the plan is called in the configuration, and how a difference is mended.
void check_made_for(const PlanFile& file, const PlanFacts& now) {
  for (const auto& [key, before] : file.made_for) {
    const auto at = now.find(key);
    if (at != now.end() && at->second == before) continue;
    if (key == "model")
      not_as(file, "model", "the same shapes and numerics", "another model",
             "the model keys it was made with, or plan=null to plan anew");
    not_as(file, key, before, at == now.end() ? "none" : at->second,
           fmt::format("the {} it was made with, or plan=null to plan anew", key));
  }
}

// Keys that say what the plan says already: they may repeat it, not contradict it. A resolved file
// spells out defaults that nobody asked for, so from a file those say nothing.
void check_keys(const PlanFile& file, const RunSetup& setup) {
  const RunConfig& c = setup.config;
  const Decisions& d = file.decisions;
  const auto same = [&](const char* key, bool equal, const std::string& before,
                        const std::string& now) {
    const Key& k = *find_key(key);
    const bool asked =
        c.is_set(key) && (c.where(key) == "command line" || print_value(c, k) != print_default(k));
    if (asked && !equal)
      not_as(file, key, before, fmt::format("{} ({})", now, c.where(key)),
             fmt::format("leave {} out, or plan=null to plan anew", key));
  };
  // Of layers what they say of slots, however it is spelled.
  const auto alike = [&](const Decision& row, const std::string& now) {
    const auto* layers = std::get_if<LayerWords Decisions::*>(&row.decided);
    if (layers == nullptr) return now == row.text(d);
    const bool recompute = *layers == &Decisions::recompute;
    const auto slots = [&](const LayerWords& words) {
      return parse_policies(recompute ? words : LayerWords(), recompute ? LayerWords() : words,
                            *setup.model);
    };
    return slots(d.**layers) == slots(now);
  };
  const int64_t N = std::max({d.micro_batch, d.eval_batch, int64_t{1}}) * d.T;
  for (const Decision& row : decision_table()) {
    if (row.key == nullptr) continue;
    std::string now = row.given_in(c);
    if (row.at_most) now = std::to_string(std::min(std::stoll(now), static_cast<long long>(N)));
    same(row.key, now == "auto" || alike(row, now), row.text(d), now);
  }
  same("gradient_accumulation_steps", file.accumulation == c.gradient_accumulation_steps,
       std::to_string(file.accumulation), std::to_string(c.gradient_accumulation_steps));
  if (c.bitwise &&
      (d.micro_batch != setup.request.global_batch || d.head_rows != std::min<int64_t>(1024, N)))
    not_as(
        file, "bitwise",
        fmt::format("false, since it cuts a batch into micro-batches of {} and chunks of {} rows",
                    d.micro_batch, d.head_rows),
        fmt::format("true ({})", c.where("bitwise")), "bitwise=false, or plan=null to plan anew");
}

}  // namespace

void check_seal(const nlohmann::json& plan, const std::string& path, const std::string& advice) {
  if (get_string(plan, "seal", path) != plan_seal(plan))
    fail(ErrorCode::data, fmt::format("the plan {} as Snug wrote it", path),
         "its text was changed: the seal is that of another", advice);
}

PlanFacts read_made_for(const nlohmann::json& plan, const std::string& path) {
  const std::string where = path + " / made_for";
  const nlohmann::json made = plan.value("made_for", nlohmann::json());
  require_object(made, where);
  PlanFacts facts;
  for (const auto& [key, value] : made.items()) facts[key] = get_string(made, key.c_str(), where);
  return facts;
}

void check_update(const Decisions& d, const PlanRequest& r, const std::string& path) {
  if (d.update_in_backward && (r.max_grad_norm > 0 || r.model->precision().loss_scaling() ||
                               d.micro_batch * r.ranks < r.global_batch))
    fail(ErrorCode::data,
         fmt::format("update {} for max_grad_norm above 0, loss scaling or several micro-steps in "
                     "{} / decisions",
                     kUpdateBehind, path),
         fmt::format("\"{}\"", kUpdateInBackward), kAgain);
}

Decisions read_decisions(const nlohmann::json& j, const std::string& where) {
  require_object(j, where);
  Decisions d;
  d.T = get_int_in(j, "max_length", where, 1, kMost);
  for (const Decision& row : decision_table()) row.read(j, where, kAgain, d);
  check_residence(d, where, kAgain);
  return d;
}

void fix_decisions(const Decisions& d, PlanRequest& r) {
  for (const Decision& row : decision_table()) row.fix(d, r);
}

PlanFile read_plan_file(const std::string& path) {
  const nlohmann::json j = parse_json_file(path);
  const auto no_plan = [&](const std::string& found) {
    fail(ErrorCode::data, fmt::format("a plan in {}", path), found, kAgain);
  };
  if (!j.is_object()) no_plan(json_brief(j));
  if (j.contains("decisions") && j["decisions"].is_null())
    no_plan("what snug plan says of a batch that has no room, which no plan was made for");
  if (!j.contains("format_version") || !j.contains("seal") || !j.contains("decisions"))
    no_plan(j.contains("hash") && j.contains("decisions")
                ? "a plan without a seal, of a version of Snug that did not read plans"
                : "JSON without format_version, seal and decisions");
  const int64_t format = get_int(j, "format_version", path);
  if (format != kPlanFormat)
    fail(ErrorCode::data, fmt::format("a plan of format {} in {}", kPlanFormat, path),
         fmt::format("format {}", format),
         "the version of Snug that wrote it, or plan=null to plan anew");
  check_seal(j, path,
             "keys beside the plan (recompute=block memory=2GiB) and snug plan --json for another "
             "plan, or plan=null");
  if (!get_bool(j, "fits", path))
    fail(ErrorCode::usage, fmt::format("a plan that fits in {}", path),
         get_string(j, "sentence", path), "snug plan --json with memory that suffices");
  if (j.contains("target") && j["target"].is_string())
    fail(ErrorCode::usage, fmt::format("a plan made for this machine in {}", path),
         fmt::format("one for {}", get_string(j, "target", path)),
         "snug plan --json without target");
  PlanFile file;
  file.path = path;
  file.hash = get_string(j, "hash", path);
  const std::string where = path + " / decisions";
  const nlohmann::json& decisions = j["decisions"];
  file.decisions = read_decisions(decisions, where);
  file.threads = get_int_in(decisions, "threads", where, 1, 1024);
  file.accumulation = get_int_in(decisions, "gradient_accumulation_steps", where, 1, kMost);
  file.instruction_set = get_string(decisions, "instruction_set", where);
  file.attention = get_string(decisions, "attention", where);
  file.kernels =
      parse_choices(decisions.value("kernels", nlohmann::json::array()), where + " / kernels");
  file.computes_on = parse_computes_on(j, path);
  file.made_for = read_made_for(j, path);
  return file;
}

void follow_plan(const PlanFile& file, RunSetup& setup) {
  PlanRequest& r = setup.request;
  check_made_for(file, plan_facts(r));
  if (file.instruction_set != plan_instruction_set())
    not_as(file, "a CPU with instructions", file.instruction_set, plan_instruction_set(),
           "the machine it was made on, or plan=null to plan anew");
  if (file.threads != r.settings.threads)
    not_as(file, "threads", std::to_string(file.threads), std::to_string(r.settings.threads),
           fmt::format("threads={}, or plan=null to plan anew", file.threads));
  check_keys(file, setup);
  check_update(file.decisions, r, file.path);
  if (r.settings.target == Place::cuda && setup.config.attn_implementation == "auto")
    choose_attention(r, file.attention == "cudnn");
  // Plans from before it was named, and those of other places, say nothing of it.
  const auto other = difference(file.computes_on, r.computes_on);
  if (file.computes_on.defined() && other)
    not_as(file, other->what, other->before, other->now,
           "the machine it was made on, or plan=null to plan anew");
  r.computes_on.algorithms = file.computes_on.algorithms;
  // Of the products on a GPU and on emu no table decides.
  if (r.settings.target == Place::cpu)
    *setup.kernels = pinned_kernels(file.kernels, file.path, setup.config.allow);
  fix_decisions(file.decisions, r);
  r.follow = {file.path, file.hash, file.attention};
}

}  // namespace snug
