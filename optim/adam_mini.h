// The driver of optim/rules/adam_mini.h: second moments of blocks, then directions m / (sqrt(v / bc2) + eps)
// piece by piece of a parameter.
//
// Scratch   at most 4 Mi elements of a direction, f32.
// Traffic   20 bytes an element, and 12 of the step that follows.
// Numerics  a block's squares are summed in double, element i of it by lane i % 256 of optim/whole.h: the same
//           bits on every place.
#pragma once

#include "optim/directed.h"

namespace snug {

// Blocks of one length, one behind the other.
struct BlockRun {
  int64_t elements, block;
};
inline constexpr int64_t kMiniDirection = 4 << 20;

// How many blocks a parameter has; -1: one an element.
int64_t blocks_of(const ParamInfo& param, std::span<const OptimPiece> pieces);

struct AdamMiniNumbers {
  float one_minus_beta1, beta2, one_minus_beta2, epsilon;
};

class AdamMiniOptimizer : public DirectedOptimizer {
 protected:
  AdamMiniOptimizer(OptimizerConfig config, const std::vector<OptimState>& states,
                    const char* op_name, int64_t flops, OptimReach reach);

  bool directs(const StateStore& store, const StateSpan& span) const override;
  void direct(Context& ctx, const UpdateTargets& targets, StateStore& store, const StateSpan& span,
              const View& state) const override;

 private:
  // f(the run, its first element within the span, its first block) for all of a span.
  template <class F>
  void each_run(const StateSpan& span, int64_t blocks, F&& f) const;

  AdamMiniNumbers numbers_;
};

}  // namespace snug
