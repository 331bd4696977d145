// Rotary position embedding of the queries and keys inside packed qkv rows. Su et al., "RoFormer",
// arXiv:2104.09864, in the pairs of Hugging Face's rotate_half and GPT-NeoX: i and i + R/2.
//
// Math      with the angle a_i = p inverse_frequencies[i], i < R/2, at position p, in every head of
// q
//           and k:  y[i]       = f (x[i] cos a_i - x[i + R/2] sin a_i)
//                   y[i + R/2] = f (x[i + R/2] cos a_i + x[i] sin a_i);  y[j] = x[j] for j >= R
//           Values are copied. Backward is the rotation by -a_i, times f. f: attention_factor.
//           p(b,t) = position + t, with document_start less that, as in embedding.h.
// Shapes    y, qkv, dqkv, dy (N,(H+2G)D) with N = B*T: heads of q, then of k, then of v, none of both
//           with G = 0; state: the
//           StepState, whose `position` the first column has, or undefined: 0; document_start (B,T)
//           i32 (document_start.h), or undefined.
// dtypes    one of f32, bf16, f16, the same for y and qkv.
// Aliasing  y may be qkv, dqkv may be dy: then only what is rotated is read and written.
// Numerics  as transformers: an angle is the float product of the float position and the float
//           inverse frequency, so models see the angles they were trained with; its sine and cosine
//           err by less than 3e-7 at every position (the angle less a multiple of pi without loss,
//           polynomials behind); the rotation is float, rounded once (transformers in 16 bits
//           rounds sine and cosine first). The product errs by 2^-24 of an angle: 3e-3 at position
//           1e5.
// Traffic   what is rotated in and out; where y is another tensor, all of it.
// Determinism  equal bits for any number of threads, and by kernels.
// Errors    data: a position outside [0, 2^22) or starts that are none, before anything is written.
//           usage: inverse frequencies outside [0,1], more than 512 or more than fit a head.
//           shape, unsupported: as everywhere.
#pragma once

#include <vector>

#include "engine/memory/context.h"

namespace snug {

struct RopeSpec {
  int64_t H = 1, G = 1, D = 1;
  // R/2 of them, in the order of the pairs: theta^(-2i/R), or what a scaling makes of them. Where
  // R < D the rotation is partial (rotary_pct, partial_rotary_factor).
  std::vector<float> inverse_frequencies;
  float attention_factor = 1;
};

void rope_forward(Context& ctx, const View& y, const View& qkv, int64_t B, int64_t T,
                  const RopeSpec& spec, const View& state, const View& document_start = {});

void rope_backward(Context& ctx, const View& dqkv, const View& dy, int64_t B, int64_t T,
                   const RopeSpec& spec, const View& state, const View& document_start = {});

}  // namespace snug
