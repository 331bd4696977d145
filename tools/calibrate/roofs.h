// What this machine can do at most, measured on the spot: the roofs that benchmarks divide by.
//
// Arithmetic  multiply-adds on registers alone, all threads at once: fp32 FMA, and for bf16 the
//             fastest of the units the CPU has (AMX tiles, AVX-512 dot products).
// Memory      arrays of at least 64 MiB and twice the last-level cache, up to 256 MiB, a part for
// each
//             thread. `read` counts the bytes read; `copy` the bytes read and the bytes written
//             with ordinary stores, not that such a store reads its line first; `stream` the same
//             with stores past the caches. An op's bytes are counted like `copy`.
// Each is the best of several short runs: other work on the machine can only make a run slower.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

namespace snug {

struct Roofs {
  std::string device;  // a GPU's name; empty: this CPU
  int threads = 0;
  double fp32_flops = 0;                                    // FLOP/s
  double bf16_flops = 0;                                    // 0 where the CPU has no unit for it
  double tf32_flops = 0;                                    // of a GPU
  double read_bytes = 0, copy_bytes = 0, stream_bytes = 0;  // bytes/s

  // The largest traffic in any of the three manners: what bounds an op that could use each.
  double memory_bytes() const { return std::max({read_bytes, copy_bytes, stream_bytes}); }
  // The roof over arithmetic on operands of that width.
  double flops(bool bf16) const { return is_bf16(bf16) ? bf16_flops : fp32_flops; }
  // Whether that is the roof of bf16: without a unit for it, or a faster one, it is fp32's.
  bool is_bf16(bool bf16) const { return bf16 && bf16_flops > fp32_flops; }
};

// The share of the nearer roof that so many FLOPs and bytes in `seconds` reach: of arithmetic on
// bf16 for a product of bf16 operands, else on fp32, or of memory traffic.
inline double roof_share(const Roofs& roofs, double flops, double bytes, double seconds,
                         bool bf16) {
  if (seconds <= 0) return 0;
  return std::max(flops / seconds / roofs.flops(bf16), bytes / seconds / roofs.memory_bytes());
}

// `seconds`: about how long it may take, the arrays' first touch aside.
Roofs measure_roofs(int threads, double seconds = 0.5);
// The memory's rates alone, in turn with what is held to them: on a shared machine they move by a
// factor of two within a minute. Keeps its arrays, so that one `measure` takes `seconds` and no
// first touch.
class MemoryRoofs {
 public:
  explicit MemoryRoofs(int threads);
  ~MemoryRoofs();
  MemoryRoofs(const MemoryRoofs&) = delete;
  MemoryRoofs& operator=(const MemoryRoofs&) = delete;
  Roofs measure(double seconds = 0.04) const;  // arithmetic 0

 private:
  struct State;
  std::unique_ptr<State> state_;
};
// The larger of each: of two measurements of one machine the larger is nearer to what it can do.
Roofs larger(const Roofs& a, const Roofs& b);
// A line; of a GPU its name, TFLOP/s and what bounds it there.
std::string to_string(const Roofs& roofs);

}  // namespace snug
