// Scaled dot-product attention that never forms the (T,T) matrix.
//
// Math      Query head h reads key/value head h / (H/G). For query i, over the keys j it may see:
//             s_ij = scale q_i . k_j     lse_i = log sum_j e^(s_ij)     p_ij = e^(s_ij - lse_i)
//             out_i = sum_j m_ij p_ij v_j
//           With a softcap c the scores are s_ij = c tanh(scale q_i . k_j / c), and ds_ij of dq and dk
//           is times 1 - (s_ij / c)^2 (Gemma 2).
//           m_ij is 1 without dropout, else 0 with probability `dropout` and 1 / (1 - dropout)
//           otherwise; lse is of the softmax before dropout. Backward, with P from lse:
//             delta_i = dout_i . out_i             dp_ij = m_ij dout_i . v_j
//             ds_ij = p_ij (dp_ij - delta_i)       dv_j = sum_i m_ij p_ij dout_i
//             dq_i = scale sum_j ds_ij k_j         dk_j = scale sum_i ds_ij q_i
//           Forward walks the keys in blocks with a running maximum and sum (Milakov and
//           Gimelshein, "Online normalizer calculation for softmax", 2018); backward recomputes
//           p block by block (Dao et al., "FlashAttention", 2022).
// Shapes    qkv (B*T,(H+2G)*D) rows of H queries, G keys, G values; out, dout (B*T,H*D);
//           dqkv like qkv; lse (B,H,T) f32; caches (B,P,G,D). Activations all f32, bf16 or f16.
// Modes     causal and bidirectional; any T; D up to 256; H a multiple of G; key lengths; dropout;
//           documents kept apart: query i then sees keys of its own document alone, with causal
//           j in [document_start_i, i], without j in [document_start_i, document_end_i). Tokens
//           that belong to no row (the end of packed rows) are a document like any other. With
//           causal, a sliding window: query i sees the last `window` keys up to itself,
//           j > i - window (`sliding_window` of Hugging Face), in any combination with the others.
//           With key lengths a query may so see no key: its out is 0, its lse is stored as 0, and
//           it has and gives no gradient. A softcap, with causal. Refused: documents with key
//           lengths, windows and a softcap without causal (unsupported); document_end missing, or where it is not read (usage).
// Writes    Everything is assigned. No output may overlap an input or another output.
// Numerics  Softmax, lse, delta and every accumulation are fp32, with one rounding on the way out.
//           Exponentials are powers of two: e^(s - lse) = 2^(s c - lse2), c = scale log2(e); their
//           relative error is 1.5e-7 (2e-7 with pairs) + 2^-24 of the exponent, which is what one
//           rounding of a score does. There are two forms of the products.
//           fp32: f32 and f16 always, bf16 with a softcap and where pairs are not the faster unit. Every product is
//           one chain of fused multiply-adds in ascending order; the AVX2 and the AVX-512 form give
//           the same bits.
//           Pairs (bf16 on AMX, or VDPBF16PS on AMD, as matmul_best has it): q, k, v and
//           dout enter as stored; m p and ds are rounded to bf16 (2^-8 of an element at most) where
//           a product takes them (AMX: forward, halves away from zero), not in the sum of the
//           softmax; every product is one chain over
//           pairs of neighbours (AMX: over blocks of 32, each the sum of an even and an odd chain).
//           Subnormal operands and results count as zero. With independent
//           roundings out errs by a deviation of 2^-8 / sqrt(3) sqrt(sum_j (m_ij p_ij v_jd)^2),
//           gradients alike (tests/support/reference/attention.h). Within one form any number of
//           threads gives the same bits, and so do recompute and attention over a cache. Which form
//           runs follows the instruction set.
//           Blocks of 64 keys that end before the document or the window of a block's first query,
//           or begin behind the document of its last, are passed over, and so are blocks of queries
//           in the sums over them: the order of sums follows from T, window and document_start
//           alone.
//           A window of T or more has the bits of none. With all starts 0 the
//           bits are those without document_start; a document that begins at a multiple of 64 has
//           those it has alone at the window's start, any other the rounding of another order of
//           sums.
// Dropout   m_ij is drawn with the key (seed, step, site) at sample first_sample + b, position i,
//           channel h * 2^20 + j: the same under recompute and any split into micro-batches.
//           Needs T < 2^20 and H <= 4096.
// Memory    A planned workspace per thread. On tile-matrix units: packed keys and values, forward 2
//           and backward 3 T D values of 2 bytes for T up to 2048, some tiles, and dk and dv as
//           below. Otherwise, in units of 4 bytes (u a unit's values, 1 or 2) and blocks of 64:
//           forward (D / u + D) 64 for each of up to 8 blocks of queries, 2 or 3 blocks of keys and
//           values, one tile of 64 x 64. Backward (4 D / u + D) 64 for each of up to 4 blocks of
//           queries, 2 or 3 of keys, 2 or 2.5 tiles, and dk and dv: 2 T D, or 512 D when there are
//           few heads per thread.
// Cost      4 (forward) and 10 (backward) H D FLOPs for every visible pair; compute bound. With
//           documents the pairs of undivided sequences are reported, the most it can be: a plan
//           knows no data. A window counts: T window - window (window - 1) / 2 pairs.
#pragma once

