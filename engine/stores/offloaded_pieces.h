// OffloadedPieces: the summed gradients of a rank's pieces (shards.h) rest with its host, whatever sink sums
// them over ranks: ZeRO stages 1 to 3 with ZeRO-Offload's residence (Ren et al., 2021). A run's piece is on
// the device while it is summed, and leaves while the next run's is.
//
//   to_device  | h.1 1 ~~> | h.0 1 ~~> |     where a sink adds to it, else nothing
//   summed     | h.2 1     | h.1 1     |     device memory: the pieces of two runs, of three where it adds
//   to_host    | h.3 1 ~~> | h.2 1 ~~> |
//
// The update has them back window by window beside the states of the store. Where the host updates (on_host)
// they do not come back, and sums of squares are taken on the device before a piece leaves. Where it does so
// one step late (delayed) there are two of each, as in offloaded_gradients.h. All ranks do the same ops.
#pragma once

#include <span>
#include <vector>

#include "engine/seams/grad_sink.h"
#include "engine/seams/update.h"
#include "engine/stores/part_runs.h"
#include "engine/stores/shards.h"

namespace snug {

class OffloadedPieces final : public GradientWindows {
 public:
  // What a window of the store has of the pieces, one behind the other.
  struct Cut {
    int64_t first, elements;
  };
  struct Options {
    DType dtype = DType::f32;  // or bf16
    bool on_host = false, delayed = false;
  };
  // Call inside the root program. `own`: by run the spans whose squares are this rank's. It and the shards
  // outlive this; `windows` go up.
  OffloadedPieces(Context& ctx, const ParamTable& table, const Shards& shards, int rank,
                  const std::vector<std::vector<StateSpan>>& own, std::span<const Cut> windows,
                  Options options);
  void begin();  // before a micro-step
  // Begins to bring what the host has of a run, which is added to next.
  void fetch(Context& ctx, size_t run);
  // Where it is summed on the device, and whether to add to what is there.
  GradView open(Context& ctx, size_t run, bool add);
  // That is done: it begins to leave.
  void close(Context& ctx, size_t run);
  // Compute waits for what is still on its way out.
  void settle(Context& ctx);

  // In the program of the update: sums of squares, run by run.
  void norm(Context& ctx, const View& state);
  // After norm(), in order.
  Window open_window(Context& ctx, int w) override;
  void close_window(Context& ctx, int w) override;

  // With `delayed`, as in OffloadedGradSink; another rank's element has no data.
  void turn();
  View late(int64_t first) const;

 private:
  struct Piece : DeviceCopy {
    Tensor host, late;
  };
  struct Run : Piece {
    Tensor slots;  // with on_host: of its sums of squares
  };
  void fetch(Context& ctx, Piece& piece);
  void cut(Context& ctx, const Tensor& all, Tensor Piece::*to);

  const Shards& shards_;
  int rank_;
  const std::vector<std::vector<StateSpan>>& own_;
  Options options_;
  Tensor all_, all_late_;  // with the host, the pieces one behind the other
  std::vector<Run> runs_;
  std::vector<Piece> windows_;
  std::vector<int64_t> sizes_;    // what of all_ is a window's or none's
  std::vector<size_t> piece_of_;  // by window, which of them
  int leaving_ = -1;              // the run on its way out
};

}  // namespace snug
