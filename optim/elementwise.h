// What most optimizers are: the same arithmetic on every element, as a rule says it (optim/rule.h).
// update_block is a plain loop over floats; spans, chunks, threads, clipping, skipped steps and the
// rounded weights are the driver's.
//
// Bytes moved per parameter: 4 gradient (bf16: 2), 8 master, 8 per state, 2 per 16-bit weight.
// AdamW: 28 (30).
#pragma once

#include <array>
#include <span>

#include "optim/optimizer.h"

namespace snug {

inline constexpr int kMaxStates = 4;

// The numbers of one step for one group. Scalars are combined in double and rounded once.
struct ElementStep {
  float gradient_factor;  // multiply the gradient by it first
  double learning_rate;
  double weight_decay;  // 0 in groups without decay
  double bias_correction1;
  double bias_correction2;
  int64_t updates;  // applied before this one
  bool first;       // none was
};

// n elements; the arrays do not overlap.
struct ElementBlock {
  int64_t n;
  float* parameter;
  const float* gradient;
  std::array<float*, kMaxStates> states;
};

class ElementwiseOptimizer : public Optimizer {
 public:
  void prepare_step(StepState& state) const override;  // no bias correction: both are 1
  void update(Context& ctx, const UpdateTargets& targets, StateStore& store, const View& state,
              WindowRange windows = {}) const final;

 protected:
  // op_name: a static string, for example "adamw_update". flops: per element, for reports.
  ElementwiseOptimizer(OptimizerConfig config, const std::vector<const char*>& state_names,
                       const char* op_name, int64_t flops);

  // Called from several threads. An element's result must depend on that element alone.
  virtual void update_block(const ElementStep& step, const ElementBlock& block) const = 0;

 private:
  void update_spans(Context& ctx, const UpdateTargets& targets, StateStore& store,
                    std::span<const StateSpan> spans, const View& state) const;

  // weights: the dtype of those that targets or store have. What spans need has been acquired.
  void update_by_kernels(Context& ctx, const UpdateTargets& targets, StateStore& store,
                         std::span<const StateSpan> spans, DType weights, const View& state) const;

  const char* op_name_;
  int64_t flops_;
};

}  // namespace snug
