#include "layers/tasks/preference.h"

#include <algorithm>
#include <cmath>

#include "layers/ops/pair_loss.h"

namespace snug {
namespace {

constexpr std::string_view kNames[] = {"rewards/chosen",  "rewards/rejected", "rewards/accuracies",
                                       "rewards/margins", "logps/chosen",     "logps/rejected",
                                       "nll_loss",        "log_odds_ratio",   "log_odds_chosen"};
constexpr size_t kOfAll = 6;
constexpr std::string_view kOfSingle[] = {"rewards/chosen", "rewards/rejected", "rewards/margins",
                                          "logps/chosen",   "logps/rejected",   "kl"};
constexpr std::string_view kOfRewards[] = {"accuracy", "margin", "mean_reward", "min_reward",
                                           "max_reward"};

}  // namespace

std::span<const std::string_view> preference_names(PreferenceForm form) {
  if (form == PreferenceForm::rewards) return kOfRewards;
  if (form == PreferenceForm::single) return kOfSingle;
  return std::span(kNames).first(form == PreferenceForm::whole ? std::size(kNames) : kOfAll);
}

void PreferenceSums::add(const View& places, const View& logps, const View& reference,
                         const PairLoss& loss) {
  for (int64_t p = 0; p < places.shape[0]; ++p) {
    const int32_t* place = places.as<int32_t>() + p * kPairColumns;
    if (place[0] < 0) continue;
    const float* logp = logps.as<float>() + p * logps.shape[1];
    double log_probability[2], reward[2];
    for (int64_t side = 0; side < 2; ++side) {
      double l = double{logp[side]};
      if (facts_of(loss.kind).averaged) l /= double(place[3 + side]);
      log_probability[side] = l;
      reward[side] =
          loss.beta * (reference.defined() ? l - double{reference.as<float>()[2 * p + side]} : l);
    }
    ++pairs;
    if (facts_of(loss.kind).single) {
      add_single(place, log_probability, reward, loss);
      continue;
    }
    const double values[] = {reward[0],
                             reward[1],
                             reward[0] > reward[1] ? 1.0 : 0.0,
                             reward[0] - reward[1],
                             log_probability[0],
                             log_probability[1]};
    for (size_t i = 0; i < kOfAll; ++i) sums[i] += values[i];
    if (!facts_of(loss.kind).whole) continue;
    const double odds = pair_loss::log_odds(log_probability[0]).value -
                        pair_loss::log_odds(log_probability[1]).value;
    sums[6] += whole_loss(loss, place, logp);
    sums[7] -= pair_loss::minus_log_sigmoid(odds).value;
    sums[8] += odds;
  }
}

// Sums: of rewards, of log probabilities, each of both sides; how many are desirable; of kl.
void PreferenceSums::add_single(const int32_t* place, const double* log_probability,
                                const double* reward, const PairLoss& loss) {
  const size_t side = place[3] > 0 ? 0 : 1;
  sums[side] += reward[side];
  sums[2 + side] += log_probability[side];
  sums[4] += side == 0 ? 1 : 0;
  sums[5] += compared_with(loss, place);
}

void PreferenceSums::add_rewards(const View& rewards, const View& margins) {
  for (int64_t p = 0; p < rewards.shape[0] / 2; ++p) {
    if (std::isnan(margins.as<float>()[2 * p])) continue;
    const double c = double{rewards.as<float>()[2 * p]}, r = double{rewards.as<float>()[2 * p + 1]};
    sums[0] += c > r ? 1.0 : 0.0;
    sums[1] += c - r;
    sums[2] += (c + r) / 2;
    if (pairs++ == 0) range = {c, c};
    range = {std::min({range[0], c, r}), std::max({range[1], c, r})};
  }
}

void PreferenceSums::add(const PreferenceSums& other) {
  if (other.pairs > 0 && pairs == 0) range = other.range;
  if (other.pairs > 0)
    range = {std::min(range[0], other.range[0]), std::max(range[1], other.range[1])};
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += other.sums[i];
  pairs += other.pairs;
}

bool PreferenceSums::finite() const {
  return std::all_of(sums.begin(), sums.end(), [](double sum) { return std::isfinite(sum); });
}

MetricList PreferenceSums::means(PreferenceForm form) const {
  MetricList list;
  const std::span<const std::string_view> names = preference_names(form);
  if (form == PreferenceForm::single) {
    const auto all = static_cast<double>(pairs);
    const double chosen = sums[0] / sums[4], rejected = sums[1] / (all - sums[4]);
    const double values[] = {
        chosen,       rejected, chosen - rejected, sums[2] / sums[4], sums[3] / (all - sums[4]),
        sums[5] / all};
    for (size_t i = 0; i < names.size() && pairs > 0; ++i) list.add(names[i], values[i]);
    return list;
  }
  for (size_t i = 0; i < names.size() && pairs > 0; ++i)
    list.add(names[i], form == PreferenceForm::rewards && i >= 3
                           ? range[i - 3]
                           : sums[i] / static_cast<double>(pairs));
  return list;
}

}  // namespace snug
