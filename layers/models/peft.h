// Adapters as Hugging Face's PEFT describes them: which modules of a model have one, and what of the
// model is trained beside them. The words are those of peft.LoraConfig and IA3Config (PEFT 0.21).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/seams/weight_codes.h"
#include "layers/parts/adapter.h"
#include "layers/parts/spec.h"

namespace snug {

struct PeftConfig {
  std::string method = "lora";  // lora, whose fields are r to alpha_pattern; ia3
  int64_t r = 8;
  double lora_alpha = 8;
  double lora_dropout = 0;
  // Names of modules (q_proj, or more of a path: layers.3.self_attn.q_proj), which the end of a
  // module's path is; `all-linear`; one regular expression for whole paths. Empty: queries and values, or
  // the one module that makes them, as PEFT has it for most families.
  std::vector<std::string> target_modules;
  std::vector<std::string> exclude_modules;  // the same; never matched
  // Whether each of the two is one regular expression: PEFT's string, where a list holds names.
  bool target_expression = false, exclude_expression = false;
  bool use_rslora = false;    // s = alpha / sqrt(r), else alpha / r
  bool use_dora = false;      // with a magnitude of each row (layers/parts/dora.h)
  std::string init = "true";  // of A: true (as torch.nn.Linear) | gaussian
  std::string bias = "none";  // none | all | lora_only: which are trained
  // Trained and saved whole: a module whose path, or the path of one it lies in, ends with a name.
  // A classifier's output is always among them.
  std::vector<std::string> modules_to_save;
  std::vector<int64_t> layers_to_transform;  // empty: all
  // Other ranks and alphas, by regular expressions of the end of a path: the first that fits counts.
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  // Of ia3: those of the targets that scale what they read, by the ends of paths or one expression.
  // Empty beside no targets: the projection behind the MLP.
  std::vector<std::string> feedforward_modules;
  bool feedforward_expression = false;
  bool of_folder = false;  // of adapter_config.json, where a word that excludes nothing is no error

  // How the frozen linear weights of the blocks rest, as bitsandbytes has it: nf4 or fp4 in blocks of
  // 64, the scales in codes too or not. Empty: in the dtype that layers read.
  std::string codec;
  bool doubled = false;

  std::string base;  // base_model_name_or_path
  bool operator==(const PeftConfig&) const = default;
};

// Of a model: what its constructor takes, and what that comes to.
struct PeftModel {
  Adapters adapters;
  std::function<bool(std::string_view)> frozen;
  std::shared_ptr<const WeightCodes> codes;  // null: nothing rests in codes
  std::vector<std::string> modules;          // that have an adapter, as their paths
  int64_t trained = 0, all = 0;              // real elements; adapters are among both
};

// Throws usage, naming the key: targets that match nothing (with the nearest names), a rank that is
// not in [1, the smaller width of the module], what is trained in part where it is one parameter here.
PeftModel resolve_peft(const ModelSpec& spec, const PeftConfig& config);

// The rank and alpha of a module.
int64_t rank_of(const PeftConfig& config, const std::string& path);
double alpha_of(const PeftConfig& config, const std::string& path);

// Whether words of a configuration's key are one regular expression. Throws usage if one of several is.
bool is_expression(const char* key, const std::vector<std::string>& words);

// Frozen linear weights of the blocks in codes of a codec (nf4, fp4): each tensor of the family's
// files by itself, as bitsandbytes codes the modules of a model; what is of no block stays.
std::shared_ptr<const WeightCodes> block_codes(const ModelSpec& spec, const std::string& codec,
                                               bool doubled);

// How the frozen base rests, as files and flags say it: full, nf4, nf4-double, fp4 or fp4-double.
std::string base_form(const PeftConfig& config);
// Throws usage on another word; `where` had it.
void set_base_form(PeftConfig& config, const std::string& form, const std::string& where);

// One line that two runs have in common if their adapters are the same.
std::string peft_text(const PeftConfig& config);

}  // namespace snug
