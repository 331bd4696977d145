// Stores: where weights, gradients and optimizer states of one model live, chosen by a policy. The
// rest of the program sees the seams (ParamStore, GradSink, StateStore) and the verbs below; a new
// home for bytes is a file in this folder and a line in stores.cpp.
//
// A step, as the caller runs it:
//   host      begin(first_of_window, last_of_window)
//   program   forward and backward with params() and gradients(); end(ctx)
//   program   of the update: where blocks are updated in backward, finish(ctx, state); else
//             sum_ranks(ctx), sum_squares(ctx, state), and update_and_share(), whose update is that of
//             targets() with states()
// With delayed_update that update is behind the first end(ctx) of the next step instead, and the program of
// the update has send_late(ctx) in its place; behind it turn().
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/seams/comm.h"
#include "engine/stores/coded_params.h"
#include "engine/stores/disk_states.h"
#include "engine/stores/gathered_params.h"
#include "engine/stores/homes.h"
#include "engine/stores/offloaded_gradients.h"
#include "engine/stores/offloaded_pieces.h"
#include "engine/stores/offloaded_states.h"
#include "engine/stores/plain_gradients.h"
#include "engine/stores/plain_params.h"
#include "engine/stores/plain_states.h"
#include "engine/stores/scattered_gradients.h"
#include "engine/stores/sharded_offload.h"
#include "engine/stores/sharded_states.h"
#include "engine/stores/streamed_params.h"
#include "engine/stores/summed_gradients.h"
#include "engine/stores/updating_gradients.h"

namespace snug {

struct StorePolicy : Homes {
  DType compute = DType::f32;    // of the weights that layers read
  bool trains = false;           // gradients, states and masters too
  bool separate_master = false;  // trained parameters in f32 beside weights of 16 bits; else the
                                 // weights are the parameters
  DType gradients = DType::f32;  // or bf16
  StateSet states;               // the optimizer's
  // Ranks that share the work; null: one.
  Comm* comm = nullptr;
  // What each rank keeps its piece of alone: 0 nothing, 1 states and masters, 2 gradients too, 3 weights
  // too. Bits of one micro-step a window do not depend on it.
  int zero = 0;
};

class Stores {
 public:
  using Complete = UpdatingGradSink::Complete;
  // Applies complete gradients of a part, in backward.
  using Update = std::function<void(Context&, const UpdateTargets&, const Complete&)>;

  // Call inside the root program.
  Stores(Context& ctx, const ParamTable& table, const StorePolicy& policy, Update update = {});
  Stores(const Stores&) = delete;
  Stores& operator=(const Stores&) = delete;

  ParamStore& params();
  // Frozen weights in codes; null: the table has none.
  CodedParamStore* coded() { return coded_.get(); }
  // All weights on the device in one view, in the compute dtype; undefined where they are streamed.
  View weights() const;
  // The parameters of the trained range: f32, or without a master in the compute dtype.
  View master() const;
  // Where the host finds and leaves the value of record of every parameter, between programs.
  RestingWeights resting() const;
  // In a program, after those were written: what layers read is theirs.
  void load(Context& ctx);

  // Of a policy that trains.
  GradSink& gradients();
  StateStore& states() { return *states_; }
  void begin(bool first_of_window, bool last_of_window);
  void end(Context& ctx);
  // At the end of every other program that reads weights.
  void done_reading(Context& ctx);
  // Of ranks: their gradients are summed, where that was not done in backward.
  void sum_ranks(Context& ctx);
  // Of ranks: each gets what others have updated.
  void share(Context& ctx);
  // update(windows) of all windows, and share(). Where collectives lie beside compute a run's weights come
  // while the next is updated.
  void update_and_share(Context& ctx, const std::function<void(WindowRange)>& update);
  void sum_squares(Context& ctx, const View& state);
  UpdateTargets targets() const;
  void finish(Context& ctx, const View& state);
  // With delayed_update: weights that were updated go to the device, gradients that are there to the
  // host; then those of this step are the targets'. Or weights alone.
  void send_late(Context& ctx);
  void send_weights(Context& ctx);
  void turn();
  // What an update passes before it changes a parameter; null: nothing.
  void set_gate(UpdateGate* gate) { gate_ = gate; }
  UpdateGate* gate() const { return gate_; }
  bool updates_in_backward() const { return policy_.update_in_backward; }
  // A parameter's gradient of the window so far where it rests, for a host that can read it there;
  // not where blocks are updated in backward.
  View gradient(int param) const;
  // Gradients that all stay on the device in one view; else undefined.
  View flat_gradients() const { return plain_ ? plain_->flat() : View(); }

 private:
  void make_training(Context& ctx);
  void make_shards_away(Context& ctx);
  void make_pieces_away(Context& ctx);
  // Whether the parameters rest where the states do, apart from what layers read.
  bool has_master() const { return policy_.separate_master || policy_.update_on_host; }
  RestingWeights resting_in_shards() const;
  View own_rows(const View& flat, const ShardRun& run) const;
  Complete sum_complete(Context& ctx, const Complete& complete);
  bool shares() const { return policy_.zero == 1 || policy_.zero == 2; }
  Comm::Flight begin_share(Context& ctx, size_t run);
  void share(Context& ctx, size_t first_run, size_t count);
  const View& kept_master() const;  // of the pieces
  void sum_squares_of_ranks(Context& ctx, const View& state);

  const ParamTable& table_;
  StorePolicy policy_;
  Update update_;
  UpdateGate* gate_ = nullptr;
  std::unique_ptr<PlainParamStore> params_;  // one of the three
  std::unique_ptr<StreamedParamStore> streamed_;
  std::unique_ptr<GatheredParamStore> gathered_;  // with `streamed_`: of the pieces that it brings
  std::unique_ptr<StreamedParamStore> whole_;     // of what that gathers
  std::unique_ptr<CodedParamStore> coded_;        // in front of it
  Tensor master_;
  std::unique_ptr<PlainGradSink> plain_;    // one of the four
  std::unique_ptr<SummedGradSink> summed_;  // in front of it, with ranks
  std::unique_ptr<ScatteredGradSink> scattered_;
  std::unique_ptr<UpdatingGradSink> updating_;
  std::unique_ptr<OffloadedGradSink> away_;
  std::unique_ptr<OffloadedPieces> pieces_;  // behind a sink of ranks
  std::unique_ptr<StateStore> states_;
  OffloadedStateStore* offloaded_ = nullptr;    // states_, if they rest with the host
  ShardedStateStore* sharded_ = nullptr;        // states_, if ranks share them
  OffloadedShardStore* shards_away_ = nullptr;  // states_, if each has its pieces with its host
  std::unique_ptr<Shards> shards_;              // of the trained range, with ranks
  std::vector<WindowRange> of_runs_;            // windows of states, by run of these
  std::vector<Comm::Flight> sharing_;           // by run
  std::vector<std::vector<StateSpan>> cut_;     // by run of these, this rank's
  std::vector<std::span<const StateSpan>> squared_;  // whose squares are summed up by themselves
};

}  // namespace snug
