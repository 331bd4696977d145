// Rules that look at whole parameters (lamb, lars): their update is a multiple of a trust ratio, of the
// norm of the parameter and of another of as many numbers. Both are summed up before anything is
// written, in one order on every place, so that kernels have the bits of the loops:
//   chunk   kChunkElements of a span; element i of it is added to lane i % kNormLanes, in double
//   lanes   halves are added: j and j + 128, then j and j + 64, ...
//   norm    root of the sum of the chunks, in order
#pragma once

#include <cstdint>

namespace snug {

inline constexpr int64_t kChunkElements = 16384;  // 64 KiB of fp32
inline constexpr int kNormLanes = 256;

// What a parameter is measured by, of a chunk or of all of it: squares of its numbers, and of those
// of Rule::measured.
struct NormSums {
  double parameter = 0, measured = 0;

  void add(const NormSums& other) {
    parameter += other.parameter;
    measured += other.measured;
  }
};

struct NormLanes {
  NormSums of[kNormLanes];

  NormSums sum() {
    for (int half = kNormLanes / 2; half > 0; half /= 2)
      for (int j = 0; j < half; ++j) of[j].add(of[j + half]);
    return of[0];
  }
};

}  // namespace snug
