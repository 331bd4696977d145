#include "tools/planner/attention_choice.h"

#include <string>

#include "layers/ops/attention_cudnn.h"

namespace snug {

void choose_attention(PlanRequest& r, bool cudnn) {
  // A calibration's runtime bytes are those of a run without cuDNN, so what that takes is assumed.
  constexpr int64_t kCudnn = int64_t{256} << 20;
  r.settings.cudnn = cudnn;
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

}  // namespace snug
