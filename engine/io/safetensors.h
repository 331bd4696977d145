// The safetensors format: u64 N | N bytes of JSON | the tensors' bytes. The reader maps the file
// and makes every check the specification asks for, each with its own error naming file and tensor;
// no sequence of bytes makes it crash. The writer knows its size beforehand and copies nothing.
// Specification: https://github.com/huggingface/safetensors (format section).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/io/files.h"

namespace snug {

// Every element type the format has. The engine computes with some of them only: see
// engine_dtype().
enum class SafeDType : uint8_t {
  BOOL,
  F4,
  F6_E2M3,
  F6_E3M2,
  U8,
  I8,
  F8_E5M2,
  F8_E4M3,
  F8_E8M0,
  F8_E4M3FNUZ,
  F8_E5M2FNUZ,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  C64,
  F64,
  I64,
  U64
};
inline constexpr int kSafeDTypes = 22;

const char* to_string(SafeDType t);                          // the name in the file, "BF16"
std::optional<SafeDType> safe_dtype(std::string_view name);  // the reverse; empty if unknown
int64_t bits_of(SafeDType t);                                // bits of one element
std::optional<DType> engine_dtype(SafeDType t);              // the engine's type, if it has one
SafeDType safe_dtype(DType t);

// One tensor of an open file. `data` points into the mapping and may have any alignment.
struct SafeTensor {
  std::string name;
  SafeDType dtype = SafeDType::F32;
  std::vector<int64_t> shape;  // {} is a scalar; extents may be 0
  const uint8_t* data = nullptr;
  int64_t bytes = 0;
  int64_t elements() const;
};

using SafeMetadata = std::map<std::string, std::string>;

class SafetensorsReader {
 public:
  static constexpr int64_t kMaxHeader = 100'000'000;

  // Maps and checks the file. Throws data if any check of the format fails. Of a file in pieces
  // (safetensors_pieces.h) the tensors are put together in memory.
  explicit SafetensorsReader(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<SafeTensor>& tensors() const {
    return tensors_;
  }  // in the order of their bytes
  const SafeMetadata& metadata() const { return metadata_; }
  const SafeTensor* find(std::string_view name) const;  // null if there is none
  const SafeTensor& at(std::string_view name) const;    // throws data, with the nearest names

  // Lets go of the pages read so far (they come back when touched).
  void drop_pages() const { file_.drop_pages(); }

 private:
  void open();
  void join_pieces();

  std::string path_;
  MappedFile file_;
  std::vector<uint8_t> joined_;
  std::vector<SafeTensor> tensors_;
  std::vector<int32_t> by_name_;  // indices into tensors_, names ascending
  SafeMetadata metadata_;
};

// The weights of a model folder: model.safetensors, or the shards that model.safetensors.index.json
// lists, or one named .safetensors file. A wrong total_size in the index is tolerated; a shard or a
// tensor it names and that is missing is an error, and so is a shard outside the folder.
class SafetensorsFolder {
 public:
  explicit SafetensorsFolder(const std::string& path);

  const std::vector<SafetensorsReader>& files() const { return files_; }
  std::vector<const SafeTensor*> tensors() const;  // of all files, file by file
  const SafeTensor* find(std::string_view name) const;
  const SafeTensor& at(std::string_view name) const;
  const SafeMetadata& metadata() const { return files_.front().metadata(); }
  // A tensor of zeros, F32, that no file has, found as theirs are.
  void add_zeros(const std::string& name, const std::vector<int64_t>& shape);

 private:
  struct Zeros {
    SafeTensor tensor;
    std::vector<uint8_t> bytes;
  };
  void open_index(const std::string& index);

  std::string path_;
  std::vector<SafetensorsReader> files_;
  std::vector<std::unique_ptr<Zeros>> zeros_;
};

struct SafeSpec {
  std::string name;
  SafeDType dtype = SafeDType::F32;
  std::vector<int64_t> shape;
};

// The header of a file to be written, made once (before a run starts) and used for many files. The
// header is padded with spaces so that the tensors begin at a multiple of 4096. Tensors lie in the
// given order without gaps. Metadata must hold "format", usually "pt": transformers refuses files
// without it.
class SafetensorsLayout {
 public:
  // Throws data on a duplicate or unusable name, a negative extent, a size that overflows.
  SafetensorsLayout(SafeMetadata metadata, std::vector<SafeSpec> tensors);

  const std::vector<SafeSpec>& tensors() const { return tensors_; }
  const SafeMetadata& metadata() const { return metadata_; }
  int64_t bytes_of(int64_t index) const { return bytes_[static_cast<size_t>(index)]; }
  int64_t total_bytes() const { return total_; }         // of the whole file
  const std::string& header() const { return header_; }  // N included

 private:
  SafeMetadata metadata_;
  std::vector<SafeSpec> tensors_;
  std::vector<int64_t> bytes_;
  std::string header_;
  int64_t total_ = 0;
};

// Writes one file, seen whole or not at all. Tensors are given in the order of the layout, each at
// once with write() or in pieces with begin(), append() any number of times, end(). The layout must
// outlive the writer. Nothing proportional to the data is allocated. Throws device if the disk
// refuses, internal if the caller leaves the order or the sizes of the layout.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, const SafetensorsLayout& layout);

  void write(std::string_view name, const void* data, int64_t bytes);
  void begin(std::string_view name);
  void append(const void* data, int64_t bytes);
  void end();
  void commit();  // after the last tensor: durable, then renamed

 private:
  AtomicFile file_;
  const SafetensorsLayout& layout_;
  int64_t next_ = 0;   // index of the tensor open or expected
  int64_t left_ = -1;  // bytes missing in the open tensor, -1 when none is open
};

// Converts n elements, any alignment of src. From F64, F32, F16, BF16; to f32, bf16 or f16,
// rounding to nearest even. Throws unsupported for other types (BOOL, integers, F8 ... are not
// weights).
bool convertible(SafeDType from);
void convert(SafeDType from, const void* src, int64_t n, float* out);
void convert(SafeDType from, const void* src, int64_t n, bf16* out);
void convert(SafeDType from, const void* src, int64_t n, f16* out);

}  // namespace snug
