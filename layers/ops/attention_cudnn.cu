#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/simt/map.h"
#include "layers/ops/attention_cudnn_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

__global__ void attention_query_lengths_kernel(int32_t* lengths, int32_t length, int64_t n) {
  const int64_t b = block() * threads() + thread();
  if (b < n) lengths[b] = length;
}

// A thread for N values of dk and dv, which lie side by side behind the queries.
template <class V, int N>
__global__ void attention_clear_padding_kernel(V* dqkv, const int32_t* lengths, int64_t T,
                                               int64_t queries, int64_t keys, int64_t n) {
  const int64_t at = (block() * threads() + thread()) * N;
  if (at >= n) return;
  const int64_t row = at / keys, column = at % keys;
  if (row % T < lengths[row / T]) return;
  Pack<V, N> zeros;
  for (int k = 0; k < N; ++k) zeros[k] = from_f32<V>(0.0f);
  zeros.store(dqkv + row * (queries + keys) + queries + column);
}

}  // namespace

template <class Queue>
void attention_query_lengths_on(Queue& queue, const View& lengths, int64_t T, int threads) {
  const int64_t n = lengths.elements();
  launch(queue, {.blocks = ceil_div(n, int64_t{threads}), .threads = threads},
         "attention_query_lengths", attention_query_lengths_kernel, lengths.as<int32_t>(),
         static_cast<int32_t>(T), n);
}

template <class Queue>
void attention_clear_padding_on(Queue& queue, const View& dqkv, int64_t B, int64_t T,
                                const AttentionSpec& spec, int threads) {
  const int64_t queries = spec.H * spec.D, keys = 2 * spec.G * spec.D, n = B * T * keys;
  dispatch_float(dqkv, "dqkv", [&](auto tag) {
    using V = decltype(tag);
    const bool wide =
        queries % kVector<V> == 0 && keys % kVector<V> == 0 && aligned_to_vectors(dqkv.data);
    launch(
        queue,
        {.blocks = ceil_div(n, int64_t{threads} * (wide ? kVector<V> : 1)), .threads = threads},
        "attention_clear_padding",
        wide ? attention_clear_padding_kernel<V, kVector<V>> : attention_clear_padding_kernel<V, 1>,
        dqkv.as<V>(), spec.key_lengths.as<const int32_t>(), T, queries, keys, n);
  });
}

template void attention_query_lengths_on(simt::Queue&, const View&, int64_t, int);
template void attention_clear_padding_on(simt::Queue&, const View&, int64_t, int64_t,
                                         const AttentionSpec&, int);

}  // namespace snug
