// The matrix product as a recorded op.
//
// Math      C = op(A) op(B) (+ bias) (+ C if add);  op is the identity or the transpose.
// Shapes    op(A) (M,K), op(B) (K,N), C (M,N), bias (N); all row-major, the leading extents of a
//           view of rank > 2 are rows.
// dtypes    A, B, C f32, bf16 or f16; bias in any of them. Accumulation in f32, one rounding to C's
//           dtype.
// Cost      2 M N K FLOPs; bytes of A, B and C once.
// Memory    packing buffers are a planned tensor of category workspace: at most 9.1 MiB and 0.7 MiB
//           a thread (amx_bf16: 1.2; few rows and a long K: 1.2); on cuda 4 MiB.
// Numerics  deterministic; the kernel is what the settings' KernelTable names, else chosen by dtype
//           and instruction set alone, so equal calls give equal bits whatever the memory policy
//           and whether B comes packed or not.
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
  // What matmul_pack made of B, u8; undefined: B itself is read. With it B is a shape and a dtype
  // only, and may be without storage.
  View b_packed = {};
  // What follows the product, done on its tiles (matmul_cpu.h); then C may be without storage of
  // its own, a shape and a dtype only. The op is recorded as `name`, with `also` on top of the
  // product's FLOPs and bytes (C counts as written).
  MatmulFinish finish = {};
  const char* name = "matmul";
  OpCost also = {};
};

void matmul(Context& ctx, const View& c, const View& a, const View& b,
            const MatmulOptions& options = {});

// The packed forms of a weight W (out,in): for y = x W^T and for dx = dy W. Undefined: none.
struct PackedWeight {
  View forward, backward;
};

// A weight that several products use between two optimizer steps can be kept in the order the
// kernel reads it (matmul_cpu.h): `out` is a tensor of u8 with matmul_packed_bytes(...) elements,
// 64-byte aligned as planned tensors are. It is made for op(B) with the transpose given, for the
// kernel that the settings' table, else matmul_best, names for it, and holds for that only:
// x W^T and dy W want a copy each. Where that kernel computes in fp32, 4 bytes an element, else 2,
// extents rounded up to 32. 0 bytes: this machine's kernel has no packed form, use B itself.
int64_t matmul_packed_bytes(const View& b, bool transpose_b, DType a_dtype,
                            const KernelTable* kernels = nullptr);
// The recorded op; bytes: B read, out written.
void matmul_pack(Context& ctx, const View& out, const View& b, bool transpose_b, DType a_dtype);

}  // namespace snug
