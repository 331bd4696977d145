// The matrix product on a GPU by cuBLASLt, which is loaded when it is first wanted. Where it is
// absent when a run is planned, and for the problems it is not asked for, the caller has a kernel
// of its own (matmul_simt.h).
//
// Numerics  fp32 accumulation; f32 operands are multiplied as f32, and with `tf32`, which a user
//           asks for, rounded to the 11 significant bits of TF32 first; one rounding to C's dtype.
//           No split over K, so no sums that depend on what else runs: equal bits on one GPU model
//           and library version. The algorithm is the library's first choice for a problem, or the
//           fastest of its first ones (cublaslt_tune), made once and kept.
// Memory    `scratch` of kCudaMatmulScratch bytes, whatever the problem: a plan needs no device.
#pragma once

#include <string>
#include <vector>

#include "engine/blas/matmul_cpu.h"
#include "engine/device/cuda.h"
#include "engine/simt/cuda_queue.h"

namespace snug {

inline constexpr int64_t kCudaMatmulScratch = int64_t{4} << 20;

// What cuBLASLt is asked for, known without it: not A and B of two dtypes, a C that is neither f32
// nor of theirs, a bias not of C's or to a sum (the library adds it after the old C, MatmulProblem
// before), strides of which none is 1, a packed B or a finish, an empty problem.
bool cublaslt_takes(const MatmulProblem& p);

// Throws unsupported, with the shape, where there is no library or it has no algorithm: the plan
// says who multiplies, and another kernel would have other bits. cublaslt_takes holds.
void matmul_by_cublaslt(const simt::cuda::Queue& queue, const MatmulProblem& p, void* scratch,
                        bool tf32);

// Algorithms are opaque to us and hold for one version of the library on one GPU model.
struct CublasLtChoice {
  std::string problem;    // "m=.. n=.. ..": what it was chosen for
  std::string algorithm;  // 128 hexadecimal digits

  friend bool operator==(const CublasLtChoice&, const CublasLtChoice&) = default;
};
// While it is on, the first product of a problem runs the library's first algorithms for it and
// keeps the fastest. What it multiplies into is written several times: for values that do not
// matter, and outside of graphs.
void cublaslt_tune(bool on);
// What was chosen in this process while tuning was on, and what cublaslt_use brought.
std::vector<CublasLtChoice> cublaslt_choices();
// Of a plan or a checkpoint, in place of choosing. Throws data on what is no such choice; a product
// whose algorithm the library does not take throws unsupported.
void cublaslt_use(const std::vector<CublasLtChoice>& choices);

// "13.1.0"; empty where there is none. Numbers depend on it.
std::string cublaslt_version();

// Settings::cublaslt for a run on this machine that no plan has decided about.
inline bool cublaslt_is_there() {
  if constexpr (kCudaBuilt)
    return !cublaslt_version().empty();
  else
    return false;
}

// "cuBLASLt 13.1.0 (libcublasLt.so.13)", or why products are not made by it. The environment's
// SNUG_CUBLASLT names the only file to try.
std::string describe_cublaslt();

}  // namespace snug
