// How an op reaches its kernels, on the place emu and on the place cuda:
//   if (!op.run()) return;
//   if (ctx.by_kernels()) return on_queue(ctx, [&](auto& queue) { cast_on(queue, y, x); });
// The launchers take the queue of either side; a build without CUDA has one of them. Workspace that
// only the kernels, or only the loops, want is asked for by ctx.by_kernels() too, which on plan
// answers for the place that will run.
#pragma once

#include "engine/core/error.h"
#include "engine/device/cuda.h"
#include "engine/memory/context.h"
#include "engine/simt/cuda_queue.h"
#include "engine/simt/emu.h"

namespace snug {

// The stream of ops, for kernels.
inline simt::emu::Queue emulated_queue(Context& ctx) {
  using simt::emu::Order;
  const uint64_t order = ctx.settings().emulated_order;
  return {{order == 0   ? Order::forward
           : order == 1 ? Order::reversed
                        : Order::shuffled,
           order},
          {},
          ctx.device().capturing()};
}
inline simt::cuda::Queue cuda_queue(Context& ctx, StreamId stream = kCompute) {
  return {static_cast<CUstream_st*>(ctx.device().native_stream(stream)), cuda_sync_check()};
}

template <class F>
void on_queue(Context& ctx, F&& launch, StreamId stream = kCompute) {
  if (ctx.place() == Place::emu) {
    auto queue = emulated_queue(ctx);
    const Context::AtWork work(ctx);
    return launch(queue);
  }
  if constexpr (kCudaBuilt) {
    if (ctx.place() == Place::cuda) {
      auto queue = cuda_queue(ctx, stream);
      return launch(queue);
    }
  }
  require(false, "kernels to be launched on the place emu or cuda");
}

// Before the first launch of a run that is to allocate nothing after its start.
inline void prepare_kernels(const Context& ctx) {
  if (ctx.place() == Place::emu) simt::emu::prepare();
}

// For ops without kernels. Call it before the op: on plan it refuses too.
void refuse_by_kernels(const Context& ctx, const char* what);

// f32, or bf16 where no kernel writes it: see expect_gradients_here of engine/seams/grad_sink.h.
// Call it before the op as well.
void expect_gradient_dtype(const Context& ctx, const View& x, const char* argument);

}  // namespace snug
