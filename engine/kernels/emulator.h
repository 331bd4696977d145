// How an op reaches its kernels on the place emu:
//   if (!op.run()) return;
//   if (ctx.emulated()) {
//     auto queue = emulator_queue(ctx);
//     return cast_on(queue, y, x);
//   }
// Workspace that only the kernels, or only the loops, want is asked for by ctx.emulated() too,
// which on plan answers for the place that will run.
#pragma once

#include "engine/memory/context.h"
#include "engine/simt/emu.h"

namespace snug {

inline simt::emu::Queue emulator_queue(const Context& ctx) {
  using simt::emu::Order;
  const uint64_t order = ctx.settings().emulated_order;
  return {{order == 0   ? Order::forward
           : order == 1 ? Order::reversed
                        : Order::shuffled,
           order},
          {}};
}

// Before the first launch of a run that is to allocate nothing after its start.
inline void prepare_emulator() {
  simt::emu::prepare();
}

// For ops without kernels. Call it before the op: on plan it refuses too.
void refuse_emulated(const Context& ctx, const char* what);

}  // namespace snug
