// Element types. bf16 and f16 are storage: arithmetic happens in float, rounding to nearest even.
// Conversions are constexpr, which lets nvcc use them in kernels too: the same bits everywhere.
#pragma once

#include <bit>
#include <cstdint>

namespace snug {

enum class DType : uint8_t { f32, bf16, f16, i32, i64, u8, u16, f64 };

constexpr int64_t size_of(DType t) {
  switch (t) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
    case DType::u16:
      return 2;
    case DType::i64:
    case DType::f64:
      return 8;
    case DType::u8:
      return 1;
  }
  return 0;
}

const char* to_string(DType t);

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

constexpr float to_f32(float x) {
  return x;
}
constexpr float to_f32(bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

// IEEE half to float, subnormals included; exact.
constexpr float to_f32(f16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exp = (x.bits >> 10) & 0x1fu, man = x.bits & 0x3ffu;
  if (exp == 31) return std::bit_cast<float>(sign | 0x7f800000u | (man << 13));
  if (exp == 0) {
    const float v = static_cast<float>(man) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(v));
  }
  return std::bit_cast<float>(sign | ((exp + 112) << 23) | (man << 13));
}

template <class T>
constexpr T from_f32(float x);

template <>
constexpr float from_f32<float>(float x) {
  return x;
}

// Round to nearest even; NaN stays NaN (quieted), overflow goes to infinity.
template <>
constexpr bf16 from_f32<bf16>(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t nan = (u >> 16) | 0x40u;
  return {static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}

template <>
constexpr f16 from_f32<f16>(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (a >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds past 65504
  if (a < 0x38800000u) {  // below 2^-14: subnormal, one unit is 2^-24
    const float shifted = std::bit_cast<float>(a) + 0.5f;  // adds 2^-1, whose ulp is 2^-24
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u))};
  }
  const uint32_t r = a + 0xfffu + ((a >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((r - 0x38000000u) >> 13))};
}

template <class T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct dtype_of<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of<f16> {
  static constexpr DType value = DType::f16;
};
template <>
struct dtype_of<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct dtype_of<int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct dtype_of<uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct dtype_of<uint16_t> {
  static constexpr DType value = DType::u16;
};
template <>
struct dtype_of<double> {
  static constexpr DType value = DType::f64;
};

}  // namespace snug
