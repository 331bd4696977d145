// The kernels of layers/ops/attention.h for engine/simt: forward and backward over whole sequences,
// with every mode that is built for the CPU and D up to 256, and forward over a cache.
//
// Method    Forward keeps a running maximum and sum (Dao et al., "FlashAttention", 2022). Backward
//           goes over the pairs twice, once for dq by blocks of queries and once for dk and dv by
//           blocks of keys with all heads that share them, so nothing is added by more than one
//           block: 7 products a tile. Tiles nobody sees are passed over. Over a cache the new keys
//           are appended by one launch and read by the next, with the tiles of forward: the bits of
//           the whole sequence, however it is cut. One query takes a tile, which is slow.
//           bf16, f16: tensor cores, a warp for 16 rows (attention_mma.h). f32: tiles of 32 queries
//           and 32 keys in shared memory, fewer of wide heads (attention_tiles.h); a thread makes
//           4 x 4 scores or sums at a time.
// Numerics  f32: every product is one chain of fused multiply-adds; e^x is that of
//           engine/simt/math.h. bf16, f16: products are exact and summed in float, in an order that
//           is the device's own; exponentials are powers of two; p where it is not dropped and ds
//           are rounded to the dtype where a product takes them, not in the sum of the softmax. In
//           f16 what is rounded below 6e-5 errs by 2^-25 at most, and a ds past 65504 is infinite,
//           which skips the step as any gradient that is.
// Memory    backward: `delta` (B,H,T) f32.
// Dropout   the CPU's mask, bit by bit.
// Determinism  equal bits for any order of threads and blocks, and for any size of a block.
// Errors    Kernels cannot throw: key lengths and document starts are checked on the host by who
//           has them (attention_check_values).
// Queue     simt::Queue of the side that is linked. attention_check has passed. threads: of a
//           block; 0: 64 in f32, else 128.
#pragma once

#include "layers/ops/attention.h"

namespace snug {

template <class Queue>
void attention_forward_on(Queue& queue, const View& out, const View& lse, const View& qkv,
                          int64_t B, int64_t T, const AttentionSpec& spec, const View& state,
                          int threads = 0);

// The position is read from the state by the kernels; one outside of the cache writes nothing
// there.
template <class Queue>
void attention_cached_forward_on(Queue& queue, const View& out, const View& cache_k,
                                 const View& cache_v, const View& qkv, int64_t B, int64_t Tq,
                                 const AttentionSpec& spec, const View& state, int threads = 0);

template <class Queue>
void attention_backward_on(Queue& queue, const View& dqkv, const View& delta, const View& dout,
                           const View& qkv, const View& out, const View& lse, int64_t B, int64_t T,
                           const AttentionSpec& spec, const View& state, int threads = 0);

}  // namespace snug
