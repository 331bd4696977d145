// One kernel for dropout and for the residual that drops its branch on the way.
#pragma once

#include "engine/core/units.h"
#include "engine/simt/map.h"
#include "layers/ops/dropout_device.h"

namespace snug {
inline namespace SIMT_SIDE {

// y = dropout(branch), or x + dropout(branch) if kAdd. A thread takes pieces of a row, by vectors
// or channel by channel.
template <class V, bool kWide, bool kAdd>
__global__ void dropout_kernel(V* y, const V* x, const V* branch, int64_t rows, int64_t c,
                               int64_t tokens, const StepState* state, MaskConstants mask) {
  constexpr int kStep = kWide ? simt::kVector<V> : 1;
  SHARED_ARRAY(MaskKey, key_in_block, 1);
  if (simt::thread() == 0) key_in_block[0] = mask_key(*state, mask.site);
  simt::sync_threads();
  const MaskKey key = key_in_block[0];
  const int64_t pieces = (c + kDrawnChannels - 1) / kDrawnChannels,
                stride = simt::blocks() * simt::threads();
  for (int64_t i = simt::block() * simt::threads() + simt::thread(); i < rows * pieces;
       i += stride) {
    const int64_t row = i / pieces, first = i % pieces * kDrawnChannels;
    const uint32_t keep =
        keep_bits<kDrawnChannels>(key, row / tokens, row % tokens, first, mask.threshold);
    for (int k = 0; k < kDrawnChannels && first + k < c; k += kStep) {
      using Part = simt::Pack<V, kStep>;
      const int64_t at = row * c + first + k;
      const auto b = Part::load(branch + at);
      Part base{}, out;
      if constexpr (kAdd) base = Part::load(x + at);
      for (int j = 0; j < kStep; ++j) {
        const float value = dropped(to_f32(b[j]), mask.kept, keep, k + j);
        out[j] = from_f32<V>(kAdd ? to_f32(base[j]) + value : value);
      }
      out.store(y + at);
    }
  }
}

// x is undefined without a sum.
template <class V, class Queue>
void launch_dropout(Queue& queue, const char* name, const View& y, const View& x,
                    const View& branch, int64_t tokens, const DropoutSpec& spec, const View& state,
                    int threads) {
  constexpr int kPiecesPerThread = 4;
  const int64_t rows = y.shape[0], c = y.shape[1];
  const bool add = x.defined();
  const bool wide = c % simt::kVector<V> == 0 && simt::aligned_to_vectors(y.data) &&
                    simt::aligned_to_vectors(x.data) && simt::aligned_to_vectors(branch.data);
  const int64_t pieces = rows * ceil_div(c, int64_t{kDrawnChannels});
  const auto kernel =
      wide ? (add ? dropout_kernel<V, true, true> : dropout_kernel<V, true, false>)
           : (add ? dropout_kernel<V, false, true> : dropout_kernel<V, false, false>);
  simt::launch(
      queue, {.blocks = ceil_div(pieces, int64_t{threads} * kPiecesPerThread), .threads = threads},
      name, kernel, y.as<V>(), add ? x.as<const V>() : static_cast<const V*>(nullptr),
      branch.as<const V>(), rows, c, tokens, static_cast<const StepState*>(step_state(state)),
      MaskConstants(spec));
}

}  // namespace SIMT_SIDE
}  // namespace snug
