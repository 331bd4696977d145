// Token, type and position embedding, the bottom of a GPT or a BERT.
//
// Math      y[b*T + t][c] = (wte[tokens[b][t]][c] + wtt[types[b][t]][c]) + wpe[p(b,t)][c],
//           p(b,t) = position + t, added in this order, which is that of transformers' BERT
//           dwte[v][c] = or += sum of dy[n][c] over the rows n whose token is v, in order of n
//           dwpe[p][c] = or += sum of dy[n][c] over the rows n at position p, in order of n
//           dwtt[k][c] = or += sum of dy[n][c] over the rows n of type k
//           Virtual tokens (prompt tuning): a token V + k, V being the rows of wte, reads row k of
//           front.table in place of one of wte, whose rows are multiplied by front.beside, which these
//           are not (Gemma's). dfront[k][c] = or += sum of dy[n][c] over the rows n whose
//           token is first + k.
//           With document_start, positions begin anew with every document: p(b,t) = position + t -
//           document_start[b][t], as the position ids of transformers' packed batches.
// Shapes    y, dy (N,C) with N = B*T; tokens (B,T) i32; wte (Vp,C); wpe (P,C), or undefined: no
//           learned positions; state: the StepState, whose `position` the first column has, or
//           undefined: 0; document_start (B,T) i32 (document_start.h), or undefined; wtt (K,C), or
//           undefined: no types; front.table (K,C), or undefined: no virtual tokens; types (B,T) i32, or undefined: type 0 everywhere (RoBERTa). dwte
//           (Vp,C), dwpe (P,C), dwtt (K,C); an undefined view is not wanted.
// Offset    positions that begin at row r of a table (RoBERTa: padding_idx + 1) are wpe.rows(r, P -
//           r), and dwpe likewise. The rows before are not touched, by an assigned gradient neither:
//           who owns it makes them zero.
// dtypes    y, dy, wte, wpe each f32, bf16 or f16, wtt and front.table as wte; the sum is float, rounded once. dwte,
//           dwpe, dwtt: f32 or bf16 each.
// Accumulation  a gradient with add = false is assigned: zero in the rows that no token names.
//           In f32 the rows are added one by one to what is there. In bf16 they are summed in
//           float first; the sum is added to what is there, widened, and rounded once, however many
//           rows there are. dwtt and dfront, which have few rows, in either: float from zero over each chunk of
//           rows (engine/kernels/row_split.h), then chunks in order onto what is there, rounded once.
// Aliasing  none.
// Memory    backward into bf16: workspace (N) i64, the rows in order of what they are added to. With
//           dwtt, and dfront: (at most 32,K,C) f32. By kernels: what embedding_simt.h says.
// Traffic   forward reads a row of each table and writes a row of y per token. Backward reads dy
//           and updates as many rows; assigning writes the whole of dwte first. wtt stays in cache;
//           dwtt reads dy once more.
// Determinism  equal bits for any number of threads; no atomics: threads share the channels.
// Errors    data: a token outside [0,Vp) and of no row of front, a position outside [0,P), a type outside [0,K) or starts
//           that are none, before anything is written. usage: types without wtt, forward.
//           shape, unsupported: as everywhere.
#pragma once

#include "engine/memory/context.h"
#include "engine/seams/grad_sink.h"

namespace snug {

// Rows of virtual tokens, and what those of wte are multiplied by beside them.
struct FrontRows {
  View table = {};
  float beside = 1.0f;
};

void embedding_forward(Context& ctx, const View& y, const View& tokens, const View& wte,
                       const View& wpe, const View& state, const View& document_start = {},
                       const View& types = {}, const View& wtt = {}, const FrontRows& front = {});

void embedding_backward(Context& ctx, const GradView& dwte, const GradView& dwpe, const View& dy,
                        const View& tokens, const View& state, const View& document_start = {},
                        const View& types = {}, const GradView& dwtt = {});

// dfront of the tokens [first, first + K); others, of any number, are passed over.
void embedding_front_backward(Context& ctx, const GradView& dfront, const View& dy,
                              const View& tokens, int64_t first);

}  // namespace snug
