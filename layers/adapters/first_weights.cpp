#include "layers/adapters/first_weights.h"

#include <charconv>
#include <cmath>

#include "engine/core/parallel.h"
#include "layers/adapters/decompose.h"

namespace snug {
namespace {

// Both factors with the root of s / scale.
FirstFactors halves_of(const SingularParts& p, int64_t out, int64_t in, int64_t r, double scale) {
  FirstFactors f{std::vector<float>(static_cast<size_t>(r * in)),
                 std::vector<float>(static_cast<size_t>(out * r))};
  for (int64_t k = 0; k < r; ++k) {
    const double root = std::sqrt(p.s[static_cast<size_t>(k)] / scale);
    for (int64_t j = 0; j < in; ++j) {
      const auto at = static_cast<size_t>(k * in + j);
      f.a[at] = static_cast<float>(root * p.v[at]);
    }
    for (int64_t i = 0; i < out; ++i) {
      const auto at = static_cast<size_t>(i * r + k);
      f.b[at] = static_cast<float>(root * p.u[at]);
    }
  }
  return f;
}

FirstFactors pissa(const std::vector<float>& w, int64_t out, int64_t in, int64_t r, float scale,
                   int64_t iterations, int threads) {
  const SingularParts p = iterations > 0 ? nearly_singular(w, out, in, r, iterations, threads)
                                         : largest_singular(w, out, in, r, threads);
  return halves_of(p, out, in, r, static_cast<double>(scale));
}

FirstFactors olora(const std::vector<float>& w, int64_t out, int64_t in, int64_t r, float, int64_t,
                   int threads) {
  const OrthogonalParts p = orthogonal_parts(w, out, in, r, threads);
  return {{p.r.begin(), p.r.end()}, {p.q.begin(), p.q.end()}};
}

FirstFactors loftq(const std::vector<float>& w, int64_t out, int64_t in, int64_t r, float, int64_t,
                   int threads) {
  return halves_of(largest_singular(w, out, in, r, threads), out, in, r, 1.0);
}

constexpr FirstWay kWays[] = {
    {.name = "pissa", .residual = true, .make = pissa},
    {.name = "olora", .residual = true, .of_decoded = true, .transposes = false, .make = olora},
    {.name = "loftq", .of_error = true, .make = loftq}};

}  // namespace

int64_t pissa_rounds(std::string_view word) {
  constexpr std::string_view kBegin = "pissa_niter_";
  if (!word.starts_with(kBegin)) return 0;
  const std::string_view digits = word.substr(kBegin.size());
  int64_t rounds = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rounds);
  const bool good = error == std::errc() && end == digits.data() + digits.size();
  return good && rounds >= 1 && rounds <= 1000 ? rounds : 0;
}

const FirstWay* find_first_way(std::string_view word) {
  if (pissa_rounds(word) > 0) word = "pissa";
  for (const FirstWay& way : kWays)
    if (way.name == word) return &way;
  return nullptr;
}

void subtract_factors(std::vector<float>& w, int64_t out, int64_t in, const FirstFactors& factors,
                      float scale, int threads) {
  const int64_t r = static_cast<int64_t>(factors.a.size()) / in;
  parallel_chunks(threads, out, 16, [&](int64_t begin, int64_t end) {
    std::vector<double> row(static_cast<size_t>(in));
    for (int64_t i = begin; i < end; ++i) {
      std::fill(row.begin(), row.end(), 0.0);
      for (int64_t k = 0; k < r; ++k) {
        const auto b = static_cast<double>(factors.b[static_cast<size_t>(i * r + k)]);
        const float* const a = factors.a.data() + k * in;
        for (int64_t j = 0; j < in; ++j)
          row[static_cast<size_t>(j)] += b * static_cast<double>(a[j]);
      }
      float* const to = w.data() + i * in;
      for (int64_t j = 0; j < in; ++j)
        to[j] = static_cast<float>(static_cast<double>(to[j]) -
                                   static_cast<double>(scale) * row[static_cast<size_t>(j)]);
    }
  });
}

}  // namespace snug
