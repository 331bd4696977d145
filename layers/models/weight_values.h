// Values of weights as f32, whatever they rest in (f32, bf16, f16; widening is exact), for files.
#pragma once

#include "engine/core/view.h"
#include "engine/io/safetensors.h"

namespace snug {

// Where values like these are read to, so that values_to_f32 can widen them in place: the end of
// the floats at `out`.
void* values_behind(float* out, const View& like);
// out = from, as f32. `from.data` is apart from `out`, or values_behind() it.
void values_to_f32(float* out, const View& from);
// Elements [begin, begin + n) of the transpose of w, whose rows are `rows` long; the transpose has
// `width` columns. Apart from each other.
void transposed_to_f32(float* out, const View& w, int64_t rows, int64_t width, int64_t begin,
                       int64_t n);
// Appends values to a tensor of `dtype`, f32 or bf16. `source` may be the staging itself: narrow values are
// copied as bytes behind what was read.
void append_values(SafetensorsWriter& writer, const float* source, int64_t elements,
                   SafeDType dtype, const View& staging);

}  // namespace snug
