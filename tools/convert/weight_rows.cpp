#include "tools/convert/weight_rows.h"

#include <algorithm>
#include <utility>

#include "engine/core/error.h"

namespace snug {

WeightRows::WeightRows(std::vector<const SafeTensor*> tensors, std::vector<FilePiece> pieces,
                       const ParamInfo& param)
    : tensors_(std::move(tensors)),
      pieces_(std::move(pieces)),
      transposed_(param.transposed_in_file && param.shape.rank() == 2) {
  require(!tensors_.empty() && tensors_.size() == pieces_.size(), "a tensor for every piece");
  require(!transposed_ || pieces_.size() == 1, "one tensor of a transposed parameter");
  rows_ = param.shape.rank() < 2 ? param.real_elements() : param.rows;
  width_ = param.real_elements() / std::max<int64_t>(1, rows_);
}

int64_t WeightRows::block() const {
  return std::clamp<int64_t>((int64_t{1} << 20) / std::max<int64_t>(1, width_), 1,
                             std::max<int64_t>(1, rows_));
}

void WeightRows::read(const GgufPiece& piece, int64_t first, int64_t count, float* out) const {
  require(first >= 0 && count >= 0 && first + count <= piece.rows, "rows inside the tensor");
  if (!piece.groups.any()) {
    read(piece.first + first, count, out);
  } else {
    for (int64_t r = 0; r < count; ++r)
      read(piece.first + piece.groups.ours(first + r), 1, out + r * width_);
  }
  if (piece.plus != 0)
    for (int64_t i = 0; i < count * width_; ++i) out[i] += piece.plus;
}

void WeightRows::read(int64_t first, int64_t count, float* out) const {
  require(first >= 0 && count >= 0 && first + count <= rows_, "rows inside the parameter");
  if (transposed_) return read_transposed(*tensors_.front(), first, count, out);
  int64_t start = 0;  // the piece's first row
  for (size_t k = 0; k < pieces_.size() && count > 0; start += pieces_[k].rows, ++k) {
    if (first >= start + pieces_[k].rows) continue;
    const SafeTensor& tensor = *tensors_[k];
    const RowGroups& groups = pieces_[k].groups;
    const int64_t here = std::min(count, start + pieces_[k].rows - first),
                  row_bytes = width_ * (bits_of(tensor.dtype) / 8);
    // Runs of rows that lie together in the file.
    for (int64_t r = 0; r < here;) {
      const int64_t row = first - start + r,
                    n = groups.any() ? std::min(here - r, groups.rows - row % groups.rows) : here,
                    at = groups.any() ? groups.file(row) : row;
      convert(tensor.dtype, tensor.data + at * row_bytes, n * width_, out + r * width_);
      r += n;
    }
    first += here;
    count -= here;
    out += here * width_;
  }
}

void WeightRows::read_transposed(const SafeTensor& tensor, int64_t first, int64_t count,
                                 float* out) const {
  // The file holds (width, rows): a run of `count` values per column, scattered to the rows.
  const int64_t element = bits_of(tensor.dtype) / 8;
  float piece[256];
  for (int64_t c = 0; c < width_; ++c)
    for (int64_t r = 0; r < count; r += 256) {
      const int64_t n = std::min<int64_t>(256, count - r);
      convert(tensor.dtype, tensor.data + (c * rows_ + first + r) * element, n, piece);
      for (int64_t i = 0; i < n; ++i) out[(r + i) * width_ + c] = piece[i];
    }
}

}  // namespace snug
