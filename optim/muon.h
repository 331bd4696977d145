// The driver of optim/rules/muon.h: the momentum of a matrix and what Newton and Schulz' polynomial makes of
// it, by the engine's products.
//
// Scratch   of the largest parameter of the kind 4 bytes an element; of its largest matrix (m the lesser of
//           its extents) 4 an element and 8 m^2, with ns_bf16 2 and 6; and what the products take.
// FLOPs     ns_steps times 4 m n + 2 m^2 a row of the m, n being the larger extent.
// Numerics  the norm is summed as in optim/whole.h. All else is the products', so equal bits wherever these
//           give them: reference, avx2, avx512 and the emulator in fp32.
#pragma once

#include "optim/directed.h"

namespace snug {

// The numbers of a step's direction.
struct MuonNumbers {
  float momentum, take, epsilon;  // take: 1 - momentum
  bool nesterov;
  int steps;
  float a, b, c;
  bool match_rms, bf16;
};

class MuonOptimizer : public DirectedOptimizer {
 protected:
  MuonOptimizer(OptimizerConfig config, const std::vector<OptimState>& states, const char* op_name,
                int64_t flops, OptimReach reach);

  bool directs(const StateStore& store, const StateSpan& span) const override;
  void direct(Context& ctx, const UpdateTargets& targets, StateStore& store, const StateSpan& span,
              const View& state) const override;

 private:
  // In place, x (rows, columns) f32.
  void orthogonalize(Context& ctx, const View& x) const;

  MuonNumbers numbers_;
};

}  // namespace snug
