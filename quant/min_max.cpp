// Asymmetric integers, 0 to 255 between the least and the largest value of a block: for what is not
// spread around zero. Jacob et al., "Quantization and Training of Neural Networks for Efficient
// Integer-Arithmetic-Only Inference" (2018); the range need not hold 0 here.
#include "quant/codec.h"

namespace snug {

Codec min_max_row() {
  return {"min_max8", 8, 256, true, true, ScaleRule::min_max, 255, nullptr};
}

}  // namespace snug
