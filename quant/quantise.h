// Tensors to codes and back, as recorded ops: quant/codec.h has the codecs and their arithmetic.
//
// Shapes    x, y: any, n elements, in blocks of spec.block as they lie in memory.
//             codes        (spec.code_bytes(n)) u8
//             scales       (spec.blocks(n)) f32; of min_max8 (blocks,2): s and z
//           doubled (spec.doubled; QLoRA's double quantisation):
//             scale_codes  (blocks) u8: of scale - offset by dynamic8, in blocks of 256
//             scales       (ceil(blocks / 256)) f32: of those
//             offset       (1) f32: the mean of the scales, summed in double, rounded once
//           book           (256) f32, ascending, of codecs without a book of their own
// dtypes    x, y: f32, bf16 or f16.
// Math      as quant/codec.h says; doubled, the scale of block b is
//             value(scale_codes[b]) * scales[b / 256] + offset, two roundings
// Rounding  to nearest; with a StepState to one of both neighbours, by chance (quant/block.h): the
//           numbers are a function of seed, step, site and the number of the element alone, so
//           windows of a tensor round as the whole does.
// Numerics  float; y is rounded once, to nearest even.
// Aliasing  none.
// Memory    doubled, quantise: workspace (blocks) f32 and 8 bytes for every 1024 blocks.
// Traffic   x or y and the codes once, in blocks that fit in a cache.
// Threads   a block is one thread's (a warp's): a single one for a large tensor is slow.
// Determinism  equal bits for any number of threads, and on all places; which NaN a NaN is may
//           differ on a GPU.
// Errors    shape: views that do not belong together. unsupported: other dtypes; quantile_book on
//           places with kernels.
#pragma once

#include "engine/memory/context.h"
#include "quant/codec.h"

namespace snug {

struct Coded {
  View codes, scales;
  View scale_codes, offset;  // doubled
  View book;
};

struct Rounding {
  View state;  // the StepState; undefined: to nearest
  uint32_t site = 0;
  int64_t first = 0;  // the number of element 0
};

void quantise(Context& ctx, const Coded& to, const View& x, const CodeSpec& spec,
              const Rounding& rounding = {});

void dequantise(Context& ctx, const View& y, const Coded& from, const CodeSpec& spec);

}  // namespace snug
