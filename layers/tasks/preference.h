// What people look at when preferences are learned, as TRL 1.16.0 logs it: means over pairs of
//   rewards/chosen      beta (log probability of the chosen answer - that of the reference)
//   rewards/rejected    the same of the rejected one
//   rewards/accuracies  1 where the chosen answer has the larger reward, else 0
//   rewards/margins     rewards/chosen - rewards/rejected
//   logps/chosen        log probability of the chosen answer, a sum over its tokens
//   logps/rejected      the same of the rejected one
// and of orpo, which learns the whole chosen sequence too,
//   nll_loss            the mean loss of that sequence's tokens, prompt and answer, over those of the step
//   log_odds_ratio      log sigmoid of log_odds_chosen's summand: what beta weighs, with the other sign
//   log_odds_chosen     log odds of a token of the chosen answer less those of the rejected one
// Of a loss of one answer (kto, apo_zero_unpaired) chosen are the desirable ones and rejected the others:
// each mean is over its own, the margin that of both, NaN where one is not there; no accuracies, and
//   kl                  what log ratios are compared with, at least 0; of apo_zero_unpaired 0
// Of a reward model (task: reward), as TRL 1.16.0's RewardTrainer logs it,
//   accuracy            1 where the chosen answer has the larger reward, else 0
//   margin              the reward of the chosen answer less that of the rejected one
//   mean_reward         of both; min_reward, max_reward: of all, not the mean of those of batches
// Without a reference rewards are beta times the log probability, and where the loss averages over
// tokens (simpo, orpo) both, and logps, are means over them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/core/view.h"
#include "layers/ops/pair_losses.h"
#include "layers/tasks/metrics.h"

namespace snug {

// Which of the numbers there are.
enum class PreferenceForm : uint8_t { answers, whole, single, rewards };
constexpr PreferenceForm form_of(const PairLoss& loss) {
  const PairLossFacts& facts = facts_of(loss.kind);
  return facts.whole    ? PreferenceForm::whole
         : facts.single ? PreferenceForm::single
                        : PreferenceForm::answers;
}
// In the order of the table above.
std::span<const std::string_view> preference_names(PreferenceForm form);

// Sums over pairs, or single answers. Takes no memory.
struct PreferenceSums {
  std::array<double, 9> sums{};  // 0 of what the loss has not
  int64_t pairs = 0;
  std::array<double, 2> range{};  // of rewards, the least and the greatest; none without a pair

  // Rewards and margins as layers/ops/reward_loss.h has them.
  void add_rewards(const View& rewards, const View& margins);
  // Of a batch, as layers/ops/pair_loss.h has it: pairs, logps and reference, the last undefined where the
  // loss has none.
  void add(const View& places, const View& logps, const View& reference, const PairLoss& loss);
  void add(const PreferenceSums& other);
  MetricList means(PreferenceForm form) const;  // none without a pair
  bool finite() const;

 private:
  void add_single(const int32_t* place, const double* log_probability, const double* reward,
                  const PairLoss& loss);
};

}  // namespace snug
