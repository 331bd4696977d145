#include "tools/cli/examples.h"

#include <fmt/format.h>

#include <array>

#include "engine/core/error.h"
#include "engine/core/suggest.h"

namespace snug {
namespace {

struct Example {
  std::string_view name, text;
};

constexpr std::array<Example, 7> kExamples = {{
    {"pretrain", R"(# A small GPT from scratch on your own text.
#   snug tokenizer train --vocab-size 2048 --output tok.json corpus.txt
#   snug train --config pretrain.yaml
model: {type: gpt2, n_layer: 4, n_embd: 192, n_head: 6, n_positions: 256}
tokenizer: tok.json
train_data: corpus.txt        # a file, a folder or a pattern; also .jsonl, .csv, .gz, .zst
eval_fraction: 0.05           # of the documents, held out
output_dir: pretrained
memory: 256MiB                # all of it: engine and runtime
max_length: 256               # tokens of a sample
global_batch_size: 16         # samples of an optimizer step
max_steps: 500
learning_rate: 6.0e-4
eval_steps: 100
sample_prompt: "The "         # is continued at every evaluation
)"},
    {"fine-tune", R"(# All weights of a model go on learning, on your text.
#   snug train --config fine-tune.yaml
model: pretrained/final       # a Hugging Face folder: GPT-2, Llama, Qwen, Gemma, ...
train_data: corpus.txt
eval_fraction: 0.05
output_dir: tuned
memory: 4GiB
precision: bf16
global_batch_size: 8
num_train_epochs: 1
learning_rate: 5.0e-5
warmup_steps: 0.1             # a share of all steps
eval_steps: 50
load_best_model_at_end: true  # tuned/final holds the best step's weights
)"},
    {"classify", R"(# A BERT learns to label texts.
#   train.tsv: a text and a label a line, between them a tab
#   snug train --config classify.yaml
#   snug predict --model classifier/final --data rows.tsv
model: bert-folder            # a Hugging Face folder: BERT, RoBERTa, DistilBERT
task: sequence_classification
train_data: train.tsv
eval_data: dev.tsv
output_dir: classifier
memory: 4GiB
max_length: 128
global_batch_size: 16
num_train_epochs: 3
learning_rate: 3.0e-5
metric_for_best_model: eval_accuracy
load_best_model_at_end: true
)"},
    {"chat",
     R"(# A chat model learns your conversations: {"messages": [{"role": ..., "content": ...}, ...]} a line.
#   snug data preview --config chat.yaml     shows rows, trained text between {{ and }}
#   snug train --config chat.yaml
model: chat-folder            # a Hugging Face folder with a chat template
task: sft                     # the assistant's turns are trained, the rest is context
train_data: chats.jsonl
output_dir: chat
memory: 8GiB
precision: bf16
max_length: 512
global_batch_size: 8
num_train_epochs: 2
learning_rate: 2.0e-5
)"},
    {"dpo",
     R"(# Preferences (DPO): of two answers to a prompt the one that was chosen becomes likelier.
#   pairs.jsonl: {"prompt": "...", "chosen": "...", "rejected": "..."} a line
#   snug data preview --config dpo.yaml      shows pairs, what is learned between {{ and }}
#   snug train --config dpo.yaml
model: chat-folder            # a Hugging Face folder, best one that task: sft has taught
task: dpo
peft: lora                    # the reference is the model without its adapters
target_modules: all-linear
train_data: pairs.jsonl
output_dir: preferred
memory: 8GiB
precision: bf16
max_length: 512
global_batch_size: 8          # pairs of a step
num_train_epochs: 1
learning_rate: 5.0e-6
beta: 0.1                     # the larger, the nearer to the reference
)"},
    {"lora", R"(# Adapters (LoRA): the model stays as it is, matrices of a low rank learn beside it.
#   snug train --config lora.yaml
#   snug merge --model pretrained/final --adapter adapters/final --output merged
model: pretrained/final
peft: lora                    # qlora: the model rests in 4 bits
lora_r: 16
lora_alpha: 32
target_modules: all-linear
train_data: corpus.txt
eval_fraction: 0.05
output_dir: adapters
memory: 2GiB
precision: bf16
global_batch_size: 8
num_train_epochs: 1
learning_rate: 2.0e-4
)"},
    {"ranks", R"(# Two processes share every step; zero says what each keeps a piece of.
#   snug train --config ranks.yaml
model: pretrained/final
train_data: corpus.txt
eval_fraction: 0.05
output_dir: shared
ranks: 2
threads: 1                    # of each
zero: auto                    # 0, 1, 2 or 3: the first that fits
memory: 1GiB                  # of each
global_batch_size: 8
max_steps: 100
learning_rate: 3.0e-4
)"},
}};

}  // namespace

std::string_view example_config(std::string_view name) {
  std::string names;
  std::vector<std::string_view> known;
  for (const Example& e : kExamples) {
    if (e.name == name) return e.text;
    names += (names.empty() ? "" : ", ") + std::string(e.name);
    known.push_back(e.name);
  }
  fail(ErrorCode::usage, "--example as one of " + names,
       name.empty() ? std::string("none") : fmt::format("\"{}\"", name),
       suggestion(name, known, "--example pretrain"));
}

std::string example_names() {
  std::string names;
  for (const Example& e : kExamples) names += (names.empty() ? "" : ", ") + std::string(e.name);
  return names;
}

}  // namespace snug
