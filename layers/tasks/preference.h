// What people look at when preferences are learned, as TRL 1.16.0 logs it: means over pairs of
//   rewards/chosen      beta (log probability of the chosen answer - that of the reference)
//   rewards/rejected    the same of the rejected one
//   rewards/accuracies  1 where the chosen answer has the larger reward, else 0
//   rewards/margins     rewards/chosen - rewards/rejected
//   logps/chosen        log probability of the chosen answer, a sum over its tokens
//   logps/rejected      the same of the rejected one
// Without a reference rewards are beta times the log probability, and where the loss averages over
// tokens (simpo) both, and logps, are means over them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/core/view.h"
#include "layers/ops/pair_losses.h"
#include "layers/tasks/metrics.h"

namespace snug {

// In the order of the table above.
std::span<const std::string_view> preference_names();

// Sums over pairs. Takes no memory.
struct PreferenceSums {
  std::array<double, 6> sums{};
  int64_t pairs = 0;

  // Of a batch, as layers/ops/pair_loss.h has it: pairs (P,5), logps and reference (P,2), the last
  // undefined where the loss has none.
  void add(const View& places, const View& logps, const View& reference, const PairLoss& loss);
  void add(const PreferenceSums& other);
  MetricList means() const;  // none without a pair
  bool finite() const;
};

}  // namespace snug
