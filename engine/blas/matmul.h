// The matrix product as a recorded op.
//
// Math      C = op(A) op(B) (+ bias) (+ C if add);  op is the identity or the transpose.
// Shapes    op(A) (M,K), op(B) (K,N), C (M,N), bias (N); all row-major, the leading extents of a
//           view of rank > 2 are rows.
// dtypes    A, B, C f32 or bf16; bias in any of them. Accumulation in f32, one rounding to C's
//           dtype.
// Cost      2 M N K FLOPs; bytes of A, B and C once.
// Memory    packing buffers and library scratch are a planned tensor of category workspace, at most
//           16 MiB.
// Numerics  deterministic; the kernel is chosen by shape, dtype and instruction set alone, so equal
//           calls give equal bits whatever the memory policy.
#pragma once

#include "engine/blas/matmul_cpu.h"
#include "engine/memory/context.h"

namespace snug {

struct MatmulOptions {
  bool transpose_a = false;
  bool transpose_b = false;
  bool add = false;  // C += instead of C =
  View bias = {};    // undefined: none
  int64_t lda = 0;   // row stride of A in elements; 0: its last extent
  // What follows the product, done on its tiles (matmul_cpu.h); then C may be without storage of
  // its own, a shape and a dtype only. The op is recorded as `name`, with `also` on top of the
  // product's FLOPs and bytes (C counts as written).
  MatmulFinish finish = {};
  const char* name = "matmul";
  OpCost also = {};
};

void matmul(Context& ctx, const View& c, const View& a, const View& b,
            const MatmulOptions& options = {});

}  // namespace snug
