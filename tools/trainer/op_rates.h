// How long the engine's ops take on this machine: measured by training small models with the engine
// itself, one sample for every size of every op that their steps contain.
// An op that was not measured by its name is looked for among products that compute alike, whatever
// is fused to them: same layouts and kernel, then the same kernel. The same curves continue one
// that ends below the work that is asked for.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/blas/kernel_table.h"
#include "engine/core/dtype.h"
#include "engine/memory/context.h"
#include "engine/memory/program.h"
#include "tools/trainer/op_curve.h"

namespace snug {

class OpRates {
 public:
  // "linear_forward nt wide long, f32 f32, avx512": the op and how it computes.
  static std::string key(const OpRecord& op);

  void add(const std::string& key, OpSample sample);
  bool empty() const { return curves_.empty(); }
  // Negative: nothing alike was measured.
  double seconds(const OpRecord& op) const;
  // {key: [[FLOPs, bytes, seconds], ...]}.
  nlohmann::json json() const;
  // Throws data naming `where`.
  static OpRates parse(const nlohmann::json& j, const std::string& where);
  const std::map<std::string, OpCurve>& curves() const { return curves_; }

 private:
  double seconds(const std::vector<const OpCurve*>& curves, size_t i, double flops,
                 double bytes) const;
  std::map<std::string, OpCurve> curves_;
  std::map<std::string, OpCurve> alike_;  // by how they compute alone: "nt wide long, ...", "..."
};

// Trains small models of this compute dtype, some steps each and as many more as fit into
// `seconds`. Of an op's times the median counts. Larger models are left out where they
// would take too long or need more than half of the free memory; with 0 seconds only the smallest
// is trained.
// They train on the place settings.target, with models of its size.
OpRates measure_ops(DType compute, const Settings& settings, double seconds);

}  // namespace snug
