// Packed weights: copies of the linear layers' weights in the order the matrix kernels read them,
// made after loading and after each update, so that the products between pack no weight again.
//
// A weight W (out,in) serves two products, y = x W^T in forward and recompute and dx = dy W in
// backward, and each wants its own order (engine/blas/matmul.h): `forward` serves the first, `both`
// the two. The copies cost memory beside the weights and change no bit. Decoding, one row at a
// time, is twice as fast with them; a training step by as much as the machine's kernels gain, so
// there the planner decides by what snug calibrate measured.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "engine/blas/matmul.h"
#include "engine/seams/parameter.h"

namespace snug {

enum class WeightPacking : uint8_t {
  none,
  forward,  // for x W^T
  both      // for x W^T and dy W
};
const char* to_string(WeightPacking packing);
std::optional<WeightPacking> parse_weight_packing(std::string_view text);

// One copy of a parameter.
struct PackedCopy {
  int param = 0;
  bool forward = true;                  // for x W^T; else for dy W
  int64_t weight_bytes = 0, bytes = 0;  // of the weight, and of the copy
};
// The copies that PackedWeights makes where kernels do not read the weights themselves.
std::vector<PackedCopy> packed_copies(const ParamTable& table, DType dtype, WeightPacking packing,
                                      const KernelTable* kernels);
// Of all of them together, as they are placed.
int64_t placed_bytes(const std::vector<PackedCopy>& copies);

class PackedWeights {
 public:
  // Call inside the root program. Takes the parameters of the table that are `linear`, as they are
  // stored in the compute dtype.
  PackedWeights(Context& ctx, const ParamTable& table, DType dtype, WeightPacking packing);

  // Makes every copy anew from the flat weights: one recorded op a copy.
  // Those of `frozen` weights need it once, after loading.
  void pack(Context& ctx, const View& flat, bool frozen) const;
  PackedWeight operator[](int param) const { return views_[static_cast<size_t>(param)]; }
  int64_t bytes() const { return bytes_; }

 private:
  const ParamTable& table_;
  DType dtype_;
  int64_t bytes_ = 0;
  Tensor storage_;
  std::vector<PackedWeight> views_;
};

}  // namespace snug
