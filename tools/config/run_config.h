// The configuration of a run: one YAML (or JSON) file with Hugging Face's names and key=value
// overrides, read strictly into plain typed fields. The table of keys (keys.h) drives parsing,
// help and the resolved file; what a key means stands there.
//
// Keys whose default is `auto` hold 0, -1 or nothing here until the user sets them; see is_set().
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "layers/adapters/config.h"
#include "tools/config/asked.h"

namespace snug {

// RunConfig::where() of what was written there.
inline constexpr const char* kCommandLine = "command line";

// What decisions are asked for stands in Asked, what an adapter's method has of its own in AdapterFields.
struct RunConfig : Asked, AdapterFields {
  // Model. `model` is a named shape or a folder; `model_config_json` is an object of Hugging Face
  // config keys as JSON text (`type` is written as Hugging Face does, model_type). One of the two
  // is empty as a rule. If both are given (model: gpt2 and model.n_layer=6, or {base: gpt2,
  // n_layer: 6}) the keys of the object replace those of the shape or folder.
  std::string model;
  std::string model_config_json;
  std::string init = "auto";          // auto | scratch | pretrained
  std::string freeze, unfreeze;       // layers/models/freeze.h; empty: nothing is frozen
  std::string task = "auto";          // auto, a HeadKind of layers/parts/spec.h, sft or dpo
  std::string problem_type = "auto";  // auto, or as transformers spells it
  double mlm_probability = 0.15;
  bool whole_word_mask = false;

  // Of task: dpo, as trl.DPOConfig names them; layers/ops/pair_losses.h. Of task: reward, as RewardConfig.
  std::string loss_type = "sigmoid";
  double beta = 0.1, label_smoothing = 0;
  double simpo_gamma = 0.5, center_rewards_coefficient = 0;
  double desirable_weight = 1, undesirable_weight = 1;  // as KTOConfig
  bool precompute_ref_log_probs = false;

  // Adapters, as peft.LoraConfig names them; tools/setup/peft_setup.h.
  std::string peft;                              // a word of layers/adapters/kinds.h; empty: none
  std::string adapter;                           // a PEFT folder to go on from
  std::string rank_pattern, alpha_pattern;       // maps as flow YAML (patterns.h); empty: none
  std::vector<std::string> layers_to_transform;  // numbers and ranges
  // The frozen weights beside them in 4 bits, as transformers' BitsAndBytesConfig names it. auto: as
  // peft: qlora has it (nf4, true, bf16), else as bitsandbytes (fp4, false, the key precision).
  bool load_in_4bit = false;
  std::string bnb_4bit_quant_type = "auto";        // auto | nf4 | fp4
  std::string bnb_4bit_use_double_quant = "auto";  // auto | true | false
  std::string bnb_4bit_compute_dtype = "auto";     // auto | float32 | bfloat16 | float16
  bool load_in_8bit = false;                       // or in 8, as LLM.int8()
  double llm_int8_threshold = 6.0;
  std::vector<std::string> llm_int8_skip_modules;  // of 4 bits too, as transformers has it

  // Data. Entries are files, folders or globs as written.
  std::vector<std::string> train_data;
  std::vector<std::string> eval_data;
  std::string text_column = "text";  // key of .jsonl records, column of .csv and .tsv
  std::string text_pair_column, label_column;
  std::string quoting = "auto";     // auto | none | minimal: quotes of .csv and .tsv
  std::string token_cache;          // empty: auto; "none"; or a folder, see token_cache.h
  double eval_fraction = 0;         // in [0, 1)
  int64_t max_eval_samples = 0;     // 0: all
  std::string tokenizer;            // empty: the model folder's
  std::string chat_template;        // a file; empty: the tokenizer's or model folder's
  int64_t max_length = 0;           // T; 0: auto, see resolve_sizes
  bool packing_boundaries = false;  // documents in a sample are kept apart

  // Run.
  std::string output_dir;
  bool overwrite = false;
  std::string resume;  // empty: no; "latest"; or the path of a checkpoint

