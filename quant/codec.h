// Codec: how numbers rest in 8 or 4 bits. One row of data each, from a file of its own; what
// computes with it is in quant/block.h (a block of floats) and quant/quantise.h (ops on tensors).
//
// A tensor is flat, in blocks of consecutive elements, the last one partial; every block has its
// scale in f32. With |x| the largest magnitude of a block:
//
//   rule      kept per block            code of x                        value
//   absmax    |x|                       nearest entry to x (1/|x|)       entry * |x|
//   peak      s = |x| / peak            nearest entry to x / s           entry * s
//   integer   |x|                       q = rne(x (peak/|x|)), int8      (q * |x|) * (1/peak)
//   min_max   s = (max - min) / 255,    q = rne(x (1/s)) + z in 0..255   (q - z) * s
//             z = rne(-min/s)
//
// Floors    absmax: 1/|x| is taken of at least 1e-38, as bitsandbytes does; peak: |x| is at least
//           1e-12, as in torchao; integer: at least 1e-36, 0 stays 0; min_max: s is at least 2^-126,
//           and a block of one value c has s = c, z = 0, q = 1: it comes back exactly.
// Ends      integer: a scale above 2^120 is divided by the peak before it is multiplied; min_max: a
//           value past the largest float is that: what was finite stays so.
// Not finite  a NaN or an infinity makes its whole block come back as NaNs and infinities: nothing
//           is hidden. The scale of min_max is then a NaN.
// Sources   Dettmers, Lewis, Shleifer, Zettlemoyer, "8-bit Optimizers via Block-wise Quantization"
//           (2022); Dettmers, Pagnoni, Holtzman, Zettlemoyer, "QLoRA" (2023); each file has its own.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "quant/code_book.h"

namespace snug {

enum class ScaleRule : uint8_t { absmax, peak, integer, min_max };

struct Codec {
  const char* name;
  int bits;        // of a code: 8, or 4: two in a byte, the even element in its upper half
  int64_t block;   // elements, where nobody says otherwise
  bool any_block;  // of any size; else a power of two from 32 to 4096
  bool is_signed;  // whether negative numbers have codes
  ScaleRule rule;
  float peak;            // of rules peak and integer
  const CodeBook* book;  // of rules absmax and peak; null: it comes with the data (quantile)

  bool has_book() const { return rule == ScaleRule::absmax || rule == ScaleRule::peak; }
  bool book_of_data() const { return has_book() && book == nullptr; }
  int scales() const { return rule == ScaleRule::min_max ? 2 : 1; }  // floats a block
};

// All codecs, in the order of the registry.
std::span<const Codec> codecs();
// By name. Throws usage on an unknown one, with the list.
const Codec& codec(std::string_view name);

// A codec in use. 64-element blocks of NF4 whose scales are codes too: {codec("nf4"), 64, true}.
struct CodeSpec {
  CodeSpec(const Codec& which) : CodeSpec(which, which.block) {}  // NOLINT: a codec is a spec
  // Throws usage on a block that the codec does not have, and on doubled scales where the codec
  // keeps two a block.
  CodeSpec(const Codec& which, int64_t elements, bool double_scales = false);

  const Codec* codec;
  int64_t block;
  bool doubled;  // quant/double_scales.h

  int64_t blocks(int64_t n) const { return (n + block - 1) / block; }
  int64_t code_bytes(int64_t n) const { return codec->bits == 8 ? n : (n + 1) / 2; }
  // All that rests of n elements: codes, scales, the codes and offset of doubled ones, a book.
  int64_t bytes(int64_t n) const;
};

// Scales that are codes themselves: blocks of 256 of the signed dynamic map, less their mean.
inline constexpr int64_t kDoubledBlock = 256;

}  // namespace snug
