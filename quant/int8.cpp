// Symmetric integers, -127 to 127 of a block's largest magnitude: LLM.int8()'s rows, if a block is a
// row. Dettmers, Lewis, Belkada, Zettlemoyer, "LLM.int8()" (2022); int8_vectorwise_quant of
// bitsandbytes.
#include "quant/codec.h"

namespace snug {

Codec int8_row() {
  return {"int8", 8, 256, true, true, ScaleRule::integer, 127, nullptr};
}

}  // namespace snug
