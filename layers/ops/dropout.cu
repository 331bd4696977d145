#include "engine/kernels/dispatch.h"
#include "layers/ops/dropout_kernel.h"
#include "layers/ops/dropout_simt.h"

namespace snug {

template <class Queue>
void dropout_forward_on(Queue& queue, const View& y, const View& x, int64_t, int64_t T,
                        const DropoutSpec& spec, const View& state, int threads) {
  dispatch_float(x, "x", [&](auto tag) {
    launch_dropout<decltype(tag)>(queue, "dropout_forward", y, {}, x, T, spec, state, threads);
  });
}

template void dropout_forward_on(simt::Queue&, const View&, const View&, int64_t, int64_t,
                                 const DropoutSpec&, const View&, int);

}  // namespace snug
