// Attention on a GPU: by cuDNN or by our kernel, and what becomes of cuDNN's where a budget has no
// room for its workspace.
#pragma once

#include <optional>
#include <string>

#include "tools/planner/plan.h"

namespace snug {

// On a GPU: attention by cuDNN or by our kernel, in place of what the request had. `why`: what
// attn_implementation: auto chose it by; empty: somebody said so, and no budget changes it.
void choose_attention(PlanRequest& request, bool cudnn, const std::string& why = "");
// What was chosen for its speed alone, if its workspace leaves no plan in the budget: our kernel.
void keep_attention_that_fits(PlanRequest& request);
// The request that it then becomes; none where cuDNN was asked for, or is not what computes.
std::optional<PlanRequest> attention_fallback(const PlanRequest& request);
// The request that it was before that, for more memory; none where nothing has yielded.
std::optional<PlanRequest> attention_before_fallback(const PlanRequest& request);

}  // namespace snug
