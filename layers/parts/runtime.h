// What a part needs besides its slots: weights, where gradients go, and the numbers of the step.
#pragma once

#include <limits>
#include <map>
#include <vector>

#include "engine/memory/pass.h"
#include "engine/seams/grad_sink.h"
#include "engine/seams/param_store.h"
#include "layers/ops/layernorm.h"
#include "layers/ops/linear.h"
#include "layers/parts/packed_weights.h"

namespace snug {

// Keys and values of the tokens seen so far, one pair a layer: (B, P, G, D). A layer with a window
// has a ring of fewer rows, where that saves some (layers/ops/attention.h). Made inside a resident
// program, so that it lives across decode programs.
struct KvCache {
  std::vector<Tensor> k, v;
  int64_t P = 0;
  int64_t slack = std::numeric_limits<int64_t>::max();  // tokens a call may step back (reusable())
  int64_t first_row = 0;  // the sequence that row 0 of a pass is; a pass may have fewer than B rows

  bool ring(size_t layer) const { return k[layer].view().shape[1] < P; }
  // Of `written` tokens that a call has fed, the first `same` may stay for the next; 0: rings have
  // let go of what it would see.
  int64_t reusable(int64_t same, int64_t written) const {
    return written - same <= slack ? same : 0;
  }
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
  View head_rows = {};                    // (M) i32: rows that a head reads (layers/parts/head.h)
  View tokens = {};                       // (B,T) i32
  View token_types = {};                  // (B,T) i32; undefined: all 0
  bool adapters = true;                   // false: the model as it is without them
  // By weight, the norms of its rows with what adapters add (layers/adapters/scaled_linear.h), where nothing is
  // trained: made once, and not of every token again. Null: made where they are asked for.
  const std::map<int, Tensor>* norms = nullptr;

  PackedWeight packed_weight(int param) const { return packed ? (*packed)[param] : PackedWeight{}; }
};

// The gradient of slot `to` gets that of `from`: the tensor itself if it is the first contribution.
void hand_gradient(Context& ctx, Pass& pass, int from, int to);

}  // namespace snug
