// The heads that read some rows of the last hidden states: masked language modelling, and the
// classification of sequences and of tokens.
//
//   rows     h (M,C) = hidden[index]                    layers/ops/rows.h; of the last block, if it chose them
//   body     masked_lm                dense, activation, norm
//            sequence_classification  [dropout] dense, activation, dropout; of a causal model its last norm
//            token_classification     dropout
//   output   masked_lm                h wte^T + bias, cross-entropy in chunks of rows (head_loss.h)
//            else                     logits = h W^T + b, f32, of a causal model without b, and their loss
//                                     (class_loss.h; of answers in pairs reward_loss.h)
//
// M = B rows_per_window: every window of a micro-batch has as many places, those that are not taken
// have index -1, and no target. So shapes depend on the plan alone.
#pragma once

#include <optional>

#include "layers/ops/reward_loss.h"
#include "layers/parts/linear.h"

namespace snug {

// What a head reads beside the hidden states, and what it may write.
struct HeadBatch {
  View index;    // (M) i32: rows of the hidden states, -1: none
  View targets;  // (M) i32, -100 ignored; (M,K) f32 for several labels and for regression
  // (M,K) f32, written by evaluation, and in training where `reward` is; of masked_lm (M,Vp), undefined: not
  // wanted.
  View logits;
  int64_t rows_per_window = 0;
  // The rows are answers in pairs, of one reward each, and the targets are margins.
  std::optional<RewardLoss> reward = {};
};

class RowsHead {
 public:
  // `tied` is the parameter that a masked LM head reads if the spec ties it.
  RowsHead(const ModelSpec& spec, const Precision& precision, int tied, ParamTable& table,
           const Adapters& adapters);

  const Body& body() const { return body_; }
  // Settles what is trained, from the table when it is whole, and whether x wants a gradient.
  void derive(const ParamTable& table, bool below_wanted);
  // Adds the loss to StepState.loss_sum and loss_tokens and gives the gradient of x, which is consumed;
  // undefined if nobody wants it. x is (N,C), or (M,C) from a block that chose its rows. `chunk`: rows
  // of a chunk of a masked LM's logits.
  Tensor train(Context& ctx, Runtime& rt, Pass& pass, const HeadBatch& batch, int64_t chunk,
               Tensor x) const;
  // Adds the loss; writes logits.
  void evaluate(Context& ctx, Runtime& rt, Pass& pass, const HeadBatch& batch, int64_t chunk,
                Tensor x) const;

 private:
  Tensor body_forward(Context& ctx, Runtime& rt, Pass& pass, const HeadBatch& batch, PassMode mode,
                      Tensor x) const;
  void logits(Context& ctx, Runtime& rt, const View& logits, const View& h) const;
  void class_losses(Context& ctx, Runtime& rt, const HeadBatch& batch, const View& z) const;

  HeadKind kind_;
  Problem problem_;
  int64_t V_, C_, K_;
  bool chosen_;  // by the last block
  DType dtype_;
  Body body_;
  int x_ = -1, out_ = -1;  // slots
  LinearParams output_;    // of a masked LM: the decoder
  Name scope_, n_rows_, n_dh_, n_dx_, n_logits_, n_dlogits_, n_loss_, n_nll_, n_lse_;
};

}  // namespace snug
