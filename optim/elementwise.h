// What most optimizers are: the same arithmetic on every element, as a rule says it (optim/rule.h).
// update_block is a plain loop over floats; spans, chunks, threads, clipping, skipped steps, rounded
// weights, and states or parameters that rest in codes or in bf16 are the driver's.
//
// Bytes moved per parameter: 4 gradient (bf16: 2), 8 master (without one 4), 8 per state (bf16: 4; 8
// bits: 2.03; 4 bits: 1.06), 2 per 16-bit weight. AdamW: 28 (30), in 8 bits 16.1.
#pragma once

#include <array>
#include <span>

#include "optim/optimizer.h"
#include "optim/whole.h"
#include "quant/codec.h"

namespace snug {

inline constexpr int kMaxStates = 4;

class ChunkMap;
struct MapLines;

// The numbers of one step for one group. Scalars are combined in double and rounded once.
struct ElementStep {
  float gradient_factor;  // multiply the gradient by it first
  double learning_rate;
  double weight_decay;  // 0 in groups without decay
  double bias_correction1;
  double bias_correction2;
  int64_t updates;  // applied before this one
  bool first;       // none was
  // Of the parameter, for rules that ask for it (whole.h).
  double parameter_norm = 0, measured_norm = 0;
  int64_t elements = 0;   // of the parameter, where the norms are known
  bool factored = false;  // the state is 1 over the root of what rows and columns say (factored.h)
};

// n elements; the arrays do not overlap.
struct ElementBlock {
  int64_t n;
  float* parameter;
  const float* gradient;
  std::array<float*, kMaxStates> states;
};

// A state of a block that rests in codes.
struct CodedState {
  const Codec* codec;
  const MapLines* lines;  // of its book
  uint8_t* codes;
  float* scales;
};
using CodedStates = std::array<CodedState, kMaxStates>;

class ElementwiseOptimizer : public Optimizer {
 public:
  void prepare_step(StepState& state) const override;  // no bias correction: both are 1
  void update(Context& ctx, const UpdateTargets& targets, StateStore& store, const View& state,
              WindowRange windows = {}) const final;

 protected:
  // op_name: a static string, for example "adamw_update". flops: per element, for reports.
  ElementwiseOptimizer(OptimizerConfig config, const std::vector<OptimState>& states,
                       const char* op_name, int64_t flops, OptimReach reach = OptimReach::element);

  // Called from several threads. An element's result must depend on that element alone.
  virtual void update_block(const ElementStep& step, const ElementBlock& block) const = 0;
  // The same bits of states in codes, which `block` has not: in one pass over whole blocks of 256, on a
  // machine with use_avx512_vbmi(), where has_coded_pass(). Without it they are decoded and encoded around
  // update_block().
  virtual bool has_coded_pass() const { return false; }
  virtual void update_coded(const ElementStep& step, const ElementBlock& block,
                            const CodedStates& states) const;
  // Whether there are norms to be known before (whole.h); then adds to them what a block has, whose
  // first element is that of lane 0. It writes nothing of the block.
  virtual bool measures() const { return false; }
  virtual void measure_block(const ElementStep&, const ElementBlock&, NormLanes&) const {}
  virtual float factored_epsilon() const { return 0; }  // of factored.h
  // The spans of an open window, and whose gradients are there.
  virtual void update_window(Context& ctx, const UpdateTargets& targets, StateStore& store,
                             std::span<const StateSpan> spans, const View& state) const {
    update_spans(ctx, targets, store, spans, state);
  }

 public:
  // Of any spans, or parts of some that begin at a multiple of 256 elements, of an open window: one op.
  void update_spans(Context& ctx, const UpdateTargets& targets, StateStore& store,
                    std::span<const StateSpan> spans, const View& state) const;

 private:
  // Of states that have a number for each element: the ring of percentile.h is behind them.
  int count() const { return static_cast<int>(state_names().size()) - (rings_ ? 1 : 0); }
  // Of every span what its gradient is multiplied by, f32. One op.
  Tensor percentile_factors(Context& ctx, const UpdateTargets& targets, StateStore& store,
                            std::span<const StateSpan> spans, const ChunkMap& map,
                            const View& state) const;
  bool in_codes() const { return codecs_[0] != nullptr; }
  // A piece of state k of a span as floats, `room` where it does not rest as such; and back.
  struct Place {
    void* values;
    float* scales;  // null: no codes
  };
  float* unpack(const Place& place, int k, int64_t from, int64_t n, bool first, float* room) const;
  void pack(const Place& place, int k, int64_t from, int64_t n, const float* room,
            const StepState& state, int64_t element) const;

  // weights: the dtype of those that targets or store have. What spans need has been acquired.
  void update_by_kernels(Context& ctx, const UpdateTargets& targets, StateStore& store,
                         std::span<const StateSpan> spans, DType weights, const View& state,
                         const View& norms, const View& factors, const View& clips) const;

  std::array<const Codec*, kMaxStates> codecs_{};  // of states in codes
  std::array<const MapLines*, kMaxStates> lines_{};
  bool one_pass_;  // the forms of the states are those that update_coded() takes
  const char* op_name_;
  bool rings_;  // the last state is one (percentile.h)
  int64_t flops_;
};

}  // namespace snug
