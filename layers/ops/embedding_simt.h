// The kernels of layers/ops/embedding.h for engine/simt: the same mathematics, dtypes, modes and
// accumulation, and the same bits: rows are added in their order, without atomics.
//
// Method    dwte, and dwpe of documents: the rows are sorted by what they are added to
//           (embedding_sort.h), stable, then a warp adds 256 channels of all rows of one token in
//           their order. dwpe else: a warp for 256 channels of a position, over the sequences.
//           dwtt: a warp for 256 channels of a type in a chunk of rows, which it adds in their
//           order, then a thread a channel adds the chunks in theirs.
//           Where C is no multiple of 8 or a pointer is not aligned, a warp has 32 channels.
// Memory    backward that sorts: embedding_sort_words(N) i64, 17 bytes a row. dwtt: `partial`.
// Traffic   a pass of the sort, one for every eight bits of the number of tokens, reads a row's
//           4 or 8 bytes twice and writes 8. Then dy is read once and a row of a table that is
//           named written once, and read when adding; assigning writes zeros to the whole table
//           first. dwtt reads a row of dy once, a type K times and writes and reads `partial`.
// Errors    Kernels cannot throw: who has the tokens on the host checks them, as the op does.
//           A token, type or position outside its table gives a row of NaN forward and is passed over
//           backward.
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "engine/core/units.h"
#include "layers/ops/embedding.h"

namespace snug {

template <class Queue>
void embedding_forward_on(Queue& queue, const View& y, const View& tokens, const View& wte,
                          const View& wpe, const View& state, const View& document_start = {},
                          const View& types = {}, const View& wtt = {}, const FrontRows& front = {},
                          int threads = 128);

inline constexpr int kSortedRows = 1024;  // of a tile
inline int64_t embedding_sort_words(int64_t rows) {
  return 2 * rows + 128 * ceil_div(rows, int64_t{kSortedRows});
}

// order: workspace where dwte is wanted, or dwpe of documents.
template <class Queue>
void embedding_backward_on(Queue& queue, const GradView& dwte, const GradView& dwpe, const View& dy,
                           const View& tokens, const View& state, const View& document_start,
                           const View& order, int threads = 128);

// dwtt, or dfront, whose types are its tokens less `first`. partial: workspace
// (RowSplit(N).chunks,K,C) f32 (engine/kernels/row_split.h).
template <class Queue>
void embedding_type_gradient_on(Queue& queue, const GradView& dwtt, const View& dy,
                                const View& types, const View& partial, int64_t first = 0,
                                int threads = 128);

}  // namespace snug
