// The permissions of `allow`: a row each.
#include "tools/config/keys.h"

namespace snug {

const std::vector<Permission>& permissions() {
  static const std::vector<Permission> list = {
      {"micro_batch", true, "a resumed run may use another micro-batch than its checkpoint"},
      {"head_rows", true, "a resumed run may use other chunks of logits than its checkpoint"},
      {"kernels", true,
       "a resumed run may compute products with other kernels than its checkpoint"},
      {"gradients", true, "a resumed run may hold gradients in another type than its checkpoint"},
      {"update_delay", true,
       "a resumed run may apply updates by the host at another time than its checkpoint"},
      {"adam8bit", false, "optimizer state in 8 bits where the plan wants it",
       "leave allow out; optim=adamw_8bit asks for it by name"},
      {"bf16_gradients", true,
       "gradients may be summed up in bf16, half the bytes; the plan says if they are"},
      {"no_master", true,
       "bf16 weights alone, without an fp32 master: updates are rounded to them at random"},
      {"stale_update", true,
       "an update by the host may be one step late, beside the next step, whose weights are then "
       "one "
       "update older; the plan says if it is"},
      {"stochastic_rounding", false, "no master weights: bf16 weights rounded at random",
       "allow=[no_master], which rounds so"},
  };
  return list;
}

}  // namespace snug
