// One transformer block: pre-norm attention, then pre-norm MLP, both added to the residual stream.
//
//   x ──┬─ norm1 ─ qkv ─ attention ─ proj ─ dropout ─(+)─ mid ─┬─ norm2 ─ fc ─ gelu ─ proj ─
//   dropout ─(+)─ out
//       └──────────────────────────────────────────────┘ └──────────────────────────────────────┘
//
// Saved slots, bytes a row with e = bytes of the compute dtype (what "none" keeps; C width, F
// hidden):
//   x eC, norm1 eC, qkv e(H+2G)D, att eHD, lse 4H, mid eC, norm2 eC, fc eF, act eF, means and rstds
//   16
// For GPT-2 (H D = C, F = 4C) that is e(16 C) + 4H + 16.
#pragma once

#include "engine/core/precision.h"
#include "layers/ops/attention.h"
#include "layers/parts/runtime.h"
#include "layers/parts/spec.h"

namespace snug {

class Block {
 public:
  // Adds its parameters to the table. `layer` numbers the block and its dropout sites.
  Block(const ModelSpec& spec, const Precision& precision, int64_t layer, ParamTable& table);
  // The stages hold a pointer to the block.
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  const Body& body() const { return body_; }
  Name name() const { return name_; }
  // x (N,C) in, out (N,C) back. In training the pass keeps what its policies say.
  Tensor forward(Context& ctx, Runtime& rt, Pass& pass, Dims dims, PassMode mode, Tensor x) const;
  // Takes the gradient of out, gives the gradient of x; parameter gradients go to rt.grads.
  Tensor backward(Context& ctx, Runtime& rt, Pass& pass, Tensor dout) const;

 private:
  // Makes dmid of dout in place, and gives what flows into the attention's branch if dropout makes
  // that another tensor.
  Tensor backward_mlp(Context& ctx, Runtime& rt, Pass& pass, const View& dout) const;
  void backward_attention(Context& ctx, Runtime& rt, Pass& pass, const View& dmid,
                          Tensor dbranch) const;
  ResidualInput residual(const Pass& pass, int slot, uint32_t dropout_site) const;
  AttentionSpec attention_spec(const Runtime& rt, PassMode mode) const;

  Name name_;
  int64_t C_, F_, layer_;
  DType dtype_;
  float epsilon_, residual_dropout_;
  Activation activation_;
  AttentionSpec attention_;
  NormParams norm1_, norm2_;
  LinearParams qkv_, attention_proj_, fc_, mlp_proj_;
  Body body_;
  // Slots.
  int s_x_, s_norm1_, s_mean1_, s_rstd1_, s_qkv_, s_att_, s_lse_, s_mid_;
  int s_norm2_, s_mean2_, s_rstd2_, s_fc_, s_act_, s_out_;
  // Names of temporaries, interned once.
  Name n_dbranch_, n_dact_, n_dnorm_, n_datt_, n_dqkv_;
};

}  // namespace snug
