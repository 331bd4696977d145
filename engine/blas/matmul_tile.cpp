#include "engine/blas/matmul_tile.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "engine/core/isa.h"

namespace snug::blas {
namespace {

// Stores one row of finished sums.
inline void round_row(const float* v, int64_t cols, float* c) {
  std::memcpy(c, v, static_cast<size_t>(cols) * sizeof(float));
}
inline void round_row(const float* v, int64_t cols, bf16* c) {
  for (int64_t j = 0; j < cols; ++j) c[j] = from_f32<bf16>(v[j]);
}
inline void round_row(const float* v, int64_t cols, f16* c) {
  int64_t j = 0;
  for (; j + 8 <= cols; j += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(c + j),
                     _mm256_cvtps_ph(_mm256_loadu_ps(v + j), _MM_FROUND_TO_NEAREST_INT));
  for (; j < cols; ++j) c[j] = from_f32<f16>(v[j]);
}

// Row i of finished values: alpha, bias and old C put on the sums.
template <class T>
inline void finish_row(const MatmulProblem& p, const float* sums, const float* bias, const T* c,
                       int64_t cols, float* v) {
  for (int64_t j = 0; j < cols; ++j) v[j] = p.alpha * sums[j];
  if (p.bias != nullptr)
    for (int64_t j = 0; j < cols; ++j) v[j] += bias[j];
  if (p.accumulate)
    for (int64_t j = 0; j < cols; ++j) v[j] += to_f32(c[j]);
}

template <class T>
void store(const MatmulProblem& p, const float* tile, int64_t ld, int64_t m0, int64_t n0,
           int64_t rows, int64_t cols) {
  float bias[kMaxTileCols] = {}, v[kMaxTileRows][kMaxTileCols];
  if (p.bias != nullptr)
    for (int64_t j = 0; j < cols; ++j) bias[j] = value_at(p.bias, p.bias_dtype, n0 + j);
  T* c = p.c == nullptr ? nullptr : static_cast<T*>(p.c) + m0 * p.ldc + n0;
  for (int64_t i = 0; i < rows; ++i, tile += ld) {
    float* row = p.finish.tile != nullptr ? v[i] : v[0];
    T* to = c == nullptr ? nullptr : c + i * p.ldc;
    finish_row(p, tile, bias, to, cols, row);
    if (p.finish.tile == nullptr) round_row(row, cols, to);
  }
  if (p.finish.tile != nullptr)
    p.finish.tile(p.finish.context, v[0], kMaxTileCols, m0, n0, rows, cols);
}

}  // namespace

void store_tile(const MatmulProblem& p, const float* tile, int64_t ld, int64_t m0, int64_t n0,
                int64_t rows, int64_t cols) {
  if (p.c_dtype == DType::f32)
    store<float>(p, tile, ld, m0, n0, rows, cols);
  else if (p.c_dtype == DType::bf16)
    store<bf16>(p, tile, ld, m0, n0, rows, cols);
  else
    store<f16>(p, tile, ld, m0, n0, rows, cols);
}

bool streams_c(const MatmulProblem& p) {
  constexpr int64_t kStream = 16 << 20;  // bytes of C
  const int64_t size = size_of(p.c_dtype);
  // A row of a tile must be whole lines: 32 columns with AVX-512, else 16.
  const bool lines = use_avx512() ? p.c_dtype != DType::f16 : p.c_dtype == DType::f32;
  return lines && !p.accumulate && p.finish.tile == nullptr && p.finish.rows == nullptr &&
         p.M * p.N * size >= kStream && p.ldc * size % 64 == 0 &&
         reinterpret_cast<uintptr_t>(p.c) % 64 == 0;
}

void store_turned(const MatmulProblem& p, const float* tile, int64_t ld, int64_t m0, int64_t n0,
                  int64_t rows, int64_t cols) {
  for (int64_t j = 0; j < cols; ++j) {
    float* to = static_cast<float*>(p.c) + (n0 + j) * p.ldc + m0;
    for (int64_t i = 0; i < rows; ++i) {
      const float v = p.alpha * tile[i * ld + j];
      to[i] = p.accumulate ? v + to[i] : v;
    }
  }
}

const TileKernel* tile_kernel(MatmulKernel kernel) {
  switch (kernel) {
    case MatmulKernel::avx2:
      return &avx2_tile_kernel();
    case MatmulKernel::avx512:
      return &avx512_tile_kernel();
    case MatmulKernel::avx512_bf16:
      return &avx512_bf16_tile_kernel();
    case MatmulKernel::amx_bf16:
      return &amx_bf16_tile_kernel();
    case MatmulKernel::amx_bf16_emulated:
      return &amx_bf16_emulated_tile_kernel();
    case MatmulKernel::reference:
    case MatmulKernel::cublaslt:
      return nullptr;
  }
  return nullptr;
}

void matmul_reference(const MatmulProblem& p, int threads) {
  const double work =
      static_cast<double>(p.M) * static_cast<double>(p.N) * static_cast<double>(p.K);
  [[maybe_unused]] const int team = work < 64e3 ? 1 : threads;
#pragma omp parallel for num_threads(team) schedule(static)
  for (int64_t m = 0; m < p.M; ++m)
    for (int64_t n0 = 0; n0 < p.N; n0 += kMaxTileCols) {
      const int64_t cols = std::min(kMaxTileCols, p.N - n0);
      float sum[kMaxTileCols];
      for (int64_t j = 0; j < cols; ++j) {
        sum[j] = 0;
        for (int64_t k = 0; k < p.K; ++k)
          sum[j] = __builtin_fmaf(
              value_at(p.a.data, p.a.dtype, m * p.a.row_stride + k * p.a.col_stride),
              value_at(p.b.data, p.b.dtype, k * p.b.row_stride + (n0 + j) * p.b.col_stride),
              sum[j]);
      }
      store_tile(p, sum, kMaxTileCols, m, n0, 1, cols);
      if (n0 + cols == p.N && p.finish.rows != nullptr) p.finish.rows(p.finish.context, m, 1);
    }
}

}  // namespace snug::blas
