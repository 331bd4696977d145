// Attention as a stage between the packed queries, keys and values and the projection.
#pragma once

#include "layers/parts/linear.h"

namespace snug {

// att (N,HD) of qkv (N,(H+2G)D); slots att and lse. In inference with a cache it reads and extends
// the layer's keys and values.
int attention(Wiring& w, int qkv, uint32_t dropout_site);

// Rotary positions of the queries and keys in qkv, in place behind what makes them; nothing where the
// layer has none.
InPlace rotary(const ModelSpec& spec, int64_t layer);

// qkv (N,(H+2G)D) of `heads`, the same before its queries and keys are normed, each with weights of its
// own: stage qk_norm, parameter attn.qk_norm.weight, slots qkv, rstdq and rstdk; saves heads and the
// statistics. `behind`: the rotation.
int qk_norm(Wiring& w, int heads, const InPlace& behind);

}  // namespace snug
