// The kernel of layers/ops/document_start.h for engine/simt: the same bits.
//
// Queue is simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "engine/core/view.h"

namespace snug {

template <class Queue>
void document_end_on(Queue& queue, const View& ends, const View& starts, int threads = 256);

}  // namespace snug