#include "engine/memory/context.h"

namespace snug {

struct AttentionSpec {
  int64_t H = 0;  // query heads
  int64_t G = 0;  // key/value heads, H % G == 0
  int64_t D = 0;  // head width
  float scale = 1;
  bool causal = true;
  int64_t window = 0;  // keys a query sees at most, itself included; 0: no limit
  float softcap = 0;   // s = softcap tanh(s / softcap); 0: none
  float dropout = 0;   // in [0,1)
  uint32_t site = 0;   // which dropout of the model this is
  View key_lengths;    // (B) i32 in [1,T]: keys from there on are not seen; undefined: all T
  // Documents kept apart (document_start.h): (B,T) i32; undefined: a sequence is one document.
  View document_start;
  View document_end;  // of them (B,T) i32, without causal; else undefined
};

// `state` is a StepState, read for dropout only: it may be undefined when dropout is 0.
void attention_forward(Context& ctx, const View& out, const View& lse, const View& qkv, int64_t B,
                       int64_t T, const AttentionSpec& spec, const View& state);

void attention_backward(Context& ctx, const View& dqkv, const View& dout, const View& qkv,
                        const View& out, const View& lse, int64_t B, int64_t T,
                        const AttentionSpec& spec, const View& state);

// Generation: writes the keys and values of Tq new tokens at state->position .. + Tq of the caches,
// then query i, at position state->position + i, sees the keys 0 .. position + i, or the last
// `window` of them: blocks of keys before the window are not read. Causal, without
// dropout, key lengths or documents. The same bits as attention_forward over the whole sequence.
// With a window the cache is a ring: position p lies in row p mod P, and P may be as small as
// attention_ring() says; what a query does not see any more is written over.
// Throws usage when the cache has no room. The cost reported is that of a full cache.
void attention_cached_forward(Context& ctx, const View& out, const View& cache_k,
                              const View& cache_v, const View& qkv, int64_t B, int64_t Tq,
                              const AttentionSpec& spec, const View& state);

// Rows of the ring in which queries with this window find their keys, where at most Tq tokens come
// at once: whole tiles of every form of attention, and room for 2 Tq tokens that are written and
// not read, such as the end of a chunk behind a prompt.
inline constexpr int64_t kCacheTile = 128;
inline int64_t attention_ring(int64_t window, int64_t Tq) {
  return (window + 2 * Tq + kCacheTile - 1) / kCacheTile * kCacheTile;
}
// P if a cache of P rows is one for these queries, else 0.
inline int64_t cache_ring(const AttentionSpec& spec, int64_t P, int64_t Tq) {
  return spec.window > 0 && P % kCacheTile == 0 && P >= attention_ring(spec.window, Tq) ? P : 0;
}

}  // namespace snug
