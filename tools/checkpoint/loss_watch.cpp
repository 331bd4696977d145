#include "tools/checkpoint/loss_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/calibrate/median.h"

namespace snug {
namespace {

std::string more(int64_t& unsaid) {
  const std::string text = unsaid == 0   ? ""
                           : unsaid == 1 ? " (1 more since the last warning)"
                                         : fmt::format(" ({} more since the last warning)", unsaid);
  unsaid = 0;
  return text;
}

}  // namespace

// Of the last `count` values of a ring.
double LossWatch::median(const std::array<double, kWindow>& ring, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    scratch_[static_cast<size_t>(i)] = ring[static_cast<size_t>((state_.seen - 1 - i) % kWindow)];
  return median_of({scratch_.data(), static_cast<size_t>(count)});
}

LossWatch::Verdict LossWatch::look(int64_t step, double loss, double norm) {
  State& s = state_;
  Verdict verdict;
  const auto say = [&](const std::string& text) {
    verdict.text += (verdict.text.empty() ? "" : "\n") + text;
  };
  const int64_t known = std::min(s.seen, kWindow);
  if (known >= kRecent) {
    const double usual_norm = median(s.norms, known);
    if (norm > kNormFactor * usual_norm && usual_norm > 0) {
      if (s.seen - s.norm_said >= kQuiet) {
        say(
            fmt::format("  warning: step {}: the gradient norm is {:.4g}, {:.0f} times the median "
                        "{:.4g} of the {} steps before{}",
                        step, norm, norm / usual_norm, usual_norm, known, more(s.norm_unsaid)));
        s.norm_said = s.seen;
      } else {
        ++s.norm_unsaid;
      }
    }
    const double usual = median(s.losses, known);
    for (int64_t i = 0; i < known; ++i) {
      double& value = scratch_[static_cast<size_t>(i)];
      value = std::fabs(value - usual);
    }
    const double deviation = 1.4826 * median_of({scratch_.data(), static_cast<size_t>(known)});
    if (loss > usual + std::max(kLossDeviations * deviation, kLossShare * std::fabs(usual))) {
      if (s.seen - s.loss_said >= kQuiet) {
        say(
            fmt::format("  warning: step {}: the loss is {:.4g}, the median of the {} steps before "
                        "{:.4g}{}",
                        step, loss, known, usual, more(s.loss_unsaid)));
        s.loss_said = s.seen;
      } else {
        ++s.loss_unsaid;
      }
    }
  }
  s.losses[static_cast<size_t>(s.seen % kWindow)] = loss;
  s.norms[static_cast<size_t>(s.seen % kWindow)] = norm;
  ++s.seen;
  if (s.seen < kRecent) return verdict;
  const double recent = median(s.losses, kRecent);
  if (s.lowest_step < 0 || recent < s.lowest) {
    s.lowest = recent;
    s.lowest_step = step;
  }
  if (!s.diverged && recent > kDivergedFactor * s.lowest + kDivergedMargin) {
    s.diverged = verdict.diverged = true;
    say(
        fmt::format("  warning: step {}: the loss diverges: the median of the last {} steps is "
                    "{:.4g}, at step {} it was {:.4g}",
                    step, kRecent, recent, s.lowest_step, s.lowest));
  } else if (s.diverged && recent < kCalmFactor * s.lowest + kCalmMargin) {
    s.diverged = false;
  }
  return verdict;
}

}  // namespace snug
