// Products of whole numbers.
//
//   dot4(a, b, sum)   sum + the products of the four signed bytes of two words, exact; one instruction of
//                     compute capability 6.1 and up
#pragma once

#include <cstdint>

#include "engine/simt/simt.h"

namespace snug::simt {
inline namespace SIMT_SIDE {

__device__ inline int dot4(int a, int b, int sum) {
#ifdef __CUDACC__
  return __dp4a(a, b, sum);
#else
  const auto byte = [](int word, int i) {
    return static_cast<int8_t>(static_cast<uint32_t>(word) >> (8 * i) & 0xffu);
  };
  for (int i = 0; i < 4; ++i) sum += byte(a, i) * byte(b, i);
  return sum;
#endif
}

}  // namespace SIMT_SIDE
}  // namespace snug::simt
