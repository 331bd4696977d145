// Attention of 16-bit values on tensor cores: what the forward and backward kernels share.
//
// A warp has 16 rows of the scores for itself, from the first product to the last sum: no other
// warp takes part in a row, so the size of a block shows in no bit. Its scores and sums stay in
// registers in the layout of engine/simt/mma.h; with g = lane / 4 and t = lane % 4 a lane has of
// every eight columns 2 t and the next, in the rows g and g + 8.
//
// Tiles in shared memory have rows of kColumns values (D padded with zeros) and 16 bytes more, an
// odd multiple of 16 bytes: the eight rows of a matrix that ldmatrix reads together, and the eight
// rows g that lanes write pairs to, are in different banks.
#pragma once

#include "engine/core/error.h"
#include "engine/simt/copies.h"
#include "engine/simt/mma.h"
#include "layers/ops/attention_tiles.h"

namespace snug {

inline constexpr int kWarpRows = 16;
inline constexpr int kMostThreads = 128;  // of a block

// Where the queries, keys and values of a forward pass lie; keys and values of head 0. Rows of a
// query are those of qkv.
struct AttentionRows {
  View qkv, out, lse;  // lse may be undefined
  const void *k, *v;
  int64_t kv_row, kv_tokens;  // values from a key to the next, keys of a sequence
  const StepState* position;  // of query 0 among the keys; null: 0
};

// The launchers for attention_simt.h; V is bf16 or f16.
template <class V, class Queue>
void attention_forward_mma(Queue& queue, const char* name, const AttentionRows& rows, int64_t B,
                           const AttentionSpec& spec, const AttentionProblem& p, int threads);
template <class V, class Queue>
void attention_backward_mma(Queue& queue, const View& dqkv, const View& delta, const View& dout,
                            const View& qkv, const View& lse, int64_t B, const AttentionSpec& spec,
                            const AttentionProblem& p, int threads);

// What callers who do not say get: 64 scores a thread in float, and on tensor cores warps enough to
// share the tiles of keys, few enough for the registers.
template <class V>
int threads_of_block(int threads) {
  if (threads > 0) return threads;
  return std::is_same_v<V, float> ? 64 : 128;
}

// D padded to what kernels are compiled for.
template <class F>
void with_columns(int64_t D, F&& f) {
  if (D <= 32)
    f(std::integral_constant<int, 32>{});
  else if (D <= 64)
    f(std::integral_constant<int, 64>{});
  else if (D <= 128)
    f(std::integral_constant<int, 128>{});
  else if (D <= 256)
    f(std::integral_constant<int, 256>{});
  else
    require(false, "heads of at most 256 values, as attention_check has it");
}

// What a kernel is compiled for: nothing more; dropout; documents kept apart without causal;
// soft-capped scores. The last two drop too where they are asked to.
enum class AttentionMode { plain, dropping, both_ways, capped };

// f(the mode).
template <class F>
void with_mode(const AttentionProblem& p, F&& f) {
  if (p.ends)
    f(std::integral_constant<AttentionMode, AttentionMode::both_ways>{});
  else if (p.softcap > 0)
    f(std::integral_constant<AttentionMode, AttentionMode::capped>{});
  else if (p.state)
    f(std::integral_constant<AttentionMode, AttentionMode::dropping>{});
  else
    f(std::integral_constant<AttentionMode, AttentionMode::plain>{});
}

// Tiles of what a block goes over that are in shared memory: the next one comes while one is used.
// Of the widest heads one alone, so that a block fits the 99 KiB of compute capability 8.6 and 8.9.
template <int kColumns>
inline constexpr int kStages = kColumns > 128 ? 1 : 2;

// From one row of a tile in shared memory to the next.
template <int kColumns>
inline constexpr int kTileRow = kColumns + 8;

inline constexpr float kLog2E = 1.44269504088896341f, kLn2 = 0.693147180559945309f;

inline namespace SIMT_SIDE {

__device__ inline int at_most(int64_t n, int most) {
  return static_cast<int>(n < most ? n : most);
}
__device__ inline int clamped(int64_t n, int most) {
  return n < 0 ? 0 : at_most(n, most);
}

// Tells the compiler which kernel this is. Documents without causal have kernels of their own: ends
// that are read where others are counted would take forward and dq of D = 64 from four and three
// blocks on a multiprocessor to three and two, whatever the mode.
template <AttentionMode kMode>
__device__ inline void know_mode(AttentionProblem& p) {
  if constexpr (kMode != AttentionMode::capped) p.softcap = 0.0f;
  if constexpr (kMode == AttentionMode::plain) p.state = nullptr;
  if constexpr (kMode == AttentionMode::both_ways) {
    p.causal = false;
    p.window = 0;
    p.key_lengths = nullptr;
  } else {
    p.ends = nullptr;
  }
}

// The keys that query r of the tile sees: from `first` to before `end`.
struct KeyRange {
  int64_t first, end;
};
__device__ inline KeyRange keys_of_row(const TilePlace& at, int r, const AttentionProblem& p) {
  if (r >= at.queries) return {0, 0};
  const int64_t i = at.q0 + r;
  return {first_key(p, at.b, i), end_of_keys(p, at, i)};
}

// Dropout of the lane's keys in the eight columns n: bit 2 t + i of bits[0] says whether column
// 2 t + i is kept in row g, that of bits[1] in row g + 8; `mine` is row g of the tile. Eight keys
// are drawn at once and four lanes have them, so for each two neighbouring n a lane draws for one
// row of one of them, and they trade. All lanes of the warp call. The draws of a tile are made
// before they are used, in a loop that stays one, and what their upper halves leave open is settled
// after them: woven into the products, forward and dq of D = 64 take 217 and 230 registers a thread
// on sm_90, which is two blocks on a multiprocessor, and this way 125 and 167: four and three.
struct KeptKeys {
  uint32_t bits[2];
};
template <int kN>
class KeyDraws {
 public:
  static_assert(kN % 2 == 0 && kN <= 8);

  __device__ void draw(const MaskKey& key, const TilePlace& at, int mine,
                       const AttentionProblem& p) {
    const int t = simt::lane() % 4;
    const int64_t query = at.q0 + mine + t % 2 * 8;
    const int64_t block = at.h * (int64_t{1} << 17) + at.k0 / 8 + t / 2;
    uint32_t open = 0;
    drawn_ = 0;
#pragma unroll 1
    for (int n = 0; n < kN; n += 2) {
      const UpperBits bits = upper_eight(key, at.b, query, block + n, p.mask.threshold);
      drawn_ |= bits.kept << (4 * n);
      open |= bits.open << (4 * n);
    }
    if (open == 0) return;
#pragma unroll 1
    for (int n = 0; n < kN; n += 2)
      drawn_ &= ~(open & below_eight(key, at.b, query, block + n, p.mask.threshold) << (4 * n));
  }
  __device__ KeptKeys kept(int n) const {
    const int t = simt::lane() % 4, first = simt::lane() - t + n % 2 * 2, shift = n / 2 * 8;
    return {{simt::shuffle(drawn_, first) >> shift, simt::shuffle(drawn_, first + 1) >> shift}};
  }

 private:
  uint32_t drawn_ = 0;  // eight bits for every two n
};

// Begins to[r][c] = from[r row_stride + c] for r < valid and c < D, else 0 (engine/simt/copies.h).
// All threads of the block.
template <int kColumns, class V>
__device__ inline void begin_tile(const Shared<V>& to, const V* from, int64_t row_stride, int valid,
                                  int rows, const AttentionProblem& p) {
  constexpr int kPiece = simt::kVector<V>, kPieces = kColumns / kPiece;
  if (p.wide) {
    // Unrolled, its addresses would take the registers of the sums.
#pragma unroll 1
    for (int i = simt::thread(); i < rows * kPieces; i += simt::threads()) {
      const int r = i / kPieces, c = i % kPieces * kPiece;
      simt::copy_vector(to, r * kTileRow<kColumns> + c, from + r * row_stride + c,
                        r < valid && c < p.width);
    }
    return;
  }
#pragma unroll 1
  for (int i = simt::thread(); i < rows * kColumns; i += simt::threads()) {
    const int r = i / kColumns, c = i % kColumns;
    to[r * kTileRow<kColumns> + c] =
        r < valid && c < p.width ? from[r * row_stride + c] : from_f32<V>(0.0f);
  }
}

// The 16 rows of this warp as first operands, 16 columns each: in registers while they are few,
// else loaded anew for every product.
template <int kColumns, class V>
struct WarpRows {
  static constexpr bool kHeld = kColumns <= 64;

  __device__ explicit WarpRows(const Shared<V>& tile)
      : rows(tile.part(simt::warp() * kWarpRows * kTileRow<kColumns>)) {}
  __device__ void hold() {
    if constexpr (kHeld)
#pragma unroll
      for (int k = 0; k < kColumns / 16; ++k) load(held[k], k);
  }
  __device__ void load(uint32_t (&a)[4], int k) const {
    simt::load_matrices(a, rows,
                        simt::lane() % 16 * kTileRow<kColumns> + simt::lane() / 16 * 8 + 16 * k);
  }

  Shared<V> rows;
  uint32_t held[kHeld ? kColumns / 16 : 1][4];
};

// s = the rows of the warp times the first 8 kN rows of `other`, transposed.
template <int kColumns, int kN, class V>
__device__ inline void products(float (&s)[kN][4], const WarpRows<kColumns, V>& mine,
                                const Shared<V>& other) {
  const int first =
      (simt::lane() % 8 + simt::lane() / 16 * 8) * kTileRow<kColumns> + simt::lane() / 8 % 2 * 8;
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = 0.0f;
#pragma unroll
  for (int k = 0; k < kColumns / 16; ++k) {
    uint32_t a[4];
    if constexpr (WarpRows<kColumns, V>::kHeld) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = mine.held[k][i];
    } else {
      mine.load(a, k);
    }
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t b[4];
      simt::load_matrices(b, other, first + n * 8 * kTileRow<kColumns> + 16 * k);
      simt::mma<V>(s[n], a, {b[0], b[1]});
      simt::mma<V>(s[n + 1], a, {b[2], b[3]});
    }
  }
}

