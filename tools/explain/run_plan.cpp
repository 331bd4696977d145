#include "tools/explain/run_plan.h"

#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "tools/planner/attention_choice.h"
#include "tools/setup/plan_file.h"

namespace snug {

RunPlan plan_of_run(const std::string& folder) {
  const std::string config_path = folder + "/config.resolved.yaml", path = folder + "/plan.json";
  if (!file_exists(config_path) || !file_exists(path))
    fail(ErrorCode::usage, "the folder of a run, which holds config.resolved.yaml and plan.json",
         folder, "the output_dir of a run, or --config run.yaml");
  RunConfig config = load_config(config_path, {});
  // The run's own copy is there even where the one it was made from is gone.
  if (file_exists(folder + "/tokenizer/tokenizer.json")) config.tokenizer = folder + "/tokenizer";
  config.plan.clear();  // what it followed stands in its own plan
  RunPlan run;
  run.setup = make_setup(config);
  const nlohmann::json written = parse_json_file(path);
  require_object(written, path);
  const std::string anew =
      fmt::format("--config {}, which explains what would be planned here", config_path);
  const std::string hash = get_string(written, "hash", path);
  if (written.contains("seal")) check_seal(written, path, anew);  // older plans have none
  PlanRequest& request = run.setup.request;
  const PlanFacts now = plan_facts(request);
  if (written.contains("made_for"))
    for (const auto& [key, before] : read_made_for(written, path))
      if (const auto at = now.find(key); at != now.end() && at->second != before)
        fail(ErrorCode::data,
             fmt::format("the configuration that {} was made for, {}: {}", path, key,
                         key == "model" ? "the same shapes and numerics" : before),
             fmt::format("{} in {}", key == "model" ? "another model" : at->second, config_path),
             anew);
  request.budget = get_int(written, "budget_bytes", path, 0);
  request.free_bytes = 0;  // the run may hold them now
  const nlohmann::json decided = written.value("decisions", nlohmann::json());
  if (request.settings.target == Place::cuda && config.attn_implementation == "auto")
    choose_attention(request, get_string(decided, "attention", path + " / decisions") == "cudnn");
  run.plan = make_plan(request);
  if (run.plan.fits && plan_hash(run.plan) == hash) return run;

  const Decisions decisions = read_decisions(decided, path + " / decisions");
  check_update(decisions, request, path);
  fix_decisions(decisions, request);
  run.plan = make_plan(request);
  if (plan_hash(run.plan) != hash)
    fail(
        ErrorCode::data, fmt::format("the plan {} of {}", hash, path),
        fmt::format("another one, {}: this version, machine or calibration plans the run otherwise",
                    plan_hash(run.plan)),
        anew);
  if (!run.plan.fits)
    fail(ErrorCode::data, fmt::format("memory that the plan of {} fits in {}", path, config_path),
         plan_sentence(run.plan), anew);
  return run;
}

}  // namespace snug
