// The matrix product for engine/simt: engine/blas/matmul_cpu.h's problem, for any strides and any
// of f32, bf16, f16. On a device it is the reference that a library's products are compared with;
// in emulation it stands for that library.
//
// Numerics  One chain of fused multiply-adds in float over k = 0 .. K-1, from zero, whatever the
//           size of a block; then alpha, bias, old C and the rounding as matmul_cpu does: the bits
//           of its kernels reference, avx2 and avx512.
// Errors    unsupported: what follows a product on its tiles (finish) and a packed B.
// Queue     simt::Queue of the side that is linked. threads: of a block, 32, 64, 128 or 256.
#pragma once

#include "engine/blas/matmul_cpu.h"

namespace snug {

template <class Queue>
void matmul_on(Queue& queue, const MatmulProblem& problem, int threads = 256);

}  // namespace snug
