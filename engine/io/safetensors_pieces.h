// A safetensors file of which several processes have each written pieces. In place of model.safetensors
// lie
//
//   model.safetensors.pieces.json   what is where
//   model-rank-0.safetensors ...    of each process: a piece is its tensor <name>@<first element>
//
//   {"snug_pieces": 1, "metadata": {"format": "pt"},
//    "files": ["model-rank-0.safetensors", "model-rank-1.safetensors"],
//    "tensors": {"wpe.weight": {"dtype": "F32", "shape": [64, 36], "pieces": [[0, 0, 1280], [1, 1280, 1024]]}}}
//
// A piece is its file, its first element and how many there are, in the order of the tensor's bytes;
// with "order": "F" of a matrix column by column, as a process has it that keeps the transpose ("C", which
// may be left out: row by row). The pieces of a tensor are all of it. Whoever asks for the file gets it either way.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/io/safetensors.h"

namespace snug {

struct TensorPiece {
  int file = 0;
  int64_t first = 0, elements = 0;
};

struct PiecedTensor {
  std::string name;
  SafeDType dtype = SafeDType::F32;
  std::vector<int64_t> shape;
  bool by_columns = false;
  std::vector<TensorPiece> pieces;  // first ascending
  int64_t elements() const;
};

// Where the pieces of a file are told of, and the file of a rank.
std::string pieces_path(const std::string& file);
std::string rank_file(const std::string& file, int rank);
std::string piece_name(std::string_view tensor, int64_t first);
// The text of the former.
std::string pieces_text(const SafeMetadata& metadata, const std::vector<std::string>& files,
                        const std::vector<PiecedTensor>& tensors);

// The file is there, whole or in pieces; in pieces.
bool safetensors_there(const std::string& file);
bool safetensors_in_pieces(const std::string& file);

class SafetensorsPieces {
 public:
  // Of a file that is whole each tensor is one piece. Throws data unless every piece is there.
  explicit SafetensorsPieces(const std::string& file);

  const std::string& path() const { return path_; }
  const SafeMetadata& metadata() const { return metadata_; }
  const std::vector<PiecedTensor>& tensors() const { return tensors_; }
  const PiecedTensor& at(std::string_view name) const;  // throws data

  // Elements from `first` on, as far as they lie in one piece; not of columns.
  struct Span {
    const uint8_t* data;
    int64_t elements;
  };
  Span span(const PiecedTensor& tensor, int64_t first) const;
  // Rows [first, first + n) of the first extent, as the tensor has them.
  void read_rows(const PiecedTensor& tensor, int64_t first, int64_t n, void* out) const;
  void read(const PiecedTensor& tensor, void* out) const;

  void drop_pages() const;

 private:
  void open_pieces();
  const uint8_t* bytes_of(const PiecedTensor& tensor, const TensorPiece& piece) const;

  std::string path_;
  bool whole_ = true;
  SafeMetadata metadata_;
  std::vector<SafetensorsReader> files_;
  std::vector<PiecedTensor> tensors_;
};

}  // namespace snug
