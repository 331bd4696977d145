#include "tools/setup/task_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "layers/adapters/first_weights.h"
#include "layers/adapters/kinds.h"
#include "layers/models/family.h"
#include "layers/tasks/metrics.h"
#include "layers/tasks/preference.h"
#include "tools/config/complaints.h"
#include "tools/config/keys.h"
#include "tools/setup/row_data.h"

namespace snug {
namespace {

// Words of the key peft whose model without the adapter is there beside it, for the same sequences.
const std::string& words_beside() {
  static const std::string text = [] {
    std::string all;
    for (const AdapterMethod* row : adapter_methods())
      if (!row->front) all += (all.empty() ? "" : " ") + std::string(row->words);
    return all;
  }();
  return text;
}

// Of task: dpo and reward. The reference of a loss that has one is the model without its adapters, so that
// nothing else of it may be trained.
void check_pair_keys(const RunConfig& config, bool looks, Complaints& complaints) {
  const PairDecision decision = pair_decision(config);
  const PairLossFacts& loss = facts_of(decision.loss.kind);
  const auto said = [&](const char* key) {
    return fmt::format("{}: {} ({})", key, print_value(config, *find_key(key)), config.where(key));
  };
  const auto refuse = [&](const std::string& expected, const std::string& found,
                          const std::string& advice) {
    complaints.add(ErrorCode::usage, expected, found, advice);
  };
  if (decision.reward) {
    if (config.lora_dropout > 0)
      refuse("no dropout with task: reward, as TRL has it", said("lora_dropout"),
             "leave lora_dropout out");
    return;
  }
  if (!loss.smoothing && config.label_smoothing > 0)
    refuse("label_smoothing only with loss_type: sigmoid or simpo",
           fmt::format("{}, and {}", said("label_smoothing"), said("loss_type")),
           "leave label_smoothing out");
  if (config.loss_type != "simpo" && !is_idle(config, *find_key("simpo_gamma")))
    refuse("simpo_gamma only with loss_type: simpo",
           fmt::format("{}, and {}", said("simpo_gamma"), said("loss_type")),
           "leave simpo_gamma out");
  for (const char* key : {"desirable_weight", "undesirable_weight"})
    if (!loss.single && !is_idle(config, *find_key(key)))
      refuse(fmt::format("{} only with loss_type: kto or apo_zero_unpaired", key),
             fmt::format("{}, and {}", said(key), said("loss_type")),
             fmt::format("leave {} out", key));
  if (loss.single && config.desirable_weight == 0 && config.undesirable_weight == 0)
    refuse("a desirable_weight or an undesirable_weight above 0",
           fmt::format("{}, and {}", said("desirable_weight"), said("undesirable_weight")),
           "leave one of them out");
  if (config.lora_dropout > 0)
    refuse(
        "no dropout with task: dpo, whose reference and model are to differ in their weights alone",
        said("lora_dropout"), "leave lora_dropout out");
  if (!loss.reference && config.precompute_ref_log_probs)
    refuse("precompute_ref_log_probs only with a loss_type that has a reference",
           fmt::format("{}, and {}", said("precompute_ref_log_probs"), said("loss_type")),
           "leave precompute_ref_log_probs out");
  if (!loss.reference || config.reference_of_start()) return;
  const std::string why =
      fmt::format("loss_type: {}, whose reference is the model without its adapters", loss.name);
  if (config.peft.empty() && !looks)
    refuse(fmt::format("adapters as peft: {} for {}", word_list(words_beside()), why), "peft: null",
           "peft=lora, or precompute_ref_log_probs=true for a whole model");
  else if (const FirstWay* const way = find_first_way(config.init_lora_weights);
           way && way->residual)
    refuse("init_lora_weights: true or gaussian for " + why,
           fmt::format("{}, which takes a part of the model away", said("init_lora_weights")),
           "init_lora_weights=true, or precompute_ref_log_probs=true");
  if (config.bias != "none") refuse("bias: none for " + why, said("bias"), "leave bias out");
  if (!config.modules_to_save.empty())
    refuse("no modules_to_save for " + why, said("modules_to_save"), "leave modules_to_save out");
}

}  // namespace

std::vector<std::string> check_task_keys(const RunConfig& config, const ModelSpec& spec,
                                         bool token_rows, bool looks) {
  const HeadKind head = spec.head;
  const bool pairs = learns_pairs(config.task), chats = config.task == "sft" || pairs;
  const bool sequences = head == HeadKind::sequence_classification && !pairs,
             causal = head == HeadKind::causal_lm, masked = head == HeadKind::masked_lm;
  Complaints complaints;
  // A value that asks for nothing may stand in a configuration that was resolved for another task.
  const auto only_with = [&](bool good, const char* what, std::initializer_list<const char*> keys) {
    for (const char* key : keys)
      if (!good && !is_idle(config, *find_key(key)))
        complaints.add(
            ErrorCode::usage, fmt::format("{} only with {}", key, what),
            fmt::format("{}: {} ({}), and the task is {}", key, print_value(config, *find_key(key)),
                        config.where(key), chats ? config.task : to_string(head)),
            fmt::format("leave {} out", key));
  };
  only_with(sequences, "task: sequence_classification", {"problem_type", "text_pair_column"});
  only_with(sequences || head == HeadKind::token_classification,
            "task: sequence_classification or token_classification", {"label_column"});
  only_with(masked, "task: masked_lm", {"mlm_probability", "whole_word_mask"});
  only_with(causal, "task: causal_lm, which writes texts", {"sample_prompt"});
  only_with(causal || config.token_cache == "none", "task: causal_lm: rows are read anew each time",
            {"token_cache"});
  only_with(chats, "task: sft, dpo or reward", {"chat_template"});
  only_with(config.task == "dpo", "task: dpo",
            {"loss_type", "beta", "label_smoothing", "simpo_gamma", "desirable_weight",
             "undesirable_weight", "precompute_ref_log_probs"});
  only_with(config.task == "reward", "task: reward", {"center_rewards_coefficient"});
  if (pairs) check_pair_keys(config, looks, complaints);
  for (const char* key : {"token_cache", "quoting", "text_column"})
    if (token_rows && (chats || std::string_view(key) != "text_column"))
      if (!is_idle(config, *find_key(key)) && print_value(config, *find_key(key)) != "none")
        complaints.add(ErrorCode::usage, fmt::format("{} only with text", key),
                       fmt::format("{}: {} ({}), and the data is {}", key,
                                   print_value(config, *find_key(key)), config.where(key),
                                   pairs   ? "pairs"
                                   : chats ? "conversations"
                                           : "rows of input_ids"),
                       fmt::format("leave {} out", key));
  complaints.raise();
  std::vector<std::string> notes;
  if (config.packing_boundaries && !causal)
    notes.emplace_back(
        "packing_boundaries: true changes nothing: rows of an encoder are always kept apart");
  else if (config.packing_boundaries && token_rows)
    notes.push_back(
        fmt::format("packing_boundaries: true changes nothing: {} are always kept apart",
                    pairs   ? "answers"
                    : chats ? "conversations"
                            : "rows of tokens"));
  if (config.task == "dpo" && !looks && !config.adapter.empty() && pair_decision(config).cached &&
      !config.precompute_ref_log_probs)
    notes.push_back(
        fmt::format("the reference is the model with {} as the run begins, as TRL has it; its log "
                    "probabilities are computed before the first step",
                    config.adapter));
  if (pairs && !looks && !config.is_set("learning_rate"))
    notes.push_back(fmt::format(
        "learning_rate: {} is made for training from scratch; {}", config.learning_rate,
        config.task == "reward" ? "rewards are usually learned with 1e-5, beside a model with 1e-4"
                                : "preferences are usually learned with 5e-6 to 5e-5, whole models "
                                  "with 1e-6"));
  return notes;
}

void check_metric(const RunConfig& config, const ModelSpec& spec) {
  std::vector<std::string> known = {"eval_loss"};
  const bool pairs = learns_pairs(config.task);
  if (!has_metrics(spec.head) && !pairs) known.emplace_back("eval_perplexity");
  for (const std::string_view name :
       pairs ? preference_names(pair_decision(config).form()) : metric_names(spec))
    known.push_back(fmt::format("eval_{}", name));
  const std::string& given = config.metric_for_best_model;
  if (std::find(known.begin(), known.end(), given) != known.end()) return;
  std::string task = pairs ? config.task : to_string(spec.head);
  if (spec.head == HeadKind::sequence_classification && !pairs)
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
