// What optimizers are that treat some parameters otherwise than element by element: of those a direction
// is found first, in planned scratch, and then a step is taken along it as any other is (AlongRule);
// all other parameters have the rule of the optimizer, which is AdamW's.
#pragma once

#include <memory>
#include <span>

#include "optim/elementwise.h"

namespace snug {

// The matrices of a parameter (OptimizerConfig::pieces).
inline std::span<const OptimPiece> pieces_of(const OptimizerConfig& c, int param) {
  const auto p = static_cast<size_t>(param);
  if (param < 0 || p >= c.pieces.size()) return {};
  return c.pieces[p];
}

class DirectedOptimizer : public ElementwiseOptimizer {
 protected:
  using ElementwiseOptimizer::ElementwiseOptimizer;

  virtual bool directs(const StateStore& store, const StateSpan& span) const = 0;
  // The update of a span of which that is so, state by state and step by step. Its states are those of
  // the store, which it releases.
  virtual void direct(Context& ctx, const UpdateTargets& targets, StateStore& store,
                      const StateSpan& span, const View& state) const = 0;

  // Elements [from, from + direction.elements()) of a span, `from` a multiple of 256: the step along
  // `direction`, f32, unless found_inf is set. One op.
  void follow(Context& ctx, const UpdateTargets& targets, StateStore& store, const StateSpan& span,
              int64_t from, const View& direction, const View& state) const;

  void update_window(Context& ctx, const UpdateTargets& targets, StateStore& store,
                     std::span<const StateSpan> spans, const View& state) const final;

  std::unique_ptr<Optimizer> along_;  // with OptimizerConfig::along
};

}  // namespace snug
