#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/row_split.h"
#include "engine/simt/map.h"
#include "layers/ops/embedding_simt.h"
#include "layers/ops/embedding_sort.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// The type of every row, counted from `first`: 0 if types is null.
struct RowTypes {
  const int32_t* types;
  int64_t first;
  __device__ int64_t operator()(int64_t row) const { return types ? types[row] - first : 0; }
};

// Y of a token's row and, where they are not null, of a type's and a position's; N neighbours a
// thread.
template <class Y, class W, class P, int N>
__global__ void embedding_forward_kernel(Y* y, const int32_t* ids, const W* wte, const P* wpe,
                                         RowPlaces place, int64_t rows, int64_t c,
                                         int64_t vocabulary, int64_t positions, RowTypes type_of,
                                         const W* wtt, int64_t kinds, const W* front,
                                         int64_t in_front, float beside) {
  const int64_t pieces = c / N, stride = blocks() * threads();
  for (int64_t i = block() * threads() + thread(); i < rows * pieces; i += stride) {
    const int64_t row = i / pieces, channel = i % pieces * N;
    const int64_t id = ids[row], position = wpe ? place(row) : 0, type = wtt ? type_of(row) : 0;
    Pack<Y, N> out;
    if (id < 0 || id >= vocabulary + in_front || position < 0 || (wpe && position >= positions) ||
        type < 0 || (wtt && type >= kinds)) {
      for (int k = 0; k < N; ++k) out[k] = from_f32<Y>(__builtin_nanf(""));
    } else {
      const W* const of_token = id < vocabulary ? wte + id * c : front + (id - vocabulary) * c;
      const auto w = Pack<W, N>::load(of_token + channel);
      Pack<P, N> p{};
      if (wpe) p = Pack<P, N>::load(wpe + position * c + channel);
      Pack<W, N> t{};
      if (wtt) t = Pack<W, N>::load(wtt + type * c + channel);
      for (int k = 0; k < N; ++k) {
        const float own = id < vocabulary ? to_f32(w[k]) * beside : to_f32(w[k]);
        const float sum = wtt ? own + to_f32(t[k]) : own;
        out[k] = from_f32<Y>(wpe ? sum + to_f32(p[k]) : sum);
      }
    }
    out.store(y + row * c + channel);
  }
}

template <int N>
__global__ void fill_zero_kernel(float* x, int64_t n) {
  const int64_t stride = blocks() * threads() * N;
  for (int64_t i = (block() * threads() + thread()) * N; i < n; i += stride)
    Pack<float, N>{}.store(x + i);
}

