#include "tools/config/keys.h"

#include <algorithm>

#include "optim/settings.h"
#include "tools/config/adapter_keys.h"
#include "tools/config/key_texts.h"

namespace snug {
namespace {

constexpr Range kPositive{.min = 1};
constexpr Range kNonNegative{.min = 0};
constexpr Range kAboveZero{.min = 0, .open_min = true};
constexpr Range kBelowOne{.min = 0, .max = 1, .open_max = true};
constexpr Range kShare{.min = 0, .max = 1};
// Scales that stay normal floats.
constexpr Range kScale{.min = 0, .max = 1e30};
constexpr Range kScaleAboveZero{.min = 1e-30, .max = 1e30};

std::vector<Key> keys_of_models() {
  using C = RunConfig;
  using K = KeyKind;
  return {
      // clang-format off
      {.name = "model", .section = "model", .kind = K::model, .field = &C::model,
       .doc = model_text(),
       .example = "{type: gpt2, n_layer: 4, n_embd: 128, n_head: 4, n_positions: 128}",
       .unset = "null", .aliases = "model_name_or_path base_model"},
      {.name = "init", .section = "model", .kind = K::choice, .field = &C::init,
       .doc = "where the weights come from; auto: the folder's if model is a folder, else random",
       .example = "scratch", .choices = "auto scratch pretrained"},
      {.name = "freeze", .section = "model", .kind = K::text, .field = &C::freeze,
       .doc = "a regular expression: parameters in whose names it is found stay as they are, and take "
              "no gradient, master or state; a range between dots is a range of layers; null: none",
       .example = "\"embed|layers.0-11.\"", .unset = "null"},
      {.name = "unfreeze", .section = "model", .kind = K::text, .field = &C::unfreeze,
       .doc = "of what freeze finds, what is trained nevertheless", .example = "\"lm_head\"",
       .unset = "null"},
      {.name = "task", .section = "model", .kind = K::choice, .field = &C::task,
       .doc = "what is learned; causal_lm: the next token; sft: an assistant's turns of conversations, or "
              "completions of prompts; dpo: to prefer the chosen of two answers to the rejected one; reward: a number that is "
              "larger for the chosen one; masked_lm: hidden tokens; "
              "sequence_classification: a label, several or a number of each text or pair; "
              "token_classification: a label of each word; auto: what the model's config says",
       .example = "sequence_classification",
       .choices = "auto causal_lm sft dpo reward masked_lm sequence_classification token_classification",
       .refused = "question_answering pretraining orpo kto",
       .refused_reason = why_no_task, .refused_instead = instead_of_task},
      {.name = "problem_type", .section = "model", .kind = K::choice, .field = &C::problem_type,
       .doc = "what labels of a sequence are; auto: lists are multi_label_classification, one known "
              "label or numbers with a fraction regression, all else single_label_classification",
       .example = "regression",
       .choices = "auto regression single_label_classification multi_label_classification"},
      {.name = "mlm_probability", .section = "model", .kind = K::number, .field = &C::mlm_probability,
       .doc = "share of the tokens that masked_lm hides: of them 80 % become the mask token, 10 % any "
              "token, 10 % stay", .example = "0.3", .range = {.min = 0, .max = 1, .open_min = true}},
      {.name = "whole_word_mask", .section = "model", .kind = K::flag, .field = &C::whole_word_mask,
       .doc = "masked_lm hides words with all their tokens, not single tokens", .example = "true"},

      {.name = "loss_type", .section = "preference", .kind = K::choice, .field = &C::loss_type,
       .doc = "of task: dpo, what pairs teach: sigmoid, DPO (with label_smoothing cDPO); ipo; simpo and orpo, which "
              "need no reference, the latter learning the chosen answer and its prompt too; kto and apo_zero_unpaired, "
              "which learn single answers with a label; and others, as TRL 1.16 "
              "names them. The reference of the others is the model without its adapters, or with precompute_ref_log_probs "
              "or adapter the model as it was",
       .example = "ipo", .choices = pair_loss_names(),
       .refused = "robust exo_pair bco_pair aot aot_unpaired aot_pair discopop sft kto_pair alphapo"},
      {.name = "beta", .section = "preference", .kind = K::number, .field = &C::beta,
       .doc = "of task: dpo, what log probabilities are multiplied by to be rewards: the larger, the nearer the model "
              "stays to its reference; of orpo, what its odds weigh beside what is learned of the chosen",
       .example = "0.05", .range = kAboveZero},
      {.name = "label_smoothing", .section = "preference", .kind = K::number,
       .field = &C::label_smoothing,
       .doc = "of sigmoid and simpo: the share of pairs whose answers are taken to be the wrong way round",
       .example = "0.1", .range = {.min = 0, .max = 0.5, .open_max = true}},
      {.name = "simpo_gamma", .section = "preference", .kind = K::number, .field = &C::simpo_gamma,
       .doc = "of simpo: the margin that rewards are to have", .example = "1.0", .range = {.min = 0}},
      {.name = "desirable_weight", .section = "preference", .kind = K::number,
       .field = &C::desirable_weight,
       .doc = "of kto and apo_zero_unpaired: what losses of desirable answers weigh; as many times more as there are "
              "fewer of them", .example = "1.33", .range = {.min = 0}},
      {.name = "undesirable_weight", .section = "preference", .kind = K::number,
       .field = &C::undesirable_weight, .doc = "the same of those that are not desirable",
       .example = "0.5", .range = {.min = 0}},
      {.name = "precompute_ref_log_probs", .section = "preference", .kind = K::flag,
       .field = &C::precompute_ref_log_probs,
       .doc = "of task: dpo: the reference is the model as the run begins, whose log probabilities of all pairs are "
              "computed before the first step and kept in output_dir, so that whole models are trained too. Of an adapter "
              "that goes on it is so always, as TRL has it",
       .example = "true"},
      {.name = "center_rewards_coefficient", .section = "preference", .kind = K::number,
       .field = &C::center_rewards_coefficient,
       .doc = "of task: reward: what the square of the sum of both rewards of a pair weighs beside its loss, so that "
              "rewards lie around 0", .example = "0.01", .range = {.min = 0}},
      // clang-format on
  };
}

std::vector<Key> other_keys() {
  using C = RunConfig;
  using K = KeyKind;
  std::vector<Key> keys = {
      // clang-format off
      {.name = "train_data", .section = "data", .kind = K::texts, .field = &C::train_data,
       .doc = "files, folders or globs: text, .jsonl with {\"text\": ...} or {\"input_ids\": [...]}, "
              ".csv, .tsv, each also as .gz or .zst, or .bin token files; output_dir, other runs, models and tokenizers are left "
              "out of folders and globs",
       .example = "[corpus.txt, more/*.jsonl]", .unset = "null", .aliases = "train_file"},
      {.name = "eval_data", .section = "data", .kind = K::texts, .field = &C::eval_data,
       .doc = "the same for evaluation", .example = "heldout.txt", .unset = "null",
       .aliases = "validation_data validation_file"},
      {.name = "eval_fraction", .section = "data", .kind = K::number, .field = &C::eval_fraction,
       .doc = "share held out for evaluation when there is no eval_data: of the documents, whole ones "
              "chosen by data_seed, or of the samples, the last ones, if there are too few documents",
       .example = "0.05", .range = kBelowOne, .aliases = "val_set_size"},
      {.name = "text_column", .section = "data", .kind = K::text, .field = &C::text_column,
       .doc = "key of the text in .jsonl records, name of its column in .csv and .tsv",
       .example = "content", .aliases = "text_field dataset_text_field text_key"},
      {.name = "text_pair_column", .section = "data", .kind = K::text, .field = &C::text_pair_column,
       .doc = "of classification: key or column of the second text of a pair, by name or number from 0",
       .example = "sentence2", .unset = "null"},
      {.name = "label_column", .section = "data", .kind = K::text, .field = &C::label_column,
       .doc = "of classification: key or column of the labels, by name or number from 0; null: label or "
              "labels, in a table without names the last", .example = "label", .unset = "null"},
      {.name = "quoting", .section = "data", .kind = K::choice, .field = &C::quoting,
       .doc = "quotes around fields: minimal, a field may be in them, with separators and line breaks inside; "
              "none, they stand for themselves and each line is a record; auto: what the format has, "
              "minimal of .csv, none of .tsv",
       .example = "none", .choices = "auto none minimal"},
      {.name = "token_cache", .section = "data", .kind = K::text, .field = &C::token_cache,
       .doc = "folder where the tokens of a text are kept for later runs; null: ~/.cache/snug (or "
              "$XDG_CACHE_HOME/snug) if the text has more than 64 MiB; none: in output_dir alone",
       .example = "tokens", .unset = "null", .aliases = "dataset_prepared_path"},
      {.name = "max_eval_samples", .section = "data", .kind = K::integer,
       .field = &C::max_eval_samples, .doc = "samples of one evaluation at most; 0: all",
       .example = "500", .range = kNonNegative},
      {.name = "tokenizer", .section = "data", .kind = K::text, .field = &C::tokenizer,
       .doc = "tokenizer.json, or a folder with it or with vocab.json and merges.txt; null: the model "
              "folder's",
       .example = "tok.json", .unset = "null", .aliases = "tokenizer_name tokenizer_name_or_path"},
      {.name = "chat_template", .section = "data", .kind = K::text, .field = &C::chat_template,
       .doc = "of task: sft: a file with the Jinja template that makes a text of a conversation; null: that "
              "of the tokenizer's or the model's folder",
       .example = "chatml.jinja", .unset = "null", .aliases = "chat_template_path"},
      {.name = "max_length", .section = "data", .kind = K::integer, .field = &C::max_length,
       .doc = "tokens of a sample; auto: 1024, or the model's positions if it has fewer",
       .example = "256", .unset = "auto", .range = kPositive,
       .aliases = "max_seq_length max_seq_len cutoff_len seq_len sequence_len block_size"},
      {.name = "packing_boundaries", .section = "data", .kind = K::flag,
       .field = &C::packing_boundaries,
       .doc = "keep the documents of a sample apart: a token attends to its own document only, "
              "positions begin anew with each, and no document's first token is learned from the one "
              "before",
       .example = "true", .aliases = "neat_packing"},

      {.name = "output_dir", .section = "run", .kind = K::text, .field = &C::output_dir,
       .doc = "folder for everything the run writes; one that holds a run is refused unless resume or "
              "overwrite says otherwise",
       .example = "run1", .unset = "null", .aliases = "out_dir"},
      {.name = "overwrite", .section = "run", .kind = K::flag, .field = &C::overwrite,
       .doc = "remove the run that is in output_dir, unless this one reads something of it",
       .example = "true", .aliases = "overwrite_output_dir"},
      {.name = "resume", .section = "run", .kind = K::resume, .field = &C::resume,
       .doc = "continue from a checkpoint of output_dir: latest (or true), or the path of one, and later "
              "ones are set aside; that of another folder goes on in a new output_dir; null: start anew",
       .example = "latest", .unset = "null", .aliases = "resume_from_checkpoint"},

      {.name = "device", .section = "machine", .kind = K::choice, .field = &C::device,
       .doc = "where to train: cpu; cuda, or cuda:N for one of several: a GPU of NVIDIA's; emu: the kernels "
              "for GPUs, run on the host by the emulator, a hundred times slower or more; auto: cpu, even "
              "beside a GPU, since a run has other last bits there",
       .example = "emu",
       .choices = "auto cpu emu cuda cuda:0 cuda:1 cuda:2 cuda:3 cuda:4 cuda:5 cuda:6 cuda:7",
       .refused = "gpu mps",
       .refused_why = "no name of a device here",
       .refused_advice = "device=cuda for a GPU of NVIDIA's, or device=cpu"},
      {.name = "memory", .section = "machine", .kind = K::bytes, .field = &C::memory,
       .doc = "the budget: the run never uses more, and refuses records of text that need more; on a "
              "GPU it is the GPU's memory, with what its context takes; auto: what is free less a "
              "stated reserve, of which the smallest plan is taken that is within 1 % of the fastest",
       .example = "256MiB", .unset = "auto"},
      {.name = "host_memory", .section = "machine", .kind = K::bytes, .field = &C::host_memory,
       .doc = "the budget for what the offload keys keep off the device; on the "
              "CPU, where both are RAM, it lets them be chosen. auto: no bound of its own",
       .example = "2GiB", .unset = "auto"},
      {.name = "target", .section = "machine", .kind = K::text, .field = &C::target,
       .doc = "snug plan and explain alone: the device to plan for, by name (rtx4090, a100-80, h100, cpu-8, "
              "...) or a FILE.json of one; device is then cuda, or cpu where it says that it shares the host's "
              "memory, and memory the device's unless set; null: this machine",
       .example = "rtx4090", .unset = "null"},
      {.name = "threads", .section = "machine", .kind = K::integer, .field = &C::threads,
       .doc = "threads of computation, of each rank; auto: one per core the process may use, shared by the ranks",
       .example = "2", .unset = "auto", .range = {.min = 1, .max = 1024}},
      {.name = "ranks", .section = "machine", .kind = K::integer, .field = &C::ranks,
       .doc = "processes that share every step, on this machine's cores or, with device: cuda, a GPU each; memory is "
              "that of each; of a target, devices",
       .example = "2", .range = {.min = 1, .max = 4096}},
      {.name = "zero", .section = "machine", .kind = K::choice, .field = &C::zero,
       .doc = "what each of several ranks keeps its piece of: 0 nothing, 1 states and masters, 2 gradients too, 3 weights "
              "too; auto: the first from 1 on that fits",
       .example = "2", .choices = "auto 0 1 2 3"},
      {.name = "link", .section = "machine", .kind = K::text, .field = &C::link, .doc = "what joins the ranks of a "
       "target: nvlink, nvlink3, pcie5, pcie4, 400GbE, ..., 10GbE; null: pcie4", .example = "nvlink", .unset = "null"},
      {.name = "transport", .section = "machine", .kind = K::choice, .field = &C::transport,
       .doc = "what carries what ranks tell each other: local, memory that they share; mpi, messages of Open MPI's, "
              "under mpirun, through buffers that are planned; nccl, between GPUs, likewise; auto: nccl on "
              "device: cuda, else mpi where a launcher says that they are on several machines. Sums are the same",
       .example = "local", .choices = "auto local mpi nccl"},
      {.name = "ddp_timeout", .section = "machine", .kind = K::seconds, .field = &C::ddp_timeout, .doc = "how long a "
       "rank waits for another before the run ends", .example = "60s", .range = kAboveZero},
      {.name = "precision", .section = "machine", .kind = K::precision, .field = &C::precision,
       .doc = "fp32; tf32, on device cuda alone: fp32 whose matrix products round what they multiply to "
              "10 bits; bf16 or fp16: compute in 16 bits with master weights, gradients and optimizer "
              "state in fp32, and for fp16 loss scaling",
       .example = "bf16", .aliases = "dtype torch_dtype mixed_precision bf16 fp16 tf32"},
      {.name = "attn_implementation", .section = "machine", .kind = K::choice,
       .field = &C::attn_implementation,
       .doc = "who computes attention: own, the kernels of this program; cudnn, on device cuda with "
              "precision bf16 or fp16 and without attention dropout, whose last bits are others, and whose "
              "workspace is two bytes for every pair of tokens and head; auto: own, or what a checkpoint was computed "
              "by",
       .example = "own", .choices = "auto own cudnn",
       .refused = "eager sdpa flash_attention_2 flash_attention_3 flex_attention",
       .refused_why = "one of PyTorch's",
       .refused_advice = "attn_implementation=auto"},
      {.name = "cuda_graphs", .section = "machine", .kind = K::choice, .field = &C::cuda_graphs,
       .doc = "whether the programs of a step are captured when they run for the second time and issued as a "
              "whole from then on; the numbers stay the same bit for bit. on, for device cuda or emu, leaves "
              "nothing to the host and updates no layer in backward; auto: on for device cuda where a plan "
              "does neither, else off",
       .example = "off", .choices = "auto on off"},
      {.name = "matmul_autotune", .section = "machine", .kind = K::flag, .field = &C::matmul_autotune,
       .doc = "on device cuda: whether cuBLASLt's first algorithms for each product are measured before the "
              "first step and the fastest kept, instead of the one it guesses; the last bits follow the "
              "choice, which plan.json and checkpoints name, so a followed plan and a resume have it too",
       .example = "true"},
      {.name = "recompute", .section = "machine", .kind = K::policies, .field = &C::recompute,
       .doc = "what backward computes again instead of keeping it; the numbers stay the same bit for "
              "bit. auto, none, norms, mlp, attention, block, what a block keeps (norm1, mean1, rstd1, "
              "heads, rstdq, rstdk, qkv, att, lse, proj, mid, norm2, mean2, rstd2, rstd3, rstd4, rows, fc, act, "
              "down, sum), names joined with +, or a map of layers to them: {0-5: block, 6-11: none}",
       .example = "block",
       .aliases = "gradient_checkpointing enable_activation_checkpointing activation_checkpointing"},
      {.name = "offload", .section = "machine", .kind = K::policies, .field = &C::offload,
       .doc = "what is kept for backward in the host's memory instead of the device's; the numbers stay "
              "the same bit for bit. auto (where it is faster than what fits without it, or alone fits; on "
              "the CPU only with host_memory), none, inputs (of the blocks), attention, mlp, block (inputs "
              "and all that is not recomputed), names and layers as in recompute",
       .example = "inputs", .aliases = "activation_offloading enable_activation_offloading"},
      {.name = "head_rows", .section = "machine", .kind = K::integer, .field = &C::head_rows,
       .doc = "rows of logits that exist at a time; auto: chosen by the plan", .example = "256",
       .unset = "auto", .range = kPositive, .aliases = "head_chunk_rows"},
      {.name = "packed_weights", .section = "machine", .kind = K::choice,
       .field = &C::packed_weights,
       .doc = "copies of the weights in the order the matrix units read them: memory for speed, the "
              "same bits; auto: for generation where they fit, in training where a calibration that measured them says "
              "that a step gains more than 2 %",
       .example = "none", .choices = "auto none forward both"},
      {.name = "allow", .section = "machine", .kind = K::permissions, .field = &C::allow,
       .doc = "permissions to change numbers, for memory's sake or on another CPU; without one nothing does",
       .example = "[micro_batch]", .aliases = "permissions"},
      {.name = "bitwise", .section = "machine", .kind = K::flag, .field = &C::bitwise,
       .doc = "also forbid what only reorders sums", .example = "true"},
      {.name = "plan", .section = "machine", .kind = K::text, .field = &C::plan,
       .doc = "a FILE of snug plan --json, or a run's plan.json: the run follows its decisions and "
              "refuses it for another model, configuration or machine; null: planned anew",
       .example = "plan.json", .unset = "null"},

      {.name = "global_batch_size", .section = "batch", .kind = K::integer,
       .field = &C::global_batch_size,
       .doc = "samples of one optimizer step; auto: micro-batch x accumulation if both are given, else "
              "32",
       .example = "64", .unset = "auto", .range = kPositive, .aliases = "total_batch_size"},
      {.name = "global_batch_tokens", .section = "batch", .kind = K::integer,
       .field = &C::global_batch_tokens,
       .doc = "the same in tokens: a multiple of max_length", .example = "65536", .unset = "null",
       .range = kPositive, .aliases = "total_batch_tokens"},
      {.name = "per_device_train_batch_size", .section = "batch", .kind = K::integer,
       .field = &C::per_device_train_batch_size,
       .doc = "samples computed at a time (the micro-batch); auto: chosen by the plan, for speed "
              "within the memory",
       .example = "4", .unset = "auto", .range = kPositive,
       .aliases = "micro_batch_size batch_size"},
      {.name = "gradient_accumulation_steps", .section = "batch", .kind = K::integer,
       .field = &C::gradient_accumulation_steps,
       .doc = "micro-batches of one optimizer step; auto: what the two above give", .example = "8",
       .unset = "auto", .range = kPositive, .aliases = "grad_accumulation"},
      {.name = "per_device_eval_batch_size", .section = "batch", .kind = K::integer,
       .field = &C::per_device_eval_batch_size,
       .doc = "samples evaluated at a time; auto: the micro-batch, which needs no memory beyond training's",
       .example = "16", .unset = "auto", .idle = "8", .range = kPositive, .aliases = "eval_batch_size"},

      {.name = "max_steps", .section = "length", .kind = K::integer, .field = &C::max_steps,
       .doc = "stop after this many optimizer steps; of the limits of this section the first that is reached ends the run", .example = "1000", .unset = "null",
       .none = "-1", .range = kPositive, .aliases = "steps"},
      {.name = "num_train_epochs", .section = "length", .kind = K::number,
       .field = &C::num_train_epochs,
       .doc = "stop after this many passes over the data; null: no limit, or 1 if no key of this "
              "section is set",
       .example = "2.5", .unset = "null", .range = kAboveZero, .aliases = "epochs"},
      {.name = "max_time", .section = "length", .kind = K::seconds, .field = &C::max_time,
       .doc = "stop after this time, for example 90s, 2m or 1h30m; where no other limit is set the learning rate follows the clock, and its warm-up and decay are shares of the time", .example = "120s",
       .unset = "null"},

      {.name = "optim", .section = "optimizer", .kind = K::choice, .field = &C::optim,
       .doc = optimizer_text(),
       .example = "adamw_8bit", .aliases = "optimizer", .choices = optimizer_choices(),
       .refused = optimizer_refusals(), .refused_reason = why_refused},
      {.name = "optim_state", .section = "optimizer", .kind = K::choice, .field = &C::optim_state,
       .doc = state_forms_text(), .example = "8bit", .choices = state_form_choices()},
      {.name = "optim_args", .section = "optimizer", .kind = K::text, .field = &C::optim_args,
       .doc = optimizer_arguments(), .example = "alpha=0.95,momentum=0.9", .unset = "null"},
      {.name = "learning_rate", .section = "optimizer", .kind = K::number,
       .field = &C::learning_rate,
       .doc = learning_rate_text(),
       .example = "1.0e-3", .range = kNonNegative, .aliases = "lr"},
      {.name = "lr_scheduler_type", .section = "optimizer", .kind = K::choice,
       .field = &C::lr_scheduler_type, .doc = "how the learning rate goes after the warm-up",
       .example = "linear", .aliases = "lr_scheduler lr_schedule",
       .choices = "linear cosine constant constant_with_warmup warmup_stable_decay "
                  "cosine_with_restarts polynomial inverse_sqrt",
       .refused = "reduce_lr_on_plateau greedy"},
      {.name = "warmup_steps", .section = "optimizer", .kind = K::number, .field = &C::warmup_steps,
       .doc = "steps from 0 to the highest rate, or below 1 a share of all steps; auto: 100, or a "
              "tenth of the run if that is less",
       .example = "20", .unset = "auto", .idle = "0", .range = kNonNegative,
       .aliases = "lr_warmup_steps num_warmup_steps"},
      {.name = "warmup_ratio", .section = "optimizer", .kind = K::number, .field = &C::warmup_ratio,
       .doc = "the same as a share of all steps", .example = "0.03", .unset = "null",
       .idle = "0", .range = kShare},
      {.name = "lr_decay_steps", .section = "optimizer", .kind = K::number,
       .field = &C::lr_decay_steps,
       .doc = "steps of the last phase of warmup_stable_decay, or below 1 a share of all steps",
       .example = "0.2", .range = kAboveZero},
      {.name = "lr_decay_type", .section = "optimizer", .kind = K::choice,
       .field = &C::lr_decay_type, .doc = "the form of that phase", .example = "linear",
       .choices = "cosine linear 1-sqrt"},
      {.name = "lr_num_cycles", .section = "optimizer", .kind = K::number,
       .field = &C::lr_num_cycles,
       .doc = "waves of the cosine schedules; null: 0.5, half a wave, or 1 with restarts",
       .example = "1.5", .unset = "null", .range = kAboveZero},
      {.name = "lr_power", .section = "optimizer", .kind = K::number, .field = &C::lr_power,
       .doc = "exponent of polynomial", .example = "2.0", .range = kAboveZero},
      {.name = "lr_timescale", .section = "optimizer", .kind = K::integer,
       .field = &C::lr_timescale, .doc = "timescale of inverse_sqrt; null: the warm-up",
       .example = "1000", .unset = "null", .range = kPositive},
      {.name = "min_lr", .section = "optimizer", .kind = K::number, .field = &C::min_lr,
       .doc = "the rate at which cosine, polynomial and warmup_stable_decay end; null: 0",
       .example = "6.0e-5",
       .unset = "null", .range = kNonNegative},
      {.name = "min_lr_ratio", .section = "optimizer", .kind = K::number, .field = &C::min_lr_ratio,
       .doc = "the same as a share of learning_rate", .example = "0.1", .unset = "null",
       .range = kShare, .aliases = "min_lr_rate final_lr_fraction"},
      {.name = "lr_scheduler_kwargs", .section = "optimizer", .kind = K::kwargs,
       .field = std::monostate(),
       .doc = "a map with the names of PyTorch and transformers: min_lr, min_lr_rate, "
              "num_warmup_steps, num_decay_steps, decay_type, num_cycles, power, timescale",
       .example = "{min_lr_rate: 0.1}", .unset = "null"},
      {.name = "weight_decay", .section = "optimizer", .kind = K::number, .field = &C::weight_decay,
       .doc = "decay of the matrices; biases and norms have none, but for what param_groups says", .example = "0.01",
       .range = kNonNegative},
      {.name = "param_groups", .section = "optimizer", .kind = K::groups, .field = &C::param_groups,
       .doc = "parameters with a rate or a decay of their own: a list of maps of params, a regular "
              "expression that is looked for in a parameter's name, and learning_rate or "
              "weight_decay or both; the first that fits counts",
       .example = "[{params: wpe, learning_rate: 1.0e-4, weight_decay: 0}]", .unset = "null"},
      {.name = "adam_beta1", .section = "optimizer", .kind = K::number, .field = &C::adam_beta1,
       .doc = "decay of Adam's mean of gradients; of lion, the old mean's share of a step", .example = "0.8", .idle = "0.9", .range = kBelowOne},
      {.name = "adam_beta2", .section = "optimizer", .kind = K::number, .field = &C::adam_beta2,
       .doc = "decay of Adam's mean of squares; of lion's mean of gradients, 0.99 unless set",
       .example = "0.999", .idle = "0.999", .range = kBelowOne},
      {.name = "adam_epsilon", .section = "optimizer", .kind = K::number, .field = &C::adam_epsilon,
       .doc = "added to the root of Adam's mean of squares", .example = "1.0e-6",
       .idle = "1e-8", .range = kAboveZero},
      {.name = "sgd_momentum", .section = "optimizer", .kind = K::number, .field = &C::sgd_momentum,
       .doc = "momentum of sgd; 0: none, and no memory for it", .example = "0.9",
       .range = kBelowOne},
      {.name = "sgd_dampening", .section = "optimizer", .kind = K::number,
       .field = &C::sgd_dampening, .doc = "share of the gradient kept out of sgd's momentum",
       .example = "0.1", .range = kShare},
      {.name = "sgd_nesterov", .section = "optimizer", .kind = K::flag, .field = &C::sgd_nesterov,
       .doc = "Nesterov's form of momentum", .example = "true"},
      {.name = "max_grad_norm", .section = "optimizer", .kind = K::number, .field = &C::max_grad_norm,
       .doc = "gradients are scaled down to this norm; 0: never", .example = "0.5",
       .range = kNonNegative, .aliases = "grad_clip clip_grad_norm"},
      {.name = "loss_scale", .section = "optimizer", .kind = K::number, .field = &C::loss_scale,
       .doc = "factor of the gradients of precision: fp16 while they are computed; 0: dynamic, as "
              "the next five keys say. A step with a gradient that is not finite is skipped and "
              "lowers it; at a fixed scale it ends the run",
       .example = "1024", .range = kScale},
      {.name = "init_scale", .section = "optimizer", .kind = K::number, .field = &C::init_scale,
       .doc = "the first dynamic loss scale", .example = "1024", .range = kScaleAboveZero,
       .aliases = "initial_scale initial_loss_scale"},
      {.name = "growth_factor", .section = "optimizer", .kind = K::number,
       .field = &C::growth_factor, .doc = "the loss scale grows by it after growth_interval good steps",
       .example = "4", .range = {.min = 1, .open_min = true}},
      {.name = "backoff_factor", .section = "optimizer", .kind = K::number,
       .field = &C::backoff_factor, .doc = "a skipped step multiplies the loss scale by it",
       .example = "0.25", .range = {.min = 0, .max = 1, .open_min = true, .open_max = true}},
      {.name = "growth_interval", .section = "optimizer", .kind = K::integer,
       .field = &C::growth_interval,
       .doc = "steps in a row that are not skipped after which the loss scale grows",
       .example = "500", .range = {.min = 1, .max = 2147483647},
       .aliases = "loss_scale_window scale_window"},
      {.name = "min_loss_scale", .section = "optimizer", .kind = K::number,
       .field = &C::min_loss_scale,
       .doc = "the loss scale falls no further: a gradient that is not finite even there ends the run",
       .example = "0.0625", .range = kScaleAboveZero, .aliases = "min_scale"},

      {.name = "logging_steps", .section = "reports", .kind = K::integer, .field = &C::logging_steps,
       .doc = "steps between lines of metrics.jsonl; 0: the last step's alone", .example = "1",
       .range = kNonNegative},
      {.name = "report_to", .section = "reports", .kind = K::reports, .field = &C::report_to,
       .doc = "where metrics go beside metrics.jsonl, trainer_state.json and report.html: csv "
              "(metrics.csv), tensorboard (event files in runs/), all or none; one or a list",
       .example = "tensorboard", .choices = "all none tensorboard csv",
       .refused = "wandb mlflow comet_ml comet clearml neptune dvclive swanlab trackio codecarbon "
                  "azure_ml dagshub flyte"},
      {.name = "trace", .section = "reports", .kind = K::flag, .field = &C::trace,
       .doc = "write trace.json at the end: one measured step, operation by operation, with memory "
              "by meaning; ui.perfetto.dev opens it",
       .example = "true"},
      {.name = "loss_watchdog", .section = "reports", .kind = K::choice, .field = &C::loss_watchdog,
       .doc = "what to do when the loss diverges (the median of 32 steps is above 1.25 times the "
              "lowest so far, plus 0.25): warn says it, and gradient norms above 8 times their "
              "median and wild losses too; stop also ends the run with exit code 1",
       .example = "stop", .choices = "warn stop off"},
      {.name = "early_stopping_patience", .section = "reports", .kind = K::integer,
       .field = &C::early_stopping_patience,
       .doc = "end the run after this many evaluations in a row without a better "
              "metric_for_best_model; null: never",
       .example = "3", .unset = "null", .none = "0", .range = kPositive},
      {.name = "early_stopping_threshold", .section = "reports", .kind = K::number,
       .field = &C::early_stopping_threshold,
       .doc = "a better metric counts for early stopping if it is better by more than this",
       .example = "0.01", .range = kNonNegative},
      {.name = "eval_steps", .section = "reports", .kind = K::integer, .field = &C::eval_steps,
       .doc = "steps between evaluations and samples; a new run begins with one, and each ends with one; 0: no others; epoch: one at the end of each", .example = "50",
       .idle = "0 500", .range = kNonNegative},
      {.name = "save_steps", .section = "reports", .kind = K::integer, .field = &C::save_steps,
       .doc = "steps between checkpoints, the last step included; 0: none unless a signal stops the run; epoch: one at the end of each", .example = "100",
       .range = kNonNegative},
      {.name = "save_total_limit", .section = "reports", .kind = K::integer,
       .field = &C::save_total_limit, .doc = "checkpoints kept, the newest and among them the one with the lowest eval_loss (1: these two); null: all",
       .example = "2", .unset = "null", .none = "0", .range = kPositive},
      {.name = "save_buffer", .section = "reports", .kind = K::bytes, .field = &C::save_buffer,
       .doc = "memory through which checkpoints are written while training goes on; an update waits "
              "only for what is neither written nor in it. auto: 4MiB, or the checkpoint if that is "
              "smaller; 0: training waits until a checkpoint is written",
       .example = "64MiB", .unset = "auto", .range = kNonNegative},
      {.name = "load_best_model_at_end", .section = "reports", .kind = K::flag,
       .field = &C::load_best_model_at_end,
       .doc = "final/ holds the weights of the step with the best metric_for_best_model; each that is the best "
              "so far is followed by a checkpoint, whatever save_steps says", .example = "true"},
      {.name = "metric_for_best_model", .section = "reports", .kind = K::choice,
       .field = &C::metric_for_best_model,
       .doc = "which evaluation is the best, for load_best_model_at_end, early stopping and best_metric "
              "of trainer_state.json; with or without eval_. Perplexity is of language models, the others "
              "of classification, pearson and spearman of values, rewards and logps of task: dpo, nll_loss and "
              "odds of its orpo, kl of its kto, margin and mean_reward of task: reward",
       .example = "eval_accuracy",
       .choices = "eval_loss eval_perplexity eval_accuracy eval_f1 eval_matthews_correlation eval_pearson "
                  "eval_spearman eval_rewards/chosen eval_rewards/rejected eval_rewards/accuracies "
                  "eval_rewards/margins eval_logps/chosen eval_logps/rejected eval_nll_loss "
                  "eval_log_odds_ratio eval_log_odds_chosen eval_kl eval_margin eval_mean_reward "
                  "eval_min_reward eval_max_reward"},
      {.name = "greater_is_better", .section = "reports", .kind = K::choice,
       .field = &C::greater_is_better,
       .doc = "whether the greater metric_for_best_model is the better; auto: of losses and a perplexity "
              "the lower, of all others the greater",
       .example = "true", .unset = "auto", .choices = "auto true false"},
      {.name = "save_dtype", .section = "reports", .kind = K::choice, .field = &C::save_dtype,
       .doc = "dtype of the weights in final/; unless it is set bf16 with the permission no_master, which keeps no more", .example = "bf16", .choices = "fp32 bf16",
       .refused = "fp16"},
      {.name = "sample_prompt", .section = "reports", .kind = K::text, .field = &C::sample_prompt,
       .doc = "text continued at every evaluation, or every eval_steps where nothing is evaluated; null: none", .example = "\"Once upon\"",
       .unset = "null"},
      {.name = "sample_tokens", .section = "reports", .kind = K::integer, .field = &C::sample_tokens,
       .doc = "tokens of that continuation", .example = "100", .range = kPositive},
      {.name = "sample_temperature", .section = "reports", .kind = K::number,
       .field = &C::sample_temperature, .doc = "its temperature; 0: always the likeliest token",
       .example = "0.7", .range = kNonNegative},
      {.name = "sample_top_k", .section = "reports", .kind = K::integer, .field = &C::sample_top_k,
       .doc = "it chooses among the k likeliest tokens; 0: among all", .example = "40",
       .range = kNonNegative},
      {.name = "sample_top_p", .section = "reports", .kind = K::number, .field = &C::sample_top_p,
       .doc = "it chooses among the likeliest tokens of this total probability; 1: among all",
       .example = "0.9", .range = {.min = 0, .max = 1, .open_min = true}},

      {.name = "seed", .section = "random numbers", .kind = K::integer, .field = &C::seed,
       .doc = "fixes the first weights, dropout and sampling", .example = "7",
       .range = kNonNegative},
      {.name = "data_seed", .section = "random numbers", .kind = K::integer, .field = &C::data_seed,
       .doc = "fixes the order of the samples; auto: the same as seed", .example = "8",
       .unset = "auto", .range = kNonNegative},
      // clang-format on
  };
  const auto offload =
      std::find_if(keys.begin(), keys.end(), [](const Key& key) { return key.name == "offload"; });
  const std::vector<Key> more = host_keys();
  keys.insert(offload + 1, more.begin(), more.end());
  return keys;
}

}  // namespace

const std::vector<Key>& config_keys() {
  static const std::vector<Key> keys = [] {
    std::vector<Key> all = keys_of_models();
    for (const auto& more : {adapter_keys(), other_keys()})
      all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return keys;
}

const Key* find_key(std::string_view name) {
  for (const Key& key : config_keys()) {
    if (key.name == name) return &key;
    const std::vector<std::string_view> aliases = words(key.aliases);
    if (std::find(aliases.begin(), aliases.end(), name) != aliases.end()) return &key;
  }
  return nullptr;
}

}  // namespace snug
