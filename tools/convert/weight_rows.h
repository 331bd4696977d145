// Rows of a parameter, read from a model folder's files a block at a time.
#pragma once

#include <vector>

#include "engine/io/safetensors.h"
#include "layers/models/gguf_family.h"

namespace snug {

// A parameter as a matrix (rows, width), (out, in) for linear layers however the file stores it; a
// vector has rows of one element. Only real rows: the padding of the vocabulary is not there.
class WeightRows {
 public:
  // `tensors` hold `pieces`, in the order of the parameter's rows.
  WeightRows(std::vector<const SafeTensor*> tensors, std::vector<FilePiece> pieces,
             const ParamInfo& param);
  int64_t rows() const { return rows_; }
  int64_t width() const { return width_; }
  // Rows that make a block of about 4 MiB of floats, at least 1.
  int64_t block() const;
  // out = rows [first, first + count) of the GGUF tensor, rounded once if the file holds more than f32.
  void read(const GgufPiece& piece, int64_t first, int64_t count, float* out) const;

 private:
  // out = rows [first, first + count) of the parameter.
  void read(int64_t first, int64_t count, float* out) const;
  void read_transposed(const SafeTensor& tensor, int64_t first, int64_t count, float* out) const;

  std::vector<const SafeTensor*> tensors_;
  std::vector<FilePiece> pieces_;
  bool transposed_;
  int64_t rows_, width_;
};

}  // namespace snug
