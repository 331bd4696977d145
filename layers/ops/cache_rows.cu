#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/memory/step_state.h"
#include "engine/simt/map.h"
#include "layers/ops/cache_rows_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// A thread for every N values of one cache: rows of `row` values, `cell` at a position. A row that
// is read is not written, so the order does not matter.
template <class V, int N>
__global__ void cache_rows_copy_kernel(V* k, V* v, const int32_t* source, const StepState* state,
                                       int64_t row, int64_t cell, int64_t n) {
  const int64_t i = (block() * threads() + thread()) * N;
  if (i >= n) return;
  const int64_t b = i / row, from = source[2 * b];
  // The last position before the state's that lies in this row of the ring.
  const int64_t rows = row / cell, last = state->position - 1;
  const int64_t behind = (last - i % row / cell) % rows;
  const int64_t position = last - (behind < 0 ? behind + rows : behind);
  if (from == b || position < 0 || position < source[2 * b + 1]) return;
  Pack<V, N>::load(k + from * row + i % row).store(k + i);
  Pack<V, N>::load(v + from * row + i % row).store(v + i);
}

}  // namespace

template <class Queue>
void cache_rows_copy_on(Queue& queue, const View& cache_k, const View& cache_v, const View& source,
                        const View& state, int threads) {
  const int64_t n = cache_k.elements(), row = n / cache_k.shape[0], cell = row / cache_k.shape[1];
  dispatch_float(cache_k, "cache_k", [&](auto tag) {
    using V = decltype(tag);
    const bool wide = cell % kVector<V> == 0 && aligned_to_vectors(cache_k.data) &&
                      aligned_to_vectors(cache_v.data);
    launch(queue,
           {.blocks = ceil_div(n, int64_t{threads} * (wide ? kVector<V> : 1)), .threads = threads},
           "cache_rows_copy",
           wide ? cache_rows_copy_kernel<V, kVector<V>> : cache_rows_copy_kernel<V, 1>,
           cache_k.as<V>(), cache_v.as<V>(), source.as<const int32_t>(), step_state(state), row,
           cell, n);
  });
}

template void cache_rows_copy_on(simt::Queue&, const View&, const View&, const View&, const View&,
                                 int);

}  // namespace snug
