// Naive attention on a scalar S (double, or complex for gradients), from the formulas alone: the
// whole matrix of probabilities of each head is formed.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/support/gradient.h"

namespace snug::test {

struct AttentionCase {
  int64_t B = 1, T = 1, H = 1, G = 1, D = 1;
  double scale = 1;
  double softcap = 0;  // 0: none
  bool causal = true;
  int64_t window = 0;                  // keys before i - window + 1 are not seen; 0: no limit
  std::vector<double> key_lengths;     // (B), empty: all T
  std::vector<double> document_start;  // (B,T), first tokens; empty: one document
  std::vector<double> mask;            // (B,H,T,T) factors of the probabilities, empty: ones

  int64_t width() const { return (H + 2 * G) * D; }
  size_t q(int64_t b, int64_t i, int64_t h, int64_t d) const {
    return static_cast<size_t>((b * T + i) * width() + h * D + d);
  }
  size_t k(int64_t b, int64_t j, int64_t h, int64_t d) const {
    return static_cast<size_t>((b * T + j) * width() + (H + h / (H / G)) * D + d);
  }
  size_t v(int64_t b, int64_t j, int64_t h, int64_t d) const {
    return k(b, j, h, d) + static_cast<size_t>(G * D);
  }
  size_t o(int64_t b, int64_t i, int64_t h, int64_t d) const {
    return static_cast<size_t>(((b * T + i) * H + h) * D + d);
  }
  bool sees(int64_t b, int64_t i, int64_t j) const {
    return (!causal || j <= i) && (window == 0 || i - j < window) &&
           (key_lengths.empty() || static_cast<double>(j) < key_lengths[static_cast<size_t>(b)]) &&
           (document_start.empty() || document_start[static_cast<size_t>(b * T + j)] ==
                                          document_start[static_cast<size_t>(b * T + i)]);
  }
  double factor(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return mask.empty() ? 1 : mask[static_cast<size_t>(((b * H + h) * T + i) * T + j)];
  }
};

// Probabilities of query i: p (T), zero where hidden. Returns log sum e^s. `slopes` (T), if it is asked
// for: of the scores behind the softcap.
template <class S>
S attention_row(const AttentionCase& c, const std::vector<S>& qkv, int64_t b, int64_t h, int64_t i,
                std::vector<S>* p, std::vector<S>* slopes = nullptr) {
  p->assign(static_cast<size_t>(c.T), S(0));
  if (slopes) slopes->assign(static_cast<size_t>(c.T), S(1));
  double highest = -1e300;
  for (int64_t j = 0; j < c.T; ++j) {
    if (!c.sees(b, i, j)) continue;
    S s = 0;
    for (int64_t d = 0; d < c.D; ++d) s += qkv[c.q(b, i, h, d)] * qkv[c.k(b, j, h, d)];
    s *= c.scale;
    if (c.softcap != 0) {
      const S t = std::tanh(s / c.softcap);
      s = c.softcap * t;
      if (slopes) (*slopes)[static_cast<size_t>(j)] = S(1) - t * t;
    }
    (*p)[static_cast<size_t>(j)] = s;
    highest = std::max(highest, real_of(s));
  }
  S sum = 0;
  for (int64_t j = 0; j < c.T; ++j)
    if (c.sees(b, i, j))
      sum += (*p)[static_cast<size_t>(j)] = std::exp((*p)[static_cast<size_t>(j)] - highest);
  if (sum == S(0)) return S(0);  // nothing is seen: the contract's lse
  for (S& x : *p) x /= sum;
  return std::log(sum) + highest;
}

// out (B*T,H*D); lse (B,H,T) if asked for.
template <class S>
std::vector<S> attention_reference(const AttentionCase& c, const std::vector<S>& qkv,
                                   std::vector<S>* lse = nullptr) {
  std::vector<S> out(static_cast<size_t>(c.B * c.T * c.H * c.D), S(0)), p;
  if (lse) lse->clear();
  for (int64_t b = 0; b < c.B; ++b)
    for (int64_t h = 0; h < c.H; ++h)
      for (int64_t i = 0; i < c.T; ++i) {
        const S l = attention_row(c, qkv, b, h, i, &p);
        if (lse) lse->push_back(l);
        for (int64_t j = 0; j < c.T; ++j) {
          if (p[static_cast<size_t>(j)] == S(0)) continue;
          const S mp = p[static_cast<size_t>(j)] * c.factor(b, h, i, j);
          for (int64_t d = 0; d < c.D; ++d) out[c.o(b, i, h, d)] += mp * qkv[c.v(b, j, h, d)];
        }
      }
  return out;
}

// The gradient of sum dout * out in closed form: for sizes where the complex step, which is its
// judge at small ones, would take long.
inline std::vector<double> attention_gradient(const AttentionCase& c,
                                              const std::vector<double>& qkv,
                                              const std::vector<double>& dout) {
  std::vector<double> g(qkv.size(), 0.0), p, slopes, dp(static_cast<size_t>(c.T));
  for (int64_t b = 0; b < c.B; ++b)
    for (int64_t h = 0; h < c.H; ++h)
      for (int64_t i = 0; i < c.T; ++i) {
        attention_row(c, qkv, b, h, i, &p, &slopes);
        double mean = 0;
        for (int64_t j = 0; j < c.T; ++j) {
          if (p[static_cast<size_t>(j)] == 0) continue;
          double s = 0;
          for (int64_t d = 0; d < c.D; ++d) s += dout[c.o(b, i, h, d)] * qkv[c.v(b, j, h, d)];
          dp[static_cast<size_t>(j)] = s * c.factor(b, h, i, j);
          mean += p[static_cast<size_t>(j)] * dp[static_cast<size_t>(j)];
        }
        for (int64_t j = 0; j < c.T; ++j) {
          const double pj = p[static_cast<size_t>(j)], m = c.factor(b, h, i, j);
          if (pj == 0) continue;
          const double ds =
              pj * (dp[static_cast<size_t>(j)] - mean) * c.scale * slopes[static_cast<size_t>(j)];
          for (int64_t d = 0; d < c.D; ++d) {
            g[c.v(b, j, h, d)] += pj * m * dout[c.o(b, i, h, d)];
            g[c.q(b, i, h, d)] += ds * qkv[c.k(b, j, h, d)];
            g[c.k(b, j, h, d)] += ds * qkv[c.q(b, i, h, d)];
          }
        }
      }
  return g;
}

// Standard deviations that roundings of relative size `u` to nearest (so u / sqrt(3) each, drawn
// independently) leave in out and in the gradient, to first order; the rounding of the result
// itself is not in them.
//   out    every m p is rounded if `probabilities`: sum_j (m p v)^2
//   delta  the sum of dout out sees those errors and the storage of out:
//          sum_j (p dp)^2 + sum_d (dout out)^2
//   dq     every ds is rounded if `probabilities` and shifted by p times the error of delta:
//          sum_j (ds k)^2 + delta (sum_j p k)^2; dk is the same over i, each i with its own delta
//   dv     sum_i (m p dout)^2
struct AttentionDeviation {
  std::vector<double> out, gradient;
};
inline AttentionDeviation attention_deviation(const AttentionCase& c,
                                              const std::vector<double>& qkv,
                                              const std::vector<double>& dout, double u,
                                              bool probabilities) {
  const double stored = u * u / 3, inside = probabilities ? stored : 0;
  const auto square = [](double x) { return x * x; };
  AttentionDeviation r;
  r.out.assign(dout.size(), 0.0);
  r.gradient.assign(qkv.size(), 0.0);
  if (u == 0) return r;
  const std::vector<double> out = attention_reference<double>(c, qkv);
  std::vector<double> p, slopes, dp(static_cast<size_t>(c.T)), keys(static_cast<size_t>(c.D));
  for (int64_t b = 0; b < c.B; ++b)
    for (int64_t h = 0; h < c.H; ++h)
      for (int64_t i = 0; i < c.T; ++i) {
        attention_row(c, qkv, b, h, i, &p, &slopes);
        double mean = 0, delta = 0;
        for (int64_t j = 0; j < c.T; ++j) {
          const auto at = static_cast<size_t>(j);
          if (p[at] == 0) continue;
          dp[at] = 0;
          for (int64_t d = 0; d < c.D; ++d) dp[at] += dout[c.o(b, i, h, d)] * qkv[c.v(b, j, h, d)];
          dp[at] *= c.factor(b, h, i, j);
          mean += p[at] * dp[at];
          delta += inside * square(p[at] * dp[at]);
        }
        for (int64_t d = 0; d < c.D; ++d)
          delta += stored * square(dout[c.o(b, i, h, d)] * out[c.o(b, i, h, d)]);
        keys.assign(keys.size(), 0.0);
        for (int64_t j = 0; j < c.T; ++j) {
          const auto at = static_cast<size_t>(j);
          if (p[at] == 0) continue;
          const double m = c.factor(b, h, i, j), ds = p[at] * (dp[at] - mean) * slopes[at];
          for (int64_t d = 0; d < c.D; ++d) {
            const double k = qkv[c.k(b, j, h, d)], q = qkv[c.q(b, i, h, d)];
            keys[static_cast<size_t>(d)] += p[at] * slopes[at] * k;
            r.out[c.o(b, i, h, d)] += inside * square(m * p[at] * qkv[c.v(b, j, h, d)]);
            r.gradient[c.q(b, i, h, d)] += inside * square(c.scale * ds * k);
            r.gradient[c.k(b, j, h, d)] +=
                square(c.scale * q) * (inside * square(ds) + delta * square(p[at] * slopes[at]));
            r.gradient[c.v(b, j, h, d)] += inside * square(m * p[at] * dout[c.o(b, i, h, d)]);
          }
        }
        for (int64_t d = 0; d < c.D; ++d)
          r.gradient[c.q(b, i, h, d)] += delta * square(c.scale * keys[static_cast<size_t>(d)]);
      }
  for (std::vector<double>* v : {&r.out, &r.gradient})
    for (double& x : *v) x = std::sqrt(x);
  return r;
}

}  // namespace snug::test
