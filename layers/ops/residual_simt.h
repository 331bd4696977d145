// The kernels of layers/ops/residual.h for engine/simt, and the residual with the normalisation of
// what it made (the end of linear_residual_norm_forward, layers/ops/linear.h) in one pass.
//
// Numerics  residual_forward_on has the bits of the CPU; residual_norm_forward_on those of
//           residual_forward_on and then layernorm_forward_on, at any number of threads.
// Traffic   two reads and one write; with the norm y is one more write, and out is not read again
//           from memory.
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "layers/ops/linear.h"

namespace snug {

// The residual is in.residual, the branch an argument; out may be either.
template <class Queue>
void residual_forward_on(Queue& queue, const View& out, const ResidualInput& in, const View& branch,
                         int threads = 256);

// norm.y may be none of the others.
template <class Queue>
void residual_norm_forward_on(Queue& queue, const NormOutput& norm, const View& out,
                              const ResidualInput& in, const View& branch, int threads = 256);

}  // namespace snug
