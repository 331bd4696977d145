// GatheredParamStore: every rank keeps a piece of the weights, and a layer has all of its own on the
// device while it runs: they are gathered a layer ahead of their use, in forward and again in backward
// (ZeRO stage 3: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
// Models", 2020). Of trained and frozen parameters alike.
//
// What is of no part (embeddings, the last norm, the head) is gathered where a program uses it first
// and stays to the program's end.
//
// The pieces of blocks may rest with the rank's host (Rajbhandari et al., "ZeRO-Infinity", 2021, its host's
// tier): a layer's is brought when its gathering begins, which waits for it.
//
//   to_device | l+1 piece ~~> |                    | l+2 piece ~~> |
//   ranks                     | l+1 gathered ~~~~> |               | l+2 gathered ~~~~> |
//   compute   | layer l ...........................| layer l+1 .........................|
//
// In turn with compute a layer's is gathered as it begins, and its piece is brought a layer ahead.
#pragma once

#include <vector>

#include "engine/seams/param_store.h"
#include "engine/stores/shards.h"
#include "engine/stores/streamed_params.h"

namespace snug {

class GatheredParamStore final : public ParamStore {
 public:
  // Call inside the root program. `pieces`: who brings this rank's pieces, run by run; null: they are here.
  GatheredParamStore(Context& ctx, const ParamTable& table, DType dtype, Comm& comm,
                     StreamedParamStore* pieces = nullptr);
  const ParamTable& table() const override { return table_; }
  View acquire(Context& ctx, int param) override;
  void release(Context&, int) override {}
  void fetch_part(Context& ctx, int part) override;
  void drop_part(Context& ctx, int part) override;
  // All of a run, until it is dropped; its piece was fetched before.
  Tensor& gathered(Context& ctx, size_t run) {
    gather(ctx, run);
    arrive(ctx, run);
    return gathered_[run];
  }
  void drop(Context& ctx, size_t run);
  // At the end of a program: what is of no part goes.
  void drop_rest(Context& ctx);
  // This rank's pieces where they are here, in the order of the runs: its trained ones begin them.
  const View& kept() const { return kept_; }
  const Tensor& whole() const { return kept_; }
  const Shards& shards() const { return shards_; }

 private:
  void gather(Context& ctx, size_t run);
  void arrive(Context& ctx, size_t run);
  bool gathers_late() const { return pieces_ && comm_.in_turn(); }

  const ParamTable& table_;
  DType dtype_;
  Comm& comm_;
  StreamedParamStore* pieces_;
  Shards shards_;
  Tensor kept_;
  std::vector<Name> names_;       // of the runs
  std::vector<Tensor> gathered_;  // by run
  std::vector<Comm::Flight> coming_;
  std::vector<int> run_of_;  // by parameter
};

}  // namespace snug
