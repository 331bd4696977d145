// What this machine can do at most, measured on the spot: the roofs that benchmarks divide by.
#pragma once

namespace snug {

struct Roofs {
  double fp32_flops = 0;  // fused multiply-adds from registers, all threads, FLOP/s
  double bf16_flops = 0;  // bf16 dot products from registers; 0 where the CPU has none
  double copy_bytes = 0;  // bytes read and written a second by a copy far larger than the caches
};

// Best of a few short runs; takes about half a second.
Roofs measure_roofs(int threads);

}  // namespace snug
