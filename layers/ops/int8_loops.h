// The product of whole numbers of layers/ops/int8_linear.h on the CPU, once per instruction set: sums
// are exact, so all have the same bits.
//
// A block is 64 rows of the weight as pack() lays them: four neighbours of a row are a word, the words of
// 64 rows stand side by side, [width / 4][64][4]. Width is a multiple of 32; what is behind the real
// rows and columns is 0. `flip` is xor'ed to every byte.
#pragma once

#include <cstdint>

namespace snug {

inline constexpr int64_t kInt8Columns = 64;  // of a block
inline constexpr int64_t kInt8Rows = 6;      // of x at a time, at most

struct Int8Loops {
  uint8_t flip;
  // sums[r][m] = sum over k of x[r][k] w[m][k] for r < rows <= kInt8Rows; rows of x lie `width` bytes
  // apart, those of sums kInt8Columns.
  void (*product)(int32_t* sums, const uint8_t* x, int64_t rows, const uint8_t* block,
                  int64_t width);
};
Int8Loops int8_loops_avx2();
Int8Loops int8_loops_vnni_avx512();
// The fastest that the machine has.
Int8Loops int8_loops();

void int8_pack(uint8_t* block, const uint8_t* codes, int64_t rows, int64_t K, int64_t width,
               uint8_t flip);

}  // namespace snug
