// Losses over few classes, on logits that exist: classification of sequences and of tokens, several
// labels at once, regression. As PyTorch's CrossEntropyLoss, BCEWithLogitsLoss and MSELoss, which
// transformers takes for these problem types.
//
// Math      of a row m, with z = logits[m]:
//           cross_entropy         log sum_k e^(z_k) - z_t, t = targets[m];     dz_k: e^(z_k) / sum
//           - [k = t] binary_cross_entropy  mean_k(max(z_k, 0) - z_k t_k + log(1 + e^-|z_k|)),
//                                 t = targets[m];                 dz_k: (1 / (1 + e^-z_k) - t_k) /
//                                 K
//           squared_error         mean_k((z_k - t_k)^2);          dz_k: 2 (z_k - t_k) / K
//           dlogits[m][k] = inverse_tokens loss_scale dz_k, both of the StepState
//           A row is one trained target, so a window's loss, its sum times inverse_tokens, is
//           PyTorch's mean: of rows, or of all their elements.
// Shapes    logits, dlogits (M,K); loss (M); targets (M) i32 of [0,K) for cross_entropy, where -100
//           is ignored; else (M,K) f32, where a row that begins with NaN is ignored. What is
//           ignored has loss 0, gradient 0, and does not count.
// dtypes    logits, loss f32; dlogits f32, bf16 or f16.
// Writes    loss and dlogits assigned. Forward adds to a state that is given: loss_sum += sum of
// loss
//           (fp64, in the order of the rows), loss_tokens += trained rows, neither scaled.
// Aliasing  dlogits may be logits where it is f32.
// Numerics  the CPU computes a row in double, rounded once.
// Determinism  equal bits for any number of threads.
// Errors    data, before anything is computed: a class outside [0,K) that is not -100; targets of
//           binary_cross_entropy outside [0,1]; targets that are no number in a row that is
//           trained.
#pragma once

#include "engine/memory/context.h"

namespace snug {

enum class ClassLoss : uint8_t { cross_entropy, binary_cross_entropy, squared_error };

const char* to_string(ClassLoss kind);

// `state` may be undefined: then nothing is collected.
void class_loss_forward(Context& ctx, const View& loss, const View& logits, const View& targets,
                        ClassLoss kind, const View& state);

void class_loss_backward(Context& ctx, const View& dlogits, const View& logits, const View& targets,
                         ClassLoss kind, const View& state);

}  // namespace snug