// sum += the rows of dy that row(j) gives, one after the other from j on until it gives -1; four
// are on their way at once.
template <class D, int N, class Row>
__device__ inline void add_in_order(Pack<float, N>& sum, const D* dy, int64_t c, int64_t column,
                                    int64_t j, Row&& row) {
  constexpr int kAhead = 4;
  for (bool more = true; more; j += kAhead) {
    Pack<D, N> d[kAhead] = {};
    bool is[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t at = more ? row(j + k) : -1;
      is[k] = more = at >= 0;
      if (more) d[k] = Pack<D, N>::load(dy + at * c + column);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      for (int i = 0; is[k] && i < N; ++i) sum[i] += to_f32(d[k][i]);
  }
}

// A warp for 32 N channels of every place in the order; the first one of a row of the table adds
// all of that row's.
template <class D, int N>
__global__ void embedding_sorted_gradient_kernel(float* table, bool add, const D* dy,
                                                 const int64_t* order, int64_t limit, int64_t rows,
                                                 int64_t c, int64_t pieces) {
  const int64_t item = block() * warps() + warp(), first = item / pieces;
  if (first >= rows) return;
  const int64_t key = order[first] >> 32;
  if (key >= limit || (first > 0 && order[first - 1] >> 32 == key)) return;
  const int64_t column = (item % pieces * kWarp + lane()) * N;
  if (column >= c) return;
  float* const to = table + key * c + column;
  Pack<float, N> sum{};
  if (add) sum = Pack<float, N>::load(to);
  add_in_order<D, N>(sum, dy, c, column, first, [=](int64_t j) -> int64_t {
    return j < rows && order[j] >> 32 == key ? order[j] & 0xffffffff : -1;
  });
  sum.store(to);
}

// The same for positions that begin with every sequence; a warp for 32 N channels of each.
template <class D, int N>
__global__ void embedding_position_gradient_kernel(float* dwpe, bool add, const D* dy,
                                                   RowPlaces place, int64_t positions, int64_t rows,
                                                   int64_t c, int64_t pieces) {
  const int64_t item = block() * warps() + warp(), position = item / pieces;
  if (position >= positions) return;
  const int64_t column = (item % pieces * kWarp + lane()) * N, t = position - place(0);
  if (column >= c) return;
  float* const to = dwpe + position * c + column;
  Pack<float, N> sum{};
  if (add) sum = Pack<float, N>::load(to);
  if (t >= 0 && t < place.tokens)
    add_in_order<D, N>(sum, dy, c, column, 0, [=](int64_t b) {
      return b * place.tokens < rows ? b * place.tokens + t : int64_t{-1};
    });
  sum.store(to);
}

// partial[chunk][type][column]: the sum over the rows of a chunk that have the type. A warp for 32 N
// channels of both.
template <class D, int N>
__global__ void embedding_type_gradient_kernel(float* partial, const D* dy, RowTypes type_of,
                                               int64_t rows, int64_t chunk_rows, int64_t chunks,
                                               int64_t kinds, int64_t c, int64_t pieces) {
  constexpr int kAhead = 8;
  const int64_t item = block() * warps() + warp(), sums = item / pieces, chunk = sums / kinds;
  if (chunk >= chunks) return;
  const int64_t column = (item % pieces * kWarp + lane()) * N, type = sums % kinds;
  if (column >= c) return;
  const int64_t begin = chunk * chunk_rows;
  const int64_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
  Pack<float, N> sum{};
  for (int64_t row = begin; row < end; row += kAhead) {
    Pack<D, N> d[kAhead] = {};
    bool is[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      is[k] = row + k < end && type_of(row + k) == type;
      if (is[k]) d[k] = Pack<D, N>::load(dy + (row + k) * c + column);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      for (int i = 0; is[k] && i < N; ++i) sum[i] += to_f32(d[k][i]);
  }
  sum.store(partial + sums * c + column);
}

// out[i] = or += the chunks of partial[chunk][i], in order.
__global__ void embedding_type_chunks_kernel(float* out, bool add, const float* partial,
                                             int64_t chunks, int64_t n) {
  const int64_t i = block() * threads() + thread();
  if (i >= n) return;
  float sum = add ? out[i] : 0.0f;
  for (int64_t k = 0; k < chunks; ++k) sum += partial[k * n + i];
  out[i] = sum;
}

constexpr int kWide = 8;  // a vector of 16-bit values, two of floats

}  // namespace

template <class Queue>
void embedding_forward_on(Queue& queue, const View& y, const View& tokens, const View& wte,
                          const View& wpe, const View& state, const View& document_start,
                          const View& types, const View& wtt, const FrontRows& front, int threads) {
  constexpr int kVectorsPerThread = 2;
  const int64_t n = y.shape[0], c = y.shape[1];
  const bool wide = c % kWide == 0 && aligned_to_vectors(y.data) && aligned_to_vectors(wte.data) &&
                    aligned_to_vectors(wpe.data) && aligned_to_vectors(wtt.data) &&
                    aligned_to_vectors(front.table.data);
  const RowTypes type_of{types.defined() ? types.as<const int32_t>() : nullptr, 0};
  const int64_t pieces = n * c / (wide ? kWide : 1);
  dispatch_float(y, "y", [&](auto y_tag) {
    dispatch_float(wte, "wte", [&](auto wte_tag) {
      dispatch_float(wpe.defined() ? wpe : wte, "wpe", [&](auto wpe_tag) {
        using Y = decltype(y_tag);
        using W = decltype(wte_tag);
        using P = decltype(wpe_tag);
        launch(
            queue,
            {.blocks = ceil_div(pieces, int64_t{threads} * kVectorsPerThread), .threads = threads},
            "embedding_forward",
            wide ? embedding_forward_kernel<Y, W, P, kWide> : embedding_forward_kernel<Y, W, P, 1>,
            y.as<Y>(), tokens.as<const int32_t>(), wte.as<const W>(),
            wpe.defined() ? wpe.as<const P>() : static_cast<const P*>(nullptr),
            row_places(state, document_start, tokens.shape[1]), n, c, wte.shape[0],
            wpe.defined() ? wpe.shape[0] : 0, type_of,
            wtt.defined() ? wtt.as<const W>() : static_cast<const W*>(nullptr),
            wtt.defined() ? wtt.shape[0] : 0,
            front.table.defined() ? front.table.as<const W>() : static_cast<const W*>(nullptr),
            front.table.defined() ? front.table.shape[0] : 0, front.beside);
      });
    });
  });
}

template <class Queue>
void embedding_backward_on(Queue& queue, const GradView& dwte, const GradView& dwpe, const View& dy,
                           const View& tokens, const View& state, const View& document_start,
                           const View& order, int threads) {
  const int64_t n = dy.shape[0], c = dy.shape[1];
  const bool wide = c % kWide == 0 && aligned_to_vectors(dy.data) &&
                    aligned_to_vectors(dwte.view.data) && aligned_to_vectors(dwpe.view.data);
  const int64_t pieces = ceil_div(c, int64_t{kWarp} * (wide ? kWide : 1));
  const Dims warps_of_rows{.blocks = ceil_div(n * pieces, int64_t{threads / kWarp}),
                           .threads = threads};
  const RowPlaces places = row_places(state, document_start, tokens.shape[1]);
  dispatch_float(dy, "dy", [&](auto tag) {
    using D = decltype(tag);
    const auto add_sorted = [&](const char* name, const GradView& g, const int64_t* sorted) {
      const View& to = g.view;
      if (!g.add)
        launch(queue,
               {.blocks = ceil_div(to.elements(), int64_t{threads} * 4 * (wide ? kWide : 1)),
                .threads = threads},
               "embedding_zero", wide ? fill_zero_kernel<kWide> : fill_zero_kernel<1>,
               to.as<float>(), to.elements());
      launch(queue, warps_of_rows, name,
             wide ? embedding_sorted_gradient_kernel<D, kWide>
                  : embedding_sorted_gradient_kernel<D, 1>,
             to.as<float>(), g.add, dy.as<const D>(), sorted, to.shape[0], n, c, pieces);
    };
    if (const View& to = dwte.view; to.defined())
      add_sorted(
          "embedding_token_gradient", dwte,
          sorted_rows(queue, order, TokenOf{tokens.as<const int32_t>()}, to.shape[0], n, threads));
    if (const View& to = dwpe.view; to.defined() && document_start.defined())
      add_sorted("embedding_position_gradient", dwpe,
                 sorted_rows(queue, order, places, to.shape[0], n, threads));
    else if (to.defined())
      launch(
          queue,
          {.blocks = ceil_div(to.shape[0] * pieces, int64_t{threads / kWarp}), .threads = threads},
          "embedding_position_gradient",
          wide ? embedding_position_gradient_kernel<D, kWide>
               : embedding_position_gradient_kernel<D, 1>,
          to.as<float>(), dwpe.add, dy.as<const D>(), places, to.shape[0], n, c, pieces);
  });
}

template <class Queue>
void embedding_type_gradient_on(Queue& queue, const GradView& dwtt, const View& dy,
                                const View& types, const View& partial, int64_t first,
                                int threads) {
  const int64_t n = dy.shape[0], c = dy.shape[1], kinds = dwtt.view.shape[0];
  const RowSplit split(n);
  const bool wide =
      c % kWide == 0 && aligned_to_vectors(dy.data) && aligned_to_vectors(partial.data);
  const int64_t pieces = ceil_div(c, int64_t{kWarp} * (wide ? kWide : 1));
  const RowTypes type_of{types.defined() ? types.as<const int32_t>() : nullptr, first};
  dispatch_float(dy, "dy", [&](auto tag) {
    using D = decltype(tag);
    launch(queue,
           {.blocks = ceil_div(split.chunks * kinds * pieces, int64_t{threads / kWarp}),
            .threads = threads},
           "embedding_type_gradient",
           wide ? embedding_type_gradient_kernel<D, kWide> : embedding_type_gradient_kernel<D, 1>,
           partial.as<float>(), dy.as<const D>(), type_of, n, split.rows, split.chunks, kinds, c,
           pieces);
  });
  launch(queue, {.blocks = ceil_div(kinds * c, int64_t{threads}), .threads = threads},
         "embedding_type_chunks", embedding_type_chunks_kernel, dwtt.view.as<float>(), dwtt.add,
         partial.as<const float>(), split.chunks, kinds * c);
}

template void embedding_type_gradient_on(simt::Queue&, const GradView&, const View&, const View&,
                                         const View&, int64_t, int);
template void embedding_forward_on(simt::Queue&, const View&, const View&, const View&, const View&,
                                   const View&, const View&, const View&, const View&,
                                   const FrontRows&, int);
template void embedding_backward_on(simt::Queue&, const GradView&, const GradView&, const View&,
                                    const View&, const View&, const View&, const View&, int);

}  // namespace snug
