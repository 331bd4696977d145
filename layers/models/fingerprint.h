// A model's shapes and numerics in one word.
#pragma once

#include <string>

#include "layers/parts/spec.h"

namespace snug {

// XXH64 of every field of the spec that changes shapes or numbers.
std::string model_fingerprint(const ModelSpec& spec);

}  // namespace snug
