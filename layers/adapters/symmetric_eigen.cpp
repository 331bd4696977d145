#include "layers/adapters/symmetric_eigen.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/core/error.h"

namespace snug {
namespace {

// Householder's reduction of a (n,n): the diagonal d, what lies beside it in e[1..], and, by rows, the
// product of the reflections in a, so that a T a^T is what was given with a's rows as columns.
class ThreeDiagonals {
 public:
  ThreeDiagonals(std::vector<double>& a, int64_t n)
      : d(static_cast<size_t>(n)), e(static_cast<size_t>(n)), a_(a), n_(n) {
    for (int64_t i = n - 1; i >= 1; --i) reduce(i);
    build();
  }
  std::vector<double> d, e;

 private:
  double& a(int64_t i, int64_t j) { return a_[static_cast<size_t>(i * n_ + j)]; }
  double* row(int64_t i) { return a_.data() + i * n_; }
  double& d_of(int64_t i) { return d[static_cast<size_t>(i)]; }
  double& e_of(int64_t i) { return e[static_cast<size_t>(i)]; }

  // Row i, whose first i elements become one.
  void reduce(int64_t i) {
    double* const v = row(i);
    double scale = 0, h = 0;
    for (int64_t k = 0; k < i; ++k) scale += std::fabs(v[k]);
    if (i == 1 || scale == 0) {
      e_of(i) = v[i - 1];
      d_of(i) = 0;
      return;
    }
    for (int64_t k = 0; k < i; ++k) {
      v[k] /= scale;
      h += v[k] * v[k];
    }
    const double f = v[i - 1], g = f >= 0 ? -std::sqrt(h) : std::sqrt(h);
    e_of(i) = scale * g;
    h -= f * g;
    v[i - 1] = f - g;
    // p = A v / h, of which the lower triangle is there.
    for (int64_t j = 0; j < i; ++j) e_of(j) = 0;
    for (int64_t j = 0; j < i; ++j) {
      const double* const own = row(j);
      double sum = own[j] * v[j];
      for (int64_t k = 0; k < j; ++k) {
        sum += own[k] * v[k];
        e[static_cast<size_t>(k)] += own[k] * v[j];
      }
      e_of(j) += sum;
    }
    double along = 0;
    for (int64_t j = 0; j < i; ++j) {
      e_of(j) /= h;
      along += e_of(j) * v[j];
    }
    for (int64_t j = 0; j < i; ++j) e_of(j) -= along / (h + h) * v[j];
    for (int64_t j = 0; j < i; ++j) {
      double* const own = row(j);
      for (int64_t k = 0; k <= j; ++k) own[k] -= v[j] * e[static_cast<size_t>(k)] + e_of(j) * v[k];
    }
    d_of(i) = h;
  }

  void build() {
    d_of(0) = e_of(0) = 0;
    std::vector<double> q(a_.size(), 0.0), sums(static_cast<size_t>(n_));
    for (int64_t i = 0; i < n_; ++i) {
      q[static_cast<size_t>(i * n_ + i)] = 1;
      const double h = d_of(i);
      d_of(i) = a(i, i);
      if (h == 0) continue;
      // The first i rows and columns: q -= (q v) v^T / h.
      const double* const v = row(i);
      std::fill(sums.begin(), sums.end(), 0.0);
      for (int64_t k = 0; k < i; ++k)
        for (int64_t j = 0; j < i; ++j)
          sums[static_cast<size_t>(j)] += v[k] * q[static_cast<size_t>(k * n_ + j)];
      for (int64_t k = 0; k < i; ++k)
        for (int64_t j = 0; j < i; ++j)
          q[static_cast<size_t>(k * n_ + j)] -= v[k] / h * sums[static_cast<size_t>(j)];
    }
    // By rows, which the rotations of QL mix.
    for (int64_t i = 0; i < n_; ++i)
      for (int64_t j = 0; j < n_; ++j) a(j, i) = q[static_cast<size_t>(i * n_ + j)];
  }

  std::vector<double>& a_;
  int64_t n_;
};

// Implicit QL on d and e; the rows of v turn along.
void turn_to_values(std::vector<double>& d, std::vector<double>& e, std::vector<double>& v,
                    int64_t n) {
  const auto at = [](std::vector<double>& x, int64_t i) -> double& {
    return x[static_cast<size_t>(i)];
  };
  for (int64_t i = 1; i < n; ++i) at(e, i - 1) = at(e, i);
  at(e, n - 1) = 0;
  for (int64_t l = 0; l < n; ++l) {
    for (int round = 0;; ++round) {
      int64_t m = l;
      for (; m < n - 1; ++m) {
        const double near = std::fabs(at(d, m)) + std::fabs(at(d, m + 1));
        if (std::fabs(at(e, m)) <= 2.3e-16 * near) break;
      }
      if (m == l) break;
      require(round < 60, "eigenvalues that are found in 60 rounds");
      double g = (at(d, l + 1) - at(d, l)) / (2 * at(e, l));
      double r = std::hypot(g, 1.0);
      g = at(d, m) - at(d, l) + at(e, l) / (g + std::copysign(r, g));
      double s = 1, c = 1, p = 0;
      int64_t i = m - 1;
      for (; i >= l; --i) {
        const double f = s * at(e, i), b = c * at(e, i);
        r = std::hypot(f, g);
        at(e, i + 1) = r;
        if (r == 0) {
          at(d, i + 1) -= p;
          at(e, m) = 0;
          break;
        }
        s = f / r;
        c = g / r;
        g = at(d, i + 1) - p;
        r = (at(d, i) - g) * s + 2 * c * b;
        p = s * r;
        at(d, i + 1) = g + p;
        g = c * r - b;
        double* const lower = v.data() + i * n;
        double* const upper = lower + n;
        for (int64_t k = 0; k < n; ++k) {
          const double x = upper[k], y = lower[k];
          upper[k] = s * y + c * x;
          lower[k] = c * y - s * x;
        }
      }
      if (r == 0 && i >= l) continue;
      at(d, l) -= p;
      at(e, l) = g;
      at(e, m) = 0;
    }
  }
}

}  // namespace

std::vector<double> symmetric_eigen(std::vector<double>& m, int64_t n) {
  require(n > 0 && static_cast<int64_t>(m.size()) == n * n, "a square matrix");
  ThreeDiagonals t(m, n);
  turn_to_values(t.d, t.e, m, n);
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return t.d[static_cast<size_t>(a)] < t.d[static_cast<size_t>(b)];
  });
  std::vector<double> values, vectors;
  for (const int64_t i : order) {
    values.push_back(t.d[static_cast<size_t>(i)]);
    vectors.insert(vectors.end(), m.begin() + i * n, m.begin() + (i + 1) * n);
  }
  m = std::move(vectors);
  return values;
}

}  // namespace snug
