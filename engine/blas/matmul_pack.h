// Packing: a block of a matrix, whatever its strides and dtype, copied into the order the tile
// kernels read it. Both operands are packed alike: A by rows, B by columns. A "lane" is a row of A
// or a column of B; a panel holds `width` lanes, and for every k its lanes lie side by side:
//
//     out[panel * panel_stride + k * width + lane]        one 4-byte unit each
//
// A unit is one float (bf16 and f16 widen here, exactly) or, for the bf16 kernel, the pair of bf16
// values k = 2u, 2u + 1 of one lane.
#pragma once

#include <cstdint>

#include "engine/core/dtype.h"

namespace snug::blas {

struct PackSource {
  const void* data;
  DType dtype;                    // f32, bf16, f16
  int64_t lane_stride, k_stride;  // elements
};

// What follows the last unit of a panel narrower than 8 lanes may be overwritten: up to this many
// units.
inline constexpr int64_t kPackSpill = 8;

// Packs lanes [lane0, lane0 + lanes) and k [k0, k0 + kc). With `pairs`, k0 is even and kc may be
// odd only at the end of K; units = ceil(kc / 2), else units = kc. Full panels have `width` lanes;
// the last one is padded with zeros to `width` if `pad`, else packed with its own lanes as its
// width.
void pack_block(const PackSource& src, bool pairs, int64_t lane0, int64_t lanes, int64_t k0,
                int64_t kc, int64_t width, int64_t panel_stride, bool pad, float* out);

// The same from lane 0 and k 0 of `src` on, with AVX-512; false: not here, or not for these
// strides.
bool pack_block_avx512(const PackSource& src, bool pairs, int64_t lanes, int64_t kc, int64_t width,
                       int64_t panel_stride, bool pad, float* out);

// Packs lanes of A for tiles of rows (bf16 pairs): a panel is, for every 16 units, 16 units of each
// lane, lane after lane,
//
//     out[panel * width * units + (step * panel_lanes + lane) * 16 + unit]
//
// panel_lanes is `width`, in the last panel its own lanes rounded up to `lane_step`, with zeros.
// k0 is even; `units` a multiple of 16, zeros after kc.
void pack_row_tiles(const PackSource& src, int64_t lane0, int64_t lanes, int64_t k0, int64_t kc,
                    int64_t units, int64_t width, int64_t lane_step, float* out);

// The same from lane 0 and k 0 of `src` on, with AVX-512; false: not here, or not for these
// strides.
bool pack_row_tiles_avx512(const PackSource& src, int64_t lanes, int64_t kc, int64_t units,
                           int64_t width, int64_t lane_step, float* out);

}  // namespace snug::blas
