#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "tools/checkpoint/checkpoint.h"
#include "tools/inspect/kinds.h"
#include "tools/planner/decision_table.h"
#include "tools/trainer/line_file.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

Facts pinned_facts(const Pinned& p) {
  Facts kernels = Facts::array();
  for (const KernelChoice& choice : p.kernels) kernels.push_back(to_string(choice));
  Facts facts = {{"seed", p.seed},
                 {"data_seed", p.data_seed},
                 {"global_batch", p.global_batch},
                 {"max_length", p.T},
                 {"packing_boundaries", p.packing_boundaries}};
  for (const Decision& row : decision_table())
    if (row.at_resume != AtResume::free) facts[row.name] = row.json(p.decisions);
  facts.update({{"threads", p.threads},
                {"precision", p.precision},
                {"optimizer", p.optimizer},
                {"instruction_set", p.instruction_set},
                {"attention", p.attention},
                {"kernels", kernels},
                {"model", p.model},
                {"data", p.data},
                {"train_tokens", p.train_tokens},
                {"train_samples", p.train_samples}});
  if (p.computes_on.defined()) {
    facts["gpu"] = p.computes_on.gpu;
    facts["libraries"] = describe(p.computes_on);
  }
  return facts;
}

Facts file_sizes(const std::string& folder) {
  std::vector<std::pair<std::string, int64_t>> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.is_regular_file(error))
      files.emplace_back(entry.path().filename().string(),
                         static_cast<int64_t>(entry.file_size(error)));
  std::sort(files.begin(), files.end());
  Facts out = Facts::array();
  for (const auto& [name, bytes] : files) out.push_back({{"file", name}, {"bytes", bytes}});
  return out;
}

}  // namespace

Facts inspect_checkpoint(const std::string& folder, const InspectOptions& options) {
  Facts out = {{"kind", "checkpoint"}, {"path", folder}};
  const bool complete = file_exists(folder + "/COMPLETE");
  out["complete"] = complete;
  if (!complete) {
    out["problem"] =
        "torn: the file COMPLETE, written last, is not there; a resume does not use it";
    out["files"] = file_sizes(folder);
    return out;
  }
  const Checkpoint c = read_checkpoint(folder);
  const RunPosition& at = c.position;
  out["step"] = at.step;
  out["updates"] = at.updates;
  const bool scaled = c.pinned.precision == "fp16";
  if (scaled || c.pinned.packing_boundaries) out["skipped_steps"] = at.step - at.updates;
  if (scaled) out["loss_scale"] = at.loss_scale;
  out["samples"] = at.samples;
  out["tokens_seen"] = at.samples * c.pinned.T;
  out["epoch"] =
      c.pinned.train_samples > 0
          ? Facts(static_cast<double>(at.samples) / static_cast<double>(c.pinned.train_samples))
          : Facts(nullptr);
  out["elapsed_seconds"] = at.elapsed;
  out["start_eval_loss"] = at.start_eval_loss >= 0 ? Facts(at.start_eval_loss) : Facts(nullptr);
  out["best_eval_loss"] = at.best_eval_loss >= 0 ? Facts(at.best_eval_loss) : Facts(nullptr);
  out["best_eval_step"] = at.best_eval_loss >= 0 ? Facts(at.best_eval_step) : Facts(nullptr);
  out["metric_for_best_model"] = at.best_by;
  out["greater_is_better"] = at.greater_is_better;
  out["best_metric"] = at.best_eval_loss >= 0 ? Facts(at.best_metric) : Facts(nullptr);
  out["pinned"] = pinned_facts(c.pinned);
  Facts keys = Facts::object();
  for (const auto& [key, value] : c.hyperparameters) keys[key] = value;
  out["hyperparameters"] = keys;
  // Both files are opened and checked as a resume does; their bytes end where their headers say.
  const Facts weights = file_exists(folder + "/adapter_config.json")
                            ? inspect_adapter(folder, options)
                            : inspect_model(folder, options);
  const Facts states = inspect_safetensors(folder + "/optimizer.safetensors", options);
  out["parameters"] = weights["parameters"];
  if (options.stats)
    out["not_finite"] = weights["not_finite"].get<int64_t>() + states["not_finite"].get<int64_t>();
  out["files"] = file_sizes(folder);
  out["tensors"] = weights["tensors"];
  out["optimizer_tensors"] = states["tensors"];
  return out;
}

Facts inspect_run(const std::string& folder) {
  Facts out = {{"kind", "run"}, {"path", folder}};
  const std::string memory = folder + "/memory.json";
  out["finished"] = false;
  if (file_exists(memory)) try {
      const nlohmann::json j = parse_json_file(memory);
      require_object(j, memory);
      out["finished"] = get_bool(j, "finished", memory, false);
      if (j.contains("failure") && j["failure"].is_string()) out["failure"] = j["failure"];
    } catch (const Error& e) {  // the rest of the run is worth looking at all the same
      out["finished"] = nullptr;
      out["problem"] = fmt::format("{} is left out: {}", memory, e.found());
    }
  const std::string metrics = folder + "/metrics.jsonl";
  int64_t lines = 0;
  nlohmann::json last, last_eval;
  if (file_exists(metrics)) {
    LineReader in(metrics);
    while (const auto line = in.next()) {
      const nlohmann::json j = nlohmann::json::parse(*line, nullptr, false);
      if (!j.is_object() || !j.contains("step") || !j["step"].is_number_integer()) continue;
      ++lines;
      if (j.contains("loss")) last = j;
      if (j.contains("eval_loss")) last_eval = j;
    }
  }
  out["logged_lines"] = lines;
  out["last_step"] = last.is_null() ? Facts(nullptr) : Facts(last["step"]);
  out["last_loss"] = last.is_null() ? Facts(nullptr) : Facts(last["loss"]);
  out["last_eval_loss"] = last_eval.is_null() ? Facts(nullptr) : Facts(last_eval["eval_loss"]);
  out["final"] = file_exists(folder + "/final/model.safetensors") ||
                 file_exists(folder + "/final/adapter_model.safetensors");
  std::vector<std::pair<int64_t, std::string>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (const auto step = checkpoint_step(entry.path().filename().string()))
      found.emplace_back(*step, entry.path().string());
  std::sort(found.begin(), found.end());
  Facts rows = Facts::array();
  for (const auto& [step, path] : found)
    rows.push_back({{"step", step}, {"complete", file_exists(path + "/COMPLETE")}, {"path", path}});
  out["checkpoints"] = rows;
  return out;
}

}  // namespace snug
