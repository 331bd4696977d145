// The elementwise kernels of engine/kernels/kernels.h for engine/simt: same mathematics, dtypes,
// aliasing and rounding, and the same bits.
//
// Queue is simt::Queue of the side that is linked: the emulator or a device. Views lie where it
// can reach; shapes have been checked. threads: of a block.
#pragma once

#include "engine/core/view.h"

namespace snug {

// y = x in y's dtype; any pair of f32, bf16, f16.
template <class Queue>
void cast_on(Queue& queue, const View& y, const View& x, int threads = 256);

// y += x; any such pair.
template <class Queue>
void add_on(Queue& queue, const View& y, const View& x, int threads = 256);

// x *= factor.
template <class Queue>
void scale_on(Queue& queue, const View& x, float factor, int threads = 256);

}  // namespace snug
