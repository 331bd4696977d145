// Loops over independent pieces of work. The split into pieces never depends on the thread count,
// so neither does a result: `f(i)` is called once for every i, by whichever thread.
// `f` must not throw: an exception cannot leave a thread of the loop.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace snug {

// The threads themselves, in parallel.cpp: what a loop does is compiled once, for one thread and for
// many. `run` gets `f`, and pieces in a row or one piece and its slot.
void run_shares(int threads, int64_t n, void* f, void (*run)(void* f, int64_t begin, int64_t end));
void run_slots(int threads, int64_t n, void* f, void (*run)(void* f, int64_t i, int slot));

namespace parallel_parts {

template <class F>
void* address_of(F& f) {
  return const_cast<std::remove_const_t<F>*>(std::addressof(f));
}

}  // namespace parallel_parts

template <class F>
void parallel_for(int threads, int64_t n, F&& f) {
  using Called = std::remove_reference_t<F>;
  run_shares(threads, n, parallel_parts::address_of(f), [](void* body, int64_t i, int64_t end) {
    for (auto& call = *static_cast<Called*>(body); i < end; ++i) call(i);
  });
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
  using Called = std::remove_reference_t<F>;
  run_slots(threads, n, parallel_parts::address_of(f),
            [](void* body, int64_t i, int slot) { (*static_cast<Called*>(body))(i, slot); });
}

}  // namespace snug
