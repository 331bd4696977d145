// Quantile codes: a book made of the data itself, so that every code stands for as many numbers.
//
// Math      book[i] = quantile (i + 1/2) / 256 of x * (1/|x|) of each block, i = 0..255: linear
//           between order statistics, as numpy.quantile, in double, rounded once to f32.
//           Codes are then those of the codec quantile8 (quant/codec.h) with that book; 0 has no
//           entry of its own.
// Shapes    x: any, n >= 1 elements; book (256) f32.
// Memory    workspace 4 n bytes: the numbers are sorted.
// Not finite  numbers sort beyond the others, by their sign.
// Determinism  equal bits for any number of threads.
// Errors    shape: no element. unsupported: places with kernels, or a codec with a book of its own.
// Source    Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (2022), section 2.
#pragma once

#include "engine/memory/context.h"
#include "quant/codec.h"

namespace snug {

void quantile_book(Context& ctx, const View& book, const View& x, const CodeSpec& spec);

}  // namespace snug
