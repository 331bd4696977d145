// The products of attention on tile-matrix units. The layouts in scratch are already those of
// tiles: a row of A holds neighbours along the sum, a row of B two of them for each of 16 columns.
// The rest is that of the other form with pairs.
#include "engine/blas/amx_tiles.h"
#include "layers/ops/attention_blocks.h"
#include "layers/ops/attention_fused.h"

namespace snug {
namespace {

constexpr int64_t kTile = 16;  // rows, and units of a row

// Sums of 16 rows by one or two tiles of columns, in tiles kFirst and kFirst + 1.
template <class Tiles, int kFirst, bool kWide>
void begin(const float* c, int64_t ldc, bool add) {
  if (add) {
    Tiles::template load<kFirst>(c, 4 * ldc);
    if (kWide) Tiles::template load<kFirst + 1>(c + kTile, 4 * ldc);
  } else {
    Tiles::template zero<kFirst>();
    if (kWide) Tiles::template zero<kFirst + 1>();
  }
}

template <class Tiles, int kFirst, bool kWide>
void multiply(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t K) {
  for (int64_t k = 0; k < K; k += kTile) {
    Tiles::template load<4>(a + k, 4 * lda);
    Tiles::template load<6>(b + k * ldb, 4 * ldb);
    Tiles::template multiply<kFirst, 4, 6>();
    if (kWide) {
      Tiles::template load<7>(b + k * ldb + kTile, 4 * ldb);
      Tiles::template multiply<kFirst + 1, 4, 7>();
    }
  }
}

template <class Tiles, int kFirst, bool kWide>
void end(float* c, int64_t ldc) {
  Tiles::template store<kFirst>(c, 4 * ldc);
  if (kWide) Tiles::template store<kFirst + 1>(c + kTile, 4 * ldc);
}

// Two sets of sums in turn: K is short, so that beginning and ending take as long as the products,
// and one set does so while the other is multiplied.
template <class Tiles, bool kWide>
void product_columns(float* c, int64_t ldc, const float* a, int64_t lda, const float* b,
                     int64_t ldb, int64_t M, int64_t K, bool add) {
  const int64_t c_step = kTile * ldc, a_step = kTile * lda;
  begin<Tiles, 0, kWide>(c, ldc, add);
  for (int64_t m = 0; m < M; m += 2 * kTile, c += 2 * c_step, a += 2 * a_step) {
    const bool second = m + kTile < M, third = m + 2 * kTile < M;
    multiply<Tiles, 0, kWide>(a, lda, b, ldb, K);
    if (second) begin<Tiles, 2, kWide>(c + c_step, ldc, add);
    end<Tiles, 0, kWide>(c, ldc);
    if (!second) return;
    multiply<Tiles, 2, kWide>(a + a_step, lda, b, ldb, K);
    if (third) begin<Tiles, 0, kWide>(c + 2 * c_step, ldc, add);
    end<Tiles, 2, kWide>(c + c_step, ldc);
  }
}

template <class Tiles>
void product(float* c, int64_t ldc, const float* a, int64_t a_row, int64_t /*a_col*/,
             const float* b, int64_t ldb, int64_t M, int64_t N, int64_t K, bool add) {
  for (int64_t n = 0; n < N; n += 2 * kTile) {
    const auto run = n + kTile < N ? product_columns<Tiles, true> : product_columns<Tiles, false>;
    run(c + n, ldc, a, a_row, b + n, ldb, M, K, add);
  }
}

template <class Tiles>
AttentionBlocks blocks_over(const char* name, const AttentionFused& fused) {
  AttentionBlocks blocks = attention_blocks_avx512_bf16();
  blocks.name = name;
  blocks.step = kTile;
  blocks.enter = Tiles::configure;
  blocks.leave = Tiles::release;
  blocks.product = product<Tiles>;
  blocks.fused = &fused;
  return blocks;
}

}  // namespace

const AttentionBlocks& attention_blocks_amx() {
  static const AttentionBlocks blocks =
      blocks_over<blas::HardwareTiles>("amx_bf16", attention_fused());
  return blocks;
}

const AttentionBlocks& attention_blocks_amx_emulated() {
  static const AttentionBlocks blocks =
      blocks_over<blas::SoftwareTiles>("amx_bf16_emulated", attention_fused_emulated());
  return blocks;
}

bool attention_blocks_has_amx() {
  static const bool has = attention_blocks_has_avx512_bf16() && blas::amx_bf16_available();
  return has;
}

}  // namespace snug
