// Which parameters a run leaves as they are: keys of the config, as regular expressions over names.
// What is frozen has no gradient, master or state, saves nothing for a gradient that nobody wants,
// and backward ends at the lowest layer that is trained.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "layers/parts/spec.h"

namespace snug {

// Patterns of engine/text/regex.h, searched in a parameter's names: those of the family's files
// (model.layers.3.mlp.up_proj.weight) and the table's (h.3.mlp.c_fc.weight). A number range between
// dots, `.0-11.`, stands for each of its numbers. Empty: none.
struct FreezeRules {
  std::string freeze;    // these are frozen
  std::string unfreeze;  // of them, these are trained nevertheless
};

struct Frozen {
  std::function<bool(std::string_view)>
      says;                      // for the constructor of Model; empty: none is frozen
  int64_t trained = 0, all = 0;  // real elements
};

// Throws usage, naming the key, on a pattern that does not compile or matches nothing (with the
// names there are), on rules that freeze part of what is one parameter here, and if nothing is left
// to train. Biases that are to stay zero are frozen by any rules, or none.
Frozen resolve_freeze(const ModelSpec& spec, const FreezeRules& rules);

}  // namespace snug
