// Dense matrix product on the CPU:  C = alpha * A * B  (+ bias)  (+ C),  A (M x K), B (K x N), C (M
// x N).
//
// Nothing is allocated: the caller brings matmul_scratch_bytes() bytes. The result is a pure
// function of operands, shapes and kernel; addresses and the number of threads do not enter.
//
// Numerics. Products are accumulated in fp32; then, each step rounded to fp32 and in this order:
// times alpha, plus bias, plus the old C; then one rounding to C's dtype (nearest even).
//   reference, avx2, avx512: every element is ONE chain of fused multiply-adds over k = 0 .. K-1,
//   from
//     zero. So these three agree bit for bit, and a row of C does not depend on how many rows there
//     are.
//   avx512_bf16: one chain over pairs (2j, 2j+1) of VDPBF16PS, a zero filling the pair of an odd K.
//     Subnormal operands and results count as zero (the instruction's own rule).
//   amx_bf16: by blocks of 32 k (zeros fill the last one): one chain over the even k and one over
//     the odd k of a block, each from zero; their sum is added to what the blocks before gave.
//     Subnormal operands and results count as zero (TDPBF16PS's own rule).
//   amx_bf16_emulated: the same, computed by plain code; to test with, a thousand times slower.
//   cublaslt: the library's order.
// A NaN in a bf16 or f16 C is quiet; its payload is not part of the contract.
// K = 0 gives bias (+ C); M = 0 or N = 0 does nothing. C must not overlap A, B, bias or scratch.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/core/dtype.h"

namespace snug {

// A matrix of f32, bf16 or f16 anywhere in memory. Element (i, j) is at data[i * row_stride + j *
// col_stride]; strides are in elements, may be anything (0 repeats, negative walks back), and one
// of them is 1 where speed matters. A transposed matrix is the same data with the strides swapped.
struct MatrixView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  int64_t row_stride = 0;
  int64_t col_stride = 1;
};

// A packed B. A product copies B into the order its kernel reads (panels of 16 or 32 columns, each
// over all of K, zeros at the edges) before it uses it. For a B that is used often, weights between
// two optimizer steps, matmul_pack does that once, and MatmulProblem::b_packed brings the copy: the
// same bits, less work, and few rows (decoding) go at the speed memory is read. The copy belongs to
// one kernel, K, N and dtype; its bytes are 4 per element, for kernels with bf16 in their name 2.

// What becomes of finished sums, where it is not the plain store: how an op fuses what follows a
// product. Called by the thread that finished them, while they are in its nearest cache.
//   tile   gets rows x cols values (alpha, bias and old C are in; fp32, row stride ld), at most
//          kMatmulTileValues, the corner of which is C[m0, n0], and stores what it likes. Every
//          element of C comes exactly once.
//   rows   is called when rows [m0, m0 + rows) have all their columns; every row comes exactly
//          once, after its tiles.
inline constexpr int64_t kMatmulTileValues = 32 * 32;
struct MatmulFinish {
  void (*tile)(const void* context, const float* v, int64_t ld, int64_t m0, int64_t n0,
               int64_t rows, int64_t cols) = nullptr;
  void (*rows)(const void* context, int64_t m0, int64_t rows) = nullptr;
  const void* context = nullptr;
};

struct MatmulProblem {
  int64_t M = 0, N = 0, K = 0;
  MatrixView a;       // M x K
  MatrixView b;       // K x N
  void* c = nullptr;  // M x N, row-major, rows ldc >= N elements apart; with finish.tile only read
  DType c_dtype = DType::f32;
  int64_t ldc = 0;
  bool accumulate = false;  // add to what C holds
  float alpha = 1;
  const void* bias = nullptr;  // (N), added once to every row; may be null
  DType bias_dtype = DType::f32;
  MatmulFinish finish = {};
  // What matmul_pack made of B for this kernel, K and N; b.data and b's strides are not read then,
  // b.dtype is. Any alignment of 4; 64 is fastest. Not for reference.
  const void* b_packed = nullptr;
};

enum class MatmulKernel {
  reference,
  avx2,
  avx512,
  avx512_bf16,
  amx_bf16,
  amx_bf16_emulated,
  cublaslt  // on the place cuda (matmul_cuda.h); no CPU has it
};

// Those of CPUs.
inline constexpr MatmulKernel kMatmulKernels[] = {
    MatmulKernel::reference,   MatmulKernel::avx2,     MatmulKernel::avx512,
    MatmulKernel::avx512_bf16, MatmulKernel::amx_bf16, MatmulKernel::amx_bf16_emulated};

const char* to_string(MatmulKernel kernel);
std::optional<MatmulKernel> parse_matmul_kernel(std::string_view name);  // to_string's inverse

// Whether this machine can run the kernel at all.
bool matmul_available(MatmulKernel kernel);

// Whether the kernel takes this problem: it is available, and the dtypes (avx512_bf16, amx_bf16: A
// and B both bf16) fit. Of the pointers only b_packed is looked at, for whether it is null.
bool matmul_supports(const MatmulProblem& p, MatmulKernel kernel);

// The fastest kernel of ours for this machine and the dtypes of A and B; the other fields do not
// enter, so a B may be packed for it before anything else is known. Never an emulated kernel, which
// is used only where asked for by name.
MatmulKernel matmul_best(const MatmulProblem& p);
MatmulKernel matmul_best(DType a, DType b);

// Bytes of scratch matmul_cpu uses; any alignment. Depends on the arguments alone; b_packed says
// whether B will come packed. Bounded: at most 9.1 MiB + 0.7 MiB per thread (amx_bf16: 1.2),
// and where a few rows are multiplied over a long K, 1.2 MiB per thread.
int64_t matmul_scratch_bytes(int64_t M, int64_t N, int64_t K, DType a_dtype, DType b_dtype,
                             DType c_dtype, MatmulKernel kernel, int threads,
                             bool b_packed = false);

// Bytes of a packed B (K x N); 0 for a kernel that has no packed form (reference) and for
// an empty B. Does not ask what the machine can run.
int64_t matmul_packed_bytes(int64_t K, int64_t N, MatmulKernel kernel);

// Packs B (K x N; f32, bf16 or f16, for kernels with bf16 in their name bf16 only) into
// matmul_packed_bytes bytes at `out`. Throws Error as matmul_cpu does.
void matmul_pack(void* out, const MatrixView& b, int64_t K, int64_t N, MatmulKernel kernel,
                 int threads);

// Computes. `threads` is an upper limit; small problems use fewer. Throws Error: shape for extents,
// strides and pointers that cannot be, unsupported for dtypes or a kernel that does not take them.
void matmul_cpu(const MatmulProblem& p, MatmulKernel kernel, void* scratch, int threads);

}  // namespace snug
