// Eigenvalues and vectors of a symmetric matrix, in double.
#pragma once

#include <cstdint>
#include <vector>

namespace snug {

// m (n,n): its eigenvectors, by rows, in its place; the values, ascending. Householder's reduction to three
// diagonals and implicit QL: Martin, Reinsch, Wilkinson, Numer. Math. 11 (1968); Bowdler, Martin, Reinsch,
// Wilkinson, same volume (EISPACK tred2, tql2).
std::vector<double> symmetric_eigen(std::vector<double>& m, int64_t n);

}  // namespace snug
