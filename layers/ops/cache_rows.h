// Sequences of a key/value cache that continue from other sequences: what a beam search does to its
// beams, and several continuations of one prompt to that prompt.
//
// Math      for every row b with source[b] = (s, f), s != b, and every position f <= p < position
//           that the cache still holds (position - P <= p):
//           k[b][p mod P] = k[s][p mod P], v[b][p mod P] = v[s][p mod P]
// Shapes    k, v (B,P,G,D) of one dtype; source (B,2) i32: the row and the first position to copy;
//           state: the StepState, whose `position` is the number of positions in the cache.
// Aliasing  in place. A row that is read keeps its own values (its source is itself), so the order
//           of the copies does not matter and nothing is copied twice.
// Traffic   reads and writes 2 (position - f) G D values for every row that moves; reported: as if
//           all but one row moved, whole.
// Errors    usage, before anything is written: a source outside [0,B), a first position below 0, a
//           source that moves itself, a position below 0, or above P in a cache that is no ring.
//           shape, unsupported: as everywhere.
// Determinism  equal bits for any number of threads.
#pragma once

#include "engine/memory/context.h"

namespace snug {

// `ring`: of layers whose window lets positions beyond P (layers/ops/attention.h).
void cache_rows_copy(Context& ctx, const View& cache_k, const View& cache_v, const View& source,
                     const View& state, bool ring = false);

}  // namespace snug
