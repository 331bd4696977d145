// Walks the header of a GGUF file; every number is held against what is left of the file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <unordered_set>

#include "engine/core/error.h"
#include "engine/io/gguf.h"

namespace snug {
namespace {

constexpr const char* kAgain =
    "copy or download the file again; it is damaged or was not written completely";

// The least a key and a tensor take: lengths, one byte of name where it must have one, type, value.
constexpr int64_t kLeastKey = 8 + 1 + 4 + 1, kLeastTensor = 8 + 1 + 4 + 8 + 4 + 8;

class Cursor {
 public:
  Cursor(std::span<const uint8_t> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  int64_t at() const { return at_; }
  int64_t left() const { return static_cast<int64_t>(bytes_.size()) - at_; }
  const uint8_t* here() const { return bytes_.data() + at_; }

  void skip(int64_t n, const std::string& what) {
    if (n > left())
      fail(ErrorCode::data, fmt::format("{} bytes for {} at byte {} of {}", n, what, at_, path_),
           fmt::format("the end of the file {} bytes later", left()), kAgain);
    at_ += n;
  }
  template <class T>
  T read(const std::string& what) {
    T value;
    const uint8_t* p = here();
    skip(sizeof(T), what);
    std::memcpy(&value, p, sizeof value);
    return value;
  }
  // A count of things that take at least `least` bytes each: never more than the file can hold.
  int64_t count(int64_t least, const std::string& what) {
    const int64_t begin = at_;
    const auto value = read<uint64_t>("the number of " + what);
    if (value > static_cast<uint64_t>(left() / least))
      fail(ErrorCode::data,
           fmt::format("a number of {} that {} has room for, at byte {}", what, path_, begin),
           fmt::format("{} of at least {} bytes each with {} bytes left", value, least, left()),
           kAgain);
    return static_cast<int64_t>(value);
  }
  std::string_view string(const std::string& what) {
    const int64_t begin = at_;
    const auto length = read<uint64_t>("the length of " + what);
    if (length > static_cast<uint64_t>(left()))
      fail(ErrorCode::data, fmt::format("a length of {} inside {}, at byte {}", what, path_, begin),
           fmt::format("{} bytes with {} bytes left", length, left()), kAgain);
    const auto* text = reinterpret_cast<const char*>(here());
    at_ += static_cast<int64_t>(length);
    return {text, static_cast<size_t>(length)};
  }

 private:
  std::span<const uint8_t> bytes_;
  const std::string& path_;
  int64_t at_ = 0;
};

GgufKind read_kind(Cursor& in, const std::string& what, const std::string& path) {
  const auto number = in.read<uint32_t>("the type of " + what);
  if (number > static_cast<uint32_t>(GgufKind::f64))
    fail(ErrorCode::data, fmt::format("a value type of 0 to 12 for {} in {}", what, path),
         std::to_string(number), kAgain);
  return static_cast<GgufKind>(number);
}

void check_booleans(const uint8_t* p, int64_t n, const std::string& what, const std::string& path) {
  for (int64_t i = 0; i < n; ++i)
    if (p[i] > 1)
      fail(ErrorCode::data, fmt::format("a bool of 0 or 1 for {} in {}", what, path),
           std::to_string(p[i]), kAgain);
}

// Walks the elements of an array. `level` is how many arrays are around it, itself included.
void walk_array(Cursor& in, GgufKind element, int64_t count, int64_t level, const std::string& what,
                const std::string& path) {
  if (level > GgufReader::kMaxNesting)
    fail(ErrorCode::data,
         fmt::format("at most {} arrays within each other in {}", GgufReader::kMaxNesting, path),
         fmt::format("more in {}", what), "write the file again with a correct writer");
  if (const int64_t bytes = gguf_value_bytes(element)) {
    const uint8_t* p = in.here();
    in.skip(count * bytes, what);  // count was held against the file at one byte each
    if (element == GgufKind::boolean) check_booleans(p, count, what, path);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    if (element == GgufKind::string) {
      in.string(what);
      continue;
    }
    const GgufKind inner = read_kind(in, what, path);
    walk_array(in, inner,
               in.count(std::max<int64_t>(1, gguf_value_bytes(inner)), "elements of " + what),
               level + 1, what, path);
  }
}

// Names stand in messages and on terminals: no control characters. Keys are ASCII, says the format.
void check_name(std::string_view name, bool ascii, const char* what, const Cursor& in,
                const std::string& path) {
  for (const char c : name) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x20 || byte == 0x7f || (ascii && byte > 0x7f))
      fail(ErrorCode::data,
           fmt::format("{} of {} characters in {}", what, ascii ? "printable ASCII" : "printable",
                       path),
           fmt::format("a byte 0x{:02x} in one before byte {}", byte, in.at()), kAgain);
  }
}

GgufKey read_key(Cursor& in, const std::string& path) {
  GgufKey key;
  const std::string_view name = in.string("a key");
  if (name.empty() || static_cast<int64_t>(name.size()) > GgufReader::kMaxName)
    fail(ErrorCode::data, fmt::format("keys of 1 to {} bytes in {}", GgufReader::kMaxName, path),
         fmt::format("one of {} bytes before byte {}", name.size(), in.at()), kAgain);
  check_name(name, true, "keys", in, path);
  key.name = name;
  const std::string what = "key " + key.name;
  key.kind = read_kind(in, what, path);
  if (key.kind == GgufKind::array) {
    key.element = read_kind(in, what, path);
    const int64_t least = key.element == GgufKind::string  ? 8
                          : key.element == GgufKind::array ? 12
                                                           : gguf_value_bytes(key.element);
    key.count = in.count(least, "elements of " + what);
    key.data = in.here();
    const int64_t begin = in.at();
    walk_array(in, key.element, key.count, 1, what, path);
    key.bytes = in.at() - begin;
    return key;
  }
  key.data = in.here();
  const int64_t begin = in.at();
  if (key.kind == GgufKind::string)
    in.string(what);
  else
    in.skip(gguf_value_bytes(key.kind), what);
  key.bytes = in.at() - begin;
  if (key.kind == GgufKind::boolean) check_booleans(key.data, 1, what, path);
  return key;
}

// The tensor's place is filled in when the data section is known; `bytes` is right already.
GgufTensor read_tensor(Cursor& in, const std::string& path, uint64_t& offset) {
  GgufTensor t;
  const std::string_view name = in.string("a tensor's name");
  if (name.empty() || static_cast<int64_t>(name.size()) > GgufReader::kMaxTensorName)
    fail(ErrorCode::data,
         fmt::format("tensor names of 1 to {} bytes in {}", GgufReader::kMaxTensorName, path),
         fmt::format("one of {} bytes before byte {}", name.size(), in.at()), kAgain);
  check_name(name, false, "tensor names", in, path);
  t.name = name;
  const std::string what = "tensor " + t.name;
  const auto rank = in.read<uint32_t>("the extents of " + what);
  if (rank > 4)
    fail(ErrorCode::data, fmt::format("at most 4 extents for {} in {}", what, path),
         std::to_string(rank), kAgain);
  int64_t elements = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    const auto extent = in.read<uint64_t>("the extents of " + what);
    if (extent < 1 || extent > static_cast<uint64_t>(INT64_MAX) ||
        __builtin_mul_overflow(elements, static_cast<int64_t>(extent), &elements))
      fail(ErrorCode::data,
           fmt::format("extents of at least 1 with a product below 2^63 for {} in {}", what, path),
           fmt::format("{} as extent {}", extent, i), kAgain);
    t.shape.insert(t.shape.begin(), static_cast<int64_t>(extent));
  }
  t.type = in.read<uint32_t>("the type of " + what);
  const GgufTypeInfo* info = gguf_type_info(t.type);
  if (!info)
    fail(ErrorCode::unsupported, fmt::format("a known tensor type for {} in {}", what, path),
         std::to_string(t.type), "a newer version of this program may know it");
  const int64_t row = t.shape.empty() ? 1 : t.shape.back();
  if (row % info->elements != 0)
    fail(ErrorCode::data,
         fmt::format("rows of a multiple of {} elements for {} of type {} in {}", info->elements,
                     what, info->name, path),
         fmt::format("rows of {}", row), kAgain);
  if (__builtin_mul_overflow(elements / info->elements, info->bytes, &t.bytes))
    fail(ErrorCode::data, fmt::format("a size below 2^63 bytes for {} in {}", what, path),
         fmt::format("{} elements of {}", elements, info->name), kAgain);
  offset = in.read<uint64_t>("the offset of " + what);
  return t;
}

