// What options of nanoGPT (config/*.py, train.py) and llm.c (train_gpt2.py, train_gpt2.cu) are called
// here.
#include "tools/config/keys.h"

namespace snug {
namespace {

struct Word {
  std::string_view theirs, here;
};

constexpr Word kWords[] = {
    {"max_iters num_iterations", "max_steps, as it is called here"},
    {"eval_interval val_loss_every", "eval_steps, as it is called here"},
    {"eval_iters val_max_steps", "max_eval_samples, which counts samples, not batches"},
    {"log_interval", "logging_steps, as it is called here"},
    {"checkpoint_every always_save_checkpoint", "save_steps, as it is called here"},
    {"dataset input_bin train_bin train_data_pattern", "train_data, a file, folder or pattern"},
    {"input_val_bin val_bin val_data_pattern", "eval_data, a file, folder or pattern"},
    {"sequence_length", "max_length, as it is called here"},
    {"beta1", "adam_beta1, as it is called here"},
    {"beta2", "adam_beta2, as it is called here"},
    {"warmup_iters", "warmup_steps, as it is called here"},
    {"decay_lr", "lr_scheduler_type=cosine for true, constant for false"},
    {"lr_decay_iters", "max_steps, over which the schedule goes"},
    {"learning_rate_decay_frac", "min_lr, the rate at the end itself"},
    {"init_from", "model=gpt2 init=scratch, or model=FOLDER of weights"},
    {"sample_every", "sample_prompt, a text that is continued every eval_steps"},
    {"n_layer", "model.n_layer, a key of the model"},
    {"n_head", "model.n_head, a key of the model"},
    {"n_embd", "model.n_embd, a key of the model"},
    {"dropout", "model.resid_pdrop, model.embd_pdrop and model.attn_pdrop"},
    {"compile flash backend", "leave it out: this is not PyTorch, and nothing is compiled"},
    {"wandb_log wandb_run_name", "leave it out: metrics go to files in output_dir"},
    {"eval_only", "snug eval --model FOLDER --data FILE"},
};

}  // namespace

std::string_view word_here(std::string_view name) {
  for (const Word& word : kWords)
    for (const std::string_view theirs : words(word.theirs))
      if (theirs == name) return word.here;
  return "";
}

}  // namespace snug
