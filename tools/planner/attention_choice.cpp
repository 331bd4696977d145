#include "tools/planner/attention_choice.h"

#include <utility>

#include "layers/ops/attention_cudnn.h"
#include "tools/planner/batch_room.h"
#include "tools/planner/plan_search.h"

namespace snug {

void choose_attention(PlanRequest& r, bool cudnn, const std::string& why) {
  // A calibration's runtime bytes are those of a run without cuDNN, so what that takes is assumed.
  constexpr int64_t kCudnn = int64_t{256} << 20;
  r.settings.cudnn = cudnn;
  r.attention_why = why;
  r.attention_yielded.clear();
  if constexpr (kCudaBuilt)
    if (r.computes_on.defined()) {
      const std::string version = cudnn ? cudnn_version() : "";
      r.computes_on.cudnn = version.empty() ? "none" : version;
    }
  // Of what was measured each time, since a checkpoint or a plan may choose again.
  if (r.calibrated_runtime >= 0) {
    r.runtime_bytes = r.calibrated_runtime + (cudnn ? kCudnn : 0);
    r.runtime_measured = !cudnn;
  }
}

std::optional<PlanRequest> attention_fallback(const PlanRequest& r) {
  if (!r.settings.cudnn || r.attention_why.empty()) return std::nullopt;
  PlanRequest own = r;
  choose_attention(own, false, "the program's kernel, since no plan with cuDNN's workspace fits");
  own.attention_yielded = r.attention_why;
  return own;
}

std::optional<PlanRequest> attention_before_fallback(const PlanRequest& r) {
  if (r.attention_yielded.empty()) return std::nullopt;
  PlanRequest cudnn = r;
  choose_attention(cudnn, true, r.attention_yielded);
  return cudnn;
}

void keep_attention_that_fits(PlanRequest& r) {
  auto own = attention_fallback(r);
  if (!own || !has_batch_room(r)) return;
  PlanSearch search(r);
  if (!make_plan(r, search).fits) r = std::move(*own);
}

}  // namespace snug