// sums += w times the first 8 kN rows of x, its columns from `first` on; w is rounded to V.
template <int kColumns, int kN, int kOut, class V>
__device__ inline void add_weighted(float (&sums)[kOut][4], const float (&w)[kN][4],
                                    const Shared<V>& x, int first = 0) {
  const int at = simt::lane() % 16 * kTileRow<kColumns> + simt::lane() / 16 * 8 + first;
#pragma unroll
  for (int k = 0; k < kN; k += 2) {
    const uint32_t a[4] = {
        simt::pack_pair<V>(w[k][0], w[k][1]), simt::pack_pair<V>(w[k][2], w[k][3]),
        simt::pack_pair<V>(w[k + 1][0], w[k + 1][1]), simt::pack_pair<V>(w[k + 1][2], w[k + 1][3])};
#pragma unroll
    for (int n = 0; n < kOut; n += 2) {
      uint32_t b[4];
      simt::load_matrices_transposed(b, x, at + k * 8 * kTileRow<kColumns> + n * 8);
      simt::mma<V>(sums[n], a, {b[0], b[1]});
      simt::mma<V>(sums[n + 1], a, {b[2], b[3]});
    }
  }
}

template <int kN>
__device__ inline void clear(float (&sums)[kN][4]) {
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n][i] = 0.0f;
}

