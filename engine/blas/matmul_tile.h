// The tile kernels, and what happens to a finished tile. A tile is rows x cols fp32 accumulators,
// row-major with `cols` floats a row, in scratch.
#pragma once

#include <cstdint>

#include "engine/blas/matmul_cpu.h"

namespace snug::blas {

inline constexpr int64_t kMaxTileRows = 32, kMaxTileCols = 32, kMaxChunkRows = 512;
static_assert(kMaxTileRows * kMaxTileCols <= kMatmulTileValues);

// tile (+)= panel of A * panel of B over `units` units. a: rows units per k, side by side, or tiles
// of rows (row_step); b: cols units per k. `start` begins the chain at zero, otherwise it goes on
// from what the tile holds.
//
// Soon: lines that will be wanted next, of B, of C's place for this tile, of sums that wait. A
// kernel that is busy with tiles asks for them on the way, a few with every step. By reference: a
// copy on the stack would be read in wider pieces than it was written, and wait for all stores
// before it.
struct Soon {
  const float* b = nullptr;
  int64_t b_lines = 0;
  const char* c = nullptr;  // null: nothing to ask for
  int64_t c_stride = 0, c_rows = 0, c_bytes = 0;
  const float* waiting = nullptr;  // a tile that waits for this block of K; null: none
};
using TileRun = void (*)(int64_t units, const float* a, const float* b, float* tile, bool start,
                         const Soon& soon);

// Full tiles one under the other, by one panel of B. A kernel that takes them together can begin a
// tile while it puts the one before away.
struct TileColumn {
  int64_t units, tiles;
  const float* a;
  int64_t a_step;  // floats from one tile's panel of A to the next one's
  const float* b;
  float* sums;              // tile i is at sums + i % ring * sums_step
  int64_t sums_step, ring;  // ring: at least two
  bool start;               // as for a run
  void* context;
  void (*ask)(void* context, int64_t i, Soon& soon);  // what tile i should ask for
  // Products of tile i are under way, and its place in the ring is not written yet; the tile before
  // has been put away, long enough ago to be read without waiting.
  void (*under_way)(void* context, int64_t i);
};
using TileColumnRun = void (*)(const TileColumn& column);

struct TileKernel {
  int64_t rows, cols;  // of a full tile
  bool pairs;          // units are bf16 pairs
  const TileRun* run;  // run[r - 1] for r = 1 .. rows
  int64_t step = 1;    // units come in multiples of this, zeros after the end of K
  // Above 1: panels of A are `step` units of one row after another (matmul_pack.h), and rows come
  // in multiples of this.
  int64_t row_step = 1;
  // Block sizes, in units and rows. depth: of a block of K. whole: a K of up to this many units is
  // one block where the neighbours of A lie along k, so that no tile waits; whole_turned: where
  // they lie along m, and a short chunk makes rows too short to read. chunk, chunk_rows: of A at
  // once (avx2: 420 KiB). near: of the piece of a panel of B that all tiles of the chunk use before
  // the next.
  int64_t depth = 1024, whole = 3072, whole_turned = 1024;
  int64_t chunk = 105 * 1024, chunk_rows = 140, near = 3072;
  // Of a B that is not packed and needs more than one block of K: all of it is packed first, where
  // scratch has room.
  bool copies_b = false;
  int64_t shallow =
      0;              // another depth of a block of K, of which the blocking may make use; 0: none
  bool asks = false;  // run asks for what is wanted soon
  TileColumnRun column = nullptr;  // null: tile by tile
  int64_t column_units = 0;        // from so many units on
  void (*enter)() = nullptr;       // called by each thread before its first run and after its last
  void (*leave)() = nullptr;
};

// Null for reference.
const TileKernel* tile_kernel(MatmulKernel kernel);
const TileKernel& avx2_tile_kernel();
const TileKernel& avx512_tile_kernel();
const TileKernel& avx512_bf16_tile_kernel();
const TileKernel& amx_bf16_tile_kernel();
const TileKernel& amx_bf16_emulated_tile_kernel();

// Finishes rows x cols sums (row stride `ld`) whose corner is C[m0, n0]: alpha, bias, old C,
// rounding.
void store_tile(const MatmulProblem& p, const float* tile, int64_t ld, int64_t m0, int64_t n0,
                int64_t rows, int64_t cols);

// The same in registers. AVX-512; false: not here. AVX2: sixteen columns; false: not so many.
// reference does without, so that the tests compare the two.
bool store_tile_avx512(const MatmulProblem& p, const float* tile, int64_t ld, int64_t m0,
                       int64_t n0, int64_t rows, int64_t cols);

bool store_tile_avx2(const MatmulProblem& p, const float* tile, int64_t ld, int64_t m0, int64_t n0,
                     int64_t rows, int64_t cols);

// The same into a C that lies turned: sum (i, j) belongs to c[(n0 + j) * ldc + m0 + i]. For a C of
// f32, without bias and finish.
void store_turned(const MatmulProblem& p, const float* tile, int64_t ld, int64_t m0, int64_t n0,
                  int64_t rows, int64_t cols);
bool store_turned_avx512(const MatmulProblem& p, const float* tile, int64_t ld, int64_t m0,
                         int64_t n0, int64_t rows, int64_t cols);

// Whether whole tiles go to C past the caches: it is large, and only written.
bool streams_c(const MatmulProblem& p);

// One value of an f32, bf16 or f16 array, as float.
inline float value_at(const void* data, DType dtype, int64_t i) {
  if (dtype == DType::f32) return static_cast<const float*>(data)[i];
  if (dtype == DType::bf16) return to_f32(static_cast<const bf16*>(data)[i]);
  return to_f32(static_cast<const f16*>(data)[i]);
}

// The plain triple loop: truth for the other kernels, and a path for any machine. Needs no scratch.
void matmul_reference(const MatmulProblem& p, int threads);

// The packed, blocked product around a tile kernel.
// Enough for every layout of A.
int64_t blocked_scratch_bytes(int64_t M, int64_t N, int64_t K, bool b_packed,
                              const TileKernel& kernel, int threads);
void matmul_blocked(const MatmulProblem& p, const TileKernel& kernel, void* scratch, int threads);

// All of B as the panels that the kernel reads: panel after panel, each over all units of K.
int64_t packed_bytes(int64_t K, int64_t N, const TileKernel& kernel);
void pack_whole(void* out, const MatrixView& b, int64_t K, int64_t N, const TileKernel& kernel,
                int threads);

}  // namespace snug::blas
