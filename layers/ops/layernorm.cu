#include "engine/kernels/dispatch.h"
#include "layers/ops/layernorm_device.h"
#include "layers/ops/layernorm_dispatch.h"
#include "layers/ops/layernorm_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// A warp a row, vectors of N; rows past the end are whole warps that leave, and no barrier follows.
template <class T, class W, int N>
__global__ void layernorm_forward_row_per_warp_kernel(T* y, float* mean_out, float* rstd_out,
                                                      const T* x, const W* weight, const W* bias,
                                                      int64_t rows, int64_t c, float eps) {
  const int64_t row = block() * warps() + warp();
  if (row >= rows) return;
  const T* x_n = x + row * c;
  normalise_row<T, W, N>(y + row * c, mean_out + row, rstd_out + row, x_n, weight, bias, c, eps,
                         [=](int64_t i) { return Pack<T, N>::load(x_n + i); });
}

}  // namespace

template <class Queue>
void layernorm_forward_on(Queue& queue, const View& y, const View& mean, const View& rstd,
                          const View& x, const View& weight, const View& bias, float eps,
                          int threads) {
  const int64_t n = x.shape[0], c = x.shape[1];
  dispatch_norm(x, weight, [&](auto tag, auto weight_tag) {
    using T = decltype(tag);
    using W = decltype(weight_tag);
    constexpr int kWide = kVector<T>;
    const auto kernel = wide_rows<T>(c, {&y, &x, &weight, &bias})
                            ? layernorm_forward_row_per_warp_kernel<T, W, kWide>
                            : layernorm_forward_row_per_warp_kernel<T, W, 1>;
    launch(queue, {.blocks = ceil_div(n, int64_t{threads / kWarp}), .threads = threads},
           "layernorm_forward_row_per_warp", kernel, y.as<T>(), mean.as<float>(), rstd.as<float>(),
           x.as<const T>(), weight.as<const W>(),
           bias.defined() ? bias.as<const W>() : static_cast<const W*>(nullptr), n, c, eps);
  });
}

template void layernorm_forward_on(simt::Queue&, const View&, const View&, const View&, const View&,
                                   const View&, const View&, float, int);

}  // namespace snug
