// How long the engine's ops take on this machine: measured by training small models with the engine
// itself, one sample for every size of every op that their steps contain.
//
//   seconds ^            x  largest: from there on in proportion to the work
//           |        .
//           |    x          between two sizes along a straight line of logarithms
//           |. x
//           +-----------> work: FLOPs of products and attention, else bytes moved
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/blas/kernel_table.h"
#include "engine/core/dtype.h"
#include "engine/memory/program.h"

namespace snug {

struct OpSample {
  double work = 0, seconds = 0;
};

class OpRates {
 public:
  // "linear_forward nt wide long, f32 f32, avx512": the op and how it computes.
  static std::string key(const OpRecord& op);
  static double work(const OpRecord& op);

  void add(const std::string& key, OpSample sample);
  bool empty() const { return samples_.empty(); }
  // Negative: nothing alike was measured.
  double seconds(const OpRecord& op) const;
  // {key: [[work, seconds], ...]}.
  nlohmann::json json() const;
  // Throws data naming `where`.
  static OpRates parse(const nlohmann::json& j, const std::string& where);
  const std::map<std::string, std::vector<OpSample>>& samples() const { return samples_; }

 private:
  std::map<std::string, std::vector<OpSample>> samples_;  // by growing work
};

// Trains three small models of this compute dtype, three steps each and as many more as fit into
// `seconds`; the fastest of each op's times counts.
OpRates measure_ops(DType compute, int threads, const KernelTable& kernels, double seconds);

}  // namespace snug
