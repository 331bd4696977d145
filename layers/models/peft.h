// Adapters as Hugging Face's PEFT describes them: which modules of a model have one, and what of the
// model is trained beside them. The words are those of peft.LoraConfig (PEFT 0.21).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "layers/parts/adapter.h"
#include "layers/parts/spec.h"

namespace snug {

struct PeftConfig {
  int64_t r = 8;
  double lora_alpha = 8;
  double lora_dropout = 0;
  // Names of modules (q_proj, or more of a path: layers.3.self_attn.q_proj), which the end of a
  // module's path is; `all-linear`; one regular expression for whole paths. Empty: queries and values, or
  // the one module that makes them, as PEFT has it for most families.
  std::vector<std::string> target_modules;
  std::vector<std::string> exclude_modules;  // the same; never matched
  bool use_rslora = false;                   // s = alpha / sqrt(r), else alpha / r
  std::string init = "true";                 // of A: true (as torch.nn.Linear) | gaussian
  std::string bias = "none";                 // none | all | lora_only: which are trained
  // Trained and saved whole: a module whose path, or the path of one it lies in, ends with a name.
  // A classifier's output is always among them.
  std::vector<std::string> modules_to_save;
  std::vector<int64_t> layers_to_transform;  // empty: all
  // Other ranks and alphas, by name or regular expression of the end of a path.
  std::map<std::string, int64_t> rank_pattern;
  std::map<std::string, double> alpha_pattern;

  std::string base;  // base_model_name_or_path
  bool operator==(const PeftConfig&) const = default;
};

// Of a model: what its constructor takes, and what that comes to.
struct PeftModel {
  Adapters adapters;
  std::function<bool(std::string_view)> frozen;
  std::vector<std::string> modules;  // that have an adapter, as their paths
  int64_t trained = 0, all = 0;      // real elements; adapters are among both
};

// Throws usage, naming the key: targets that match nothing (with the nearest names), a rank that is
// not in [1, the smaller width of the module], what is trained in part where it is one parameter here.
PeftModel resolve_peft(const ModelSpec& spec, const PeftConfig& config);

// One line that two runs have in common if their adapters are the same.
std::string peft_text(const PeftConfig& config);

}  // namespace snug
