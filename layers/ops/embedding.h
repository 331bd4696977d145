// Token and position embedding, the bottom of a GPT.
//
// Math      y[b*T + t][c] = wte[tokens[b][t]][c] + wpe[p(b,t)][c],  p(b,t) = position + t
//           dwte[v][c] = or += sum of dy[n][c] over the rows n whose token is v, in order of n
//           dwpe[p][c] = or += sum of dy[n][c] over the rows n at position p, in order of n
//           With document_start, positions begin anew with every document: p(b,t) = position + t -
//           document_start[b][t], as the position ids of transformers' packed batches.
// Shapes    y, dy (N,C) with N = B*T; tokens (B,T) i32; wte (Vp,C); wpe (P,C), or undefined: no
//           learned positions; state: the StepState, whose `position` the first column has, or
//           undefined: 0; document_start (B,T) i32 (document_start.h), or undefined. dwte (Vp,C),
//           dwpe (P,C); an undefined view is not wanted.
// dtypes    y, dy, wte, wpe each f32, bf16 or f16; the sum is float, rounded once. dwte, dwpe:
//           f32 or bf16 each.
// Accumulation  a gradient with add = false is assigned: zero in the rows that no token names.
//           In f32 the rows are added one by one to what is there. In bf16 they are summed in
//           float first; the sum is added to what is there, widened, and rounded once, however many
//           rows there are.
// Aliasing  none.
// Memory    backward into bf16: workspace (N) i64, the rows in order of what they are added to. By
//           kernels: what embedding_simt.h says.
// Traffic   forward reads a row of each table and writes a row of y per token. Backward reads dy
//           and updates as many rows; assigning writes the whole of dwte first.
// Determinism  equal bits for any number of threads; no atomics: threads share the channels.
// Errors    data: a token outside [0,Vp), a position outside [0,P) or starts that are none, before
//           anything is written.
//           shape, unsupported: as everywhere.
#pragma once

#include "engine/memory/context.h"
#include "engine/seams/grad_sink.h"

namespace snug {

void embedding_forward(Context& ctx, const View& y, const View& tokens, const View& wte,
                       const View& wpe, const View& state, const View& document_start = {});

void embedding_backward(Context& ctx, const GradView& dwte, const GradView& dwpe, const View& dy,
                        const View& tokens, const View& state, const View& document_start = {});

}  // namespace snug
