// Biases that a config says are not there (`bias: false` of GPT-2): zeros here, frozen, which files may
// lack.
#pragma once

#include <string>

#include "engine/io/safetensors.h"
#include "layers/models/model.h"

namespace snug {

// The weights of a model's folder, in which such biases stand as zeros. Throws data on one that the
// files have and that is not zero.
SafetensorsFolder open_weights(const Model& model, const std::string& folder);

}  // namespace snug
