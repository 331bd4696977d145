// ScatteredGradSink: a rank keeps the summed gradients of its pieces alone (ZeRO stage 2). As backward
// leaves a block, its gradients are summed over ranks, each rank taking its piece, and their bytes are
// free for the next block's. What is of no part stays until the end of the micro-step.
//
//   backward   | h.2 .... | h.1 .... | h.0 .... |          a block's gradients at a time
//   kept         | += piece | += piece | += piece          of all blocks, this rank's pieces
//
// Where collectives lie beside compute they are summed while backward is at the next block, and there are
// those of two blocks.
//
// The pieces may rest with the host (offloaded_pieces.h), which then the update has too.
//
// Micro-steps are added after ranks are: of several in a window the order of sums is another than that
// of PlainGradSink, whose windows are summed over ranks once.
#pragma once

#include <vector>

#include "engine/seams/grad_sink.h"
#include "engine/seams/update.h"
#include "engine/stores/offloaded_pieces.h"
#include "engine/stores/sharded_states.h"

namespace snug {

class ScatteredGradSink final : public GradSink, public GradientWindows {
 public:
  // Call inside the root program. dtype: f32 or bf16. The windows of `store` are those of an update. `away`:
  // where the pieces rest; null: here.
  ScatteredGradSink(Context& ctx, const ParamTable& table, const Shards& shards, DType dtype,
                    Comm& comm, OffloadedPieces* away = nullptr);
  // The windows of each run in a store that has several of some.
  void set_windows(const std::vector<WindowRange>& of_runs);
  void begin(bool first_of_window);  // before a micro-step
  bool wants(int param) const override { return table_[param].trainable; }
  GradView open(Context& ctx, int param) override;
  void close(Context&, int) override {}
  void fetch_part(Context& ctx, int part) override;
  void part_done(Context& ctx, int part) override;
  // In the program of the micro-step, at its end: what is of no part.
  void settle(Context& ctx);
  Window open_window(Context& ctx, int w) override;
  void close_window(Context&, int) override {}
  // This rank's pieces, in the order of the runs.
  const View& kept() const { return kept_; }

 private:
  void scatter(Context& ctx, size_t run);
  void land(Context& ctx);  // what is on its way

  const ParamTable& table_;
  const Shards& shards_;
  DType dtype_;
  Comm& comm_;
  OffloadedPieces* away_;
  Tensor kept_;
  std::vector<Name> names_;        // of the runs
  std::vector<Tensor> gradients_;  // by run, while backward is at it
  Comm::Flight flight_;            // of run flying_
  int flying_ = -1;
  std::vector<int> run_of_;  // by parameter
  std::vector<size_t> run_of_window_;
  std::vector<char> written_;  // by this micro-step, per parameter
  bool first_ = true;
};

}  // namespace snug