  // Machine.
  std::string device = "auto";               // auto | cpu | emu | cuda[:N]
  int64_t memory = 0;                        // bytes; 0: auto, what is free less a reserve
  int64_t host_memory = 0;                   // bytes; 0: auto
  std::string target;                        // a described device to plan for; empty: this machine
  int64_t threads = 0;                       // 0: auto; of each rank
  int64_t ranks = 1;                         // processes that share the work
  std::string zero = "auto";                 // auto | 0 | 1 | 2 | 3: what each keeps a piece of
  std::string link;                          // between ranks of a target; empty: pcie4
  std::string transport = "auto";            // auto | local | mpi: between ranks
  double ddp_timeout = 600;                  // seconds that a rank waits for another
  std::string precision = "fp32";            // fp32 | tf32 | bf16 | fp16
  std::string attn_implementation = "auto";  // auto | own | cudnn
  std::string cuda_graphs = "auto";          // auto | on | off
  bool matmul_autotune = false;
  std::string recompute = "auto";  // auto, a policy, or "0-5: block, 6-11: none"
  std::string offload = "auto";    // a policy or a map like that
  std::string offload_disk;        // a folder; empty: output_dir
  int64_t disk_bandwidth = 0;      // bytes a second of it; 0: assumed
  std::string packed_weights = "auto";
  std::vector<std::string> allow;  // permissions, each known and built
  bool bitwise = false;
  std::string plan;  // a plan to follow; empty: the planner decides

  // Batch, as the user gave it; 0: not set. resolve_sizes() gives the sizes of the run.
  int64_t global_batch_size = 0;
  int64_t global_batch_tokens = 0;
  int64_t per_device_train_batch_size = 0;
  int64_t gradient_accumulation_steps = 0;
  int64_t per_device_eval_batch_size = 0;

  // Length of the run: it ends at whichever comes first. 0: not a limit. If the user set none,
  // num_train_epochs is 1.
  int64_t max_steps = 0;
  double num_train_epochs = 0;
  double max_time = 0;  // seconds

  // Optimizer.
  std::string optim = "adamw";       // optim_name() of optim/settings.h
  std::string optim_state = "auto";  // as the name above says, or a word of state_forms()
  std::string optim_args;            // "alpha=0.95,momentum=0.9"
  double learning_rate = 6e-4;
  double min_lr = -1;        // -1: not set, see resolve_min_lr
  double min_lr_ratio = -1;  // -1: not set
  // linear | cosine | constant | constant_with_warmup | warmup_stable_decay | cosine_with_restarts
  // | polynomial | inverse_sqrt; see schedule_config() in make_schedule.h
  std::string lr_scheduler_type = "cosine";
  double warmup_steps = -1;     // -1: auto; below 1 a share of all steps; see resolve_warmup
  double warmup_ratio = -1;     // -1: not set
  double lr_decay_steps = 0.1;  // of warmup_stable_decay; below 1 a share of all steps
  std::string lr_decay_type = "cosine";  // of warmup_stable_decay: cosine | linear | 1-sqrt
  double lr_num_cycles = 0;              // of the cosines; 0: their default
  double lr_power = 1;                   // of polynomial
  int64_t lr_timescale = 0;              // of inverse_sqrt; 0: the warm-up
  double weight_decay = 0.1;
  std::string param_groups;  // a list of maps as flow YAML (param_groups.h); empty: none
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_epsilon = 1e-8;
  double sgd_momentum = 0;
  double sgd_dampening = 0;
  bool sgd_nesterov = false;
  double max_grad_norm = 1.0;  // 0: no clipping

  // Loss scaling of precision: fp16; see optim/loss_scaling.h.
  double loss_scale = 0;  // 0: dynamic
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  double min_loss_scale = 1;

