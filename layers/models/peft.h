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
#include "layers/adapters/config.h"
#include "layers/models/base_form.h"
#include "layers/parts/adapter.h"
#include "layers/parts/spec.h"

namespace snug {

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

// The layer of an adapter in a model's table, by name; the stage is nobody's.
class Model;
AdaptedLayer adapted_layer_of(const Model& model, const std::string& layer);
// The adapter's parameter of this name; it is one.
struct PlacedParam {
  AdaptedLayer layer;
  AdapterParam param;
};
PlacedParam adapter_param_of(const Model& model, const std::string& name);

// The rank and alpha of a module.
int64_t rank_of(const PeftConfig& config, const std::string& path);
double alpha_of(const PeftConfig& config, const std::string& path);

// Whether words of a configuration's key are one regular expression. Throws usage if one of several is.
bool is_expression(const char* key, const std::vector<std::string>& words);

// One line that two runs have in common if their adapters are the same.
std::string peft_text(const PeftConfig& config);

}  // namespace snug
