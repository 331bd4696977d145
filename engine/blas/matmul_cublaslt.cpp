// What is decided about cuBLASLt without it.
#include "engine/blas/matmul_cuda.h"

namespace snug {

bool cublaslt_takes(const MatmulProblem& p) {
  const auto flat = [](const MatrixView& m) { return m.col_stride == 1 || m.row_stride == 1; };
  // Lines of `length` elements, `step` apart; a single one may have any.
  const auto apart = [](int64_t step, int64_t count, int64_t length) {
    return count == 1 || step >= length;
  };
  const bool ta = p.a.col_stride != 1, tb = p.b.col_stride != 1;
  return p.a.dtype == p.b.dtype && (p.c_dtype == DType::f32 || p.c_dtype == p.a.dtype) &&
         !(p.bias && (p.accumulate || p.bias_dtype != p.c_dtype)) && flat(p.a) && flat(p.b) &&
         !p.b_packed && !p.finish.tile && !p.finish.rows && p.M > 0 && p.N > 0 && p.K > 0 &&
         apart(ta ? p.a.col_stride : p.a.row_stride, ta ? p.K : p.M, ta ? p.M : p.K) &&
         apart(tb ? p.b.col_stride : p.b.row_stride, tb ? p.N : p.K, tb ? p.K : p.N);
}

}  // namespace snug
