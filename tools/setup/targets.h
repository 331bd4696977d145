// Described devices: what a plan can be made for without having one. Published figures, compiled in
// (targets_data.cpp); a file of the same form describes others.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/costs/cost_model.h"

namespace snug {

struct Target {
  std::string name, title, source;
  int64_t memory_bytes = 0;
  // RAM of the host beside it; of those that are compiled in twice its memory, which is assumed, and
  // where it is the memory 0.
  int64_t host_bytes = 0;
  int64_t runtime_bytes = 0;  // assumed of driver, libraries and program; not ours to plan
  // Its memory is the host's: a processor, which runs the programs of device: cpu; else those of
  // cuda.
  bool shares_host = false;
  // Published peaks, FLOP/s without sparsity and with sums in fp32; 0: the device has no unit for
  // it.
  double fp32_flops = 0, tf32_flops = 0, bf16_flops = 0, fp16_flops = 0;
  double memory_bandwidth = 0, link_bandwidth = 0;  // bytes/s; link: one direction
  // Of the host beside it, bytes/s that its cores update at; else kHostBandwidth is assumed.
  double host_bandwidth = 0;

  // What of the peaks is counted on: kMatrixShare of arithmetic for large products, kMemoryShare of
  // the bandwidth. Not fitted to any of them.
  // For a model that computes in `compute`: operands of 16 bits of either kind run at the rate of
  // theirs. With `tf32` the products of f32 run at that rate; attention does not.
  Rates rates(DType compute, bool tf32 = false) const;
  // Of ops that the host computes, which its memory bounds.
  CostModel host_cost() const;
  static constexpr double kHostBandwidth = 40e9;  // two channels of DDR5 at half their peak
  static constexpr double kMatrixShare = 0.75, kMemoryShare = 0.85, kLinkShare = 0.7;
};

const std::vector<Target>& known_targets();
// A known name, or a path that ends in .json. Throws usage, listing the names; data if the file is
// not a target.
Target find_target(const std::string& name);
// {"name": ..., "memory_bytes": ..., ...}; throws data naming `where`.
Target parse_target(std::string_view json, const std::string& where);

// JSON of known_targets().
extern const char* const kTargetsJson;

}  // namespace snug
