// The step along a direction that has been found before (optim/directed.h), in place of a gradient:
//   p -= lr (d + decay p),   debias: the direction's share is lr / bc1, Adam's first bias correction
#pragma once

#include "optim/rule.h"

namespace snug {
inline namespace SNUG_RULE_SIDE {

struct AlongRule {
  static constexpr int kStates = 0, kFlops = 4;
  bool debias;

  explicit AlongRule(bool d) : debias(d) {}

  struct Step {
    float rate, shrink;
  };
  SNUG_RULE Step step(const ElementStep& s) const {
    return {static_cast<float>(debias ? s.learning_rate / s.bias_correction1 : s.learning_rate),
            static_cast<float>(s.learning_rate * s.weight_decay)};
  }
  SNUG_RULE float element(const Step& s, float p, float direction, float*) const {
    return (p - s.shrink * p) - s.rate * direction;
  }
};

}  // namespace SNUG_RULE_SIDE
}  // namespace snug
