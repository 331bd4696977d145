// y[i] = f(x[i], ...) for flat arrays: one kernel and its launcher for every elementwise op.
#pragma once

#include <type_traits>

#include "engine/core/units.h"
#include "engine/simt/simt.h"

namespace snug::simt {
inline namespace SIMT_SIDE {

template <class F, class To, class... From, int N>
__device__ inline void map_pack(F f, To* y, const Pack<From, N>&... x) {
  Pack<To, N> out;
  for (int i = 0; i < N; ++i) out[i] = from_f32<To>(f(to_f32(x[i])...));
  out.store(y);
}

// N neighbours a thread; the last thread takes what is left one by one.
template <class F, int N, class To, class... From>
__global__ void map_kernel(F f, int64_t n, To* y, const From*... x) {
  const int64_t first = (block() * threads() + thread()) * N;
  if (first + N <= n) {
    map_pack(f, y + first, Pack<From, N>::load(x + first)...);
  } else {
    for (int64_t i = first; i < n; ++i) y[i] = from_f32<To>(f(to_f32(x[i])...));
  }
}

inline bool aligned_to_vectors(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

// f: a struct whose operator() is a __device__ const function of floats. y may be one of the x.
template <class F, class To, class... From>
void map(Queue& queue, const char* name, F f, int threads, int64_t n, To* y, const From*... x) {
  constexpr int kWide = 8;  // one or two accesses of 16 bytes a tensor
  if (aligned_to_vectors(y) && (aligned_to_vectors(x) && ...)) {
    launch(queue, {.blocks = ceil_div(n, int64_t{threads} * kWide), .threads = threads}, name,
           map_kernel<F, kWide, To, From...>, f, n, y, x...);
  } else {
    launch(queue, {.blocks = ceil_div(n, int64_t{threads}), .threads = threads}, name,
           map_kernel<F, 1, To, From...>, f, n, y, x...);
  }
}

}  // namespace SIMT_SIDE
}  // namespace snug::simt
