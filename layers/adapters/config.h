// What an adapter is, in the words of PEFT 0.21: fields of peft.LoraConfig, IA3Config and the others.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace snug {

// What rows of kinds.h point at, and keys of a run of the same names set: a run's configuration has these
// fields as an adapter's has them, and none is copied by name.
struct AdapterFields {
  int64_t lora_r = 8;
  double lora_alpha = 8;
  double lora_dropout = 0;
  // Names of modules (q_proj, or more of a path: layers.3.self_attn.q_proj), which the end of a
  // module's path is; `all-linear`; one regular expression for whole paths. Empty: queries and values, or
  // the one module that makes them, as PEFT has it for most families.
  std::vector<std::string> target_modules;
  std::vector<std::string> exclude_modules;  // the same; never matched
  // Of ia3: those of the targets that scale what they read, by the ends of paths or one expression.
  // Empty beside no targets: the projection behind the MLP.
  std::vector<std::string> feedforward_modules;
  bool use_rslora = false;  // s = alpha / sqrt(r), else alpha / r
  bool use_dora = false;    // with a magnitude of each row (layers/parts/scaled_linear.h)
  std::string init_lora_weights =
      "true";                       // of A: true (as torch.nn.Linear), gaussian, or first_weights.h
  double d_initial = 0.1;           // of vera: what l_d begins with
  int64_t projection_prng_key = 0;  // and what its matrices follow from
  // In front of every sequence: how many rows, and of prompt_tuning what they begin as, drawn (RANDOM) or the
  // tokens of a text, again and again (TEXT).
  int64_t num_virtual_tokens = 20;
  std::string prompt_tuning_init = "RANDOM", prompt_tuning_init_text;
  // Of p_tuning and prefix_tuning: what makes these rows while they are trained, and the width inside (0: that
  // of what it makes of a token).
  std::string encoder_type = "MLP";  // or LSTM, of so many layers
  int64_t encoder_num_layers = 2;
  int64_t encoder_hidden_size = 0;
  bool prefix_projection = false;  // prefix_tuning has one
  int64_t reduction_factor = 16;   // of bottlenecks: the width over theirs
  int64_t mora_type = 1;           // of mora: 1 folds, 6 turns
  std::string bias = "none";       // none | all | lora_only: which are trained
  // Trained and saved whole: a module whose path, or the path of one it lies in, ends with a name.
  // A classifier's output is always among them.
  std::vector<std::string> modules_to_save;
  bool operator==(const AdapterFields&) const = default;
};

struct PeftConfig : AdapterFields {
  std::string method = "lora";  // AdapterMethod::name of kinds.h, which says which fields it has
  // Whether each list of modules is one regular expression: PEFT's string, where a list holds names.
  bool target_expression = false, exclude_expression = false, feedforward_expression = false;
  bool freeze_a = false;  // A stays as it begins: LoRA-FA, Zhang et al., arXiv:2308.03303
  std::vector<int32_t> prompt_init_tokens;  // those of prompt_tuning_init_text; of no folder
  bool encoded = false;  // whether the encoder is there, which it is in no folder of PEFT's
  std::vector<int64_t> layers_to_transform;  // empty: all
  // Other ranks and alphas, by regular expressions of the end of a path: the first that fits counts.
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  bool of_folder = false;  // of adapter_config.json, where a word that excludes nothing is no error

  // How the frozen linear weights of the blocks rest, as bitsandbytes has it: nf4 or fp4 in blocks of
  // 64, the scales in codes too or not; int8, a scale a row. Empty: in the dtype that layers read.
  std::string codec;
  bool doubled = false;
  // Of int8: activations of this magnitude and above are multiplied as they are; 0: none.
  double int8_threshold = 6.0;
  std::vector<std::string>
      skip_modules;  // that rest whole nevertheless, by the ends of their paths

  std::string base;  // base_model_name_or_path
  bool operator==(const PeftConfig&) const = default;
};

}  // namespace snug
