// Naive head and cross-entropy on a scalar S: all logits, one row after the other.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/support/gradient.h"

namespace snug::test {

struct HeadCase {
  int64_t N = 1, C = 1, V = 1, Vp = 1;
  std::vector<double> targets;  // (N); -100 is ignored
  double softcap = 0;           // 0: none

  template <class S>
  S capped(const S& z) const {
    using std::tanh;
    return softcap == 0 ? z : softcap * tanh(z / softcap);
  }
};

// nll (N), and lse (N) if asked for, of x (N,C), weight (Vp,C) and bias (Vp), or empty: none.
template <class S>
std::vector<S> head_loss_reference(const HeadCase& c, const std::vector<S>& x,
                                   const std::vector<S>& weight, const std::vector<S>& bias,
                                   std::vector<S>* lse = nullptr) {
  std::vector<S> nll, z(static_cast<size_t>(c.V));
  if (lse) lse->clear();
  for (int64_t n = 0; n < c.N; ++n) {
    double highest = -1e300;
    for (int64_t v = 0; v < c.V; ++v) {
      S s = bias.empty() ? S(0) : bias[static_cast<size_t>(v)];
      for (int64_t d = 0; d < c.C; ++d)
        s += x[static_cast<size_t>(n * c.C + d)] * weight[static_cast<size_t>(v * c.C + d)];
      z[static_cast<size_t>(v)] = c.capped(s);
      highest = std::max(highest, real_of(z[static_cast<size_t>(v)]));
    }
    S sum = 0;
    for (const S& s : z) sum += std::exp(s - highest);
    const S l = std::log(sum) + highest;
    const double target = c.targets[static_cast<size_t>(n)];
    nll.push_back(target == -100 ? S(0) : l - z[static_cast<size_t>(target)]);
    if (lse) lse->push_back(l);
  }
  return nll;
}

// Gradients of sum dnll * nll in closed form, for sizes where complex steps take long.
struct HeadGradients {
  std::vector<double> dx, dweight, dbias;  // dbias: (Vp) even where there is no bias
};
inline HeadGradients head_loss_gradient(const HeadCase& c, const std::vector<double>& x,
                                        const std::vector<double>& weight,
                                        const std::vector<double>& bias,
                                        const std::vector<double>& dnll) {
  HeadGradients g{std::vector<double>(x.size(), 0.0), std::vector<double>(weight.size(), 0.0),
                  std::vector<double>(static_cast<size_t>(c.Vp), 0.0)};
  std::vector<double> lse;
  head_loss_reference(c, x, weight, bias, &lse);
  for (int64_t n = 0; n < c.N; ++n) {
    const double target = c.targets[static_cast<size_t>(n)];
    if (target == -100) continue;
    for (int64_t v = 0; v < c.V; ++v) {
      double z = bias.empty() ? 0 : bias[static_cast<size_t>(v)];
      for (int64_t d = 0; d < c.C; ++d)
        z += x[static_cast<size_t>(n * c.C + d)] * weight[static_cast<size_t>(v * c.C + d)];
      const double hit = static_cast<double>(v) == target ? 1 : 0, y = c.capped(z);
      const double slope = c.softcap == 0 ? 1 : 1 - y * y / (c.softcap * c.softcap);
      const double dz =
          dnll[static_cast<size_t>(n)] * (std::exp(y - lse[static_cast<size_t>(n)]) - hit) * slope;
      g.dbias[static_cast<size_t>(v)] += dz;
      for (int64_t d = 0; d < c.C; ++d) {
        g.dx[static_cast<size_t>(n * c.C + d)] += dz * weight[static_cast<size_t>(v * c.C + d)];
        g.dweight[static_cast<size_t>(v * c.C + d)] += dz * x[static_cast<size_t>(n * c.C + d)];
      }
    }
  }
  return g;
}

}  // namespace snug::test
