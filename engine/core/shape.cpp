#include "engine/core/shape.h"

#include "engine/core/error.h"

namespace snug {

Shape::Shape(std::initializer_list<int64_t> extents) {
  if (extents.size() > kMaxRank)
    fail(ErrorCode::shape, "at most 5 extents", std::to_string(extents.size()) + " extents",
         "merge leading extents into rows");
  for (const int64_t e : extents) {
    if (e < 0)
      fail(ErrorCode::shape, "extents of at least 0", "an extent of " + std::to_string(e),
           "check the sizes in the config");
    extents_[static_cast<size_t>(rank_++)] = e;
  }
}

int64_t Shape::elements() const {
  int64_t n = 1;
  for (int i = 0; i < rank_; ++i)
    if (__builtin_mul_overflow(n, extents_[static_cast<size_t>(i)], &n))
      fail(ErrorCode::shape, "a shape of fewer than 2^63 elements", to_string(*this),
           "check the sizes in the config");
  return n;
}

bool operator==(const Shape& a, const Shape& b) {
  return a.rank_ == b.rank_ && a.extents_ == b.extents_;
}

std::string to_string(const Shape& shape) {
  std::string s = "(";
  for (int i = 0; i < shape.rank(); ++i) s += (i ? "," : "") + std::to_string(shape[i]);
  return s + ")";
}

}  // namespace snug
