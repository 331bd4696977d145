#include "tools/costs/op_curve.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace snug {
namespace {

constexpr double kLeastSeconds = 1e-9;

// Solves A x = b of n <= 3 unknowns by elimination with pivots; false if A is nearly singular.
bool solve(int n, double a[3][4]) {
  for (int i = 0; i < n; ++i) {
    int pivot = i;
    for (int r = i + 1; r < n; ++r)
      if (std::abs(a[r][i]) > std::abs(a[pivot][i])) pivot = r;
    if (std::abs(a[pivot][i]) < 1e-7) return false;  // columns were scaled to length 1
    std::swap(a[i], a[pivot]);
    for (int r = 0; r < n; ++r) {
      if (r == i) continue;
      const double f = a[r][i] / a[i][i];
      for (int c = i; c <= n; ++c) a[r][c] -= f * a[i][c];
    }
  }
  for (int i = 0; i < n; ++i) a[i][n] /= a[i][i];
  return true;
}

}  // namespace

void OpCurve::add(OpSample sample) {
  const auto key = [](const OpSample& s) { return std::tie(s.flops, s.bytes); };
  sample.seconds = std::max(sample.seconds, kLeastSeconds);
  const auto at =
      std::lower_bound(samples_.begin(), samples_.end(), sample,
                       [&](const OpSample& a, const OpSample& b) { return key(a) < key(b); });
  if (at != samples_.end() && key(*at) == key(sample)) {
    const auto before = static_cast<double>(at->count), more = static_cast<double>(sample.count);
    at->seconds = (before * at->seconds + more * sample.seconds) / (before + more);
    at->count += sample.count;
  } else {
    samples_.insert(at, sample);
  }
  fitted_ = false;
}

const std::array<double, 3>& OpCurve::base() const {
  fit();
  return base_;
}

double OpCurve::base_seconds(double flops, double bytes) const {
  return std::max(kLeastSeconds, base_[0] + base_[1] * flops + base_[2] * bytes);
}

// Every set of coefficients that may be above zero is tried; of those with none below it the one of
// the least squares counts.
void OpCurve::fit() const {
  if (fitted_) return;
  fitted_ = true;
  flops_[0] = bytes_[0] = 1e300;
  flops_[1] = bytes_[1] = 0;
  for (const OpSample& s : samples_) {
    flops_[0] = std::min(flops_[0], s.flops), flops_[1] = std::max(flops_[1], s.flops);
    bytes_[0] = std::min(bytes_[0], s.bytes), bytes_[1] = std::max(bytes_[1], s.bytes);
  }
  double scale[3] = {};  // of the columns 1/t, flops/t, bytes/t
  const auto row = [](const OpSample& s, int i) {
    return (i == 0 ? 1.0 : i == 1 ? s.flops : s.bytes) / s.seconds;
  };
  for (int i = 0; i < 3; ++i) {
    for (const OpSample& s : samples_) scale[i] += row(s, i) * row(s, i);
    scale[i] = std::sqrt(scale[i]);
  }
  double best = 1e300;
  for (unsigned set = 1; set < 8; ++set) {
    int columns[3], n = 0;
    for (int i = 0; i < 3; ++i)
      if ((set >> i & 1u) != 0) columns[n++] = i;
    double a[3][4] = {};
    bool possible = static_cast<size_t>(n) <= samples_.size();
    for (int i = 0; i < n; ++i) possible = possible && scale[columns[i]] > 0;
    if (!possible) continue;
    for (const OpSample& s : samples_)
      for (int i = 0; i < n; ++i) {
        const double x = row(s, columns[i]) / scale[columns[i]];
        for (int k = 0; k < n; ++k) a[i][k] += x * row(s, columns[k]) / scale[columns[k]];
        a[i][n] += x;
      }
    if (!solve(n, a)) continue;
    std::array<double, 3> found{};
    bool good = true;
    for (int i = 0; i < n; ++i) {
      found[static_cast<size_t>(columns[i])] = a[i][n] / scale[columns[i]];
      good = good && a[i][n] >= 0;
    }
    if (!good) continue;
    double squares = 0;
    for (const OpSample& s : samples_) {
      const double error = (found[0] + found[1] * s.flops + found[2] * s.bytes) / s.seconds - 1;
      squares += error * error;
    }
    // A coefficient more must be worth it.
    squares = squares * (1 + 0.01 * n) + 1e-9 * n;
    if (squares < best) best = squares, base_ = found;
  }
}

double OpCurve::beyond(double flops, double bytes) const {
  fit();
  double times = 1;
  if (flops_[1] > 0) times = std::max(times, flops / flops_[1]);
  if (bytes_[1] > 0) times = std::max(times, bytes / bytes_[1]);
  return times;
}

double OpCurve::seconds(double flops, double bytes) const {
  if (const double times = beyond(flops, bytes); times > 1)
    return times * seconds(std::min(flops / times, flops_[1]), std::min(bytes / times, bytes_[1]));
  // Below the least sample what is at the edge holds.
  const auto logarithm = [](double v) { return std::log2(std::max(1.0, v)); };
  const double x = logarithm(std::clamp(flops, flops_[0], flops_[1]));
  const double y = logarithm(std::clamp(bytes, bytes_[0], bytes_[1]));
  double sum = 0, weights = 0;
  for (const OpSample& s : samples_) {
    const double dx = logarithm(s.flops) - x, dy = logarithm(s.bytes) - y;
    const double squared = dx * dx + dy * dy + 1e-6;
    const double weight = 1 / (squared * squared);
    sum += weight * std::log(s.seconds / base_seconds(s.flops, s.bytes));
    weights += weight;
  }
  return base_seconds(flops, bytes) * (weights > 0 ? std::exp(sum / weights) : 1.0);
}

}  // namespace snug
