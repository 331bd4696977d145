#include "engine/blas/amx_tiles.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "engine/core/dtype.h"
#include "engine/core/error.h"

namespace snug::blas {
namespace {

constexpr int kTiles = 8, kRows = 16, kUnits = 16;  // a row is 16 units of 4 bytes

bool ask_for_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c >> 27 & 1u) == 0) return false;  // OSXSAVE
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  const bool tile = (d >> 24 & 1u) != 0, bf16 = (d >> 22 & 1u) != 0;
  if (!tile || !bf16) return false;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low >> 17 & 3u) != 3u) return false;  // the system saves tile configuration and tile data
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// The 64 bytes of LDTILECFG, palette 1: all eight tiles at their full size.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

struct Registers {
  bool configured = false;
  alignas(64) uint32_t tile[kTiles][kRows][kUnits];
};
thread_local Registers registers;

uint32_t (&tile_of(int t))[kRows][kUnits] {
  if (!registers.configured)
    fail(ErrorCode::internal, "tiles configured by this thread", "a tile used without",
         "call configure() in every thread");
  return registers.tile[t];
}

// Subnormal to zero of its sign. (A result is judged after rounding to fp32 with subnormals; the
// unit judges with an unlimited exponent. They differ only just below the smallest normal.)
inline float flush(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits & 0x7f800000u) == 0 ? bits & 0x80000000u : bits);
}
inline float low_half(uint32_t unit) {
  return flush(std::bit_cast<float>(unit << 16));
}
inline float high_half(uint32_t unit) {
  return flush(std::bit_cast<float>(unit & 0xffff0000u));
}

}  // namespace

bool amx_bf16_available() {
  static const bool available = ask_for_amx();
  return available;
}

void HardwareTiles::configure() {
  static const TileConfig config;
  asm volatile("ldtilecfg %0" : : "m"(config));
}

void SoftwareTiles::configure() {
  registers.configured = true;
  std::memset(registers.tile, 0, sizeof registers.tile);
}
void SoftwareTiles::release() {
  registers.configured = false;
}

void SoftwareTiles::zero_tile(int t) {
  std::memset(tile_of(t), 0, sizeof registers.tile[t]);
}
void SoftwareTiles::load_tile(int t, const void* from, int64_t stride) {
  auto& tile = tile_of(t);
  for (int i = 0; i < kRows; ++i)
    std::memcpy(tile[i], static_cast<const char*>(from) + i * stride, sizeof tile[i]);
}
void SoftwareTiles::store_tile(int t, void* to, int64_t stride) {
  const auto& tile = tile_of(t);
  for (int i = 0; i < kRows; ++i)
    std::memcpy(static_cast<char*>(to) + i * stride, tile[i], sizeof tile[i]);
}

void SoftwareTiles::multiply_tiles(int c, int a, int b) {
  auto& sums = tile_of(c);
  const auto &x = tile_of(a), &y = tile_of(b);
  float y_even[kRows][kUnits], y_odd[kRows][kUnits];
  for (int k = 0; k < kRows; ++k)
    for (int n = 0; n < kUnits; ++n) {
      y_even[k][n] = low_half(y[k][n]);
      y_odd[k][n] = high_half(y[k][n]);
    }
  for (int m = 0; m < kRows; ++m) {
    float even[kUnits] = {}, odd[kUnits] = {};
    for (int k = 0; k < kUnits; ++k) {
      const float x_even = low_half(x[m][k]), x_odd = high_half(x[m][k]);
      for (int n = 0; n < kUnits; ++n) {
        even[n] = flush(__builtin_fmaf(x_even, y_even[k][n], even[n]));
        odd[n] = flush(__builtin_fmaf(x_odd, y_odd[k][n], odd[n]));
      }
    }
    for (int n = 0; n < kUnits; ++n) {
      const float old = flush(std::bit_cast<float>(sums[m][n]));
      sums[m][n] = std::bit_cast<uint32_t>(flush(old + flush(even[n] + odd[n])));
    }
  }
}

}  // namespace snug::blas
