// AMX tile: 32 x 32 sums in four tiles, two tiles of A, two of B. A step is 32 of k: four loads of
// 1 KiB, four TDPBF16PS of 16 cycles each, so both loads and products keep up from L1.
#include <immintrin.h>

#include "engine/blas/amx_tiles.h"
#include "engine/blas/matmul_tile.h"

// A step takes 4 KiB in 64 cycles, the whole bandwidth of L2; so B comes in pieces of up to 32 KiB
// that stay in L1 while all tiles of a chunk use them, and A alone comes from L2, a chunk of up to
// 0.9 of its 2 MiB: the more rows, the fewer times B is read from L3, at 29 GB/s a core. A and the
// sums are loaded past L1 (load_once), where they would take the place of half the piece. The next
// piece of B is asked for on the way, two lines a step: all at once, they wait for the 16 places
// that a core has for lines under way.
namespace snug::blas {
namespace {

constexpr int64_t kStep = 16;                 // units: 32 bf16 of k
constexpr int64_t kHalf = 16 * kMaxTileCols;  // floats of the upper half of the sums
constexpr int64_t kSumLines = 4 * kHalf * 2 / 64;
constexpr int64_t kSumStride = 4 * kMaxTileCols, kBStride = 4 * kMaxTileCols, kAStride = 4 * kStep;

// `kTall`: 17 to 32 rows, else up to 16. Missing rows are zeros in A and computed all the same.
template <class Tiles, bool kTall>
void run(int64_t units, const float* a, const float* b, float* tile, bool start, const Soon& soon) {
  if (start) {
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    if (kTall) Tiles::template zero<2>();
    if (kTall) Tiles::template zero<3>();
  } else {
    Tiles::template load_once<0>(tile, kSumStride);
    Tiles::template load_once<1>(tile + 16, kSumStride);
    if (kTall) Tiles::template load_once<2>(tile + kHalf, kSumStride);
    if (kTall) Tiles::template load_once<3>(tile + kHalf + 16, kSumStride);
  }
  const int64_t steps = units / kStep;
  const int64_t b_step = (soon.b_lines + steps - 1) / steps;
  const int64_t c_step = soon.c == nullptr ? 0 : (soon.c_rows + steps - 1) / steps;
  const int64_t sum_step = soon.waiting == nullptr ? 0 : (kSumLines + steps - 1) / steps;
  const float *next = soon.b, *sums = soon.waiting;
  int64_t c_row = 0;
  for (int64_t u = 0; u < units; u += kStep) {
    for (int64_t i = 0; i < b_step; ++i, next += 16) _mm_prefetch(next, _MM_HINT_T1);
    for (int64_t i = 0; i < sum_step; ++i, sums += 16) _mm_prefetch(sums, _MM_HINT_T1);
    for (int64_t i = 0; i < c_step && c_row < soon.c_rows; ++i, ++c_row)
      for (int64_t at = 0; at < soon.c_bytes; at += 64)
        _mm_prefetch(soon.c + c_row * soon.c_stride + at, _MM_HINT_T0);
    Tiles::template load_once<4>(a, kAStride);
    Tiles::template load<6>(b, kBStride);
    Tiles::template load<7>(b + 16, kBStride);
    Tiles::template multiply<0, 4, 6>();
    Tiles::template multiply<1, 4, 7>();
    if (kTall) {
      Tiles::template load_once<5>(a + 16 * kStep, kAStride);
      Tiles::template multiply<2, 5, 6>();
      Tiles::template multiply<3, 5, 7>();
    }
    a += (kTall ? 32 : 16) * kStep;
    b += kStep * kMaxTileCols;
  }
  Tiles::template store<0>(tile, kSumStride);
  Tiles::template store<1>(tile + 16, kSumStride);
  if (kTall) Tiles::template store<2>(tile + kHalf, kSumStride);
  if (kTall) Tiles::template store<3>(tile + kHalf + 16, kSumStride);
}

template <class Tiles>
struct Runs {
  TileRun run_for[32];
  constexpr Runs() : run_for{} {
    for (int r = 0; r < 32; ++r) run_for[r] = r < 16 ? run<Tiles, false> : run<Tiles, true>;
  }
};
template <class Tiles>
constexpr Runs<Tiles> kRuns;

template <class Tiles>
constexpr TileKernel kKernel{.rows = 32,
                             .cols = 32,
                             .pairs = true,
                             .run = kRuns<Tiles>.run_for,
                             .step = kStep,
                             .row_step = 16,
                             .depth = 768,
                             .whole = 1536,
                             .whole_turned = 1536,
                             .chunk = 240 * 1024,
                             .chunk_rows = kMaxChunkRows,
                             .near = 256,
                             .asks = true,
                             .enter = Tiles::configure,
                             .leave = Tiles::release};

}  // namespace

const TileKernel& amx_bf16_tile_kernel() {
  return kKernel<HardwareTiles>;
}
const TileKernel& amx_bf16_emulated_tile_kernel() {
  return kKernel<SoftwareTiles>;
}

}  // namespace snug::blas
