// Attention as a stage between the packed queries, keys and values and the projection.
#pragma once

#include "layers/parts/wiring.h"

namespace snug {

// att (N,HD) of qkv (N,(H+2G)D); slots att and lse. In inference with a cache it reads and extends
// the layer's keys and values.
int attention(Wiring& w, int qkv, uint32_t dropout_site);

}  // namespace snug
