// Decompositions by what defines them, of widths either way, ranks up to the width, spectra that fall and
// that do not; and the same bits for any number of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/core/rng.h"
#include "layers/adapters/decompose.h"
#include "layers/adapters/symmetric_eigen.h"
#include "layers/adapters/torch_uniform.h"

namespace snug {
namespace {

struct Weight {
  int64_t rows, columns, r;
  int64_t parts = 0;  // of a falling spectrum beside the noise
};

constexpr Weight kWeights[] = {{1, 1, 1},    {5, 9, 1},       {24, 24, 3},        {40, 24, 24},
                               {24, 100, 5}, {130, 96, 7, 9}, {200, 600, 16, 40}, {3, 700, 3}};

std::vector<float> drawn(const Weight& w, uint64_t seed) {
  std::vector<float> m(static_cast<size_t>(w.rows * w.columns));
  const auto fill = [](std::vector<float>& v, uint64_t s) {
    for (size_t i = 0; i < v.size(); ++i)
      v[i] = static_cast<float>(mix64(s * 1000003 + i) >> 40) * 0x1p-23f - 1.0f;
  };
  fill(m, seed);
  for (int64_t k = 0; k < w.parts; ++k) {
    std::vector<float> u(static_cast<size_t>(w.rows)), v(static_cast<size_t>(w.columns));
    fill(u, seed + 10 + static_cast<uint64_t>(k));
    fill(v, seed + 90 + static_cast<uint64_t>(k));
    for (int64_t i = 0; i < w.rows; ++i)
      for (int64_t j = 0; j < w.columns; ++j)
        m[static_cast<size_t>(i * w.columns + j)] += 4.0f / static_cast<float>(1 + k) *
                                                     u[static_cast<size_t>(i)] *
                                                     v[static_cast<size_t>(j)];
  }
  return m;
}

// Of W v = s u, W^T u = s v, and of u's columns and v's rows as orthonormal ones.
double worst_of(const Weight& w, const std::vector<float>& m, const SingularParts& p) {
  double worst = 0;
  const auto u = [&](int64_t i, int64_t k) { return p.u[static_cast<size_t>(i * w.r + k)]; };
  const auto v = [&](int64_t k, int64_t j) { return p.v[static_cast<size_t>(k * w.columns + j)]; };
  const auto at = [&](int64_t i, int64_t j) {
    return static_cast<double>(m[static_cast<size_t>(i * w.columns + j)]);
  };
  for (int64_t k = 0; k < w.r; ++k) {
    const double s = p.s[static_cast<size_t>(k)], most = p.s.front();
    for (int64_t i = 0; i < w.rows; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < w.columns; ++j) sum += at(i, j) * v(k, j);
      worst = std::max(worst, std::fabs(sum - s * u(i, k)) / most);
    }
    for (int64_t j = 0; j < w.columns; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < w.rows; ++i) sum += at(i, j) * u(i, k);
      worst = std::max(worst, std::fabs(sum - s * v(k, j)) / most);
    }
    for (int64_t l = 0; l < w.r; ++l) {
      double of_u = 0, of_v = 0;
      for (int64_t i = 0; i < w.rows; ++i) of_u += u(i, k) * u(i, l);
      for (int64_t j = 0; j < w.columns; ++j) of_v += v(k, j) * v(l, j);
      worst = std::max({worst, std::fabs(of_u - (k == l)), std::fabs(of_v - (k == l))});
    }
  }
  return worst;
}

TEST(Decompose, LargestSingularPartsAreThose) {
  for (const Weight& w : kWeights) {
    const std::vector<float> m = drawn(w, 3);
    const SingularParts p = largest_singular(m, w.rows, w.columns, w.r, 2);
    EXPECT_LT(worst_of(w, m, p), 1e-12) << w.rows << " " << w.columns;
    // The largest: what is left has none above the last.
    std::vector<float> left = m;
    for (int64_t i = 0; i < w.rows; ++i)
      for (int64_t j = 0; j < w.columns; ++j)
        for (int64_t k = 0; k < w.r; ++k)
          left[static_cast<size_t>(i * w.columns + j)] -= static_cast<float>(
              p.u[static_cast<size_t>(i * w.r + k)] * p.s[static_cast<size_t>(k)] *
              p.v[static_cast<size_t>(k * w.columns + j)]);
    EXPECT_LE(largest_singular(left, w.rows, w.columns, 1, 2).s[0], p.s.back() * (1 + 1e-5) + 1e-4)
        << w.rows << " " << w.columns;
    EXPECT_EQ(largest_singular(m, w.rows, w.columns, w.r, 1).u, p.u);
  }
}

TEST(Decompose, MoreRoundsComeNearer) {
  const Weight w{130, 96, 7, 9};
  const std::vector<float> m = drawn(w, 5);
  const SingularParts exact = largest_singular(m, w.rows, w.columns, w.r, 2);
  double before = 1;
  for (const int64_t rounds : {1, 4, 60}) {
    const SingularParts p = nearly_singular(m, w.rows, w.columns, w.r, rounds, 2);
    const double off = std::fabs(p.s.back() / exact.s.back() - 1);
    EXPECT_LT(off, before) << rounds;
    before = off;
  }
  EXPECT_LT(before, 1e-6);
}

TEST(Decompose, OrthogonalPartsGiveTheFirstColumns) {
  for (const Weight& w : kWeights) {
    const std::vector<float> m = drawn(w, 7);
    const OrthogonalParts p = orthogonal_parts(m, w.rows, w.columns, w.r, 2);
    for (int64_t k = 0; k < w.r; ++k) {
      for (int64_t l = 0; l < w.r; ++l) {
        double product = 0;
        for (int64_t i = 0; i < w.rows; ++i)
          product += p.q[static_cast<size_t>(i * w.r + k)] * p.q[static_cast<size_t>(i * w.r + l)];
        EXPECT_NEAR(product, k == l, 1e-13);
        if (l < k) {
          EXPECT_NEAR(p.r[static_cast<size_t>(k * w.columns + l)], 0, 1e-12);
        }
      }
      for (int64_t i = 0; i < w.rows; ++i) {
        double sum = 0;
        for (int64_t l = 0; l < w.r; ++l)
          sum +=
              p.q[static_cast<size_t>(i * w.r + l)] * p.r[static_cast<size_t>(l * w.columns + k)];
        EXPECT_NEAR(sum, static_cast<double>(m[static_cast<size_t>(i * w.columns + k)]), 1e-12);
      }
    }
  }
}

// torch.empty(5, 33).uniform_(-b, b) with a generator of seed 7 and b = sqrt(3) sqrt(2) / sqrt(33).
TEST(TorchUniform, DrawsWhatTorchDraws) {
  TorchUniform draws(7);
  const std::vector<float> values = draws.kaiming(5, 33);
  EXPECT_EQ(values[0], 0.0297820419f);
  EXPECT_EQ(values[1], -0.256861508f);
  EXPECT_EQ(values[2], 0.135776192f);
  EXPECT_EQ(values[164], 0.186669067f);
}

}  // namespace
}  // namespace snug
