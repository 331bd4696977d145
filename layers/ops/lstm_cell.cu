#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/simt/simt.h"
#include "layers/ops/activation_device.h"
#include "layers/ops/lstm_cell_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// One element of c a thread.
template <class T>
__global__ void lstm_cell_forward_kernel(T* h, T* c, const T* gates, const T* c_before, int64_t n,
                                         int64_t H) {
  const int64_t k = block() * threads() + thread();
  if (k >= n) return;
  const T* const at = gates + k / H * 4 * H + k % H;
  const float i = sigmoid_and_slope(to_f32(at[0])).value,
              f = sigmoid_and_slope(to_f32(at[H])).value, g = simt::tanh(to_f32(at[2 * H])),
              o = sigmoid_and_slope(to_f32(at[3 * H])).value;
  const float now = (c_before ? f * to_f32(c_before[k]) : 0.0f) + i * g;
  c[k] = from_f32<T>(now);
  h[k] = from_f32<T>(o * simt::tanh(now));
}

template <class T>
__global__ void lstm_cell_backward_kernel(T* dgates, T* dc, const T* dh, const T* gates, const T* c,
                                          const T* c_before, int64_t n, int64_t H) {
  const int64_t k = block() * threads() + thread();
  if (k >= n) return;
  const int64_t at = k / H * 4 * H + k % H;
  const auto i = sigmoid_and_slope(to_f32(gates[at])), f = sigmoid_and_slope(to_f32(gates[at + H])),
             o = sigmoid_and_slope(to_f32(gates[at + 3 * H]));
  const float g = simt::tanh(to_f32(gates[at + 2 * H])), t = simt::tanh(to_f32(c[k]));
  const float from = to_f32(dh[k]);
  const float d = to_f32(dc[k]) + from * o.value * (1.0f - t * t);
  dgates[at] = from_f32<T>(d * g * i.slope);
  dgates[at + H] = from_f32<T>(c_before ? d * to_f32(c_before[k]) * f.slope : 0.0f);
  dgates[at + 2 * H] = from_f32<T>(d * i.value * (1.0f - g * g));
  dgates[at + 3 * H] = from_f32<T>(from * t * o.slope);
  dc[k] = from_f32<T>(d * f.value);
}

template <class T>
const T* or_none(const View& x) {
  return x.defined() ? x.as<const T>() : nullptr;
}

}  // namespace

template <class Queue>
void lstm_cell_forward_on(Queue& queue, const View& h, const View& c, const View& gates,
                          const View& c_before, int threads) {
  const int64_t n = c.elements();
  dispatch_float(gates, "lstm_cell: gates", [&](auto tag) {
    using T = decltype(tag);
    launch(queue, {.blocks = ceil_div(n, int64_t{threads}), .threads = threads},
           "lstm_cell_forward", lstm_cell_forward_kernel<T>, h.as<T>(), c.as<T>(),
           gates.as<const T>(), or_none<T>(c_before), n, c.shape[1]);
  });
}

template <class Queue>
void lstm_cell_backward_on(Queue& queue, const View& dgates, const View& dc, const View& dh,
                           const View& gates, const View& c, const View& c_before, int threads) {
  const int64_t n = c.elements();
  dispatch_float(gates, "lstm_cell: gates", [&](auto tag) {
    using T = decltype(tag);
    launch(queue, {.blocks = ceil_div(n, int64_t{threads}), .threads = threads},
           "lstm_cell_backward", lstm_cell_backward_kernel<T>, dgates.as<T>(), dc.as<T>(),
           dh.as<const T>(), gates.as<const T>(), c.as<const T>(), or_none<T>(c_before), n,
           c.shape[1]);
  });
}

template void lstm_cell_forward_on(simt::Queue&, const View&, const View&, const View&, const View&,
                                   int);
template void lstm_cell_backward_on(simt::Queue&, const View&, const View&, const View&,
                                    const View&, const View&, const View&, int);

}  // namespace snug
