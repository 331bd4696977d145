// The kernels of quant/quantise.h for engine/simt: the same mathematics and the same bits.
//
// Work      a warp codes a block of the codec, so one block for a whole tensor is one warp's; a
//           thread decodes a byte of codes. Books lie in shared memory.
// Launches  quantise: one, and three more that double the scales; dequantise: one.
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "quant/quantise.h"

namespace snug {

// doubled: `absmax` (blocks) f32 and `sums` (double_scale_chunks(blocks)) f64 are workspace, else
// undefined.
template <class Queue>
void quantise_on(Queue& queue, const Coded& to, const View& x, const CodeSpec& spec,
                 const Rounding& rounding, const View& absmax, const View& sums, int threads = 256);

template <class Queue>
void dequantise_on(Queue& queue, const View& y, const Coded& from, const CodeSpec& spec,
                   int threads = 256);

// Their mean is summed in chunks of this many scales, in order, and the chunks in order.
inline constexpr int64_t kScaleChunk = 1024;
inline int64_t double_scale_chunks(int64_t blocks) {
  return (blocks + kScaleChunk - 1) / kScaleChunk;
}

}  // namespace snug
