// AMX tile: 32 x 32 sums in four tiles, two tiles of A, two of B. A step is 32 of k: four loads of
// 1 KiB, four TDPBF16PS of 16 cycles each, so both loads and products keep up from L1.
#include <immintrin.h>

#include <algorithm>

#include "engine/blas/amx_tiles.h"
#include "engine/blas/matmul_tile.h"

// A step takes 4 KiB in 64 cycles, the whole bandwidth of L2; so B comes in pieces of up to 32 KiB
// that stay in L1 while all tiles of a chunk use them, and A alone comes from L2, a chunk of 768
// KiB: the more rows, the fewer times B is read from L3, at 29 GB/s a core, but sums that wait and
// lines on their way want their part of L2 too. A and the sums are loaded past L1 (load_once),
// where they would take the place of half the piece. The next piece of B is asked for on the way,
// two lines a step: all at once, they wait for the 16 places that a core has for lines under way.
namespace snug::blas {
namespace {

constexpr int64_t kStep = 16;                 // units: 32 bf16 of k
constexpr int64_t kHalf = 16 * kMaxTileCols;  // floats of the upper half of the sums
constexpr int64_t kSumLines = 4 * kHalf * 2 / 64;
// Steps after which what was put away can be read without waiting.
constexpr int64_t kSettled = 4;
constexpr int64_t kSumStride = 4 * kMaxTileCols, kBStride = 4 * kMaxTileCols, kAStride = 4 * kStep;

// What a tile asks for on the way, spread over `steps`.
class Asking {
 public:
  Asking(const Soon& soon, const float* place, int64_t steps)
      : b_(soon.b),
        place_(place),
        sums_(soon.waiting),
        soon_(soon),
        b_step_(per_step(soon.b_lines, steps)),
        place_step_(place == nullptr ? 0 : per_step(kSumLines, steps)),
        sum_step_(soon.waiting == nullptr ? 0 : per_step(kSumLines, steps)),
        c_step_(soon.c == nullptr ? 0 : per_step(soon.c_rows, steps)) {}
  void step() {
    for (int64_t i = 0; i < place_step_; ++i, place_ += 16) _mm_prefetch(place_, _MM_HINT_T0);
    for (int64_t i = 0; i < b_step_; ++i, b_ += 16) _mm_prefetch(b_, _MM_HINT_T1);
    for (int64_t i = 0; i < sum_step_; ++i, sums_ += 16) _mm_prefetch(sums_, _MM_HINT_T1);
    for (int64_t i = 0; i < c_step_ && c_row_ < soon_.c_rows; ++i, ++c_row_)
      for (int64_t at = 0; at < soon_.c_bytes; at += 64)
        _mm_prefetch(soon_.c + c_row_ * soon_.c_stride + at, _MM_HINT_T1);
  }

