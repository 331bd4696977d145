// Adam as torch.optim.Adam: weight decay is added to the gradient (L2), so it passes through the
// moments.
#include "optim/adam_family.h"
#include "optim/checks.h"

namespace snug {
namespace {

class Adam final : public AdamFamily {
 public:
  explicit Adam(const OptimizerConfig& c) : AdamFamily(c, "adam_update") {}

 protected:
  void update_block(const ElementStep& s, const ElementBlock& b) const override {
    adam_block(s, b, 1.0f, static_cast<float>(s.weight_decay));
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_adam(const OptimizerConfig& c) {
  check_base_settings(c);
  check_adam_settings(c);
  refuse_sgd_settings(c);
  return std::make_unique<Adam>(c);
}

}  // namespace snug
