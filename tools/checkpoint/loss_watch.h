// Looks at every step's loss and gradient norm and says in words when something is wrong. What is
// usual is a running median, which a few wild steps do not move.
//
//   gradient spike  norm > 8 x median of the (up to) 128 steps before
//   loss spike      loss > m + max(6 x 1.4826 x MAD, m / 4), m the median and MAD the median
//   absolute
//                   deviation of the 128 steps before (1.4826 MAD estimates a standard deviation)
//   divergence      median of the last 32 losses > 1.25 x the lowest such median of the run + 0.25
// Nothing is said before 32 steps are known. A spike is said once in 50 steps, with the number of
// those in between; divergence once, until the median is below 1.1 x the lowest + 0.1 again.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace snug {

class LossWatch {
 public:
  static constexpr int64_t kWindow = 128, kRecent = 32, kQuiet = 50;
  static constexpr double kNormFactor = 8, kLossDeviations = 6, kLossShare = 0.25;
  static constexpr double kDivergedFactor = 1.25, kDivergedMargin = 0.25;
  static constexpr double kCalmFactor = 1.1, kCalmMargin = 0.1;

  // All of it: a checkpoint holds it, so that a resumed run says what the other would have said.
  struct State {
    int64_t seen = 0;                                  // steps looked at
    std::array<double, kWindow> losses{}, norms{};     // of the last steps; step k at k % kWindow
    double lowest = 0;                                 // lowest median of kRecent losses
    int64_t lowest_step = -1;                          // -1: none yet
    int64_t norm_said = -kQuiet, loss_said = -kQuiet;  // `seen` when it was last said
    int64_t norm_unsaid = 0, loss_unsaid = 0;
    bool diverged = false;
  };

  struct Verdict {
    std::string text;       // what to say, lines without the last line break; empty: nothing
    bool diverged = false;  // divergence began at this step
  };
  // Both values are finite.
  Verdict look(int64_t step, double loss, double norm);

  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  double median(const std::array<double, kWindow>& ring, int64_t count);

  State state_;
  std::array<double, kWindow> scratch_{};
};

}  // namespace snug
