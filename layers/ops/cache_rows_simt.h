// The kernel of layers/ops/cache_rows.h for engine/simt: the same bits. Sources are checked by who
// has them on the host; the position is read from the state.
//
// Queue is simt::Queue of the side that is linked. Shapes have been checked; caches are of f32,
// bf16 or f16. threads: of a block.
#pragma once

#include "engine/core/view.h"

namespace snug {

template <class Queue>
void cache_rows_copy_on(Queue& queue, const View& cache_k, const View& cache_v, const View& source,
                        const View& state, int threads = 256);

}  // namespace snug
