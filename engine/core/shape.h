// Shapes of up to five extents, stored inline. Row-major: the last extent is contiguous.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace snug {

class Shape {
 public:
  static constexpr int kMaxRank = 5;

  Shape() = default;
  Shape(std::initializer_list<int64_t> extents);  // throws shape on a negative extent or rank > 5

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return extents_[static_cast<size_t>(i)]; }
  int64_t last() const { return rank_ ? extents_[static_cast<size_t>(rank_ - 1)] : 1; }
  // Product of the extents; throws shape on overflow of int64.
  int64_t elements() const;
  // elements() / last(): how many contiguous rows there are.
  int64_t rows() const { return last() ? elements() / last() : 0; }
  friend bool operator==(const Shape& a, const Shape& b);

 private:
  std::array<int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

std::string to_string(const Shape& shape);  // "(4,128,768)"

// An extent that carries its letter, so that an error prints both: {'C', 768} -> "C=768".
struct Extent {
  const char* letter;
  int64_t value;
};

}  // namespace snug