 private:
  static int64_t per_step(int64_t items, int64_t steps) { return (items + steps - 1) / steps; }
  const float *b_, *place_, *sums_;
  const Soon& soon_;
  int64_t b_step_, place_step_, sum_step_, c_step_, c_row_ = 0;
};

template <class Tiles, int kTile>
void begin(const float* sums, bool start) {
  if (start)
    Tiles::template zero<kTile>();
  else
    Tiles::template load_once<kTile>(sums, kSumStride);
}
// Tile kTile of the four is put away, and that of the next sums begun.
template <class Tiles, int kTile>
void turn(float* sums, const float* next, bool start) {
  constexpr int64_t kAt = kTile / 2 * kHalf + kTile % 2 * 16;
  Tiles::template store<kTile>(sums + kAt, kSumStride);
  begin<Tiles, kTile>(next + kAt, start);
}

template <class Tiles, bool kTall>
void step(const float* a, const float* b) {
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
}

// `kTall`: 17 to 32 rows, else up to 16. Missing rows are zeros in A and computed all the same.
template <class Tiles, bool kTall>
void run(int64_t units, const float* a, const float* b, float* tile, bool start, const Soon& soon) {
  begin<Tiles, 0>(tile, start);
  begin<Tiles, 1>(tile + 16, start);
  if (kTall) begin<Tiles, 2>(tile + kHalf, start);
  if (kTall) begin<Tiles, 3>(tile + kHalf + 16, start);
  Asking asking(soon, nullptr, units / kStep);
  for (int64_t u = 0; u < units; u += kStep) {
    asking.step();
    step<Tiles, kTall>(a, b);
    a += (kTall ? 32 : 16) * kStep;
    b += kStep * kMaxTileCols;
  }
  Tiles::template store<0>(tile, kSumStride);
  Tiles::template store<1>(tile + 16, kSumStride);
  if (kTall) Tiles::template store<2>(tile + kHalf, kSumStride);
  if (kTall) Tiles::template store<3>(tile + kHalf + 16, kSumStride);
}

// The last step of one tile and the first of the next are woven: sums are put away and begun one by
// one while products of the others go on, and the unit never waits for all four. The sums of the
// next tile are asked for into L1 a tile ahead, where they will be loaded or only stored.
template <class Tiles>
void run_column(const TileColumn& c) {
  constexpr int64_t kA = 32 * kStep, kB = kStep * kMaxTileCols;
  const int64_t steps = c.units / kStep;
  const float *a = c.a, *b = c.b;
  begin<Tiles, 0>(c.sums, c.start);
  begin<Tiles, 1>(c.sums + 16, c.start);
  begin<Tiles, 2>(c.sums + kHalf, c.start);
  begin<Tiles, 3>(c.sums + kHalf + 16, c.start);
  step<Tiles, true>(a, b);
  for (int64_t i = 0; i < c.tiles; ++i) {
    const bool more = i + 1 < c.tiles;
    float* sums = c.sums + i % c.ring * c.sums_step;
    float* next = c.sums + (i + 1) % c.ring * c.sums_step;
    Soon soon;
    c.ask(c.context, i, soon);
    Asking asking(soon, more ? next : nullptr, std::max<int64_t>(1, steps - 2));
    for (int64_t s = 2; s < steps; ++s) {
      a += kA;
      b += kB;
      asking.step();
      step<Tiles, true>(a, b);
      if (s == kSettled) c.under_way(c.context, i);
    }
    if (steps <= kSettled) c.under_way(c.context, i);
    a += kA;
    b += kB;
    if (!more) {
      step<Tiles, true>(a, b);
      Tiles::template store<0>(sums, kSumStride);
      Tiles::template store<1>(sums + 16, kSumStride);
      Tiles::template store<2>(sums + kHalf, kSumStride);
      Tiles::template store<3>(sums + kHalf + 16, kSumStride);
      return;
    }
    Tiles::template load_once<4>(a, kAStride);
    Tiles::template load<6>(b, kBStride);
    Tiles::template multiply<0, 4, 6>();
    Tiles::template load<7>(b + 16, kBStride);
    Tiles::template multiply<1, 4, 7>();
    Tiles::template load_once<5>(a + 16 * kStep, kAStride);
    a = c.a + (i + 1) * c.a_step;
    b = c.b;
    Tiles::template load_once<4>(a, kAStride);
    turn<Tiles, 0>(sums, next, c.start);
    Tiles::template multiply<2, 5, 6>();
    Tiles::template load<6>(b, kBStride);
    turn<Tiles, 1>(sums, next, c.start);
    Tiles::template multiply<3, 5, 7>();
    Tiles::template load<7>(b + 16, kBStride);
    Tiles::template multiply<0, 4, 6>();
    turn<Tiles, 2>(sums, next, c.start);
    Tiles::template load_once<5>(a + 16 * kStep, kAStride);
    Tiles::template multiply<1, 4, 7>();
    turn<Tiles, 3>(sums, next, c.start);
    Tiles::template multiply<2, 5, 6>();
    Tiles::template multiply<3, 5, 7>();
  }
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
                             .depth = 512,
                             .whole = 512,
                             .whole_turned = 512,
                             .chunk = 192 * 1024,
                             .chunk_rows = kMaxChunkRows,
                             .near = 256,
                             .copies_b = true,
                             .shallow = 384,
                             .asks = true,
                             .column = run_column<Tiles>,
                             .column_units = 2 * kStep,
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
