// Test data and how two tensors are compared. Values are doubles on the test's side whatever the
// tensor's dtype: every dtype up to i32 and f32 converts exactly.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/error.h"
#include "engine/core/rng.h"

namespace snug::test {

using Values = std::vector<double>;

// The value a tensor of dtype t holds after x is stored in it.
inline double rounded(double x, DType t) {
  const auto f = static_cast<float>(x);
  if (t == DType::bf16) return to_f32(from_f32<bf16>(f));
  if (t == DType::f16) return to_f32(from_f32<f16>(f));
  if (t == DType::f32) return f;
  return x;
}
inline Values rounded(Values v, DType t) {
  for (double& x : v) x = rounded(x, t);
  return v;
}

// The first n draws of N(0,1) for a seed. They are kept: a body that runs in every mode asks for
// the same ones again and again, which was half the time of its test.
inline const Values& standard_normals(size_t n, uint32_t seed) {
  static thread_local std::map<uint32_t, Values> kept;
  Values& v = kept[seed];
  for (size_t i = v.size(); i < n; i += 2) {
    const Philox4 u = philox({static_cast<uint32_t>(i), 0, 0, 0x74657374u}, seed, 0);
    double a = 0, b = 0;
    normal_pair(u[0], u[1], &a, &b);
    v.push_back(a);
    v.push_back(b);
  }
  return v;
}

// n draws of mean + sd * N(0,1), rounded to dtype t: what a reference must be given too.
inline Values normal_values(int64_t n, uint32_t seed, DType t = DType::f32, double sd = 1,
                            double mean = 0) {
  const Values& draws = standard_normals(static_cast<size_t>(n), seed);
  Values v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i] = rounded(mean + sd * draws[i], t);
  return v;
}

// n integers of [0, limit), as doubles.
inline Values index_values(int64_t n, int64_t limit, uint32_t seed) {
  Values v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<double>(mix64(seed * 1000003ull + i) % static_cast<uint64_t>(limit));
  return v;
}

// Values to the bytes of a tensor of dtype t and back.
inline void store_values(void* to, DType t, const Values& v) {
  for (size_t i = 0; i < v.size(); ++i) {
    const auto f = static_cast<float>(v[i]);
    switch (t) {
      case DType::f32:
        static_cast<float*>(to)[i] = f;
        break;
      case DType::bf16:
        static_cast<bf16*>(to)[i] = from_f32<bf16>(f);
        break;
      case DType::f16:
        static_cast<f16*>(to)[i] = from_f32<f16>(f);
        break;
      case DType::i32:
        static_cast<int32_t*>(to)[i] = static_cast<int32_t>(v[i]);
        break;
      case DType::i64:
        static_cast<int64_t*>(to)[i] = static_cast<int64_t>(v[i]);
        break;
      case DType::u8:
        static_cast<uint8_t*>(to)[i] = static_cast<uint8_t>(v[i]);
        break;
      case DType::u16:
        static_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(v[i]);
        break;
      case DType::f64:
        static_cast<double*>(to)[i] = v[i];
        break;
    }
  }
}
inline Values load_values(const void* from, DType t, int64_t n) {
  Values v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) {
    switch (t) {
      case DType::f32:
        v[i] = static_cast<const float*>(from)[i];
        break;
      case DType::bf16:
        v[i] = to_f32(static_cast<const bf16*>(from)[i]);
        break;
      case DType::f16:
        v[i] = to_f32(static_cast<const f16*>(from)[i]);
        break;
      case DType::i32:
        v[i] = static_cast<const int32_t*>(from)[i];
        break;
      case DType::i64:
        v[i] = static_cast<double>(static_cast<const int64_t*>(from)[i]);
        break;
      case DType::u8:
        v[i] = static_cast<const uint8_t*>(from)[i];
        break;
      case DType::u16:
        v[i] = static_cast<const uint16_t*>(from)[i];
        break;
      case DType::f64:
        v[i] = static_cast<const double*>(from)[i];
        break;
    }
  }
  return v;
}

// Unit roundoff: the largest relative error of one rounding to nearest.
inline double unit_roundoff(DType t) {
  switch (t) {
    case DType::bf16:
      return 0x1p-8;
    case DType::f16:
      return 0x1p-11;
    case DType::f64:
      return 0x1p-53;
    default:
      return 0x1p-24;
  }
}

// What the error (see close()) of a good op may be: one rounding to the stored dtype, a dozen
// roundings of float arithmetic around it, and a sum of `length` random terms in float. In such a
// sum the partial sums grow as sqrt(k), each addition errs by up to u * sqrt(k), and the errors
// add up to u * sqrt(length / 2) of the result; four times sqrt(length) leaves more than five
// standard deviations.
inline double tolerance(DType stored, int64_t length) {
  const double storage = stored == DType::f32 ? 0.0 : unit_roundoff(stored);
  return storage * (1 + 0x1p-8) +
         unit_roundoff(DType::f32) * (12 + 4 * std::sqrt(static_cast<double>(length)));
}

// error = max|got - reference| / max|reference|; where the reference is smaller than `floor`
// everywhere (a tensor that is exactly zero), the difference is divided by the floor instead.
inline double relative_error(const Values& got, const Values& reference, double floor = 1e-3,
                             size_t* worst = nullptr) {
  double difference = 0, scale = floor;
  for (size_t i = 0; i < reference.size(); ++i) {
    scale = std::max(scale, std::fabs(reference[i]));
    const double d = std::fabs(got[i] - reference[i]);
    if (!(d <= difference)) {  // a NaN is the worst of all
      difference = d;
      if (worst) *worst = i;
      if (std::isnan(d)) return d;
    }
  }
  return difference / scale;
}

//   EXPECT_TRUE(close(outputs["y"].values, reference, tolerance(DType::bf16, c)));
inline ::testing::AssertionResult close(const Values& got, const Values& reference, double allowed,
                                        double floor = 1e-3) {
  if (got.size() != reference.size())
    return ::testing::AssertionFailure()
           << got.size() << " values, where the reference has " << reference.size();
  size_t worst = 0;
  const double error = relative_error(got, reference, floor, &worst);
  if (error <= allowed) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "error " << error << ", allowed " << allowed << "; worst at " << worst << " of "
         << got.size() << ": " << (got.empty() ? 0.0 : got[worst]) << " where the reference is "
         << (reference.empty() ? 0.0 : reference[worst]);
}

}  // namespace snug::test
