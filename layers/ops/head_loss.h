// Linear head and cross-entropy, in chunks of rows, so that the (N,V) logits never exist.
//
// Math      z = x W^T (+ b), or with a softcap c tanh of it / c times c (softcap.h), lse_n = log sum_(v<V) e^(z_nv), nll_n = lse_n - z_n,target(n); a target of
//           -100 is ignored: its nll is 0 and it has no gradient. Backward, for a gradient dnll_n:
//             dz_nv = dnll_n (e^(z_nv - lse_n) - [v = target(n)])   for v < V, 0 for V <= v < Vp
//             with a softcap dz is then times 1 - (z / c)^2
//             dx = dz W          dW = dz^T x          db_v = sum over n of dz_nv
// Shapes    x, dx (N,C) f32, bf16 or f16; weight (Vp,C) of x's dtype or f32, rows V..Vp outside the
//           softmax; bias (Vp) of x's dtype or f32, or undefined: none; dweight (Vp,C), dbias (Vp)
//           f32 or bf16; targets (N) i32; nll, lse, dnll (N) f32. The bias is that of the decoder
//           of BERT's masked language model.
// Modes     head_loss_forward    nll and lse: evaluation, or weights known only later
//           head_loss_backward   recomputes the logits chunk by chunk from x
//           head_loss_train      both in one pass, when dnll is known before: plain language
//                                modelling, dnll_n = state->inverse_tokens * state->loss_scale
//           head_logits          the plain product and the bias, for generation
// Writes    nll, lse, dx assigned. dweight and dbias assigned or added as their GradViews say, in
//           the padded rows 0; an undefined view is frozen and costs nothing. A state that is given collects
//           loss_sum += sum of nll (fp64, in the order of the rows) and loss_tokens += trained
//           rows, neither scaled. dx may be x's own bytes in none of these.
// Numerics  Logits fp32. The sum of a row is fp32 in 16 lanes over 1024 columns, then fp64. With
//           16-bit activations dz is rounded to their type before its two products, with a softcap
//           before and after its slope. A bf16 dweight
//           is added to in fp32 and rounded once a chunk: ceil(N / rows_per_chunk) roundings. dbias
//           is column_sum (engine/kernels) of the dz that the products read, a chunk after the
//           other, with as many roundings. The bias is added to the fp32 sum of a logit.
//           e^x to 2.5e-7, with the same bits in AVX2 and AVX-512.
// Traffic   A row of logits is read from memory once, by the maximum; the sum and the gradient find
//           it in the second-level cache and compute e^x again instead of writing it down.
// Memory    One chunk of logits (rows_per_chunk,Vp) f32 and with 16-bit activations, or a softcap and a
//           gradient, one of dz in their type, both of category logits; the products' workspace. A 16-bit bias is widened
//           to workspace (Vp) f32; dbias takes column_sum's for one chunk.
// Errors    data, before anything is computed, for a target outside [0,V) that is not -100; usage
//           for a dbias without a bias.
// Bits      A result depends on rows_per_chunk (through dW's sum and the products' kernels), never
//           on the number of threads.
#pragma once

#include "engine/blas/matmul.h"
#include "engine/seams/grad_sink.h"
#include "layers/ops/ignored_target.h"

namespace snug {

// `state` may be undefined: then nothing is collected. `packed` holds packed copies of the weight,
// if there are any.
void head_loss_forward(Context& ctx, const View& nll, const View& lse, const View& x,
                       const View& weight, const View& targets, int64_t V, int64_t rows_per_chunk,
                       const View& state, const PackedWeight& packed = {}, const View& bias = {},
                       float softcap = 0);

void head_loss_backward(Context& ctx, const View& dx, const GradView& dweight, const View& dnll,
                        const View& lse, const View& x, const View& weight, const View& targets,
                        int64_t V, int64_t rows_per_chunk, const PackedWeight& packed = {},
                        const View& bias = {}, const GradView& dbias = {}, float softcap = 0);

void head_loss_train(Context& ctx, const View& dx, const GradView& dweight, const View& x,
                     const View& weight, const View& targets, int64_t V, int64_t rows_per_chunk,
                     const View& state, const PackedWeight& packed = {}, const View& bias = {},
                     const GradView& dbias = {}, float softcap = 0);

// logits (N,Vp) f32 = x weight^T (+ bias); the columns from V on are whatever the padded rows give.
void head_logits(Context& ctx, const View& logits, const View& x, const View& weight,
                 const PackedWeight& packed = {}, const View& bias = {}, float softcap = 0);

}  // namespace snug
