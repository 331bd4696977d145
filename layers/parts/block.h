// One transformer block: a wiring of parts, chosen by the spec's placement of the norms.
//
//   pre     x ─┬─ norm1 ─ qkv ─ attention ─ proj ─ dropout ─(+)─ mid ─┬─ norm2 ─ fc ─ act ─ proj ─ dropout ─(+)─ out
//              └─────────────────────────────────────────────┘        └──────────────────────────────────────┘
//
//   post    x ─┬─ qkv ─ attention ─ proj ─ dropout ─(+)─ mid ─ norm1 ─┬─ fc ─ act ─ proj ─ dropout ─(+)─ sum ─ norm2 ─ out
//              └─────────────────────────────────────┘                └────────────────────────────┘
//
//   The last post block under a head that reads some rows (ModelSpec::chooses_rows) goes on behind norm1
//   with those alone: what the others would become nobody reads.
//
//   parallel  as pre, and norm2 reads x
//   sandwich  x ─┬─ norm1 ─ qkv ─ attention ─ proj ─ norm3 ─(+)─ mid ─┬─ norm2 ─ fc ─ act ─ down ─ norm4 ─(+)─ out
//                └───────────────────────────────────────────┘        └────────────────────────────────────┘
//   sublayer  as sandwich, without norm1 and norm2
//
// With norms of queries and keys the product behind norm1 is `heads`, of which they make qkv.
//
// Slots of pre, bytes a row with e = bytes of the compute dtype (what "none" keeps; C width, F hidden):
//
//   x eC, norm1 eC, qkv e(H+2G)D, att eHD, lse 4H, mid eC, norm2 eC, fc eF, act eF, means and rstds 16
//
// For GPT-2 (H D = C, F = 4C) that is e(16 C) + 4H + 16.
#pragma once

#include "engine/core/precision.h"
#include "layers/parts/adapter.h"
#include "layers/parts/runtime.h"
#include "layers/parts/spec.h"

namespace snug {

class Block {
 public:
  // Adds its parameters to the table. `layer` numbers the block and its dropout sites.
  Block(const ModelSpec& spec, const Precision& precision, int64_t layer, ParamTable& table,
        const Adapters& adapters);

  const Body& body() const { return body_; }
  Name name() const { return name_; }
  // Settles what is trained, see Body::derive.
  void derive(const ParamTable& table, bool below_wanted);
  // x (N,C) in, out (N,C) back. In training the pass keeps what its policies say.
  Tensor forward(Context& ctx, Runtime& rt, Pass& pass, Dims dims, PassMode mode, Tensor x) const;
  // Takes the gradient of out, gives the gradient of x; parameter gradients go to rt.grads.
  Tensor backward(Context& ctx, Runtime& rt, Pass& pass, Tensor dout) const;

 private:
  Name name_;
  int part_;
  Body body_;
  int x_ = -1, out_ = -1;  // slots
};

}  // namespace snug
