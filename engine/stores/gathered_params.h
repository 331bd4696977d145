// GatheredParamStore: every rank keeps a piece of the weights, and a layer has all of its own on the
// device while it runs: they are gathered a layer ahead of their use, in forward and again in backward
// (ZeRO stage 3: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
// Models", 2020). Of trained and frozen parameters alike.
//
// What is of no part (embeddings, the last norm, the head) is gathered where a program uses it first
// and stays to the program's end.
#pragma once

#include <vector>

#include "engine/seams/param_store.h"
#include "engine/stores/shards.h"

namespace snug {

class GatheredParamStore final : public ParamStore {
 public:
  // Call inside the root program.
  GatheredParamStore(Context& ctx, const ParamTable& table, DType dtype, Comm& comm);
  const ParamTable& table() const override { return table_; }
  View acquire(Context& ctx, int param) override;
  void release(Context&, int) override {}
  void fetch_part(Context& ctx, int part) override;
  void drop_part(Context& ctx, int part) override;
  // At the end of a program: what is of no part goes.
  void drop_rest(Context& ctx);
  // This rank's pieces, in the order of the runs: its trained ones begin them.
  const View& kept() const { return kept_; }
  const Shards& shards() const { return shards_; }

 private:
  void gather(Context& ctx, size_t run);
  void drop(Context& ctx, size_t run);

  const ParamTable& table_;
  DType dtype_;
  Comm& comm_;
  Shards shards_;
  Tensor kept_;
  std::vector<Name> names_;       // of the runs
  std::vector<Tensor> gathered_;  // by run
  std::vector<Comm::Flight> coming_;
  std::vector<int> run_of_;  // by parameter
};

}  // namespace snug
