// Rows of a parameter, read from a model folder's files a block at a time.
#pragma once

#include "engine/io/safetensors.h"
#include "engine/seams/parameter.h"

namespace snug {

// A parameter as a matrix (rows, width), (out, in) for linear layers however the file stores it; a
// vector is one row. Only real rows: the padding of the vocabulary is not there.
class WeightRows {
 public:
  WeightRows(const SafeTensor& tensor, const ParamInfo& param);
  int64_t rows() const { return rows_; }
  int64_t width() const { return width_; }
  // Rows that make a block of about 4 MiB of floats, at least 1.
  int64_t block() const;
  // out = rows [first, first + count), rounded once if the file holds more than f32.
  void read(int64_t first, int64_t count, float* out) const;

 private:
  const SafeTensor& tensor_;
  bool transposed_;
  int64_t rows_, width_, element_;
};

}  // namespace snug
