// AdamW as torch.optim.AdamW: the parameter first shrinks by 1 - lr * weight_decay, apart from the
// gradient and its moments.
#include "optim/adam_family.h"
#include "optim/checks.h"

namespace snug {
namespace {

class AdamW final : public AdamFamily {
 public:
  explicit AdamW(const OptimizerConfig& c) : AdamFamily(c, "adamw_update") {}

 protected:
  void update_block(const ElementStep& s, const ElementBlock& b) const override {
    adam_block(s, b, static_cast<float>(1.0 - s.learning_rate * s.weight_decay), 0.0f);
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const OptimizerConfig& c) {
  check_base_settings(c);
  check_adam_settings(c);
  refuse_sgd_settings(c);
  return std::make_unique<AdamW>(c);
}

}  // namespace snug
