// The products of attention on tile-matrix units. The layouts in scratch are already those of
// tiles: a row of A holds neighbours along the sum, a row of B two of them for each of 16 columns.
// The rest is that of the other form with pairs.
#include "engine/blas/amx_tiles.h"
#include "layers/ops/attention_blocks.h"
#include "layers/ops/attention_fused.h"

namespace snug {
namespace {

constexpr int64_t kTile = 16;  // rows, and units of a row

// Sums of one or two by one or two tiles, in tiles 0 to 3; operands in 4 to 7. The sums are loaded
// and stored once, whatever is summed over: where that is short, it takes as long as the products.
template <class Tiles, bool kTall, bool kWide>
void product_piece(float* c, int64_t ldc, const float* a, int64_t lda, const float* b, int64_t ldb,
                   const BlocksOfSum& sum, bool add) {
  float* below = c + kTile * ldc;
  if (add) {
    Tiles::template load<0>(c, 4 * ldc);
    if (kWide) Tiles::template load<1>(c + kTile, 4 * ldc);
    if (kTall) Tiles::template load<2>(below, 4 * ldc);
    if (kTall && kWide) Tiles::template load<3>(below + kTile, 4 * ldc);
  } else {
    Tiles::template zero<0>();
    if (kWide) Tiles::template zero<1>();
    if (kTall) Tiles::template zero<2>();
    if (kTall && kWide) Tiles::template zero<3>();
  }
  for (int64_t n = 0; n < sum.blocks; ++n, a += sum.a_step, b += sum.b_step) {
    const int64_t K = n + 1 < sum.blocks ? sum.each : sum.last;
    for (int64_t k = 0; k < K; k += kTile) {
      Tiles::template load<4>(a + k, 4 * lda);
      Tiles::template load<6>(b + k * ldb, 4 * ldb);
      Tiles::template multiply<0, 4, 6>();
      if (kWide) {
        Tiles::template load<7>(b + k * ldb + kTile, 4 * ldb);
        Tiles::template multiply<1, 4, 7>();
      }
      if (kTall) {
        Tiles::template load<5>(a + k + kTile * lda, 4 * lda);
        Tiles::template multiply<2, 5, 6>();
        if (kWide) Tiles::template multiply<3, 5, 7>();
      }
    }
  }
  Tiles::template store<0>(c, 4 * ldc);
  if (kWide) Tiles::template store<1>(c + kTile, 4 * ldc);
  if (kTall) Tiles::template store<2>(below, 4 * ldc);
  if (kTall && kWide) Tiles::template store<3>(below + kTile, 4 * ldc);
}

template <class Tiles>
void product_of_blocks(float* c, int64_t ldc, const float* a, int64_t lda, const float* b,
                       int64_t ldb, int64_t M, int64_t N, const BlocksOfSum& sum, bool add) {
  for (int64_t n = 0; n < N; n += 2 * kTile) {
    const bool wide = n + kTile < N;
    const auto two = wide ? product_piece<Tiles, true, true> : product_piece<Tiles, true, false>;
    const auto one = wide ? product_piece<Tiles, false, true> : product_piece<Tiles, false, false>;
    for (int64_t m = 0; m < M; m += 2 * kTile)
      (m + kTile < M ? two : one)(c + m * ldc + n, ldc, a + m * lda, lda, b + n, ldb, sum, add);
  }
}

template <class Tiles>
void product(float* c, int64_t ldc, const float* a, int64_t a_row, int64_t /*a_col*/,
             const float* b, int64_t ldb, int64_t M, int64_t N, int64_t K, bool add) {
  product_of_blocks<Tiles>(c, ldc, a, a_row, b, ldb, M, N, {1, 0, 0, K, K}, add);
}

template <class Tiles>
AttentionBlocks blocks_over(const char* name, const AttentionFused& fused) {
  AttentionBlocks blocks = attention_blocks_avx512_bf16();
  blocks.name = name;
  blocks.step = kTile;
  blocks.enter = Tiles::configure;
  blocks.leave = Tiles::release;
  blocks.product = product<Tiles>;
  blocks.product_of_blocks = product_of_blocks<Tiles>;
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
