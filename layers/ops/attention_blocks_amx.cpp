// The products of attention on tile-matrix units. The layouts in scratch are already those of
// tiles: a row of A holds neighbours along the sum, a row of B two of them for each of 16 columns.
// The rest is that of the other form with pairs.
#include "engine/blas/amx_tiles.h"
#include "layers/ops/attention_blocks.h"

namespace snug {
namespace {

constexpr int64_t kTile = 16;  // rows, and units of a row

// C, of one or two tiles by one or two, stays in tiles over K: with two by two, every tile of A and
// of B that is loaded takes part in two products.
template <class Tiles, bool kTall, bool kWide>
void product_tiles(float* c, int64_t ldc, const float* a, int64_t lda, const float* b, int64_t ldb,
                   int64_t K, bool add) {
  const int64_t c_row = 4 * ldc, a_row = 4 * lda, b_row = 4 * ldb;
  float* below = c + kTile * ldc;
  if (add) {
    Tiles::template load<0>(c, c_row);
    if (kWide) Tiles::template load<1>(c + kTile, c_row);
    if (kTall) Tiles::template load<2>(below, c_row);
    if (kTall && kWide) Tiles::template load<3>(below + kTile, c_row);
  } else {
    Tiles::template zero<0>();
    if (kWide) Tiles::template zero<1>();
    if (kTall) Tiles::template zero<2>();
    if (kTall && kWide) Tiles::template zero<3>();
  }
  for (int64_t k = 0; k < K; k += kTile) {
    Tiles::template load<4>(a + k, a_row);
    Tiles::template load<6>(b + k * ldb, b_row);
    Tiles::template multiply<0, 4, 6>();
    if (kWide) {
      Tiles::template load<7>(b + k * ldb + kTile, b_row);
      Tiles::template multiply<1, 4, 7>();
    }
    if (kTall) {
      Tiles::template load<5>(a + kTile * lda + k, a_row);
      Tiles::template multiply<2, 5, 6>();
      if (kWide) Tiles::template multiply<3, 5, 7>();
    }
  }
  Tiles::template store<0>(c, c_row);
  if (kWide) Tiles::template store<1>(c + kTile, c_row);
  if (kTall) Tiles::template store<2>(below, c_row);
  if (kTall && kWide) Tiles::template store<3>(below + kTile, c_row);
}

template <class Tiles>
void product(float* c, int64_t ldc, const float* a, int64_t a_row, int64_t /*a_col*/,
             const float* b, int64_t ldb, int64_t M, int64_t N, int64_t K, bool add) {
  for (int64_t n = 0; n < N; n += 2 * kTile)
    for (int64_t m = 0; m < M; m += 2 * kTile) {
      const bool tall = m + kTile < M, wide = n + kTile < N;
      const auto run =
          tall ? (wide ? product_tiles<Tiles, true, true> : product_tiles<Tiles, true, false>)
               : (wide ? product_tiles<Tiles, false, true> : product_tiles<Tiles, false, false>);
      run(c + m * ldc + n, ldc, a + m * a_row, a_row, b + n, ldb, K, add);
    }
}

template <class Tiles>
AttentionBlocks blocks_over(const char* name) {
  AttentionBlocks blocks = attention_blocks_avx512_bf16();
  blocks.name = name;
  blocks.step = kTile;
  blocks.enter = Tiles::configure;
  blocks.leave = Tiles::release;
  blocks.product = product<Tiles>;
  return blocks;
}

}  // namespace

const AttentionBlocks& attention_blocks_amx() {
  static const AttentionBlocks blocks = blocks_over<blas::HardwareTiles>("amx_bf16");
  return blocks;
}

const AttentionBlocks& attention_blocks_amx_emulated() {
  static const AttentionBlocks blocks = blocks_over<blas::SoftwareTiles>("amx_bf16_emulated");
  return blocks;
}

bool attention_blocks_has_amx() {
  static const bool has = attention_blocks_has_avx512_bf16() && blas::amx_bf16_available();
  return has;
}

}  // namespace snug
