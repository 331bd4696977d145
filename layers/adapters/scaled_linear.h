// Linear layers whose adapter learns a scale, W and b frozen.
//
// DoRA has LoRA's A and B (low_rank.h) and the magnitude m of each row:
//   y = g x' (W + s B A)^T + b + (x - x') W^T with x' = drop(x), g = m / ||W + s B A|| by rows, whose
//   norm is a constant of backward. Liu et al., "DoRA", arXiv:2402.09353, in the form of PEFT.
// IA3 has one vector l, of what the layer makes or, of a feed-forward layer, of what it reads:
//   y = l (x W^T + b), or y = (l x) W^T + b. Liu et al., arXiv:2205.05638.
//
//   stage    reads        writes              backward
//   *_lora   x            u (N,R)             DoRA: as LoRA
//   *        x, u         v (N,out), norms    as LoRA or a frozen layer, of dv
//   *_scale  v, norms, x  y (N,out)           dm (+)= sum over n of dy v / norms, or dl without
//                                             norms;  dv = g dy;  DoRA: db, and with dropout
//                                             dx += dy W - drop(dy W)
//   *_input  x            l x (N,in)          dl (+)= sum over n of d(l x) x;  dx = l d(l x)
//
// v, in slot *_unscaled, is x' (W + s B A)^T of DoRA, x W^T + b of IA3. Rows that are no module's of
// the adapter have g = 1. DoRA holds the weight once for v and the norms, so that one in codes is
// decoded once; a second time only under dropout.
#pragma once

#include "layers/adapters/low_rank.h"
#include "layers/parts/linear.h"

namespace snug {

// What scales: rows of a layer.
struct ScaledRows {
  int param = -1;  // (rows) or (rows,1)
  int64_t row = 0, rows = 0;
};

// The stages `stage` and `stage`_scale; the slot of y. `up` is DoRA's; null: IA3's.
int scaled_linear(Wiring& w, const AdaptedLayer& layer, const char* slot,
                  const LinearParams& params, const std::shared_ptr<const LowRank>& up,
                  std::vector<ScaledRows> scales, int x, const BehindProduct& behind);
// norms (out) of the rows of DoRA's modules, whose weight is held.
void weight_norms(Context& ctx, ParamStore& store, const LowRank& up, const View& weight,
                  const View& norms);
// The stage `stage`_input of what `param` (1,in) scales, and its slot.
int scaled_input(Wiring& w, const AdaptedLayer& layer, int param, int x);

}  // namespace snug
