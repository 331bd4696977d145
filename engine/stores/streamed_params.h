// StreamedParamStore: the weights of the parts of the table (blocks) rest in the host arena, and a
// layer has them on the device while it runs: they are brought before its forward and again before
// its backward, one layer ahead of their use.
//
//   to_device | l+1 ~~~~> | l+2 ~~~~> |          device memory: the weights of two parts
//   compute   | layer l   | layer l+1 |          traffic of a micro-step: all parts twice
//
// What is of no part (embeddings, the last norm, the head) stays on the device; but frozen tables of
// rows may rest with the host, where the device reads what it wants. The host's copy of
// what is trained is that of an OffloadedStateStore, whose windows update it; what they change, the
// next fetch reads. What is frozen rests with the host in this store's dtype, and is only read.
//
// Of ranks that have all weights (ZeRO stages 1 and 2) what is trained is a copy of this store's too, which is
// written run by run as it was gathered (take).
#pragma once

#include <vector>

#include "engine/seams/param_store.h"
#include "engine/stores/offloaded_states.h"
#include "engine/stores/part_runs.h"

namespace snug {

class StreamedParamStore final : public ParamStore {
 public:
  // Call inside the root program. `host`: made with Options::weights of this dtype; it outlives
  // this store and writes the weights of no part here. Null: whoever gathers writes all.
  StreamedParamStore(Context& ctx, const ParamTable& table, DType dtype, OffloadedStateStore* host,
                     bool tables_with_host = false);
  const ParamTable& table() const override { return table_; }
  View acquire(Context& ctx, int param) override;
  // The same for ops on that stream, which waits for it in place of compute; and those of its run, of a part,
  // are not wanted any more, wherever those of the part's other one are.
  View acquire_on(Context& ctx, StreamId stream, int param);
  void drop_run(Context& ctx, int param);
  void release(Context&, int) override {}
  void fetch_part(Context& ctx, int part) override;
  void drop_part(Context& ctx, int part) override;
  // In a program, after the trained parameters were written: the weights are theirs.
  void load(Context& ctx);
  // Without a host. Where a run of no part is, to be written; and in a program, of a part: begins to take
  // `from`, all of it, from the device. Compute waits for that with taken().
  View resident(size_t run) const { return runs_[run].device.view(); }
  void take(Context& ctx, size_t run, Tensor& from);
  void taken(Context& ctx, size_t run) { arrive(ctx, runs_[run]); }
  // Where what is frozen rests, run by run.
  std::vector<RestingWeights::Piece> frozen() const;

 private:
  struct Run : DeviceCopy {
    int part = -1;
    bool trained = true, table = false;
    Tensor own;  // with the host, of what is this store's
    std::vector<Tensor*> host;
  };
  View on_device(int64_t offset, int64_t elements) const;
  void drop(Context& ctx, Run& run);

  const ParamTable& table_;
  DType dtype_;
  OffloadedStateStore* host_;
  std::vector<Run> runs_;
  std::vector<int> run_of_;  // by parameter
};

}  // namespace snug
