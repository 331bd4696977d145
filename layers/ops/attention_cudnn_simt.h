// What cuDNN's attention is handed beside the tensors of layers/ops/attention.h, as kernels for
// engine/simt: the lengths of its queries, and zeros where it promises nothing.
//
// Queue     simt::Queue of the side that is linked. attention_check has passed. threads: of a
//           block.
#pragma once

#include "layers/ops/attention.h"

namespace snug {

// lengths (B) i32: T, for padding hides keys and no query.
template <class Queue>
void attention_query_lengths_on(Queue& queue, const View& lengths, int64_t T, int threads = 256);

// Zeros in the rows of dk and dv that are behind a sequence's length.
template <class Queue>
void attention_clear_padding_on(Queue& queue, const View& dqkv, int64_t B, int64_t T,
                                const AttentionSpec& spec, int threads = 256);

}  // namespace snug
