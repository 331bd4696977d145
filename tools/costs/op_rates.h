// How long the engine's ops take on this machine, one sample for every size of every op that was
// measured (tools/calibrate/measure_ops.h).
// An op that was not measured by its name is looked for among products that compute alike, whatever
// is fused to them: same layouts and kernel, then the same kernel. The same curves continue one
// that ends below the work that is asked for.
// A product that brings its B packed (kPackedSuffix) takes what it takes plain, times what packing
// made of the same product where both were measured; where they were not, as long as plain. So
// noise between different products is never taken for what packing gains.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/blas/kernel_table.h"
#include "engine/memory/program.h"
#include "tools/costs/op_curve.h"

namespace snug {

// The op that packs weights, by name.
inline constexpr const char* kPackOp = "matmul_pack";

class OpRates {
 public:
  // "linear_forward nt wide long, f32 f32, avx512": the op and how it computes.
  static std::string key(const OpRecord& op);

  void add(const std::string& key, OpSample sample);
  bool empty() const { return curves_.empty(); }
  // Negative: nothing alike was measured.
  double seconds(const OpRecord& op) const;
  // Whether packed products and the packing were measured.
  bool packing() const;
  // Seconds from the end of an op to the beginning of the next: tensors that are born and end, and
  // what the engine notes of the next one. 0: not measured.
  void set_between(double seconds) { between_ = seconds; }
  double between() const { return between_; }
  // {key: [[FLOPs, bytes, seconds], ...]}.
  nlohmann::json json() const;
  // Throws data naming `where`.
  static OpRates parse(const nlohmann::json& j, const std::string& where);
  const std::map<std::string, OpCurve>& curves() const { return curves_; }

 private:
  double seconds(const std::vector<const OpCurve*>& curves, size_t i, double flops,
                 double bytes) const;
  double look_up(const OpRecord& op) const;
  double packed_ratio(const std::string& key, double flops, double bytes) const;
  // Ops that were asked for: the layers of a model repeat them. Not for two threads at a time.
  struct Work {
    struct Seen {  // its variant is interned
      std::string_view op;
      const char* variant;
      int64_t flops, bytes;
      bool operator==(const Seen&) const = default;
    };
    std::string op;
    const char* variant;
    int64_t flops, bytes;
    operator Seen() const { return {op, variant, flops, bytes}; }
    struct Hash {
      using is_transparent = void;
      size_t operator()(const Seen& work) const;
    };
    struct Equal {
      using is_transparent = void;
      bool operator()(const Seen& a, const Seen& b) const { return a == b; }
    };
  };
  mutable std::unordered_map<Work, double, Work::Hash, Work::Equal> known_;
  double between_ = 0;
  std::map<std::string, OpCurve> curves_;
  // By how they compute alone: "nt wide long, ...", "..."; without those of packed products.
  std::map<std::string, OpCurve> alike_;
};

}  // namespace snug
