// What the states of an optimizer weigh, by themselves and in a checkpoint.
#pragma once

#include <string>

#include "optim/optimizer.h"

namespace snug {

// In optimizer.safetensors a state's codes fill whole words of four bytes.
inline int64_t saved_code_bytes(const RestForm& form, int64_t elements) {
  return round_up(form.value_bytes(elements), int64_t{4});
}
int64_t checkpoint_state_bytes(const StateSet& states, const ParamTable& table);

// Bytes of state a parameter: of one that rests as the optimizer says, and of all that are trained.
struct StateWeight {
  double form = 0, mean = 0;
  int64_t in_f32 = 0, trained = 0;  // elements that keep f32 beside codes, of these
};
StateWeight state_weight(const StateSet& states, const ParamTable& table);

// By parameter: of an embedding, whose gradients differ by orders of magnitude within a block while
// it is not learnt yet, rare tokens beside frequent ones.
std::vector<char> embeddings_of(const ParamTable& table);

// "8bit, 2.03 B a parameter, 38.60M of 124.44M in fp32"; empty where all rests in fp32.
std::string resting_text(const Optimizer& optimizer, const ParamTable& table);

}  // namespace snug
