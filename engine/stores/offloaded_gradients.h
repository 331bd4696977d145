// OffloadedGradSink: gradients that rest in the host arena. Those of a part (a block) are made on
// the device and leave as soon as its backward is over, while that of the part below runs. Where a
// window has several micro-steps they are back before the part's backward, which adds to them: the
// additions are those of gradients that stay, in their order, so the bits are too.
//
//   to_device  | l-1 ~~~~> | l-2 ~~~~> |     device memory: the gradients of two parts in a
//   window's compute    | part l    | part l-1  |     first micro-step, of three in the others
//   to_host    | l+1 ~~~~> | l ~~~~>   |     traffic: once out, and but for the first once back
//
// Behind the last micro-step they come back twice: part by part for the norm, which clipping needs
// before anything is updated, and window by window beside the states of the store.
//
// What is of no part (embeddings, the last norm, the head) stays on the device: a tied table has
// contributions from both ends of the model.
//
// Where the host updates (on_host) they do not come back: sums of squares are taken on the device, of
// each part when its backward is over, in slots that the update joins in the order of the table. A
// step's last micro-step counts, whose sums are those of the window. What is of no part goes to the
// host in the update, window by window.
//
// Where it does so one step late (delayed) the gradients of a step come in beside those of the step
// before, which the host reads meanwhile: there are two of each run, that change places between steps
// (turn), and what is of no part goes to the host behind the norm, all at once (leave).
//
// Of ranks that each keep all of them (ZeRO stage 0) a block's are summed over ranks in a window's last
// micro-step, before they leave, and each rank sums up the squares of its own pieces.
// At stage 1 each rank has the sum of its piece alone, which rests elsewhere (offloaded_pieces.h) and is what
// the update has: what is here are the sums of micro-steps before.
//
// Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training" (2021).
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "engine/kernels/gradient_norm.h"
#include "engine/seams/comm.h"
#include "engine/seams/grad_sink.h"
#include "engine/seams/update.h"
#include "engine/stores/offloaded_pieces.h"
#include "engine/stores/part_runs.h"

namespace snug {

class OffloadedGradSink final : public GradSink, public GradientWindows {
 public:
  // What outlives the sink: whom they are summed with, by run the spans whose squares are this rank's, and
  // where its pieces of the sums rest; null: all of them are here.
  struct Ranks {
    Comm& comm;
    const std::vector<std::vector<StateSpan>>& own;
    OffloadedPieces* pieces = nullptr;
  };
  // Call inside the root program. The store's windows keep to the parts, and it outlives the sink.
  // dtype: f32 or bf16.
  OffloadedGradSink(Context& ctx, const ParamTable& table, const StateStore& store, DType dtype,
                    bool on_host = false, bool delayed = false, std::optional<Ranks> ranks = {});
  // Before a micro-step: the first of a window assigns, later ones add; ranks sum in the last.
  void begin(bool first_of_window, bool last_of_window);
  bool wants(int param) const override { return table_[param].trainable; }
  GradView open(Context& ctx, int param) override;
  void close(Context&, int) override {}
  void fetch_part(Context& ctx, int part) override;
  void part_done(Context& ctx, int part) override;
  // At the end of a micro-step's program: what is of no part is summed, and compute waits for what is still
  // on its way out.
  void end(Context& ctx) {
    sum_rest(ctx);
    settle(ctx);
    if (pieces()) pieces()->settle(ctx);
  }

  // Where all of them are here. In the program of the update: sums of squares, run by run in the order of
  // the table.
  void norm(Context& ctx, const View& state);
  // After norm(), in order.
  Window open_window(Context& ctx, int w) override;
  void close_window(Context& ctx, int w) override;

  // With `delayed`. In the program of the update, behind norm(): what is of no part begins to leave;
  // and compute waits for it.
  void leave(Context& ctx);
  void left(Context& ctx);
  // Behind that program: what came in is what windows are opened of, until it is called again.
  void turn();
  // Of what windows are opened of, from element `first` of the flat range on as far as it lies in one
  // piece.
  View late(int64_t first) const;

  // Between programs: a parameter's gradient where it rests, for who can read it there.
  View stored(int param) const;

 private:
  // What has a place with the host and, for a while, one on the device.
  struct Piece : DeviceCopy {
    Tensor host, late;  // late: of the step before, with `delayed`
  };
  struct Run : Piece {
    int part = -1;
    std::span<const StateSpan> spans;  // whose squares are summed up here
    bool sent = false;                 // of this window: the host has its sums so far
    Tensor slots;                      // with on_host: of its sums of squares
  };
  struct StoreWindow : Piece {
    int run = 0;  // of no part: the whole run, which is on the device
    // Then, with on_host: its piece there, and with the host while the window is open.
    Tensor source, staged;
  };
  // Whether it has a place with the host between programs.
  bool kept(const Run& run) const { return away(run) || delayed_; }
  OffloadedPieces* pieces() const { return ranks_ ? ranks_->pieces : nullptr; }
  void sum_rest(Context& ctx);
  void sum_piece(Context& ctx, size_t run);
  void settle(Context& ctx);
  void stage(Context& ctx, StoreWindow& window);
  void make_windows(Context& ctx, const StateStore& store);
  void cut_device(Context& ctx);
  static bool away(const Run& run) { return run.part >= 0; }
  void fetch(Context& ctx, Piece& piece);

  const ParamTable& table_;
  DType dtype_;
  bool on_host_, delayed_;
  std::optional<Ranks> ranks_;
  NormOps ops_;
  bool sums_ = false;  // this micro-step
  std::vector<Run> runs_;
  std::vector<int> run_of_;  // by parameter
  std::vector<StoreWindow> windows_;
  Tensor all_, all_late_;       // with the host, the runs one behind the other
  std::vector<Tensor> unread_;  // pieces of it that no window has
  std::vector<char> written_;   // by this window, per parameter
  int leaving_ = -1;            // the run on its way out
};

}  // namespace snug
