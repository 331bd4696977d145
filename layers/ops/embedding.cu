#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/memory/step_state.h"
#include "engine/simt/map.h"
#include "layers/ops/embedding_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// Where every row stands; state and starts may be null.
struct RowPlaces {
  const StepState* state;
  const int32_t* starts;
  int64_t tokens;  // T

  __device__ int64_t operator()(int64_t row) const {
    return (state ? state->position : 0) + row % tokens - (starts ? starts[row] : 0);
  }
};

// Y of a token's row and, if places is not null, of a position's; N neighbours a thread.
template <class Y, class W, class P, int N>
__global__ void embedding_forward_kernel(Y* y, const int32_t* ids, const W* wte, const P* wpe,
                                         RowPlaces place, int64_t rows, int64_t c,
                                         int64_t vocabulary, int64_t positions) {
  const int64_t pieces = c / N, stride = blocks() * threads();
  for (int64_t i = block() * threads() + thread(); i < rows * pieces; i += stride) {
    const int64_t row = i / pieces, channel = i % pieces * N;
    const int64_t id = ids[row], position = wpe ? place(row) : 0;
    Pack<Y, N> out;
    if (id < 0 || id >= vocabulary || position < 0 || (wpe && position >= positions)) {
      for (int k = 0; k < N; ++k) out[k] = from_f32<Y>(__builtin_nanf(""));
    } else {
      const auto w = Pack<W, N>::load(wte + id * c + channel);
      Pack<P, N> p{};
      if (wpe) p = Pack<P, N>::load(wpe + position * c + channel);
      for (int k = 0; k < N; ++k)
        out[k] = from_f32<Y>(wpe ? to_f32(w[k]) + to_f32(p[k]) : to_f32(w[k]));
    }
    out.store(y + row * c + channel);
  }
}

struct TokenOf {
  const int32_t* ids;
  __device__ int64_t operator()(int64_t row) const { return ids[row]; }
};

template <int N>
__global__ void fill_zero_kernel(float* x, int64_t n) {
  const int64_t stride = blocks() * threads() * N;
  for (int64_t i = (block() * threads() + thread()) * N; i < n; i += stride)
    Pack<float, N>{}.store(x + i);
}

// to[channel] += dy[row][channel] over the rows from `first` on whose key is `wanted`, in order.
// All threads of the block call; each keeps to channels of its own, so no barrier is needed.
template <class D, int N, class Key>
__device__ inline void add_matching_rows(float* to, const D* dy, const Key& key, int64_t wanted,
                                         int64_t first, int64_t rows, int64_t c) {
  for (int64_t base = first; base < rows; base += kWarp) {
    const bool mine = base + lane() < rows && key(base + lane()) == wanted;
    uint32_t found = ballot(mine);
    for (int64_t row = base; found != 0; ++row, found >>= 1) {
      if ((found & 1u) == 0) continue;
      for (int64_t i = int64_t{thread()} * N; i < c; i += int64_t{threads()} * N) {
        auto sum = Pack<float, N>::load(to + i);
        const auto d = Pack<D, N>::load(dy + row * c + i);
        for (int k = 0; k < N; ++k) sum[k] += to_f32(d[k]);
        sum.store(to + i);
      }
    }
  }
}

// A block for every row; the first one of a token adds them all.
template <class D, int N>
__global__ void embedding_token_gradient_kernel(float* dwte, const D* dy, const int32_t* ids,
                                                int64_t rows, int64_t c, int64_t vocabulary) {
  const TokenOf token{ids};
  const int64_t row = block(), id = token(row);
  if (id < 0 || id >= vocabulary) return;
  for (int64_t base = row - 1; base >= 0; base -= kWarp)
    if (any(base - lane() >= 0 && token(base - lane()) == id)) return;
  add_matching_rows<D, N>(dwte + id * c, dy, token, id, row, rows, c);
}

// A block for every position; assigns or adds.
template <class D, int N>
__global__ void embedding_position_gradient_kernel(float* dwpe, bool add, const D* dy,
                                                   RowPlaces place, int64_t rows, int64_t c) {
  float* to = dwpe + block() * c;
  if (!add)
    for (int64_t i = int64_t{thread()} * N; i < c; i += int64_t{threads()} * N)
      Pack<float, N>{}.store(to + i);
  add_matching_rows<D, N>(to, dy, place, block(), 0, rows, c);
}

RowPlaces places_of(const View& state, const View& document_start, const View& tokens) {
  return {state.defined() ? step_state(state) : nullptr,
          document_start.defined() ? document_start.as<const int32_t>() : nullptr, tokens.shape[1]};
}

constexpr int kWide = 8;  // a vector of 16-bit values, two of floats

}  // namespace

template <class Queue>
void embedding_forward_on(Queue& queue, const View& y, const View& tokens, const View& wte,
                          const View& wpe, const View& state, const View& document_start,
                          int threads) {
  constexpr int kVectorsPerThread = 2;
  const int64_t n = y.shape[0], c = y.shape[1];
  const bool wide = c % kWide == 0 && aligned_to_vectors(y.data) && aligned_to_vectors(wte.data) &&
                    aligned_to_vectors(wpe.data);
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
            places_of(state, document_start, tokens), n, c, wte.shape[0],
            wpe.defined() ? wpe.shape[0] : 0);
      });
    });
  });
}

template <class Queue>
void embedding_backward_on(Queue& queue, const GradView& dwte, const GradView& dwpe, const View& dy,
                           const View& tokens, const View& state, const View& document_start,
                           int threads) {
  const int64_t n = dy.shape[0], c = dy.shape[1];
  const bool wide = c % kWide == 0 && aligned_to_vectors(dy.data) &&
                    aligned_to_vectors(dwte.view.data) && aligned_to_vectors(dwpe.view.data);
  dispatch_float(dy, "dy", [&](auto tag) {
    using D = decltype(tag);
    if (const View& to = dwte.view; to.defined()) {
      if (!dwte.add)
        launch(queue,
               {.blocks = ceil_div(to.elements(), int64_t{threads} * 4 * (wide ? kWide : 1)),
                .threads = threads},
               "embedding_zero", wide ? fill_zero_kernel<kWide> : fill_zero_kernel<1>,
               to.as<float>(), to.elements());
      launch(
          queue, {.blocks = n, .threads = threads}, "embedding_token_gradient",
          wide ? embedding_token_gradient_kernel<D, kWide> : embedding_token_gradient_kernel<D, 1>,
          to.as<float>(), dy.as<const D>(), tokens.as<const int32_t>(), n, c, to.shape[0]);
    }
    if (const View& to = dwpe.view; to.defined())
      launch(queue, {.blocks = to.shape[0], .threads = threads}, "embedding_position_gradient",
             wide ? embedding_position_gradient_kernel<D, kWide>
                  : embedding_position_gradient_kernel<D, 1>,
             to.as<float>(), dwpe.add, dy.as<const D>(), places_of(state, document_start, tokens),
             n, c);
  });
}

template void embedding_forward_on(simt::Queue&, const View&, const View&, const View&, const View&,
                                   const View&, const View&, int);
template void embedding_backward_on(simt::Queue&, const GradView&, const GradView&, const View&,
                                    const View&, const View&, const View&, int);

}  // namespace snug
