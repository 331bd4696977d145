// What stands behind the product of a linear layer: something in place, or the residual stream.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/memory/pass.h"

namespace snug {

// What is done to y in place behind the product, and to its gradient before it.
struct InPlace {
  std::function<void(Context&, Pass&, const View&y)> forward, backward;
  std::vector<int> params = {};  // whose gradients it makes, of the gradient of y alone
};

// The dropout of a branch before it is added to the residual stream.
struct BranchDropout {
  float p = 0.0f;
  uint32_t site = 0;
};

struct BehindProduct {
  InPlace in_place = {};
  int residual = -1;  // slot; -1: none
  BranchDropout dropout = {};
};

}  // namespace snug
