#include "layers/adapters/decompose.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/rng.h"
#include "layers/adapters/symmetric_eigen.h"

namespace snug {
namespace {

using Values = std::vector<double>;

// Vectors of n elements, one below the other.
struct Vectors {
  int64_t n = 0;
  Values at;
  int64_t count() const { return n ? static_cast<int64_t>(at.size()) / n : 0; }
  double* operator[](int64_t i) { return at.data() + i * n; }
  const double* operator[](int64_t i) const { return at.data() + i * n; }
};

double dot(const double* a, const double* b, int64_t n) {
  double lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int64_t l = 0; l < 8; ++l) lanes[l] += a[i + l] * b[i + l];
  for (; i < n; ++i) lanes[0] += a[i] * b[i];
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

void add_times(double* y, const double* x, double factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

// W, or its transpose, times vectors.
class Weight {
 public:
  Weight(const std::vector<float>& w, int64_t rows, int64_t columns, int threads)
      : w_(w), rows_(rows), columns_(columns), threads_(threads) {}
  // W x of each, of `rows` elements.
  Vectors times(const Vectors& x) const {
    const int64_t count = x.count();
    Vectors y{rows_, Values(static_cast<size_t>(rows_ * count))};
    parallel_chunks(threads_, rows_, 16, [&](int64_t begin, int64_t end) {
      Values row(static_cast<size_t>(columns_));
      for (int64_t i = begin; i < end; ++i) {
        std::copy_n(w_.data() + i * columns_, columns_, row.data());
        for (int64_t k = 0; k < count; ++k) y[k][i] = dot(row.data(), x[k], columns_);
      }
    });
    return y;
  }
  // W^T y of each, of `columns` elements.
  Vectors back(const Vectors& y) const {
    const int64_t count = y.count();
    Vectors x{columns_, Values(static_cast<size_t>(columns_ * count), 0.0)};
    parallel_chunks(threads_, columns_, 64, [&](int64_t begin, int64_t end) {
      Values row(static_cast<size_t>(end - begin));
      for (int64_t i = 0; i < rows_; ++i) {
        std::copy_n(w_.data() + i * columns_ + begin, end - begin, row.data());
        for (int64_t k = 0; k < count; ++k)
          add_times(x[k] + begin, row.data(), y[k][i], end - begin);
      }
    });
    return x;
  }

 private:
  const std::vector<float>& w_;
  int64_t rows_, columns_;
  int threads_;
};

double draw(uint64_t i) {
  const Philox4 block = random_block(random_key(0x70697373u, 0, 0), i, 0, 0);
  return 2.0 * static_cast<double>(uniform_from(block[0])) - 1.0;
}

// Appends v, made orthogonal to those that are there; one that lies among them is drawn anew.
void append_orthogonal(Vectors& basis, Values v) {
  const int64_t n = basis.n, count = basis.count();
  for (uint64_t again = 0;; ++again) {
    double before = std::sqrt(dot(v.data(), v.data(), n));
    double after = before;
    for (int pass = 0; pass < 3 && before > 0; ++pass) {
      for (int64_t k = 0; k < count; ++k)
        add_times(v.data(), basis[k], -dot(basis[k], v.data(), n), n);
      after = std::sqrt(dot(v.data(), v.data(), n));
      if (pass > 0 && after > 0.5 * before) break;
      if (after < 1e-14 * before) break;
      before = after;
    }
    if (after > 0 && after > 0.5 * before) {
      for (double& x : v) x /= after;
      basis.at.insert(basis.at.end(), v.begin(), v.end());
      return;
    }
    require(again < 100, "a vector beside a basis that is not complete");
    for (int64_t i = 0; i < n; ++i)
      v[static_cast<size_t>(i)] =
          draw((static_cast<uint64_t>(count) * 128 + again) * static_cast<uint64_t>(n) +
               static_cast<uint64_t>(i));
  }
}

void append_orthogonal(Vectors& basis, const Vectors& more) {
  for (int64_t k = 0; k < more.count() && basis.count() < basis.n; ++k)
    append_orthogonal(basis, Values(more[k], more[k] + more.n));
}

// sum over k of v[k] c[k].
Values combined(const Vectors& v, const double* c) {
  Values out(static_cast<size_t>(v.n), 0.0);
  for (int64_t k = 0; k < v.count(); ++k) add_times(out.data(), v[k], c[k], v.n);
  return out;
}

Values inner_products(const Vectors& v, int threads) {
  const int64_t n = v.count();
  Values m(static_cast<size_t>(n * n));
  parallel_for(threads, n, [&](int64_t i) {
    for (int64_t j = 0; j < n; ++j) m[static_cast<size_t>(i * n + j)] = dot(v[i], v[j], v.n);
  });
  return m;
}

// With the larger side's vectors from W x = s u.
SingularParts parts_of(const Vectors& small, const Vectors& large, const Values& values,
                       bool columns_are_small, int64_t r) {
  SingularParts p;
  const Vectors& left = columns_are_small ? large : small;
  const Vectors& right = columns_are_small ? small : large;
  p.u.resize(static_cast<size_t>(left.n * r));
  for (int64_t k = 0; k < r; ++k) {
    p.s.push_back(values[static_cast<size_t>(k)]);
    for (int64_t i = 0; i < left.n; ++i) p.u[static_cast<size_t>(i * r + k)] = left[k][i];
    p.v.insert(p.v.end(), right[k], right[k] + right.n);
  }
  return p;
}

}  // namespace

SingularParts largest_singular(const std::vector<float>& w, int64_t rows, int64_t columns,
                               int64_t r, int threads) {
  const bool by_columns = columns <= rows;
  const int64_t n = std::min(rows, columns), block = std::max<int64_t>(8, r);
  require(r >= 1 && r <= n, "a rank within the widths of a weight");
  const Weight weight(w, rows, columns, threads);
  const auto there = [&](const Vectors& x) {
    return by_columns ? weight.times(x) : weight.back(x);
  };
  const auto home = [&](const Vectors& y) { return by_columns ? weight.back(y) : weight.times(y); };

  Vectors basis{n, {}}, far{by_columns ? rows : columns, {}}, image{n, {}};
  Vectors next{n, Values(static_cast<size_t>(n * std::min(block, n)))};
  for (size_t i = 0; i < next.at.size(); ++i) next.at[i] = draw(i);
  int64_t checked = 0;
  while (true) {
    const int64_t first = basis.count();
    append_orthogonal(basis, next);
    const Vectors fresh{n, Values(basis[first], basis[0] + basis.at.size())};
    const Vectors across = there(fresh);
    far.at.insert(far.at.end(), across.at.begin(), across.at.end());
    next = home(across);
    image.at.insert(image.at.end(), next.at.begin(), next.at.end());
    const int64_t k = basis.count();
    if (k < n && k < std::max(2 * checked, 3 * block)) continue;
    checked = k;
    // Ritz pairs: of (W Q)^T (W Q).
    Values m = inner_products(far, threads);
    const Values lambda = symmetric_eigen(m, k);  // ascending; row i of m is vector i
    Vectors small{n, {}}, large{far.n, {}};
    Values s;
    double worst = 0;
    for (int64_t i = 0; i < r; ++i) {
      const int64_t at = k - 1 - i;
      const double value = std::max(0.0, lambda[static_cast<size_t>(at)]);
      const double* const c = m.data() + at * k;
      const Values x = combined(basis, c), gx = combined(image, c);
      Values y = combined(far, c);
      double residual = 0;
      for (size_t e = 0; e < x.size(); ++e) {
        const double d = gx[e] - value * x[e];
        residual += d * d;
      }
      worst = std::max(worst, std::sqrt(residual));
      s.push_back(std::sqrt(dot(y.data(), y.data(), far.n)));
      for (double& e : y) e = s.back() > 0 ? e / s.back() : 0;
      small.at.insert(small.at.end(), x.begin(), x.end());
      large.at.insert(large.at.end(), y.begin(), y.end());
    }
    if (k == n || worst <= 1e-13 * lambda.back()) return parts_of(small, large, s, by_columns, r);
  }
}

SingularParts nearly_singular(const std::vector<float>& w, int64_t rows, int64_t columns, int64_t r,
                              int64_t iterations, int threads) {
  require(r >= 1 && r <= std::min(rows, columns), "a rank within the widths of a weight");
  const Weight weight(w, rows, columns, threads);
  Vectors start{columns, Values(static_cast<size_t>(columns * r))};
  for (size_t i = 0; i < start.at.size(); ++i) start.at[i] = draw(i);
  Vectors q{rows, {}};
  append_orthogonal(q, weight.times(start));
  for (int64_t i = 0; i < iterations; ++i) {
    Vectors x{columns, {}};
    append_orthogonal(x, weight.back(q));
    q = Vectors{rows, {}};
    append_orthogonal(q, weight.times(x));
  }
  const Vectors b = weight.back(q);  // Q^T W by rows
  Values m = inner_products(b, threads);
  symmetric_eigen(m, r);
  Vectors left{rows, {}}, right{columns, {}};
  Values s;
  for (int64_t i = 0; i < r; ++i) {
    const double* const c = m.data() + (r - 1 - i) * r;
    const Values u = combined(q, c);
    Values v = combined(b, c);
    s.push_back(std::sqrt(dot(v.data(), v.data(), columns)));
    for (double& e : v) e = s.back() > 0 ? e / s.back() : 0;
    left.at.insert(left.at.end(), u.begin(), u.end());
    right.at.insert(right.at.end(), v.begin(), v.end());
  }
  return parts_of(right, left, s, true, r);
}

OrthogonalParts orthogonal_parts(const std::vector<float>& w, int64_t rows, int64_t columns,
                                 int64_t r, int threads) {
  require(r >= 1 && r <= std::min(rows, columns), "a rank within the widths of a weight");
  // Reflections of the first r columns, one below the other.
  Vectors work{rows, Values(static_cast<size_t>(rows * r))}, mirrors = work;
  for (int64_t j = 0; j < r; ++j)
    for (int64_t i = 0; i < rows; ++i)
      work[j][i] = static_cast<double>(w[static_cast<size_t>(i * columns + j)]);
  const auto reflect = [&](double* x, int64_t j) {
    const double* const v = mirrors[j] + j;
    const double square = dot(v, v, rows - j);
    if (square > 0) add_times(x + j, v, -2.0 * dot(v, x + j, rows - j) / square, rows - j);
  };
  for (int64_t j = 0; j < r; ++j) {
    for (int64_t k = 0; k < j; ++k) reflect(work[j], k);
    const double* const x = work[j] + j;
    std::copy_n(x, rows - j, mirrors[j] + j);
    std::fill_n(mirrors[j], j, 0.0);
    // A last row alone, or a column that is zero below its first, stays as it is.
    const double below = dot(x + 1, x + 1, rows - j - 1);
    if (below == 0)
      std::fill_n(mirrors[j] + j, rows - j, 0.0);
    else
      mirrors[j][j] += std::copysign(std::sqrt(x[0] * x[0] + below), x[0]);
  }
  Vectors q{rows, Values(static_cast<size_t>(rows * r), 0.0)};
  parallel_for(threads, r, [&](int64_t j) {
    q[j][j] = 1;
    for (int64_t k = r - 1; k >= 0; --k) reflect(q[j], k);
  });
  OrthogonalParts p;
  p.q.resize(static_cast<size_t>(rows * r));
  for (int64_t j = 0; j < r; ++j)
    for (int64_t i = 0; i < rows; ++i) p.q[static_cast<size_t>(i * r + j)] = q[j][i];
  p.r = Weight(w, rows, columns, threads).back(q).at;
  return p;
}

}  // namespace snug
