// The GGUF format, version 3, little endian: "GGUF" | u32 version | u64 tensors | u64 keys | the
// keys and their values | the tensors' names, extents, types and offsets | padding | the tensors'
// bytes, each at a multiple of the alignment. The reader maps the file and checks every count,
// length and offset against the file's size before it is used; no sequence of bytes makes it crash
// or allocate more than a few times the size of what the file holds. The writer knows its size
// beforehand. Specification: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/io/files.h"

namespace snug {

// Types of values, with the numbers of the file.
enum class GgufKind : uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12
};
const char* to_string(GgufKind kind);
// Bytes of one value; 0 of strings and arrays, whose size they say themselves.
int64_t gguf_value_bytes(GgufKind kind);

// Types of tensors, with the numbers of the file. The reader knows the sizes of all of ggml's
// types; these are the ones written here.
enum class GgufType : uint32_t { F32 = 0, F16 = 1, Q8_0 = 8, BF16 = 30 };

// Elements are stored in blocks along a row: `bytes` bytes for `elements` elements.
struct GgufTypeInfo {
  const char* name;
  int64_t elements, bytes;
};
// Null for a number that no type has.
const GgufTypeInfo* gguf_type_info(uint32_t type);

// One key of an open file; the pointers are into the mapping.
struct GgufKey {
  std::string name;
  GgufKind kind = GgufKind::u8;
  GgufKind element = GgufKind::u8;  // of an array
  int64_t count = 1;                // elements of an array
  const uint8_t* data = nullptr;    // of the value; of an array, its first element
  int64_t bytes = 0;
};

struct GgufTensor {
  std::string name;
  uint32_t type = 0;
  // As matrices are written elsewhere, outermost first: the file holds them the other way round.
  std::vector<int64_t> shape;
  const uint8_t* data = nullptr;
  int64_t bytes = 0;
  int64_t elements() const;
};

class GgufReader {
 public:
  static constexpr int64_t kMaxNesting = 4;      // arrays of arrays
  static constexpr int64_t kMaxName = 65535;     // bytes of a key
  static constexpr int64_t kMaxTensorName = 64;  // bytes of a tensor's name, as ggml's

  // Maps and checks the file. Throws data, or unsupported for another version or byte order and for
  // a tensor type of unknown size.
  explicit GgufReader(const std::string& path);
  // The same from bytes that outlive the reader; `name` stands for the path in errors.
  GgufReader(std::string name, std::span<const uint8_t> bytes);

  const std::string& path() const { return path_; }
  uint32_t version() const { return version_; }
  int64_t alignment() const { return alignment_; }
  const std::vector<GgufKey>& keys() const { return keys_; }           // in the order of the file
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in the order of the file
  const GgufKey* find_key(std::string_view name) const;                // null if there is none
  const GgufTensor* find(std::string_view name) const;

  // Values. Throw data, naming key and file, if the value is of another kind or out of range.
  int64_t integer(const GgufKey& key) const;  // any integer kind, within int64
  double number(const GgufKey& key) const;    // integers and floats
  bool boolean(const GgufKey& key) const;
  std::string_view string(const GgufKey& key) const;
  std::vector<std::string_view> strings(const GgufKey& key, int64_t limit = INT64_MAX) const;
  std::vector<int64_t> integers(const GgufKey& key, int64_t limit = INT64_MAX) const;
  // A short text of any value, at most about 100 bytes: `"gpt2"`, `12`, `[3 strings] "!", ...`.
  std::string brief(const GgufKey& key) const;

  void drop_pages() const { file_.drop_pages(); }

 private:
  void read(std::span<const uint8_t> bytes);

  std::string path_;
  MappedFile file_;
  uint32_t version_ = 0;
  int64_t alignment_ = 32;
  std::vector<GgufKey> keys_;
  std::vector<GgufTensor> tensors_;
};

// The keys of a file to be written, in the order they are added.
class GgufMetadata {
 public:
  // Each throws data on a key that was added before, is empty or too long.
  void add(const std::string& key, uint32_t value);
  void add(const std::string& key, float value);
  void add(const std::string& key, bool value);
  void add(const std::string& key, std::string_view value);
  void add(const std::string& key, const char* value) { add(key, std::string_view(value)); }
  void add(const std::string& key, const std::vector<std::string>& values);
  void add(const std::string& key, const std::vector<int32_t>& values);
  void add(const std::string& key, const std::vector<float>& values);

  int64_t count() const { return static_cast<int64_t>(names_.size()); }
  const std::string& bytes() const { return bytes_; }

 private:
  void begin(const std::string& key, GgufKind kind);

  std::string bytes_;
  std::set<std::string> names_;
};

struct GgufSpec {
  std::string name;
  GgufType type = GgufType::F32;
  std::vector<int64_t> shape;  // outermost first; the last extent a multiple of the type's block
};

// Everything before the tensors' bytes, and where each tensor goes. Alignment 32.
class GgufLayout {
 public:
  static constexpr int64_t kAlignment = 32;

  // Throws data on a duplicate, empty or too long name, on extents below 1, more than four of them,
  // or a row that is no whole number of blocks.
  GgufLayout(const GgufMetadata& metadata, std::vector<GgufSpec> tensors);

  const std::vector<GgufSpec>& tensors() const { return tensors_; }
  int64_t bytes_of(int64_t index) const { return bytes_[static_cast<size_t>(index)]; }
  int64_t total_bytes() const { return total_; }
  const std::string& header() const { return header_; }  // padded to the alignment

 private:
  std::vector<GgufSpec> tensors_;
  std::vector<int64_t> bytes_;
  std::string header_;
  int64_t total_ = 0;
};

// Writes one file, seen whole or not at all: every tensor in the order of the layout, with begin(),
// append() any number of times, end(). The layout must outlive the writer. Throws device if the
// disk refuses, internal if the caller leaves the order or the sizes.
class GgufWriter {
 public:
  GgufWriter(const std::string& path, const GgufLayout& layout);
  void begin(std::string_view name);
  void append(const void* data, int64_t bytes);
  void end();
  void commit();

 private:
  AtomicFile file_;
  const GgufLayout& layout_;
  int64_t next_ = 0, left_ = -1;
};

// Q8_0: blocks of 32 elements as an f16 scale d = max|x| / 127 and 32 signed bytes q = x / d,
// rounded to nearest, halves away from zero; the quotient is x times the f32 reciprocal of the f32
// scale, as ggml's reference has it. x is then about d q.
inline constexpr int64_t kQ8Block = 32, kQ8Bytes = 34;
// n is a multiple of 32; out holds n / 32 * 34 bytes. False if a value is not finite or too large
// for the scale (about 8.3 million); then `out` is not to be used.
bool q8_0_encode(const float* x, int64_t n, uint8_t* out);
void q8_0_decode(const uint8_t* blocks, int64_t n, float* out);

// n elements of a tensor as floats. False if the type is not F32, F16, BF16, F64 or Q8_0; n is a
// multiple of its block.
bool gguf_decode(uint32_t type, const uint8_t* data, int64_t n, float* out);

}  // namespace snug
