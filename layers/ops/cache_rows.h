// Sequences of a key/value cache that continue from other sequences: what a beam search does to its
// beams, and several continuations of one prompt to that prompt.
//
// Math      for every row b with source[b] = (s, f), s != b, and every position f <= p < position:
//           k[b][p] = k[s][p], v[b][p] = v[s][p]
// Shapes    k, v (B,P,G,D) of one dtype; source (B,2) i32: the row and the first position to copy;
//           state: the StepState, whose `position` is the number of positions in the cache.
// Aliasing  in place. A row that is read keeps its own values (its source is itself), so the order
//           of the copies does not matter and nothing is copied twice.
// Traffic   reads and writes 2 (position - f) G D values for every row that moves; reported: as if
//           all but one row moved, whole.
// Errors    usage, before anything is written: a source outside [0,B), a first position below 0, a
//           source that moves itself, a position outside [0,P]. shape, unsupported: as everywhere.
// Determinism  equal bits for any number of threads.
#pragma once

#include "engine/memory/context.h"

namespace snug {

void cache_rows_copy(Context& ctx, const View& cache_k, const View& cache_v, const View& source,
                     const View& state);

}  // namespace snug
