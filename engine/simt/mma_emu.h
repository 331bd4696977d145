// engine/simt/mma.h for the emulator: every lane of the warp has to come to the same call, and a
// lane that loads counts as the reader of what it gets, wherever another lane says that it lies.
#pragma once

#include <bit>

#include "engine/simt/simt.h"

namespace snug::simt {
inline namespace emulated {

template <class T>
uint32_t pack_pair(float x, float y) {
  static_assert(sizeof(T) == 2);
  return std::bit_cast<uint16_t>(from_f32<T>(x)) | uint32_t{std::bit_cast<uint16_t>(from_f32<T>(y))}
                                                       << 16;
}

// Half 0 or 1 of a register.
template <class T>
float half_of(uint32_t pair, int half) {
  return to_f32(std::bit_cast<T>(static_cast<uint16_t>(pair >> (16 * half))));
}

struct MmaCall {
  float* c;
  const uint32_t *a, *b;
};

template <class T>
void mma_of_warp(void* const* lanes) {
  float a[16][16], b[16][8], c[16][8];
  const auto each_sum = [&](auto&& f) {
    for (int lane = 0; lane < kWarp; ++lane)
      for (int i = 0; i < 4; ++i)
        f(static_cast<const MmaCall*>(lanes[lane])->c[i],
          c[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2]);
  };
  for (int lane = 0; lane < kWarp; ++lane) {
    const MmaCall& call = *static_cast<const MmaCall*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i)
        a[g + 8 * (i % 2)][2 * t + 8 * (i / 2) + half] = half_of<T>(call.a[i], half);
      for (int i = 0; i < 2; ++i) b[2 * t + 8 * i + half][g] = half_of<T>(call.b[i], half);
    }
  }
  each_sum([](float mine, float& of_warp) { of_warp = mine; });
  for (int m = 0; m < 16; ++m)
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < 8; ++n) c[m][n] += a[m][k] * b[k][n];
  each_sum([](float& mine, float of_warp) { mine = of_warp; });
}

template <class T>
void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], SIMT_WHERE) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  MmaCall call{c, a, b};
  emu::whole_warp(emu::WarpOp::mma, &call, mma_of_warp<T>, where);
}

// Bytes of shared memory where rows begin: the lane's own, then those that it reads of each matrix:
// row g; or rows 2 t and 2 t + 1.
struct MatrixRows {
  int64_t mine;
  int64_t row[4][2];
};

template <bool kTransposed>
void share_rows(void* const* lanes) {
  for (int lane = 0; lane < kWarp; ++lane)
    for (int m = 0; m < 4; ++m)
      for (int i = 0; i < 2; ++i) {
        const int row = kTransposed ? 2 * (lane % 4) + i : lane / 4;
        static_cast<MatrixRows*>(lanes[lane])->row[m][i] =
            static_cast<const MatrixRows*>(lanes[8 * m + row])->mine;
      }
}

template <bool kTransposed, class T>
void load_matrices_as(uint32_t (&r)[4], const Shared<T>& s, const Index& i) {
  static_assert(sizeof(T) == 2);
  MatrixRows rows{s.offset() + i.i * 2, {}};
  const Where where = i.at;
  check_aligned(rows.mine, 16, where);
  emu::whole_warp(emu::WarpOp::load_matrices, &rows, share_rows<kTransposed>, where);
  const auto read = [&](void* to, int64_t at, size_t bytes) {
    std::memcpy(to,
                emu::use_shared(s.region(), at, static_cast<int64_t>(bytes), emu::Use::read, i.at),
                bytes);
  };
  const int g = lane() / 4, t = lane() % 4;
  for (int m = 0; m < 4; ++m) {
    if constexpr (kTransposed) {
      uint16_t half[2];
      for (int k = 0; k < 2; ++k) read(&half[k], rows.row[m][k] + 2 * g, 2);
      r[m] = half[0] | uint32_t{half[1]} << 16;
    } else {
      read(&r[m], rows.row[m][0] + 4 * t, 4);
    }
  }
}
template <class T>
void load_matrices(uint32_t (&r)[4], const Shared<T>& s, Index i) {
  load_matrices_as<false>(r, s, i);
}
template <class T>
void load_matrices_transposed(uint32_t (&r)[4], const Shared<T>& s, Index i) {
  load_matrices_as<true>(r, s, i);
}

}  // namespace emulated
}  // namespace snug::simt
