#include "engine/kernels/emulator.h"

#include "engine/core/error.h"

namespace snug {

void refuse_emulated(const Context& ctx, const char* what) {
  if (ctx.emulated())
    fail(ErrorCode::unsupported, "an op with a kernel on the place emu", what, "device=cpu");
}

}  // namespace snug
