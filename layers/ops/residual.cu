#include "engine/kernels/dispatch.h"
#include "layers/ops/dropout_kernel.h"
#include "layers/ops/layernorm_device.h"
#include "layers/ops/layernorm_dispatch.h"
#include "layers/ops/residual_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

struct Plus {
  __device__ float operator()(float x, float branch) const { return x + branch; }
};

// A warp a row, vectors of N; rows past the end are whole warps that leave, the first one stays for
// the barrier. out = x + dropout(branch), then the row of out is normalised.
template <class V, class W, int N, bool kDrop>
__global__ void residual_norm_row_per_warp_kernel(V* y, float* mean, float* rstd, V* out,
                                                  const V* x, const V* branch, const W* weight,
                                                  const W* bias, int64_t rows, int64_t c, float eps,
                                                  int64_t tokens, const StepState* state,
                                                  MaskConstants mask) {
  const int64_t row = block() * warps() + warp();
  if (row >= rows) return;
  MaskKey key{};
  if constexpr (kDrop) {
    SHARED_ARRAY(MaskKey, key_in_block, 1);
    if (thread() == 0) key_in_block[0] = mask_key(*state, mask.site);
    sync_threads();
    key = key_in_block[0];
  }
  const int64_t at = row * c;
  normalise_row<V, W, N>(
      y + at, mean + row, rstd + row, out + at, weight, bias, c, eps, [&](int64_t i) {
        const auto a = Pack<V, N>::load(x + at + i);
        const auto b = Pack<V, N>::load(branch + at + i);
        uint32_t keep = 0;
        if constexpr (kDrop)
          keep = keep_bits<N>(key, row / tokens, row % tokens, i, mask.threshold);
        Pack<V, N> sum;
        for (int k = 0; k < N; ++k) {
          float add = to_f32(b[k]);
          if constexpr (kDrop) add = dropped(add, mask.kept, keep, k);
          sum[k] = from_f32<V>(to_f32(a[k]) + add);
        }
        sum.store(out + at + i);
        return sum;
      });
}

}  // namespace

template <class Queue>
void residual_forward_on(Queue& queue, const View& out, const ResidualInput& in, const View& branch,
                         int threads) {
  dispatch_float(branch, "branch", [&](auto tag) {
    using V = decltype(tag);
    if (in.dropout.p > 0.0f)
      launch_dropout<V>(queue, "residual_forward", out, in.residual, branch, in.T, in.dropout,
                        in.state, threads);
    else
      simt::map(queue, "residual_forward", Plus{}, threads, branch.elements(), out.as<V>(),
                in.residual.as<const V>(), branch.as<const V>());
  });
}

template <class Queue>
void residual_norm_forward_on(Queue& queue, const NormOutput& norm, const View& out,
                              const ResidualInput& in, const View& branch, int threads) {
  const int64_t rows = out.shape[0], c = out.shape[1];
  const bool drop = in.dropout.p > 0.0f;
  dispatch_norm(branch, norm.weight, [&](auto tag, auto weight_tag) {
    using V = decltype(tag);
    using W = decltype(weight_tag);
    constexpr int kWide = kVector<V>;
    const bool wide =
        wide_rows<V>(c, {&norm.y, &out, &in.residual, &branch, &norm.weight, &norm.bias});
    const auto kernel = wide ? (drop ? residual_norm_row_per_warp_kernel<V, W, kWide, true>
                                     : residual_norm_row_per_warp_kernel<V, W, kWide, false>)
                             : (drop ? residual_norm_row_per_warp_kernel<V, W, 1, true>
                                     : residual_norm_row_per_warp_kernel<V, W, 1, false>);
    launch(queue, {.blocks = ceil_div(rows, int64_t{threads / kWarp}), .threads = threads},
           "residual_norm_row_per_warp", kernel, norm.y.as<V>(), norm.mean.template as<float>(),
           norm.rstd.template as<float>(), out.as<V>(), in.residual.as<const V>(),
           branch.as<const V>(), norm.weight.template as<const W>(),
           norm.bias.defined() ? norm.bias.template as<const W>() : static_cast<const W*>(nullptr),
           rows, c, norm.eps, in.T,
           drop ? static_cast<const StepState*>(step_state(in.state)) : nullptr,
           MaskConstants(in.dropout));
  });
}

template void residual_forward_on(simt::Queue&, const View&, const ResidualInput&, const View&,
                                  int);
template void residual_norm_forward_on(simt::Queue&, const NormOutput&, const View&,
                                       const ResidualInput&, const View&, int);

}  // namespace snug
