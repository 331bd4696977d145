// Attention on a GPU: by cuDNN or by the program's kernel.
#pragma once

#include "tools/planner/plan.h"

namespace snug {

// Which of them, with the runtime bytes that go with it, in place of what the request had.
void choose_attention(PlanRequest& request, bool cudnn);

}  // namespace snug
