// Keys that other trainers know and Snug does not have.
#include <fmt/format.h>

#include <algorithm>

#include "tools/config/keys.h"

namespace snug {
namespace {

// Keys that other trainers know. Left out, the run is as the reason says; a member of a map is
// written behind a dot.
constexpr ForeignKey kForeign[] = {
    // clang-format off
    {.names = "do_train do_eval", .why = "the subcommand and the data say what is done: snug train, snug eval",
     .neutral = "*"},
    {.names = "do_predict", .why = "the subcommand says what is done: snug generate"},
    {.names = "logging_first_step",
     .why = "logging_steps says when; 1 has the first step too"},
    {.names = "run_name logging_dir wandb_project",
     .why = "metrics go to files in output_dir, nowhere else; report_to says which"},
    {.names = "project trackio_space_id trackio_bucket_id trackio_static_space_id log_on_each_node "
              "logging_nan_inf_filter include_num_input_tokens_seen",
     .why = "metrics go to files in output_dir, as they are, with the tokens seen", .neutral = "*"},
    {.names = "log_level log_level_replica", .why = "every line that a run prints is meant for its reader",
     .neutral = "*"},
    {.names = "disable_tqdm", .why = "the live line appears on a terminal and nowhere else"},
    {.names = "push_to_hub hub_model_id hub_always_push hub_private_repo hub_revision",
     .why = "nothing is uploaded; final/ can be uploaded as it is"},
    {.names = "hub_token push_to_hub_token hub_strategy", .why = "nothing is uploaded, unless push_to_hub asks for it",
     .neutral = "*"},
    {.names = "trust_remote_code", .why = "no code of a model is ever run"},
    {.names = "auto_find_batch_size", .why = "the plan finds the micro-batch that fits before the run starts"},
    {.names = "dataloader_num_workers preprocessing_num_workers",
     .why = "samples are read from token files as they are needed; there are no workers to set", .neutral = "0"},
    {.names = "dataloader_drop_last",
     .why = "the steps of a run are whole batches; the samples that are left begin the next epoch"},
    {.names = "dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor "
              "dataloader_multiprocessing_context dataloader_in_order",
     .why = "samples are read from token files as they are needed, in the order of data_seed", .neutral = "*"},
    {.names = "remove_unused_columns length_column_name label_names",
     .why = "text_column says what is read of a record", .neutral = "*"},
    {.names = "train_sampling_strategy", .why = "samples come in a random order, which data_seed fixes",
     .neutral = "random"},
    {.names = "reset_attention_mask reset_position_ids eod_mask_loss",
     .why = "packing_boundaries does all three at once, or none"},
    {.names = "group_by_length packing sample_packing packing_strategy padding_free",
     .why = "nothing is padded: samples of text are windows of max_length tokens, in which packing_boundaries "
            "keeps documents apart, and rows lie back to back in such windows, always apart"},
    {.names = "gradient_checkpointing_kwargs activation_checkpointing_kwargs",
     .why = "recompute says what is computed again"},
    {.names = "use_cache", .why = "training uses no cache"},
    {.names = "torch_compile torch_compile_backend torch_compile_mode jit_mode_eval use_ipex use_liger_kernel "
              "liger_kernel_config optim_target_modules torch_empty_cache_steps",
     .why = "this is not PyTorch: there is nothing to compile or to pass on"},
    {.names = "adafactor", .why = "optim names the optimizer"},
    {.names = "initial_scale_power", .why = "init_scale is the loss scale itself, 2^initial_scale_power"},
    {.names = "hysteresis consecutive_hysteresis", .why = "every skipped step lowers the loss scale",
     .neutral = "1 false"},
    {.names = "fp16_full_eval bf16_full_eval", .why = "evaluation computes as training does, in precision"},
    {.names = "use_cpu no_cuda", .why = "device=cpu says it"},
    {.names = "label_smoothing_factor neftune_noise_alpha", .why = "the loss is plain cross-entropy",
     .neutral = "0"},
    {.names = "reference_free ref_model ref_adapter_name model_adapter_name force_use_ref_model sync_ref_model "
              "ref_model_mixup_alpha ref_model_sync_steps",
     .why = "the reference of task: dpo is the model without its adapters, or as it was", .neutral = "false"},
    {.names = "precompute_ref_batch_size", .why = "a reference is computed in the batches of evaluation",
     .neutral = "*"},
    {.names = "disable_dropout", .why = "task: dpo and reward drop nothing out", .neutral = "true"},
    {.names = "truncation_mode", .why = "rows are cut at their end", .neutral = "keep_start"},
    {.names = "max_prompt_length max_completion_length",
     .why = "max_length is that of prompt and answer together"},
    {.names = "pad_to_multiple_of", .why = "rows lie back to back, without padding", .neutral = "*"},
    {.names = "loss_weights ld_alpha", .why = "one loss of whole answers is learned"},
    {.names = "f_divergence_type", .why = "rewards are log ratios", .neutral = "reverse_kl"},
    {.names = "f_alpha_divergence_coef discopop_tau", .why = "no loss here has it", .neutral = "*"},
    {.names = "use_weighting cpo_alpha rpo_alpha",
     .why = "pairs count alike, and beside them nothing is learned but what loss_type: orpo learns",
     .neutral = "false 0"},
    {.names = "use_peft", .why = "peft names the adapters"},
    {.names = "bnb_4bit_quant_storage", .why = "codes rest as bytes", .neutral = "uint8"},
    {.names = "llm_int8_has_fp16_weight llm_int8_enable_fp32_cpu_offload",
     .why = "frozen weights in 8 bits rest in these alone; offload_params says where", .neutral = "false"},
    {.names = "lora_bias", .why = "adapters are LoRA's"},
    {.names = "use_mora", .why = "peft=mora says it", .neutral = "false"},
    {.names = "encoder_dropout", .why = "what makes virtual tokens drops nothing out", .neutral = "0"},
    {.names = "deepspeed fsdp fsdp_config zero_stage parallelism_config ddp_backend ddp_find_unused_parameters "
              "ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph",
     .why = "ranks and zero say who shares the work and what each keeps"},
    {.names = "local_rank", .why = "ranks starts them all", .neutral = "-1 0"},
    {.names = "average_tokens_across_devices save_on_each_node eval_use_gather_object",
     .why = "a mean is over all trained tokens of a step, of all ranks", .neutral = "*"},
    {.names = "accelerator_config accelerator_config.split_batches accelerator_config.dispatch_batches "
              "accelerator_config.gradient_accumulation_kwargs",
     .why = "one device is used; global_batch_size says what a step has"},
    {.names = "accelerator_config.even_batches accelerator_config.use_seedable_sampler "
              "accelerator_config.non_blocking",
     .why = "one device is used, and the order of samples is that of data_seed", .neutral = "*"},
    {.names = "eval_delay", .why = "eval_steps says when", .neutral = "0"},
    {.names = "eval_on_start eval_do_concat_batches eval_accumulation_steps prediction_loss_only batch_eval_metrics "
              "include_for_metrics",
     .why = "a run begins with an evaluation, whose loss is summed on the way", .neutral = "*"},
    {.names = "save_only_model", .why = "a checkpoint holds everything that a resume needs"},
    {.names = "enable_jit_checkpoint", .why = "a signal ends a run with a checkpoint, always", .neutral = "*"},
    {.names = "ignore_data_skip restore_callback_states_from_checkpoint",
     .why = "a resume goes on where the data was"},
    {.names = "full_determinism", .why = "the same numbers come out of every run", .neutral = "*"},
    {.names = "debug", .why = "there is nothing of it here", .neutral = ""},
    {.names = "skip_memory_metrics", .why = "memory.json says what memory was taken", .neutral = "*"},
    {.names = "completion_only_loss assistant_only_loss",
     .why = "task: sft trains completions and an assistant's turns and nothing else, causal_lm every token",
     .neutral = "true"},
    {.names = "train_on_inputs",
     .why = "task: sft trains completions and an assistant's turns and nothing else, causal_lm every token"},
    // clang-format on
};

constexpr StrategyKey kStrategies[] = {
    {"save_strategy", "save_steps", "save_steps=N; load_best_model_at_end=true saves every best"},
    {"eval_strategy evaluation_strategy", "eval_steps", "eval_steps=N",
     "eval_data eval_fraction sample_prompt"},
    {"logging_strategy", "logging_steps", "logging_steps=N"},
};

// The row of a table whose `names` have the name; null if none has.
template <class Row, size_t N>
const Row* find_row(const Row (&rows)[N], std::string_view name) {
  for (const Row& row : rows) {
    const std::vector<std::string_view> names = words(row.names);
    if (std::find(names.begin(), names.end(), name) != names.end()) return &row;
  }
  return nullptr;
}

}  // namespace

const ForeignKey* find_foreign_key(std::string_view name) {
  return find_row(kForeign, name);
}

const StrategyKey* find_strategy_key(std::string_view name) {
  return find_row(kStrategies, name);
}

bool asks_for_nothing(const ForeignKey& key, const ConfigNode& value) {
  if (key.neutral == "*") return true;
  switch (value.kind) {
    case ConfigNode::Kind::null:
      return true;
    case ConfigNode::Kind::scalar:
      return value.text.empty() || listed(key.neutral, value);
    case ConfigNode::Kind::list:
      return value.items.empty();
    case ConfigNode::Kind::map:
      return std::all_of(
          value.entries.begin(), value.entries.end(), [&](const ConfigNode::Entry& entry) {
            const ForeignKey* const member =
                find_foreign_key(fmt::format("{}.{}", words(key.names).front(), entry.key));
            return member != nullptr && asks_for_nothing(*member, entry.value);
          });
  }
  return false;
}

}  // namespace snug
