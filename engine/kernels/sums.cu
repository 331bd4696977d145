#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/row_chunks_kernel.h"
#include "engine/kernels/sums_simt.h"
#include "engine/memory/step_state.h"
#include "engine/simt/map.h"
#include "engine/simt/reduce.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// partial[chunk][column]: the sum over the rows of a chunk. A block takes a tile of 32 N columns, a
// lane N of them, a warp every warps()-th row.
template <class T, int N>
__global__ void column_sum_kernel(float* partial, const T* x, int64_t rows, int64_t chunk_rows,
                                  int64_t c) {
  constexpr int kTile = kWarp * N;
  const auto parts = dynamic_smem<float>();  // (warps, kTile)
  const int64_t first = block() * kTile, column = first + lane() * N;
  const int64_t begin = block_y() * chunk_rows;
  const int64_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
  float sum[N] = {};
  if (column < c) {
    for (int64_t row = begin + warp(); row < end; row += warps()) {
      const auto v = Pack<T, N>::load(x + row * c + column);
      for (int k = 0; k < N; ++k) sum[k] += to_f32(v[k]);
    }
  }
  for (int k = 0; k < N; ++k) parts[warp() * kTile + lane() * N + k] = sum[k];
  sync_threads();
  add_warps(parts, 1, kTile, c - first, partial + block_y() * c + first, c);
}

// A chunk's sum of squares, and its first element that is not finite: an index, exact in double up
// to 2^53, or kNone.
constexpr double kNone = 0x1p60;

// The least of the indices of all threads; every thread gets it. Three barriers.
__device__ inline int64_t block_first(int64_t index) {
  SHARED_ARRAY(int64_t, first, 1);
  sync_threads();
  if (thread() == 0) first[0] = INT64_MAX;
  sync_threads();
  if (index != INT64_MAX) atomic_min(first, 0, index);
  sync_threads();
  return first[0];
}

template <int N>
__global__ void square_chunks_kernel(double* partial, const float* x, int64_t n) {
  const int64_t begin = block() * kSquareElements;
  const int64_t end = begin + kSquareElements < n ? begin + kSquareElements : n;
  double sum = 0;
  int64_t bad = INT64_MAX;
  const auto take = [&](float v, int64_t i) {
    sum += double{v} * double{v};
    if (!(abs(v) <= 3.402823466e38f) && i < bad) bad = i;
  };
  for (int64_t i = begin + thread() * N; i < end; i += threads() * N) {
    if (i + N <= end) {
      const auto v = Pack<float, N>::load(x + i);
      for (int k = 0; k < N; ++k) take(v[k], i + k);
    } else {
      for (int64_t j = i; j < end; ++j) take(x[j], j);
    }
  }
  const int64_t first = block_first(bad);
  const double total = block_sum(sum);
  if (thread() > 0) return;
  partial[2 * block()] = total;
  partial[2 * block() + 1] = first == INT64_MAX ? kNone : static_cast<double>(first);
}

// One block: adds the chunks to the state.
__global__ void square_sum_kernel(StepState* state, const double* partial, int64_t chunks,
                                  int64_t first_element) {
  double sum = 0;
  int64_t bad = INT64_MAX;
  for (int64_t k = thread(); k < chunks; k += threads()) {
    sum += partial[2 * k];
    const double first = partial[2 * k + 1];
    if (first != kNone && static_cast<int64_t>(first) < bad) bad = static_cast<int64_t>(first);
  }
  const int64_t first = block_first(bad);
  const double total = block_sum(sum);
  if (thread() > 0) return;
  const double unscale = 1.0 / static_cast<double>(state->loss_scale);
  state->grad_square_sum += total * (unscale * unscale);
  if (first == INT64_MAX) return;
  const int64_t element = first_element + first;
  state->found_inf = 1;
  if (state->first_bad_element < 0 || element < state->first_bad_element)
    state->first_bad_element = element;
}

}  // namespace

template <class Queue>
void column_sum_on(Queue& queue, const GradView& out, const View& partial, const View& x,
                   int threads) {
  const int64_t n = x.shape[0], c = x.shape[1], chunks = row_chunks(n);
  dispatch_float(x, "column_sum: x", [&](auto tag) {
    using T = decltype(tag);
    const bool wide = c % kVector<T> == 0 && aligned_to_vectors(x.data);
    const int64_t tile = int64_t{kWarp} * (wide ? kVector<T> : 1);
    launch(queue,
           {.blocks = ceil_div(c, tile),
            .threads = threads,
            .shared_bytes = threads / kWarp * tile * int64_t{sizeof(float)},
            .blocks_y = chunks},
           "column_sum", wide ? column_sum_kernel<T, kVector<T>> : column_sum_kernel<T, 1>,
           partial.as<float>(), x.as<const T>(), n, row_chunk_rows(n), c);
  });
  launch_add_chunks(queue, "column_sum_chunks", out.view.template as<float>(), out.add,
                    partial.as<const float>(), chunks, c, c, threads);
}

template <class Queue>
void sum_of_squares_and_finite_on(Queue& queue, const View& x, const View& partial,
                                  const View& state, int64_t first_element, int threads) {
  const int64_t n = x.elements(), chunks = square_chunks(n);
  launch(
      queue, {.blocks = chunks, .threads = threads}, "sum_of_squares",
      aligned_to_vectors(x.data) ? square_chunks_kernel<kVector<float>> : square_chunks_kernel<1>,
      partial.as<double>(), x.as<const float>(), n);
  launch(queue, {.blocks = 1, .threads = threads}, "sum_of_squares_chunks", square_sum_kernel,
         step_state(state), partial.as<const double>(), chunks, first_element);
}

template void column_sum_on(simt::Queue&, const GradView&, const View&, const View&, int);
template void sum_of_squares_and_finite_on(simt::Queue&, const View&, const View&, const View&,
                                           int64_t, int);

}  // namespace snug
