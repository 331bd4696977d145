#include "layers/tasks/preference.h"

#include <algorithm>
#include <cmath>

#include "layers/ops/pair_loss.h"

namespace snug {
namespace {

constexpr std::string_view kNames[] = {"rewards/chosen",  "rewards/rejected", "rewards/accuracies",
                                       "rewards/margins", "logps/chosen",     "logps/rejected"};

}  // namespace

std::span<const std::string_view> preference_names() {
  return kNames;
}

void PreferenceSums::add(const View& places, const View& logps, const View& reference,
                         const PairLoss& loss) {
  for (int64_t p = 0; p < places.shape[0]; ++p) {
    const int32_t* place = places.as<int32_t>() + p * kPairColumns;
    if (place[0] < 0) continue;
    double log_probability[2], reward[2];
    for (int64_t side = 0; side < 2; ++side) {
      double l = double{logps.as<float>()[2 * p + side]};
      if (facts_of(loss.kind).averaged) l /= double(place[3 + side]);
      log_probability[side] = l;
      reward[side] =
          loss.beta * (reference.defined() ? l - double{reference.as<float>()[2 * p + side]} : l);
    }
    ++pairs;
    const double values[] = {reward[0],
                             reward[1],
                             reward[0] > reward[1] ? 1.0 : 0.0,
                             reward[0] - reward[1],
                             log_probability[0],
                             log_probability[1]};
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
  }
}

void PreferenceSums::add(const PreferenceSums& other) {
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += other.sums[i];
  pairs += other.pairs;
}

bool PreferenceSums::finite() const {
  return std::all_of(sums.begin(), sums.end(), [](double sum) { return std::isfinite(sum); });
}

MetricList PreferenceSums::means() const {
  MetricList list;
  for (size_t i = 0; i < sums.size() && pairs > 0; ++i)
    list.add(kNames[i], sums[i] / static_cast<double>(pairs));
  return list;
}

}  // namespace snug
