// The kernels of layers/ops/rope.h for engine/simt: the same mathematics, dtypes, aliasing and
// bits.
//
// Method    a thread for a vector of pairs of one head, in accesses of 16 bytes where R/2 and D are
//           multiples of them and pointers aligned, else pair by pair. Every head makes its own
//           sines and cosines: some forty operations a pair of 4 e bytes in and out.
// Errors    Kernels cannot throw: who has the positions on the host checks them, as the op does.
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "layers/ops/rope.h"

namespace snug {

inline constexpr int64_t kMostRopePairs = 512;  // R/2

// direction: 1 forward, -1 backward.
template <class Queue>
void rope_on(Queue& queue, const View& y, const View& qkv, int64_t T, const RopeSpec& spec,
             float direction, const View& state, const View& document_start, int threads = 256);

}  // namespace snug
