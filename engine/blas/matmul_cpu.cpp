#include "engine/blas/matmul_cpu.h"

#include <string>

#include "engine/blas/amx_tiles.h"
#include "engine/blas/matmul_tile.h"
#include "engine/core/error.h"

namespace snug {
namespace {

bool is_float(DType t) {
  return t == DType::f32 || t == DType::bf16 || t == DType::f16;
}

// Kernels whose units are pairs of bf16, and so take nothing else.
bool takes_bf16_only(MatmulKernel kernel) {
  const blas::TileKernel* tiles = blas::tile_kernel(kernel);
  return tiles != nullptr && tiles->pairs;
}

std::string sizes(const MatmulProblem& p) {
  return "M=" + std::to_string(p.M) + " N=" + std::to_string(p.N) + " K=" + std::to_string(p.K);
}

std::string dtypes(DType a, DType b, DType c) {
  return std::string("A ") + to_string(a) + ", B " + to_string(b) + ", C " + to_string(c);
}

void check(const MatmulProblem& p, const void* scratch, MatmulKernel kernel, int threads) {
  if (p.M < 0 || p.N < 0 || p.K < 0)
    fail(ErrorCode::shape, "matrix product extents of zero or more", sizes(p),
         "pass the rows of A as M, the columns of B as N, the columns of A as K");
  if (threads < 1)
    fail(ErrorCode::usage, "at least one thread for a matrix product",
         "threads=" + std::to_string(threads), "set threads=1 or more");
  if (!is_float(p.a.dtype) || !is_float(p.b.dtype) || !is_float(p.c_dtype) ||
      (p.bias != nullptr && !is_float(p.bias_dtype)))
    fail(ErrorCode::unsupported, "matrix product operands of dtype f32, bf16 or f16",
         dtypes(p.a.dtype, p.b.dtype, p.c_dtype) + ", bias " + to_string(p.bias_dtype),
         "cast the operand first");
  if (p.M > 0 && p.N > 0 && p.ldc < p.N)
    fail(ErrorCode::shape, "ldc of at least N=" + std::to_string(p.N),
         "ldc=" + std::to_string(p.ldc), "pass the row stride of C in elements");
  if (!matmul_supports(p, kernel))
    fail(ErrorCode::unsupported,
         std::string("a matrix product that the kernel ") + to_string(kernel) +
             " takes on this machine",
         sizes(p) + ", " + dtypes(p.a.dtype, p.b.dtype, p.c_dtype) +
             (p.accumulate ? ", accumulate" : "") + (p.b_packed != nullptr ? ", B packed" : ""),
         "use the kernel that matmul_best names");
  if (p.M == 0 || p.N == 0) return;
  const bool wants_c = p.finish.tile == nullptr || p.accumulate;
  if ((wants_c && p.c == nullptr) ||
      (p.K > 0 && (p.a.data == nullptr || (p.b.data == nullptr && p.b_packed == nullptr))))
    fail(ErrorCode::shape, "data behind A, B and C of a matrix product with " + sizes(p),
         "a null pointer", "allocate the operand before the product");
  if (scratch == nullptr && matmul_scratch_bytes(p.M, p.N, p.K, p.a.dtype, p.b.dtype, p.c_dtype,
                                                 kernel, threads, p.b_packed != nullptr) > 0)
    fail(ErrorCode::shape, "scratch of matmul_scratch_bytes bytes", "a null pointer",
         "reserve the scratch before the product");
}

}  // namespace

const char* to_string(MatmulKernel kernel) {
  switch (kernel) {
    case MatmulKernel::reference:
      return "reference";
    case MatmulKernel::avx2:
      return "avx2";
    case MatmulKernel::avx512:
      return "avx512";
    case MatmulKernel::avx512_bf16:
      return "avx512_bf16";
    case MatmulKernel::amx_bf16:
      return "amx_bf16";
    case MatmulKernel::amx_bf16_emulated:
      return "amx_bf16_emulated";
    case MatmulKernel::cublaslt:
      return "cublaslt";
  }
  return "?";
}

std::optional<MatmulKernel> parse_matmul_kernel(std::string_view name) {
  for (const MatmulKernel kernel : kMatmulKernels)
    if (name == to_string(kernel)) return kernel;
  if (name == to_string(MatmulKernel::cublaslt)) return MatmulKernel::cublaslt;
  return std::nullopt;
}

bool matmul_available(MatmulKernel kernel) {
  switch (kernel) {
    case MatmulKernel::reference:
    case MatmulKernel::amx_bf16_emulated:
      return true;
    case MatmulKernel::cublaslt:
      return false;
    case MatmulKernel::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case MatmulKernel::avx512:
      return __builtin_cpu_supports("avx512f");
    case MatmulKernel::avx512_bf16:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
    case MatmulKernel::amx_bf16:
      return blas::amx_bf16_available();
  }
  return false;
}

bool matmul_supports(const MatmulProblem& p, MatmulKernel kernel) {
  if (!matmul_available(kernel)) return false;
  if (!is_float(p.a.dtype) || !is_float(p.b.dtype) || !is_float(p.c_dtype)) return false;
  if (takes_bf16_only(kernel) && (p.a.dtype != DType::bf16 || p.b.dtype != DType::bf16))
    return false;
  return p.b_packed == nullptr || blas::tile_kernel(kernel) != nullptr;
}

MatmulKernel matmul_best(DType a, DType b) {
  if (a == DType::bf16 && b == DType::bf16) {
    if (matmul_available(MatmulKernel::amx_bf16)) return MatmulKernel::amx_bf16;
    // VDPBF16PS does twice the work of an fp32 step on AMD, and half of it on Intel.
    if (__builtin_cpu_is("amd") && matmul_available(MatmulKernel::avx512_bf16))
      return MatmulKernel::avx512_bf16;
  }
  for (const MatmulKernel kernel : {MatmulKernel::avx512, MatmulKernel::avx2})
    if (matmul_available(kernel)) return kernel;
  return MatmulKernel::reference;
}

MatmulKernel matmul_best(const MatmulProblem& p) {
  return matmul_best(p.a.dtype, p.b.dtype);
}

int64_t matmul_scratch_bytes(int64_t M, int64_t N, int64_t K, DType a_dtype, DType b_dtype,
                             DType c_dtype, MatmulKernel kernel, int threads, bool b_packed) {
  if (!is_float(a_dtype) || !is_float(b_dtype) || !is_float(c_dtype) ||
      (takes_bf16_only(kernel) && (a_dtype != DType::bf16 || b_dtype != DType::bf16)))
    fail(ErrorCode::unsupported,
         std::string("operand dtypes that the kernel ") + to_string(kernel) + " takes",
         dtypes(a_dtype, b_dtype, c_dtype), "use the kernel that matmul_best names");
  if (M <= 0 || N <= 0 || K <= 0) return 0;
  const blas::TileKernel* tiles = blas::tile_kernel(kernel);
  return tiles == nullptr ? 0 : blas::blocked_scratch_bytes(M, N, K, b_packed, *tiles, threads);
}

int64_t matmul_packed_bytes(int64_t K, int64_t N, MatmulKernel kernel) {
  const blas::TileKernel* tiles = blas::tile_kernel(kernel);
  return tiles == nullptr ? 0 : blas::packed_bytes(K, N, *tiles);
}

void matmul_pack(void* out, const MatrixView& b, int64_t K, int64_t N, MatmulKernel kernel,
                 int threads) {
  const blas::TileKernel* tiles = blas::tile_kernel(kernel);
  const std::string what = "B " + std::string(to_string(b.dtype)) + " K=" + std::to_string(K) +
                           " N=" + std::to_string(N);
  if (K < 0 || N < 0)
    fail(ErrorCode::shape, "extents of zero or more of a matrix to pack", what,
         "pass the rows of B as K, its columns as N");
  if (threads < 1)
    fail(ErrorCode::usage, "at least one thread to pack a matrix",
         "threads=" + std::to_string(threads), "set threads=1 or more");
  if (tiles == nullptr || !is_float(b.dtype) || (tiles->pairs && b.dtype != DType::bf16))
    fail(ErrorCode::unsupported,
         std::string("a matrix that can be packed for the kernel ") + to_string(kernel), what,
         "pack for the kernel that matmul_best names, f32, bf16 or f16");
  if (K == 0 || N == 0) return;
  if (out == nullptr || b.data == nullptr)
    fail(ErrorCode::shape, "data behind the matrix to pack and its packed copy, " + what,
         "a null pointer", "reserve matmul_packed_bytes bytes");
  blas::pack_whole(out, b, K, N, *tiles, threads);
}

void matmul_cpu(const MatmulProblem& p, MatmulKernel kernel, void* scratch, int threads) {
  check(p, scratch, kernel, threads);
  if (p.M == 0 || p.N == 0) return;
  // With K = 0 every sum is empty and only bias and old C are left, whatever the kernel.
  if (kernel == MatmulKernel::reference || p.K == 0) return blas::matmul_reference(p, threads);
  blas::matmul_blocked(p, *blas::tile_kernel(kernel), scratch, threads);
}

}  // namespace snug
