// Seconds of one kind of op as a function of its FLOPs and bytes, from some that were measured.
//
//   base   seconds = call + FLOPs / rate + bytes / bandwidth    least squares of relative errors,
//                                                               no coefficient below zero
//   shape  x what the samples near by took against the base     exact at each of them
//
// Work beyond the largest sample takes its time in proportion, as if it were done in parts.
// The base knows what rates cannot: that a fused tail costs by the bytes it writes, short attention
// by its diagonal. The second factor knows what the base cannot: caches that end.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace snug {

struct OpSample {
  double flops = 0, bytes = 0, seconds = 0;
  int64_t count = 1;  // of which `seconds` is the mean
};

class OpCurve {
 public:
  void add(OpSample sample);  // one of equal work replaces nothing: their mean counts
  bool empty() const { return samples_.empty(); }
  const std::vector<OpSample>& samples() const { return samples_; }
  double seconds(double flops, double bytes) const;
  // How many times the work of the largest samples it is; 1 within them.
  double beyond(double flops, double bytes) const;
  // Seconds a call, a FLOP and a byte.
  const std::array<double, 3>& base() const;

 private:
  double base_seconds(double flops, double bytes) const;
  // When first asked after a sample came: a start reads hundreds of samples and asks few curves.
  // Not for two threads at a time.
  void fit() const;
  std::vector<OpSample> samples_;  // by FLOPs, then bytes
  mutable bool fitted_ = true;
  mutable std::array<double, 3> base_{};
  mutable double flops_[2] = {}, bytes_[2] = {};  // least and most of any sample
};

}  // namespace snug
