// The loss of pairs of sequences that lie in the rows of a micro-batch, from the losses of their tokens.
//
// Math      of a pair p: l_c = -(sum of nll over the tokens of the chosen sequence), l_r of the rejected,
//           c = l_c - reference[p][0], r = l_r - reference[p][1] (without a reference l_c and l_r), and
//             loss[p] = L(c, r, n_c, n_r) + w m_p                  layers/ops/pair_losses.h
//             dnll[n] = (w - dL/dc) inverse_tokens loss_scale, n of the chosen answer; w ..., of the
//                       chosen sequence before it; -dL/dr ..., of the rejected; 0 elsewhere
//           A pair is one trained target, so a window's loss is the mean over its pairs. m_p: of a loss that
//           learns the whole chosen sequence the sum of nll over its tokens, and w = pairs of the step /
//           tokens with a target of all its chosen sequences, so that the mean over pairs of w m_p is
//           that of nll over these tokens. Of others w = 0. Of a loss of one answer k is taken from c and r.
// Shapes    nll, dnll (N); reference (P,2); logps (P,2), of a loss that learns the whole sequence (P,3), the
//           last -m_p; loss (P); pairs (P,8) i32: the rows where the chosen and the rejected sequence
//           begin, the row behind the rejected, which begins behind the chosen, n_c and n_r, the first
//           row whose nll is the chosen answer's (where the chosen begins, if no row before has a
//           target), then w's tokens and its pairs, or k as the bits of a float; a pair that begins with -1
//           is none: loss and logps 0, nothing counted. Of a loss of one answer the other is empty, and
//           its number of tokens 0. state: the StepState.
// dtypes    f32, but pairs.
// Writes    all assigned. pair_loss_forward adds to the state: loss_sum += sum of loss (fp64, in the order
//           of the pairs), loss_tokens += pairs, neither scaled.
// Numerics  sums over tokens and L in double, rounded once.
// Determinism  equal bits for any number of threads; a pair's for any place of it in the micro-batch.
// Errors    data, before anything is computed: sequences outside of [0,N), empty, or of no token that is
//           counted, an answer outside of its sequence.
#pragma once

#include "engine/memory/context.h"
#include "layers/ops/pair_losses.h"

namespace snug {

inline constexpr int64_t kPairColumns = 8;

// Columns of logps.
constexpr int64_t logp_columns(PairLossKind kind) {
  return facts_of(kind).whole ? 3 : 2;
}

void sequence_logps(Context& ctx, const View& logps, const View& nll, const View& pairs);

// `reference` may be undefined: none.
void pair_loss_forward(Context& ctx, const View& loss, const View& logps, const View& reference,
                       const View& pairs, const PairLoss& kind, const View& state);

void pair_loss_backward(Context& ctx, const View& dnll, const View& logps, const View& reference,
                        const View& pairs, const PairLoss& kind, const View& state);

}  // namespace snug