// to[r row_stride + first + c] = sums of the warp, times factor[0] in the rows g and factor[1] in
// g + 8, for the rows below `valid`. Goes through the warp's own rows of a tile, which nobody else
// reads and this warp is done with, so that memory is written 16 bytes at a time.
template <int kColumns, int kOut, class V>
__device__ inline void store_sums(V* to, int64_t row_stride, const WarpRows<kColumns, V>& mine,
                                  const float (&sums)[kOut][4], float factor_g, float factor_g8,
                                  int first, int valid, const AttentionProblem& p) {
  constexpr int kPiece = simt::kVector<V>, kPieces = kOut * 8 / kPiece, kRow = kTileRow<kColumns>;
  const int g = simt::lane() / 4, t = simt::lane() % 4;
  simt::sync_warp();
#pragma unroll
  for (int n = 0; n < kOut; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float factor = half == 0 ? factor_g : factor_g8;
      const Pack<V, 2> pair{
          {from_f32<V>(sums[n][2 * half] * factor), from_f32<V>(sums[n][2 * half + 1] * factor)}};
      pair.store(mine.rows, (g + 8 * half) * kRow + first + n * 8 + 2 * t);
    }
  simt::sync_warp();
  if (p.wide) {
    for (int i = simt::lane(); i < kWarpRows * kPieces; i += simt::kWarp) {
      const int r = i / kPieces, c = first + i % kPieces * kPiece;
      if (r < valid && c < p.width)
        Pack<V, kPiece>::load(mine.rows, r * kRow + c).store(to + r * row_stride + c);
    }
    return;
  }
  for (int i = simt::lane(); i < kWarpRows * kOut * 8; i += simt::kWarp) {
    const int r = i / (kOut * 8), c = first + i % (kOut * 8);
    if (r < valid && c < p.width) to[r * row_stride + c] = mine.rows[r * kRow + c];
  }
}

}  // namespace SIMT_SIDE
}  // namespace snug
