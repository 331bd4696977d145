// Decompositions of a weight (rows, columns) on the host, in double, from which adapters begin. Results
// depend on the weight alone, not on the threads.
#pragma once

#include <cstdint>
#include <vector>

namespace snug {

// W ~ u diag(s) v with u (rows,r) and v (r,columns) of orthonormal columns and rows, s descending.
struct SingularParts {
  std::vector<double> u, s, v;
};

// The r largest singular values, to rounding: block Lanczos with full orthogonalisation (Golub and
// Underwood, 1977) on the smaller of W W^T and W^T W, until the pairs are invariant to 1e-13 of the
// largest or the basis is complete.
SingularParts largest_singular(const std::vector<float>& w, int64_t rows, int64_t columns,
                               int64_t r, int threads);
// Nearly these: of the range of W that r random vectors find after `iterations` rounds of W^T and W.
// Halko, Martinsson, Tropp, arXiv:0909.4061, as torch.svd_lowrank has it.
SingularParts nearly_singular(const std::vector<float>& w, int64_t rows, int64_t columns, int64_t r,
                              int64_t iterations, int threads);

// The first r columns of Q (rows,r) and rows of R (r,columns) of W = Q R, with the signs of
// Householder's reflections, as LAPACK has them.
struct OrthogonalParts {
  std::vector<double> q, r;
};
OrthogonalParts orthogonal_parts(const std::vector<float>& w, int64_t rows, int64_t columns,
                                 int64_t r, int threads);

}  // namespace snug
