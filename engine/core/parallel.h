// Loops over independent pieces of work. The split into pieces never depends on the thread count,
// so neither does a result: `f(i)` is called once for every i, by whichever thread.
// `f` must not throw: an exception cannot leave a thread of the loop.
#pragma once

#include <cstdint>

#include "engine/core/openmp.h"

namespace snug {

template <class F>
void parallel_for(int threads, int64_t n, F&& f) {
  if (threads <= 1 || n <= 1) {
    for (int64_t i = 0; i < n; ++i) f(i);
    return;
  }
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t i = 0; i < n; ++i) f(i);
}

// The same over [0, n) cut into chunks of `grain`: f(begin, end).
template <class F>
void parallel_chunks(int threads, int64_t n, int64_t grain, F&& f) {
  const int64_t chunks = (n + grain - 1) / grain;
  parallel_for(threads, chunks, [&](int64_t c) {
    const int64_t begin = c * grain;
    f(begin, begin + grain < n ? begin + grain : n);
  });
}

// f(i, slot) with slot in [0, threads): for per-thread scratch.
template <class F>
void parallel_slots(int threads, int64_t n, F&& f) {
  if (threads <= 1 || n <= 1) {
    for (int64_t i = 0; i < n; ++i) f(i, 0);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t i = 0; i < n; ++i) f(i, omp_get_thread_num());
}

}  // namespace snug
