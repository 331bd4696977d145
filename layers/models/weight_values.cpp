#include "layers/models/weight_values.h"

#include <algorithm>
#include <cstring>

#include "engine/core/error.h"

namespace snug {
namespace {

// f(const T* values), by the dtype.
template <class F>
void with_values(const View& v, F&& f) {
  if (v.dtype == DType::f32)
    f(static_cast<const float*>(v.data));
  else if (v.dtype == DType::bf16)
    f(static_cast<const bf16*>(v.data));
  else if (v.dtype == DType::f16)
    f(static_cast<const f16*>(v.data));
  else
    require(false, "weights of f32, bf16 or f16");
}

template <class T>
void transpose(float* out, const T* w, int64_t rows, int64_t width, int64_t begin, int64_t n) {
  const int64_t end = begin + n;
  while (begin < end) {
    const int64_t r = begin / width, c = begin % width;
    if (c != 0 || end - begin < width) {  // a part of a row
      const int64_t stop = std::min(width, c + end - begin);
      for (int64_t i = c; i < stop; ++i) *out++ = to_f32(w[i * rows + r]);
      begin += stop - c;
      continue;
    }
    const int64_t count = (end - begin) / width;  // whole rows
    for (int64_t i = 0; i < width; ++i)
      for (int64_t k = 0; k < count; ++k) out[k * width + i] = to_f32(w[i * rows + r + k]);
    out += count * width;
    begin += count * width;
  }
}

}  // namespace

void* values_behind(float* out, const View& like) {
  return reinterpret_cast<char*>(out) + 4 * like.elements() - like.bytes();
}

void values_to_f32(float* out, const View& from) {
  const int64_t n = from.elements();
  with_values(from, [&]<class T>(const T* values) {
    if constexpr (std::is_same_v<T, float>) {
      if (values != out) std::memcpy(out, values, static_cast<size_t>(4 * n));
    } else {
      // Piece by piece: what is written ends before what is still to be read.
      T piece[256];
      for (int64_t k = 0; k < n; k += 256) {
        const int64_t count = std::min<int64_t>(256, n - k);
        std::memcpy(piece, values + k, static_cast<size_t>(count) * sizeof(T));
        float wide[256];
        for (int64_t j = 0; j < count; ++j) wide[j] = to_f32(piece[j]);
        std::memcpy(out + k, wide, static_cast<size_t>(4 * count));
      }
    }
  });
}

void transposed_to_f32(float* out, const View& w, int64_t rows, int64_t width, int64_t begin,
                       int64_t n) {
  with_values(w, [&](const auto* values) { transpose(out, values, rows, width, begin, n); });
}

void append_values(SafetensorsWriter& writer, const float* source, int64_t elements,
                   SafeDType dtype, const View& staging) {
  if (dtype == SafeDType::F32) {
    writer.append(source, elements * 4);
    return;
  }
  auto* narrow = static_cast<char*>(staging.data);
  bf16 piece[256];
  for (int64_t k = 0; k < elements; k += 256) {
    const int64_t count = std::min<int64_t>(256, elements - k);
    for (int64_t j = 0; j < count; ++j) piece[j] = from_f32<bf16>(source[k + j]);
    std::memcpy(narrow + 2 * k, piece, static_cast<size_t>(2 * count));
  }
  writer.append(narrow, elements * 2);
}

}  // namespace snug
