#include "tools/setup/task_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "layers/models/family.h"
#include "layers/tasks/metrics.h"
#include "tools/config/complaints.h"
#include "tools/config/keys.h"

namespace snug {

std::vector<std::string> check_task_keys(const RunConfig& config, const ModelSpec& spec,
                                         bool token_rows) {
  const HeadKind head = spec.head;
  const bool sequences = head == HeadKind::sequence_classification, causal = !spec.encoder(),
             masked = head == HeadKind::masked_lm;
  Complaints complaints;
  // A value that asks for nothing may stand in a configuration that was resolved for another task.
  const auto only_with = [&](bool good, const char* what, std::initializer_list<const char*> keys) {
    for (const char* key : keys)
      if (!good && !is_idle(config, *find_key(key)))
        complaints.add(
            ErrorCode::usage, fmt::format("{} only with {}", key, what),
            fmt::format("{}: {} ({}), and the task is {}", key, print_value(config, *find_key(key)),
                        config.where(key), config.task == "sft" ? "sft" : to_string(head)),
            fmt::format("leave {} out", key));
  };
  only_with(sequences, "task: sequence_classification", {"problem_type", "text_pair_column"});
  only_with(sequences || head == HeadKind::token_classification,
            "task: sequence_classification or token_classification", {"label_column"});
  only_with(masked, "task: masked_lm", {"mlm_probability", "whole_word_mask"});
  only_with(causal, "task: causal_lm, which writes texts", {"sample_prompt"});
  only_with(causal || config.token_cache == "none", "task: causal_lm: rows are read anew each time",
            {"token_cache"});
  const bool chats = config.task == "sft";
  only_with(chats, "task: sft", {"chat_template"});
  for (const char* key : {"token_cache", "quoting", "text_column"})
    if (token_rows && (chats || std::string_view(key) != "text_column"))
      if (!is_idle(config, *find_key(key)) && print_value(config, *find_key(key)) != "none")
        complaints.add(
            ErrorCode::usage, fmt::format("{} only with text", key),
            fmt::format("{}: {} ({}), and the data is {}", key, print_value(config, *find_key(key)),
                        config.where(key), chats ? "conversations" : "rows of input_ids"),
            fmt::format("leave {} out", key));
  complaints.raise();
  if (config.packing_boundaries && !causal)
    return {"packing_boundaries: true changes nothing: rows of an encoder are always kept apart"};
  if (config.packing_boundaries && token_rows)
    return {fmt::format("packing_boundaries: true changes nothing: {} are always kept apart",
                        chats ? "conversations" : "rows of tokens")};
  return {};
}

void check_metric(const RunConfig& config, const ModelSpec& spec) {
  std::vector<std::string> known = {"eval_loss"};
  if (!has_metrics(spec.head)) known.emplace_back("eval_perplexity");
  for (const std::string_view name : metric_names(spec))
    known.push_back(fmt::format("eval_{}", name));
  const std::string& given = config.metric_for_best_model;
  if (std::find(known.begin(), known.end(), given) != known.end()) return;
  std::string task = to_string(spec.head);
  if (spec.head == HeadKind::sequence_classification)
    task += fmt::format(" of {}", spec.problem == Problem::regression    ? "values"
                                  : spec.problem == Problem::multi_label ? "several labels"
                                                                         : "one label");
  fail(ErrorCode::usage,
       fmt::format("metric_for_best_model as {} for {}", fmt::join(known, ", "), task),
       fmt::format("{} ({})", given, config.where("metric_for_best_model")),
       fmt::format("metric_for_best_model={}",
                   known.back() == "eval_perplexity" ? known[0] : known[1]));
}

}  // namespace snug
