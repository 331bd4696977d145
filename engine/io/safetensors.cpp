// Element types, conversion, and the reader of one file.
#include "engine/io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "engine/core/error.h"
#include "engine/io/safetensors_header.h"
#include "engine/io/safetensors_pieces.h"

namespace snug {
namespace {

struct TypeRow {
  const char* name;
  int64_t bits;
};

constexpr TypeRow kTypes[kSafeDTypes] = {
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64}};

constexpr const char* kAgain =
    "copy or download the file again; it is damaged or was not written completely";

struct Place {  // names what an error is about
  const std::string& file;
  const std::string& tensor;
};

[[noreturn]] void fail_tensor(const Place& at, const std::string& expected,
                              const std::string& found) {
  fail(ErrorCode::data, expected, fmt::format("{} in tensor '{}' of {}", found, at.tensor, at.file),
       "write the file again with a correct writer, or download it again");
}

void check_tensor(const Place& at, const HeaderEntry& e, int64_t previous_end) {
  const auto [begin, end] = std::pair(e.begin, e.end);
  if (begin != previous_end)
    fail_tensor(
        at,
        fmt::format("the tensor to begin at byte {}, where the one before it ends", previous_end),
        fmt::format("{}: data_offsets [{}, {}]", begin > previous_end ? "a hole" : "an overlap",
                    begin, end));
  if (end < begin)
    fail_tensor(at, "data_offsets that end after they begin", fmt::format("[{}, {}]", begin, end));
  int64_t elements = 1, bits = 0;
  const std::string shape = fmt::format("[{}]", fmt::join(e.shape, ", "));
  for (const int64_t extent : e.shape)
    if (__builtin_mul_overflow(elements, extent, &elements))
      fail_tensor(at, "a number of elements below 2^63", fmt::format("shape {}", shape));
  if (__builtin_mul_overflow(elements, bits_of(e.dtype), &bits))
    fail_tensor(at, "a size below 2^63 bits",
                fmt::format("shape {} of {}", shape, to_string(e.dtype)));
  if (bits % 8 != 0)
    fail_tensor(at, "a size of whole bytes",
                fmt::format("shape {} of {} ({} bits)", shape, to_string(e.dtype), bits));
  if (end - begin != bits / 8)
    fail_tensor(at, fmt::format("{} bytes for shape {} of {}", bits / 8, shape, to_string(e.dtype)),
                fmt::format("{} bytes, data_offsets [{}, {}]", end - begin, begin, end));
}

template <class From, class To>
void convert_loop(const void* src, int64_t n, To* out) {
  const char* p = static_cast<const char*>(src);
  for (int64_t i = 0; i < n; ++i) {
    From v;
    std::memcpy(&v, p + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
    out[i] = from_f32<To>(to_f32(v));
  }
}

// double to bf16 or f16 through float would round twice; rounding the float to odd first makes the
// second rounding exact (Boldo and Melquiond, 2008).
float round_to_odd(double x) {
  const float f = static_cast<float>(x);
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if (static_cast<double>(f) == x || x != x || (bits & 1u) != 0) return f;
  if ((bits & 0x7fffffffu) == 0x7f800000u) return std::bit_cast<float>(bits - 1);
  // f is even and inexact: the odd neighbour on the other side of x.
  const bool too_far = (x > 0) == (static_cast<double>(f) > x);
  return std::bit_cast<float>(too_far && (bits & 0x7fffffffu) != 0 ? bits - 1 : bits + 1);
}

template <class To>
void convert_from(SafeDType from, const void* src, int64_t n, To* out) {
  switch (from) {
    case SafeDType::F32:
      return convert_loop<float>(src, n, out);
    case SafeDType::F16:
      return convert_loop<f16>(src, n, out);
    case SafeDType::BF16:
      return convert_loop<bf16>(src, n, out);
    case SafeDType::F64:
      for (int64_t i = 0; i < n; ++i) {
        double v;
        std::memcpy(&v, static_cast<const char*>(src) + 8 * i, 8);
        if constexpr (std::is_same_v<To, float>)
          out[i] = static_cast<float>(v);
        else
          out[i] = from_f32<To>(round_to_odd(v));
      }
      return;
    default:
      fail(ErrorCode::unsupported, "weights of type F64, F32, F16 or BF16", to_string(from),
           "convert the file to one of these types first");
  }
}

}  // namespace

const char* to_string(SafeDType t) {
  return kTypes[static_cast<int>(t)].name;
}
int64_t bits_of(SafeDType t) {
  return kTypes[static_cast<int>(t)].bits;
}

std::optional<SafeDType> safe_dtype(std::string_view name) {
  for (int i = 0; i < kSafeDTypes; ++i)
    if (name == kTypes[i].name) return static_cast<SafeDType>(i);
  return std::nullopt;
}

std::optional<DType> engine_dtype(SafeDType t) {
  switch (t) {
    case SafeDType::F32:
      return DType::f32;
    case SafeDType::BF16:
      return DType::bf16;
    case SafeDType::F16:
      return DType::f16;
    case SafeDType::I32:
      return DType::i32;
    case SafeDType::I64:
      return DType::i64;
    case SafeDType::U8:
      return DType::u8;
    case SafeDType::U16:
      return DType::u16;
    case SafeDType::F64:
      return DType::f64;
    default:
      return std::nullopt;
  }
}

SafeDType safe_dtype(DType t) {
  for (int i = 0; i < kSafeDTypes; ++i)
    if (engine_dtype(static_cast<SafeDType>(i)) == t) return static_cast<SafeDType>(i);
  fail(ErrorCode::internal, "a safetensors type for every engine type", to_string(t),
       "add it to engine/io/safetensors.cpp");
}

int64_t SafeTensor::elements() const {
  return bytes * 8 / bits_of(dtype);
}

SafetensorsReader::SafetensorsReader(const std::string& path) : path_(path) {
  if (safetensors_in_pieces(path))
    join_pieces();
  else
    open();
  by_name_.resize(tensors_.size());
  for (size_t i = 0; i < by_name_.size(); ++i) by_name_[i] = static_cast<int32_t>(i);
  std::sort(by_name_.begin(), by_name_.end(), [this](int32_t a, int32_t b) {
    return tensors_[static_cast<size_t>(a)].name < tensors_[static_cast<size_t>(b)].name;
  });
}

void SafetensorsReader::join_pieces() {
  const SafetensorsPieces pieces(path_);
  metadata_ = pieces.metadata();
  int64_t bytes = 0;
  for (const PiecedTensor& t : pieces.tensors()) bytes += t.elements() * (bits_of(t.dtype) / 8);
  joined_.resize(static_cast<size_t>(bytes));
  uint8_t* to = joined_.data();
  for (const PiecedTensor& t : pieces.tensors()) {
    const int64_t size = t.elements() * (bits_of(t.dtype) / 8);
    pieces.read(t, to);
    tensors_.push_back({t.name, t.dtype, t.shape, to, size});
    to += size;
  }
}

void SafetensorsReader::open() {
  const std::string& path = path_;
  file_ = MappedFile(path);
  if (file_.size() < 8)
    fail(ErrorCode::data, fmt::format("{} to have at least 8 bytes, the header's length", path),
         fmt::format("{} bytes", file_.size()), kAgain);
  uint64_t n = 0;
  std::memcpy(&n, file_.data(), 8);
  if (n > static_cast<uint64_t>(kMaxHeader))
    fail(ErrorCode::data, fmt::format("a header of at most {} bytes in {}", kMaxHeader, path),
         fmt::format("a length of {}", n), "check that this is a safetensors file");
  const int64_t header = static_cast<int64_t>(n);
  if (header > file_.size() - 8)
    fail(ErrorCode::data, fmt::format("{} to hold its header of {} bytes", path, header),
         fmt::format("a file of {} bytes", file_.size()), kAgain);
  Header parsed = parse_safetensors_header(file_.text().substr(8, n), path);
  metadata_ = std::move(parsed.metadata);
  std::stable_sort(parsed.entries.begin(), parsed.entries.end(),
                   [](const HeaderEntry& a, const HeaderEntry& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  int64_t end = 0;
  const int64_t space = file_.size() - 8 - header;
  for (HeaderEntry& e : parsed.entries) {
    const Place at{path_, e.name};
    check_tensor(at, e, end);
    if (e.end > space)
      fail(ErrorCode::data,
           fmt::format("{} to hold tensor '{}', up to byte {} of its data", path, e.name, e.end),
           fmt::format("{} bytes of data", space), kAgain);
    end = e.end;
    tensors_.push_back({std::move(e.name), e.dtype, std::move(e.shape),
                        file_.data() + 8 + header + e.begin, e.end - e.begin});
  }
  if (end != space)
    fail(ErrorCode::data,
         fmt::format("{} to end with its last tensor, {} bytes of data", path, end),
         fmt::format("{} bytes of data", space), kAgain);
}

const SafeTensor* SafetensorsReader::find(std::string_view name) const {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [this](int32_t i, std::string_view key) {
                                     return tensors_[static_cast<size_t>(i)].name < key;
                                   });
  if (it == by_name_.end()) return nullptr;
  const SafeTensor& t = tensors_[static_cast<size_t>(*it)];
  return t.name == name ? &t : nullptr;
}

const SafeTensor& SafetensorsReader::at(std::string_view name) const {
  if (const SafeTensor* t = find(name)) return *t;
  fail_missing_tensor(name, path_, tensors_.empty() ? "" : tensors_.front().name,
                      static_cast<int64_t>(tensors_.size()));
}

bool convertible(SafeDType from) {
  return from == SafeDType::F64 || from == SafeDType::F32 || from == SafeDType::F16 ||
         from == SafeDType::BF16;
}

void convert(SafeDType from, const void* src, int64_t n, float* out) {
  if (from == SafeDType::F32) {
    if (n > 0) std::memcpy(out, src, static_cast<size_t>(n) * 4);
    return;
  }
  convert_from(from, src, n, out);
}

void convert(SafeDType from, const void* src, int64_t n, bf16* out) {
  convert_from(from, src, n, out);
}

void convert(SafeDType from, const void* src, int64_t n, f16* out) {
  convert_from(from, src, n, out);
}

}  // namespace snug
