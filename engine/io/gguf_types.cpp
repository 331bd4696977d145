// The types of GGUF, Q8_0, and the values of an open file.
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "engine/core/dtype.h"
#include "engine/core/error.h"
#include "engine/io/gguf.h"
#include "engine/io/text_reader.h"

namespace snug {
namespace {

struct TypeRow {
  uint32_t number;
  GgufTypeInfo info;
};

// ggml's types: the block's elements and bytes. Numbers that are missing were given up by ggml.
constexpr TypeRow kTypes[] = {
    {0, {"F32", 1, 4}},         {1, {"F16", 1, 2}},         {2, {"Q4_0", 32, 18}},
    {3, {"Q4_1", 32, 20}},      {6, {"Q5_0", 32, 22}},      {7, {"Q5_1", 32, 24}},
    {8, {"Q8_0", 32, 34}},      {9, {"Q8_1", 32, 40}},      {10, {"Q2_K", 256, 84}},
    {11, {"Q3_K", 256, 110}},   {12, {"Q4_K", 256, 144}},   {13, {"Q5_K", 256, 176}},
    {14, {"Q6_K", 256, 210}},   {15, {"Q8_K", 256, 292}},   {16, {"IQ2_XXS", 256, 66}},
    {17, {"IQ2_XS", 256, 74}},  {18, {"IQ3_XXS", 256, 98}}, {19, {"IQ1_S", 256, 50}},
    {20, {"IQ4_NL", 32, 18}},   {21, {"IQ3_S", 256, 110}},  {22, {"IQ2_S", 256, 82}},
    {23, {"IQ4_XS", 256, 136}}, {24, {"I8", 1, 1}},         {25, {"I16", 1, 2}},
    {26, {"I32", 1, 4}},        {27, {"I64", 1, 8}},        {28, {"F64", 1, 8}},
    {29, {"IQ1_M", 256, 56}},   {30, {"BF16", 1, 2}},       {34, {"TQ1_0", 256, 54}},
    {35, {"TQ2_0", 256, 66}},   {39, {"MXFP4", 32, 17}},    {40, {"NVFP4", 64, 36}},
    {41, {"Q1_0", 128, 18}}};

template <class T>
T load(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

[[noreturn]] void fail_kind(const char* wanted, const GgufKey& key, const std::string& path) {
  fail(ErrorCode::data, fmt::format("{} for {} in {}", wanted, key.name, path),
       key.kind == GgufKind::array ? fmt::format("an array of {}", to_string(key.element))
                                   : fmt::format("a value of type {}", to_string(key.kind)),
       "write the file again with a correct writer");
}

// An integer of the kind at p; false for other kinds and for what is above int64.
bool read_integer(GgufKind kind, const uint8_t* p, int64_t& out) {
  switch (kind) {
    case GgufKind::u8:
      out = *p;
      return true;
    case GgufKind::i8:
      out = load<int8_t>(p);
      return true;
    case GgufKind::u16:
      out = load<uint16_t>(p);
      return true;
    case GgufKind::i16:
      out = load<int16_t>(p);
      return true;
    case GgufKind::u32:
      out = load<uint32_t>(p);
      return true;
    case GgufKind::i32:
      out = load<int32_t>(p);
      return true;
    case GgufKind::i64:
      out = load<int64_t>(p);
      return true;
    case GgufKind::u64: {
      const auto value = load<uint64_t>(p);
      out = static_cast<int64_t>(value);
      return value <= static_cast<uint64_t>(INT64_MAX);
    }
    default:
      return false;
  }
}

std::string_view text_at(const uint8_t* p) {
  return {reinterpret_cast<const char*>(p + 8), static_cast<size_t>(load<uint64_t>(p))};
}

std::string one_value(GgufKind kind, const uint8_t* p) {
  int64_t integer = 0;
  if (kind == GgufKind::f32) return fmt::format("{}", load<float>(p));
  if (kind == GgufKind::f64) return fmt::format("{}", load<double>(p));
  if (kind == GgufKind::boolean) return *p ? "true" : "false";
  if (kind == GgufKind::string) {
    const std::string_view text = text_at(p);
    return text.size() > 60
               ? fmt::format("\"{}...\" ({} bytes)", text_beginning(text, 60), text.size())
               : fmt::format("\"{}\"", text);
  }
  if (read_integer(kind, p, integer)) return std::to_string(integer);
  return kind == GgufKind::u64 ? std::to_string(load<uint64_t>(p)) : "an array";
}

}  // namespace

const char* to_string(GgufKind kind) {
  constexpr const char* kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                    "bool", "string", "array", "u64", "i64", "f64"};
  const auto at = static_cast<uint32_t>(kind);
  return at < 13 ? kNames[at] : "unknown";
}

int64_t gguf_value_bytes(GgufKind kind) {
  switch (kind) {
    case GgufKind::u8:
    case GgufKind::i8:
    case GgufKind::boolean:
      return 1;
    case GgufKind::u16:
    case GgufKind::i16:
      return 2;
    case GgufKind::u32:
    case GgufKind::i32:
    case GgufKind::f32:
      return 4;
    case GgufKind::u64:
    case GgufKind::i64:
    case GgufKind::f64:
      return 8;
    case GgufKind::string:
    case GgufKind::array:
      return 0;
  }
  return 0;
}

const GgufTypeInfo* gguf_type_info(uint32_t type) {
  for (const TypeRow& row : kTypes)
    if (row.number == type) return &row.info;
  return nullptr;
}

int64_t GgufTensor::elements() const {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

int64_t GgufReader::integer(const GgufKey& key) const {
  int64_t value = 0;
  if (!read_integer(key.kind, key.data, value)) fail_kind("an integer", key, path_);
  return value;
}

double GgufReader::number(const GgufKey& key) const {
  if (key.kind == GgufKind::f32) return static_cast<double>(load<float>(key.data));
  if (key.kind == GgufKind::f64) return load<double>(key.data);
  int64_t value = 0;
  if (!read_integer(key.kind, key.data, value)) fail_kind("a number", key, path_);
  return static_cast<double>(value);
}

bool GgufReader::boolean(const GgufKey& key) const {
  if (key.kind != GgufKind::boolean) fail_kind("true or false", key, path_);
  return *key.data != 0;
}

std::string_view GgufReader::string(const GgufKey& key) const {
  if (key.kind != GgufKind::string) fail_kind("a string", key, path_);
  return text_at(key.data);
}

std::vector<std::string_view> GgufReader::strings(const GgufKey& key, int64_t limit) const {
  if (key.kind != GgufKind::array || (key.element != GgufKind::string && key.count > 0))
    fail_kind("an array of strings", key, path_);
  const int64_t n = std::min(key.count, limit);
  std::vector<std::string_view> out;
  out.reserve(static_cast<size_t>(n));
  const uint8_t* p = key.data;
  for (int64_t i = 0; i < n; ++i) {
    out.push_back(text_at(p));
    p += 8 + out.back().size();
  }
  return out;
}

std::vector<int64_t> GgufReader::integers(const GgufKey& key, int64_t limit) const {
  int64_t value = 0;
  if (key.kind != GgufKind::array) fail_kind("an array of integers", key, path_);
  const int64_t n = std::min(key.count, limit);
  std::vector<int64_t> out;
  for (int64_t i = 0; i < n; ++i) {
    if (!read_integer(key.element, key.data + i * gguf_value_bytes(key.element), value))
      fail_kind("an array of integers", key, path_);
    out.push_back(value);
  }
  return out;
}

std::string GgufReader::brief(const GgufKey& key) const {
  if (key.kind != GgufKind::array) return one_value(key.kind, key.data);
  std::string text = fmt::format("[{} of {}]", key.count, to_string(key.element));
  if (key.element == GgufKind::array) return text;
  const uint8_t* p = key.data;
  for (int64_t i = 0; i < std::min<int64_t>(key.count, 4) && text.size() < 100; ++i) {
    text += (i ? ", " : " ") + one_value(key.element, p);
    p += key.element == GgufKind::string ? 8 + static_cast<int64_t>(text_at(p).size())
                                         : gguf_value_bytes(key.element);
  }
  return key.count > 4 ? text + ", ..." : text;
}

bool q8_0_encode(const float* x, int64_t n, uint8_t* out) {
  for (int64_t b = 0; b < n; b += kQ8Block, out += kQ8Bytes) {
    float most = 0.0f;
    bool finite = true;
    for (int64_t i = 0; i < kQ8Block; ++i) {
      const float a = std::fabs(x[b + i]);
      finite = finite && a <= 3.4028234664e38f;  // false for NaN as well
      most = a > most ? a : most;
    }
    const float d = most / 127.0f;
    const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
    const f16 scale = from_f32<f16>(d);
    // A scale below the least normal float has no finite reciprocal: its quotients are not numbers.
    if (!finite || (scale.bits & 0x7fffu) >= 0x7c00u) return false;
    std::memcpy(out, &scale.bits, 2);
    for (int64_t i = 0; i < kQ8Block; ++i) {
      const float q = std::isinf(inverse) ? 0.0f : std::round(x[b + i] * inverse);
      out[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(q));
    }
  }
  return true;
}

void q8_0_decode(const uint8_t* blocks, int64_t n, float* out) {
  for (int64_t b = 0; b < n; b += kQ8Block, blocks += kQ8Bytes) {
    const float d = to_f32(f16{load<uint16_t>(blocks)});
    for (int64_t i = 0; i < kQ8Block; ++i)
      out[b + i] = d * static_cast<float>(static_cast<int8_t>(blocks[2 + i]));
  }
}

bool gguf_decode(uint32_t type, const uint8_t* data, int64_t n, float* out) {
  switch (type) {
    case 0:
      std::memcpy(out, data, static_cast<size_t>(4 * n));
      return true;
    case 1:
      for (int64_t i = 0; i < n; ++i) out[i] = to_f32(f16{load<uint16_t>(data + 2 * i)});
      return true;
    case 30:
      for (int64_t i = 0; i < n; ++i) out[i] = to_f32(bf16{load<uint16_t>(data + 2 * i)});
      return true;
    case 28:
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(load<double>(data + 8 * i));
      return true;
    case 8:
      q8_0_decode(data, n, out);
      return true;
    default:
      return false;
  }
}

}  // namespace snug
