#include "engine/kernels/kernel_queue.h"

namespace snug {

void refuse_by_kernels(const Context& ctx, const char* what) {
  if (ctx.by_kernels())
    fail(ErrorCode::unsupported,
         std::string("an op with a kernel on the place ") + to_string(ctx.target()), what,
         "device=cpu");
}

}  // namespace snug