  // Reports and checkpoints, in optimizer steps.
  int64_t logging_steps = 10;
  std::vector<std::string> report_to = {"all"};  // all, none, or names among csv and tensorboard
  bool trace = false;                            // write trace.json, a measured step
  std::string loss_watchdog = "warn";            // off | warn | stop; see loss_watch.h
  int64_t early_stopping_patience = 0;           // evaluations; 0: never
  double early_stopping_threshold = 0;
  int64_t eval_steps = 200;      // 0: only before the first step and at the end
  int64_t save_steps = 500;      // 0: only when a signal stops the run
  int64_t save_total_limit = 0;  // 0: keep all
  int64_t save_buffer = -1;      // bytes; 0: no writing in the background; -1: auto
  bool load_best_model_at_end = false;
  std::string metric_for_best_model = "eval_loss";  // eval_ and a name of layers/tasks/metrics.h
  std::string greater_is_better = "auto";           // auto | true | false
  std::string save_dtype = "fp32";

  // Text written at every evaluation, or when one would be due; no prompt, no text.
  std::string sample_prompt;
  int64_t sample_tokens = 64;
  double sample_temperature = 0.8;  // 0: greedy
  int64_t sample_top_k = 50;        // 0: off
  double sample_top_p = 1.0;        // 1: off

  int64_t seed = 42;
  int64_t data_seed = -1;  // -1: the same as seed

  // Lines for the user: how keys were read that other trainers know and that ask for nothing here.
  std::vector<std::string> notes;

  // Where each key that was set was set: canonical name -> "run.yaml:7" or "command line".
  std::map<std::string, std::string, std::less<>> origins;

  // Of task: dpo: whether the reference is the model as the run begins, computed before its first step. Of an
  // adapter that goes on it is so, as TRL has a model of PEFT: a frozen copy of the adapter.
  bool reference_of_start() const { return precompute_ref_log_probs || !adapter.empty(); }

  // True if the file or the command line gave the key a value other than `auto`.
  bool is_set(std::string_view key) const { return origins.find(key) != origins.end(); }
  // For messages: "run.yaml:7", "command line" or "default".
  std::string where(std::string_view key) const;
};

// Reads `path` (empty: no file) and applies the overrides ("memory=8GiB", "model.n_layer=6") in
// order; command line wins over file over default, also where two keys exclude each other
// (resume=latest beside overwrite: true of the file). Then checks what keys ask of each other.
// Throws usage on an unknown key (with a suggestion), a wrong type, a value out of range or a
// contradiction, unsupported on what is known and not built, data on a file that cannot be read;
// each message names file:line. Needs no model and touches no file but `path`.
RunConfig load_config(const std::string& path, const std::vector<std::string>& overrides);
// The same from text; `origin` stands for the file name in messages.
RunConfig load_config_text(const std::string& text, const std::string& origin,
                           const std::vector<std::string>& overrides);

// Every key with its value, in documentation order, as YAML that loads back to the same fields.
// Keys that are `auto` and were not set are written as auto.
std::string resolved_yaml(const RunConfig& config);

// Sizes that follow from the keys and the model. `positions` is the longest sequence of the model.
struct RunSizes {
  int64_t max_length = 0;         // T: what was set, else the smaller of 1024 and positions
  int64_t global_batch_size = 0;  // samples an optimizer step
  int64_t micro_batch_size = 0;   // 0: for the planner to choose
};
// Throws usage if max_length is above positions, or if global_batch_size, global_batch_tokens,
// per_device_train_batch_size and gradient_accumulation_steps contradict each other.
RunSizes resolve_sizes(const RunConfig& config, int64_t positions);

// Steps of warm-up in a run of `total_steps`: what was set (a share is rounded up), else the
// smaller of 100 and a tenth of the run.
int64_t resolve_warmup(const RunConfig& config, int64_t total_steps);
// Steps of the last phase of warmup_stable_decay; at most total_steps, and of two shares that make
// at most a whole what the warm-up leaves.
int64_t resolve_decay(const RunConfig& config, int64_t total_steps);
// The learning rate at the end of a decaying schedule: min_lr, or min_lr_ratio * learning_rate, or
// 0.
double resolve_min_lr(const RunConfig& config);

}  // namespace snug
