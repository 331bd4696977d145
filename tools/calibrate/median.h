// The median of a list of measured values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "engine/core/error.h"

namespace snug {

// What the median of an even number of values is: the mean of the middle two, or one of them, so
// that it is a value that was measured.
enum class Middle { mean, lower, upper };

// Of at least one value; reorders them, and takes no memory. Refused with internal for none.
inline double median_of(std::span<double> values, Middle even = Middle::mean) {
  require(!values.empty(), "values to take the median of");
  const size_t half = values.size() / 2;
  const auto upper = values.begin() + static_cast<std::ptrdiff_t>(half);
  std::nth_element(values.begin(), upper, values.end());
  if (values.size() % 2 == 1 || even == Middle::upper) return *upper;
  const double lower = *std::max_element(values.begin(), upper);
  return even == Middle::lower ? lower : (lower + *upper) / 2;
}

}  // namespace snug
