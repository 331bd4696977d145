// Attention as a stage between the packed queries, keys and values and the projection.
#pragma once

#include "layers/parts/linear.h"

namespace snug {

// att (N,HD) of qkv (N,(H+2G)D); slots att and lse. In inference with a cache it reads and extends
// the layer's keys and values.
int attention(Wiring& w, int qkv, uint32_t dropout_site);

// Rotary positions of the queries and keys in qkv, in place behind the product that makes them;
// nothing where the spec has none.
InPlace rotary(const ModelSpec& spec);

}  // namespace snug
