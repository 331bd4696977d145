#include "engine/core/parallel.h"

#include <algorithm>

#include "engine/core/openmp.h"

namespace snug {

void run_shares(int threads, int64_t n, void* f, void (*run)(void* f, int64_t begin, int64_t end)) {
  if (threads <= 1 || n <= 1) {
    run(f, 0, n);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const int64_t thread = omp_get_thread_num(), count = omp_get_num_threads();
    const int64_t share = n / count, longer = n % count;  // the first ones have one piece more
    const int64_t begin = thread * share + std::min(thread, longer);
    run(f, begin, begin + share + (thread < longer ? 1 : 0));
  }
}

void run_slots(int threads, int64_t n, void* f, void (*run)(void* f, int64_t i, int slot)) {
  if (threads <= 1 || n <= 1) {
    for (int64_t i = 0; i < n; ++i) run(f, i, 0);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t i = 0; i < n; ++i) run(f, i, omp_get_thread_num());
}

}  // namespace snug
