#include "tools/trainer/trainer_state.h"

#include <fmt/format.h>

#include "engine/io/files.h"
#include "engine/io/json.h"
#include "tools/trainer/line_file.h"

namespace snug {

void write_trainer_state(const std::string& path, const std::string& metrics_path,
                         const TrainerStateInfo& info) {
  AtomicFile out(path);
  const bool best = info.best_metric.has_value();
  // In the order of their names, as Python's json.dumps(sort_keys=True) has them.
  std::string text = fmt::format(
      "{{\n  \"best_global_step\": {},\n  \"best_metric\": {},\n"
      "  \"best_model_checkpoint\": {},\n  \"epoch\": {},\n  \"eval_steps\": {},\n"
      "  \"global_step\": {},\n  \"is_hyper_param_search\": false,\n"
      "  \"is_local_process_zero\": true,\n  \"is_world_process_zero\": true,\n"
      "  \"log_history\": [",
      best ? std::to_string(info.best_step) : "null",
      best ? nlohmann::json(*info.best_metric).dump() : "null",
      info.best_checkpoint.empty()
          ? "null"
          : nlohmann::json(info.best_checkpoint)
                .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
      nlohmann::json(info.epoch).dump(), info.eval_steps, info.step);
  bool first = true;
  if (file_exists(metrics_path)) {
    LineReader in(metrics_path);
    while (const auto line = in.next()) {
      const auto step = step_of_line(*line);
      if (!step || *step > info.step) continue;
      text += first ? "\n    " : ",\n    ";
      text += *line;
      first = false;
      if (text.size() < (size_t{1} << 16)) continue;
      out.write(text);
      text.clear();
    }
  }
  text += fmt::format(
      "{}],\n  \"logging_steps\": {},\n  \"max_steps\": {},\n  \"num_input_tokens_seen\": {},\n"
      "  \"num_train_epochs\": {},\n  \"save_steps\": {},\n  \"stateful_callbacks\": {{}},\n"
      "  \"total_flos\": 0,\n  \"train_batch_size\": {},\n  \"trial_name\": null,\n"
      "  \"trial_params\": null\n}}\n",
      first ? "" : "\n  ", info.logging_steps, info.max_steps, info.tokens_seen,
      nlohmann::json(info.num_train_epochs).dump(), info.save_steps, info.train_batch_size);
  out.write(text);
  out.commit();
}

}  // namespace snug
