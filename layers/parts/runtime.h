// What a part needs besides its slots: weights, where gradients go, and the numbers of the step.
#pragma once

#include <vector>

#include "engine/memory/pass.h"
#include "engine/seams/grad_sink.h"
#include "engine/seams/param_store.h"
#include "layers/ops/layernorm.h"
#include "layers/ops/linear.h"
#include "layers/parts/packed_weights.h"

namespace snug {

// Keys and values of the tokens seen so far, one pair a layer: (B, P, G, D). Made inside a resident
// program, so that it lives across decode programs.
struct KvCache {
  std::vector<Tensor> k, v;
  int64_t P = 0;
  int64_t first_row = 0;  // the sequence that row 0 of a pass is; a pass may have fewer than B rows

  View keys(size_t layer, int64_t rows) const { return k[layer].view().rows(first_row, rows); }
  View values(size_t layer, int64_t rows) const { return v[layer].view().rows(first_row, rows); }
};

struct Runtime {
  ParamStore& params;
  GradSink* grads = nullptr;              // null in inference
  View state;                             // StepState
  KvCache* cache = nullptr;               // non-null: attention reads and extends it
  const PackedWeights* packed = nullptr;  // non-null: linear layers read these copies
  View document_start = {};               // (B,T) i32: documents kept apart; undefined: one each
  View document_end = {};                 // (B,T) i32 of them, where attention looks forward
  View tokens = {};                       // (B,T) i32
  View token_types = {};                  // (B,T) i32; undefined: all 0
  bool adapters = true;                   // false: the model as it is without them

  PackedWeight packed_weight(int param) const { return packed ? (*packed)[param] : PackedWeight{}; }
};

// The gradient of slot `to` gets that of `from`: the tensor itself if it is the first contribution.
void hand_gradient(Context& ctx, Pass& pass, int from, int to);

}  // namespace snug