template <class Items>
void check_unique(const Items& items, const char* what, const std::string& path) {
  std::unordered_set<std::string_view> seen;
  for (const auto& item : items)
    if (!seen.insert(item.name).second)
      fail(ErrorCode::data, fmt::format("every {} once in {}", what, path),
           fmt::format("{} twice", item.name), "write the file again with a correct writer");
}

}  // namespace

GgufReader::GgufReader(const std::string& path) : path_(path), file_(path) {
  read(file_.bytes());
}

GgufReader::GgufReader(std::string name, std::span<const uint8_t> bytes) : path_(std::move(name)) {
  read(bytes);
}

void GgufReader::read(std::span<const uint8_t> bytes) {
  const std::string& path = path_;
  const auto size = static_cast<int64_t>(bytes.size());
  Cursor in(bytes, path_);
  if (size < 4 || std::memcmp(bytes.data(), "GGUF", 4) != 0)
    fail(ErrorCode::data, fmt::format("a GGUF file, which begins with \"GGUF\", in {}", path),
         size < 4 ? fmt::format("{} bytes", size) : "other bytes", kAgain);
  in.skip(4, "the magic");
  version_ = in.read<uint32_t>("the version");
  if (version_ != 2 && version_ != 3)
    fail(ErrorCode::unsupported, fmt::format("GGUF version 2 or 3, little endian, in {}", path),
         (version_ & 0xffffu) == 0 && version_ != 0 ? "a big-endian file"
                                                    : fmt::format("version {}", version_),
         "convert the model again with a current converter");
  const int64_t tensors = in.count(kLeastTensor, "tensors");
  const int64_t keys = in.count(kLeastKey, "keys");
  // Grown, not reserved: a record here is larger than the least a record takes in the file.
  for (int64_t i = 0; i < keys; ++i) keys_.push_back(read_key(in, path_));
  check_unique(keys_, "key", path_);
  if (const GgufKey* key = find_key("general.alignment")) {
    alignment_ = integer(*key);
    if (alignment_ < 8 || alignment_ % 8 != 0 || alignment_ > (int64_t{1} << 20))
      fail(ErrorCode::data,
           fmt::format("general.alignment as a multiple of 8 up to 1 MiB in {}", path),
           std::to_string(alignment_), kAgain);
  }
  std::vector<uint64_t> offsets;
  for (int64_t i = 0; i < tensors; ++i) {
    offsets.emplace_back();
    tensors_.push_back(read_tensor(in, path_, offsets.back()));
  }
  check_unique(tensors_, "tensor", path_);

  // ggml asks the same of the offsets: tensors lie in their order, each padded, without other gaps.
  const int64_t data = (in.at() + alignment_ - 1) / alignment_ * alignment_;
  int64_t offset = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    GgufTensor& t = tensors_[i];
    if (offsets[i] != static_cast<uint64_t>(offset))
      fail(ErrorCode::data,
           fmt::format("tensor {} of {} at offset {}, where the one before it ends", t.name, path,
                       offset),
           fmt::format("offset {}", offsets[i]), kAgain);
    const int64_t room = size - data - offset;
    if (t.bytes > room)
      fail(ErrorCode::data,
           fmt::format("{} bytes for tensor {} at byte {} of {}", t.bytes, t.name, data + offset,
                       path),
           fmt::format("{} bytes up to the end of the file", std::max<int64_t>(0, room)), kAgain);
    t.data = bytes.data() + data + offset;
    offset += (t.bytes + alignment_ - 1) / alignment_ * alignment_;
  }
  if (!tensors_.empty() && size > data + offset)
    fail(ErrorCode::data,
         fmt::format("{} to end with its last tensor, at byte {}", path, data + offset),
         fmt::format("{} bytes", size), kAgain);
}

const GgufKey* GgufReader::find_key(std::string_view name) const {
  for (const GgufKey& key : keys_)
    if (key.name == name) return &key;
  return nullptr;
}

const GgufTensor* GgufReader::find(std::string_view name) const {
  for (const GgufTensor& t : tensors_)
    if (t.name == name) return &t;
  return nullptr;
}

}  // namespace snug
