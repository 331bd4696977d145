// The forward pass of attention by AttentionFused: packing, units of work, results. Internal to the
// folder.
#pragma once

#include "engine/core/dtype.h"
#include "layers/ops/attention.h"
#include "layers/ops/attention_fused.h"
#include "layers/ops/attention_parts.h"

namespace snug {

// Blocks of queries of a piece of work, and floats of scratch of a thread: of `keys` keys at most.
int64_t fused_forward_together(const AttentionSpec& spec, int64_t B, int64_t queries, int64_t keys,
                               int threads);
int64_t fused_forward_floats(const AttentionSpec& spec, int64_t B, int64_t queries, int64_t keys,
                             int threads);

// Queries [i0, i0 + rows) of a head, by a thread whose tiles are configured. `together` and
// `most_keys` are what the scratch was made for; `ahead` is what the thread is likely to begin
// next, or null.
void fused_forward_piece(const AttentionFused& fused, const AttentionSpec& spec,
                         const ForwardHead<bf16>& head, const ForwardHead<bf16>* ahead,
                         float* scratch, int64_t together, int64_t most_keys, int64_t i0,
                         int64_t rows);

}  // namespace snug
