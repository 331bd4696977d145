#include "tools/convert/weight_rows.h"

#include <algorithm>

#include "engine/core/error.h"

namespace snug {

WeightRows::WeightRows(const SafeTensor& tensor, const ParamInfo& param)
    : tensor_(tensor),
      transposed_(param.transposed_in_file && param.shape.rank() == 2),
      element_(bits_of(tensor.dtype) / 8) {
  if (param.shape.rank() < 2) {
    rows_ = 1;
    width_ = param.real_elements();
  } else {
    rows_ = param.rows;
    width_ = param.real_elements() / std::max<int64_t>(1, rows_);
  }
}

int64_t WeightRows::block() const {
  return std::clamp<int64_t>((int64_t{1} << 20) / std::max<int64_t>(1, width_), 1,
                             std::max<int64_t>(1, rows_));
}

void WeightRows::read(int64_t first, int64_t count, float* out) const {
  require(first >= 0 && count >= 0 && first + count <= rows_, "rows inside the parameter");
  if (!transposed_) {
    convert(tensor_.dtype, tensor_.data + first * width_ * element_, count * width_, out);
    return;
  }
  // The file holds (width, rows): a run of `count` values per column, scattered to the rows.
  float piece[256];
  for (int64_t c = 0; c < width_; ++c)
    for (int64_t r = 0; r < count; r += 256) {
      const int64_t n = std::min<int64_t>(256, count - r);
      convert(tensor_.dtype, tensor_.data + (c * rows_ + first + r) * element_, n, piece);
      for (int64_t i = 0; i < n; ++i) out[(r + i) * width_ + c] = piece[i];
    }
}

}  // namespace snug
