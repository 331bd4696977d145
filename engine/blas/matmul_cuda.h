// The matrix product on a GPU by cuBLASLt, which is loaded when it is first wanted. Where it is
// absent, or does not take a problem, the caller has a kernel of its own (matmul_simt.h).
//
// Numerics  fp32 accumulation; f32 operands are multiplied as f32, and with `tf32`, which a user
//           asks for, rounded to the 11 significant bits of TF32 first; one rounding to C's dtype.
//           No split over K, so no sums that depend on what else runs: equal bits on one GPU model
//           and library version. The algorithm is the library's first choice for a problem, made
//           once and kept.
// Memory    `scratch` of kCudaMatmulScratch bytes, whatever the problem: a plan needs no device.
#pragma once

#include <string>

#include "engine/blas/matmul_cpu.h"
#include "engine/simt/cuda_queue.h"

namespace snug {

inline constexpr int64_t kCudaMatmulScratch = int64_t{4} << 20;

// False if nothing was done: A and B of two dtypes, a C that is neither f32 nor of theirs, a bias
// not of C's or to a sum (the library adds it after the old C, MatmulProblem before), strides of
// which none is 1, a packed B or a finish, an empty problem, or no library.
bool matmul_by_cublaslt(const simt::cuda::Queue& queue, const MatmulProblem& p, void* scratch,
                        bool tf32);

// "cuBLASLt 13.1.0 (libcublasLt.so.13)", or why products are not made by it. The environment's
// SNUG_CUBLASLT names the only file to try.
std::string describe_cublaslt();

}  // namespace snug
