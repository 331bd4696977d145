#include <initializer_list>

#include "engine/kernels/dispatch.h"
#include "engine/simt/map.h"
#include "layers/ops/rows_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

constexpr int32_t kNoRow = -1;

// N neighbours a thread.
template <class T, int N>
__global__ void rows_gather_forward_kernel(T* y, const T* x, const int32_t* index, int64_t m,
                                           int64_t n, int64_t c) {
  const int64_t pieces = c / N, i = block() * threads() + thread();
  if (i >= m * pieces) return;
  const int64_t row = i / pieces, channel = i % pieces * N, from = index[row];
  Pack<T, N> out;
  if (from >= 0 && from < n) {
    out = Pack<T, N>::load(x + from * c + channel);
  } else {
    const float value = from == kNoRow ? 0.0f : __builtin_nanf("");
    for (int k = 0; k < N; ++k) out[k] = from_f32<T>(value);
  }
  out.store(y + row * c + channel);
}

__global__ void rows_gather_no_source_kernel(int32_t* source, int64_t n) {
  const int64_t i = block() * threads() + thread();
  if (i < n) source[i] = kNoRow;
}

__global__ void rows_gather_source_kernel(int32_t* source, const int32_t* index, int64_t m,
                                          int64_t n) {
  const int64_t i = block() * threads() + thread();
  if (i >= m) return;
  const int64_t row = index[i];
  if (row >= 0 && row < n) atomic_max(source + row, static_cast<int32_t>(i));
}

template <class T, int N>
__global__ void rows_gather_backward_kernel(T* dx, bool add, const T* dy, const int32_t* source,
                                            int64_t n, int64_t c) {
  const int64_t pieces = c / N, i = block() * threads() + thread();
  if (i >= n * pieces) return;
  const int64_t row = i / pieces, channel = i % pieces * N, from = source[row];
  T* const to = dx + row * c + channel;
  if (from == kNoRow && add) return;
  Pack<T, N> out{};
  if (from != kNoRow) out = Pack<T, N>::load(dy + from * c + channel);
  if (add) {
    const auto before = Pack<T, N>::load(to);
    for (int k = 0; k < N; ++k) out[k] = from_f32<T>(to_f32(before[k]) + to_f32(out[k]));
  }
  out.store(to);
}

template <class T>
bool wide(int64_t c, std::initializer_list<const View*> views) {
  bool all = c % kVector<T> == 0;
  for (const View* v : views) all = all && aligned_to_vectors(v->data);
  return all;
}

Dims blocks_for(int64_t items, int threads) {
  return {.blocks = ceil_div(items, int64_t{threads}), .threads = threads};
}

}  // namespace

template <class Queue>
void rows_gather_forward_on(Queue& queue, const View& y, const View& x, const View& index,
                            int threads) {
  const int64_t m = y.shape[0], n = x.shape[0], c = x.shape[1];
  dispatch_float(x, "x", [&](auto tag) {
    using T = decltype(tag);
    constexpr int kWide = kVector<T>;
    const bool vectors = wide<T>(c, {&y, &x});
    launch(queue, blocks_for(m * c / (vectors ? kWide : 1), threads), "rows_gather_forward",
           vectors ? rows_gather_forward_kernel<T, kWide> : rows_gather_forward_kernel<T, 1>,
           y.as<T>(), x.as<const T>(), index.as<const int32_t>(), m, n, c);
  });
}

template <class Queue>
void rows_gather_backward_on(Queue& queue, const View& dx, const View& dy, const View& index,
                             bool add_dx, const View& source, int threads) {
  const int64_t m = dy.shape[0], n = dx.shape[0], c = dx.shape[1];
  launch(queue, blocks_for(n, threads), "rows_gather_no_source", rows_gather_no_source_kernel,
         source.as<int32_t>(), n);
  launch(queue, blocks_for(m, threads), "rows_gather_source", rows_gather_source_kernel,
         source.as<int32_t>(), index.as<const int32_t>(), m, n);
  dispatch_float(dx, "dx", [&](auto tag) {
    using T = decltype(tag);
    constexpr int kWide = kVector<T>;
    const bool vectors = wide<T>(c, {&dx, &dy});
    launch(queue, blocks_for(n * c / (vectors ? kWide : 1), threads), "rows_gather_backward",
           vectors ? rows_gather_backward_kernel<T, kWide> : rows_gather_backward_kernel<T, 1>,
           dx.as<T>(), add_dx, dy.as<const T>(), source.as<const int32_t>(), n, c);
  });
}

template void rows_gather_forward_on(simt::Queue&, const View&, const View&, const View&, int);
template void rows_gather_backward_on(simt::Queue&, const View&, const View&, const View&, bool,
                                      const View&, int);

}  // namespace snug
