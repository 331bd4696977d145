// Linear layers whose adapter learns a scale (adapter.h), W and b frozen.
//
// DoRA has LoRA's A and B and the magnitude m of each row:
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

#include "layers/parts/linear.h"

namespace snug {

// What is behind the scaled product: something in place, or the residual stream.
struct BehindScale {
  InPlace in_place = {};
  int residual = -1;  // slot; -1: none
  BranchDropout dropout = {};
};

// The stages `stage` and `stage`_scale behind `up`, which adapter_down() gave; the slot of y.
int scaled_linear(Wiring& w, const char* stage, const char* slot, const LinearParams& params,
                  const AdapterUp& up, int x, const BehindScale& behind);
// The stage `stage`_input and its slot, if the layer has an adapter that scales what it reads; else x.
int scaled_input(Wiring& w, const char* stage, const char* layer, int x);

// norms (out) of an adapter's modules, whose weight is held.
void adapter_norms(Context& ctx, ParamStore& store, const AdapterUp& up, const View& weight,
                   const View& norms);

}  // namespace snug
