// Session: a model with everything it needs on one place, and the programs that train, evaluate,
// generate and save with it. The same code runs on `plan`, where it is recorded, and on `cpu`,
// `cuda` or `emu`, where it is held to the record: there is no other description of what training
// does to memory.
//
// Programs, as a tree (see engine/memory/program.h):
//   root         weights, master, gradients, optimizer state, StepState, batch
//   ├ code       a tensor of a frozen weight to the codes that it rests in, if some do
//   ├ load       fp32 master -> compute weights -> packed copies, after initialisation or reading
//   ├ magnitudes  norms of the rows of adapted weights, before the first step of a new DoRA
//   ├ micro_first  forward, loss, backward of a window's first micro-batch: gradients are assigned
//   ├ micro_next   the same for the others: gradients are added
//   ├ micro_only, micro_last   of ranks that sum gradients in backward: a window's last micro-step, which
//   │              assigns where it is the first too
//   ├ update     gradient norm, clipping, optimizer, packed copies, loss scale
//   ├ late       with delayed_update, whose optimizer is in micro_first: what is pending is applied
//   ├ to_kept, to_trained   of optimizers that keep other weights than they train: there and back
//   ├ eval       forward and loss of one evaluation batch
//   ├ save       weights to a model folder, through a staging block
//   └ generate   KV cache, logits
//     ├ prefill  a chunk of the prompt of one row
//     ├ decode   one token of every row
//     └ fork     rows that continue from other rows, if there are several
#pragma once

#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/memory/context.h"
#include "engine/memory/step_state.h"
#include "engine/stores/homes.h"
#include "engine/stores/stores.h"
#include "layers/models/layer_words.h"
#include "layers/models/model.h"
#include "layers/models/weights.h"
#include "layers/tasks/preference.h"
#include "optim/loss_scaling.h"
#include "optim/optimizer.h"
#include "parallel/rank_comm.h"

namespace snug {

// What is learned of pairs of sequences, of a causal LM or, by one reward of each, of a head that reads
// rows.
struct PairDecision {
  int64_t per_window = 0;  // at most; 0: none, every token is learned
  PairLoss loss;
  std::optional<RewardLoss> reward = {};  // in place of `loss`
  bool cached = false;  // log probabilities of the reference come from the host, with the pairs

  bool any() const { return per_window > 0; }
  bool single() const { return any() && !reward && facts_of(loss.kind).single; }
  // Whether a step begins with an evaluation of mismatched rows, what its own are compared with.
  bool compared() const { return single() && facts_of(loss.kind).compared; }
  const char* noun() const { return single() ? "answer" : "pair"; }
  const char* nouns() const { return single() ? "answers" : "pairs"; }
  PreferenceForm form() const { return reward ? PreferenceForm::rewards : form_of(loss); }
  bool has_reference() const { return any() && !reward && facts_of(loss.kind).reference; }
  // Whether micro-steps and evaluation begin with a forward pass without adapters.
  bool reference() const { return has_reference() && !cached; }
  auto operator<=>(const PairDecision&) const = default;
};

class Session;

// Everything that shapes the programs. What changes numbers is pinned by a checkpoint. Homes are the
// stores' own decisions: the same bits, where can_update_on_host().
struct Decisions : Homes {
  int64_t T = 0;                  // tokens of a training sample
  int64_t micro_batch = 0;        // sequences of a micro-step; 0: no training
  int64_t head_rows = 0;          // rows of a chunk of logits
  LayerWords recompute, offload;  // of slots: layers/models/recompute.h
  int64_t eval_batch = 0;         // sequences of an evaluation batch; 0: no evaluation
  int64_t kv_length = 0;          // tokens of the KV cache; 0: no generation
  int64_t kv_rows = 1;            // sequences that are decoded together
  int64_t prefill = 0;            // tokens of a prefill chunk
  // What gradients are added up in: f32, or bf16 with the permission bf16_gradients.
  DType gradients = DType::f32;
  double max_grad_norm = 0;
  LossScaling loss_scaling;  // of a model whose precision asks for it
  bool save = false;         // can write model folders
  // Documents in a window see and count only themselves: one more resident, document_start().
  bool packing_boundaries = false;
  // Rows of the hidden states that the head reads of each window of T tokens, at most: sequences, or
  // tokens with a target (layers/parts/head.h). 0: a causal LM, whose head reads all.
  int64_t rows_per_window = 0;
  PairDecision pairs;
  // A masked LM's evaluation writes logits too, (rows, Vp), as classifiers' do.
  bool token_logits = false;
  // Bytes of the ring through which checkpoints are written (save_ring.h); 0: none are.
  int64_t save_ring = 0;
  // Copies of the linear weights in the kernels' order: memory for speed, the same bits.
  WeightPacking packed_weights = WeightPacking::none;
  // Ranks that share a step, each with micro-batches of its own, and what each keeps its piece of alone
  // (StorePolicy::zero).
  int ranks = 1, zero = 0;
  // They share no memory: what they exchange passes through tensors (rank_comm.h).
  bool staged = false;
  // What they exchange waits for compute, and compute for it, in place of lying beside it (comm.h): it
  // needs less memory.
  bool in_turn = false;

  auto operator<=>(const Decisions&) const = default;  // any order: what is known of equal ones
};

// Adds the pairs of the session's last program over `batch` windows.
void add_preferences(const Session& session, int64_t batch, PreferenceSums& to);

// Whether the programs of a step may run as graphs (Settings::graphs): nothing passes between
// device and host while they run, and nothing of the host is asked on the way.
bool graphs_for(const Decisions& decisions);

// Whether ranks sum the gradients that each keeps whole while backward makes them.
bool sums_in_backward(const Decisions& decisions);

// Whether the trained weights are bf16 and updates are rounded to them at random: the permission
// no_master.
inline bool no_master(const Precision& precision) {
  return precision.master != DType::f32;
}

class Session : private CodeSink {
 public:
  // On a place with storage, `schedule` is the packed record of the same decisions made on plan, and of
  // several ranks `comm` is this one's, which outlives the session.
  Session(Place place, const Model& model, const Decisions& decisions,
          const OptimizerConfig& optimizer, const Settings& settings,
          const Schedule* schedule = nullptr, Comm* comm = nullptr);
  // With an optimizer of the caller's own (ElementwiseOptimizer), whose states are planned as others'.
  template <std::derived_from<Optimizer> Own>
  Session(Place place, const Model& model, const Decisions& decisions,
          std::unique_ptr<Own> optimizer, const Settings& settings,
          const Schedule* schedule = nullptr, Comm* comm = nullptr)
      : Session(place, model, decisions, OptimizerConfig(), settings, schedule, comm) {
    optimizer_ = std::move(optimizer);
  }
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // On plan: records every program, unpacked. Elsewhere: reserves the arena and makes the
  // residents.
  void open();
  // On plan: records the residents and of the programs only these. No schedule to run, but all that
  // is asked where the others are known from another session.
  struct Part {
    bool micro_steps = false;  // all micro_ programs
    bool evaluation = false;   // eval
    bool block = false;        // none yet: record_block() has one of its own
  };
  void open(Part part);
  // On plan, opened for it: records what `run` does with some blocks of the model, in place of what
  // was recorded before. The first recording assigns gradients, as the first micro-step of a window
  // does, and later ones add to them.
  const Program& record_block(const std::function<void(Context&, Runtime&)>& run);

  Schedule& schedule() { return schedule_; }
  Context& context() { return ctx_; }
  const Model& model() const { return model_; }
  const Decisions& decisions() const { return decisions_; }

  // Residents, for the host to fill and read between programs. Where it cannot touch the device's
  // tensors they are twins in the host arena, which programs send before and fetch behind them.
  StepState& state();
  // (micro_batch, T) and (micro_batch * T) i32; evaluation uses the first eval_batch sequences of
  // the same bytes. Of fewer or shorter windows (use()) they hold (windows, tokens) back to back.
  const View& tokens() const { return of_host(tokens_, host_.tokens); }
  const View& targets() const { return of_host(targets_, host_.targets); }
  // (B, T) i32 as tokens(): where each position's document begins (layers/ops/document_start.h);
  // undefined without packing_boundaries.
  const View& document_start() const { return of_host(document_start_, host_.document_start); }
  int32_t* document_start_or_null() const {
    return document_start_.defined() ? document_start().as<int32_t>() : nullptr;
  }
  // Of a head that reads rows, micro_batch windows of rows_per_window each: where they are in the
  // micro-batch, i32; their targets, i32 or (rows, K) f32; and, of evaluation, with pairs.reward of
  // training too, logits (rows, K) f32, of a masked LM (rows, Vp) with token_logits.
  const View& token_types() const { return of_host(types_, host_.types); }
  const View& head_index() const { return of_host(head_index_, host_.head_index); }
  const View& head_targets() const { return of_host(head_targets_, host_.head_targets); }
  const View& head_logits() const { return of_host(head_logits_, host_.head_logits); }
  // Of pairs, micro_batch windows of pairs.per_window each (layers/ops/pair_loss.h): where they are, i32
  // (P,8), filled by the host; of the last program their log probabilities, f32 (P,2) or (P,3), and those
  // of the reference, undefined where the loss has none; with pairs.cached the host fills them too.
  const View& pairs() const { return of_host(pairs_, host_.pairs); }
  const View& pair_logps() const { return of_host(pair_logps_, host_.pair_logps); }
  const View& pair_reference() const { return of_host(pair_reference_, host_.pair_reference); }
  const View& prompt() const { return of_host(prompt_, host_.prompt); }  // (1, prefill) i32
  const View& next_token() const { return of_host(next_, host_.next); }  // (kv_rows, 1) i32
  const View& logits() const { return of_host(logits_, host_.logits); }  // (kv_rows, Vp) f32
  // (kv_rows, 2) i32, layers/ops/cache_rows.h; only with several rows.
  const View& sources() const { return of_host(sources_, host_.sources); }
  Stores& stores() { return *stores_; }
  // The parameters of a training session, f32 or bf16 without a master: the trained range.
  View master() const { return stores_->master(); }
  // Where the host leaves the weights of all parameters before load().
  RestingWeights resting();
  // A parameter's gradient of the window so far where it rests, for a host that can read it there;
  // without update_in_backward.
  View gradient(int param) const { return stores_->gradient(param); }
  StateStore& optimizer_state() { return stores_->states(); }
  Optimizer& optimizer() { return *optimizer_; }
  const View& save_ring() const { return save_ring_.view(); }  // u8, for the host
  // f32, for one parameter that is transposed in files; undefined where the host reads tensors.
  const View& save_turned() const { return host_.turned.view(); }
  Comm* comm() const { return comm_; }  // null: one rank
  // What update() passes before it changes a parameter; null: nothing.
  void set_update_gate(UpdateGate* gate) { stores_->set_gate(gate); }

  // Windows that a micro-step or an evaluation runs: the first `windows` of those planned, with
  // `tokens` tokens each, and so far apart in the batch.
  struct Extent {
    int64_t windows = 0, tokens = 0;
    int64_t places() const { return windows * tokens; }
  };
  // What is run where that many are needed: these, or the planned (B, T): where kernels run, since a
  // graph has one shape; where there would be fewer chunks of logits than planned; and of a model
  // whose numbers depend on T.
  Extent fit(bool evaluation, int64_t windows, int64_t tokens) const;
  // By the next micro-step or evaluation, for which the batch was so filled; without it, the planned
  // ones. The record holds: tensors are shorter, and as many.
  void use(const Extent& extent) { extent_ = extent; }

  // Programs.
  void load();  // after the weights were written to resting()
  // After load() of a training session whose adapters are new: magnitudes become the norms of the rows
  // that they scale, with which the model is the base (layers/adapters/scaled_linear.h). Where nothing is
  // trained load() keeps these norms (Runtime::norms).
  void start_adapters();
  // Where evaluation and files are of kept weights (WeightsMove): what is computed next is of the trained
  // ones again.
  void train_weights();
  // With update_in_backward the optimizer's prepare_step and the rates come before it.
  // last_of_window is of ranks: their gradients are complete with it.
  void micro(bool first_of_window, bool last_of_window = true);
  void update();
  // With delayed_update: an update that is pending is applied, and weights are the latest. At the end;
  // between steps it would change what they compute. Else nothing.
  void apply_late();
  // Of the update that is pending behind update(): its numbers, for a checkpoint to keep and to put back
  // behind load(), as its gradient (StateStore::saved). found_inf: none is pending.
  StepState& late_step() { return *step_state(host_.late.view()); }
  // Of an optimizer that keeps other weights than it trains (Optimizer::keeps_others), all ranks alike:
  // the weights become those to evaluate and to save, until the next micro() takes them back, to the
  // bits they had. A session begins with the kept ones, whose averages begin there or were loaded.
  // Nothing with other optimizers, or where they are the kept ones already.
  void keep_weights();
  void evaluate();
  // Feeds prompt() at state().position to one row of the cache. What it writes at a position is
  // seen by later positions only once these are fed, so the end of a chunk may be padding that is
  // fed again.
  void prefill(int64_t row = 0);
  // Of `written` tokens in the cache, of which the first `same` begin the next text: how many need
  // not be fed again. All, or 0 where a window has let go of what the next token sees.
  int64_t reusable(int64_t same, int64_t written) const { return cache_.reusable(same, written); }
  void decode();  // feeds next_token() at state().position: logits() of every row
  void fork();    // copies the cache up to state().position as sources() say
  // From where the weights rest, or put together from the pieces that ranks wrote of that file.
  void save_model(const std::string& path, const SafetensorsLayout& layout,
                  const std::string& pieces = "");

  // Starts a window: sums and counts to zero.
  void begin_window(uint64_t seed, int64_t step, int64_t trained_tokens);

 private:
  // In the host arena, where the places are apart.
  struct HostSide {
    Tensor state, late, tokens, targets, document_start, types, head_index, head_targets,
        head_logits, pairs, pair_logps, pair_reference, prompt, next, logits, sources, turned;
  };
  static const View& of_host(const Tensor& device, const Tensor& host) {
    return host.defined() ? host.view() : device.view();
  }
  Tensor twin(const char* name, const Tensor& device);
  void send(const Tensor& device, const Tensor& host);
  void send_state();
  void send_batch();
  void make_host_side();
  // What is in use of B planned windows, and no more for the next program.
  Extent used(int64_t B);
  int64_t head_rows(int64_t B, const Extent& used) const;
  ModelBatch batch(const Extent& used) const;
  View batch_document_start(const Extent& used) const;
  StorePolicy store_policy() const;
  Runtime runtime(GradSink* gradients, const View& document_start, KvCache* cache = nullptr);
  void make_residents();
  bool has_norms() const;  // adapters whose program `magnitudes` finds norms of rows
  void make_norms();       // that stay, where nothing is trained
  void record_micro_steps();
  void make_head_batch(int64_t B);
  void make_pairs(int64_t B);
  // Of a batch of pairs: what the model says of it without its adapters, if the loss asks.
  void reference(ModelPass& pass, int64_t B, const Extent& used);
  void read_pairs();
  void make_generation();
  void code(int param, size_t k, const std::function<void(float*)>& fill) override;
  void put(int param, size_t k, const void* bytes) override {
    stores_->coded()->put(ctx_, param, k, bytes);
  }
  void make_save_room();
  void move_weights(WeightsMove where);
  // In a program: the state that an update reads, where it is done.
  View update_state();
  void make_late_step();
  void update_late();  // in a program: what is pending, beside the device
  void apply_gradients();
  void send_late();  // in a program: weights, gradients and the numbers of a step
  void none_late();  // between programs: nothing is pending
  void turn_late();  // and what this step has left is

  const Model& model_;
  Decisions decisions_;
  Schedule schedule_;
  Context ctx_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<RankComm> planned_comm_;  // on plan, of several ranks
  Comm* comm_;

  std::unique_ptr<Stores> stores_;
  std::unique_ptr<PackedWeights> packed_;
  Tensor state_, tokens_, targets_, document_start_, prompt_, next_, logits_, sources_;
  Tensor types_, head_index_, head_targets_, head_logits_;
  Tensor pairs_, pair_logps_, pair_reference_;
  Tensor save_ring_;
  HostSide host_;
  Extent extent_;  // that use() left for the next program; no windows: as planned
  // Of the two StepStates: the host's has news for the device, the device's has some for the host.
  bool host_ahead_ = false, device_ahead_ = false;
  bool kept_ = true;     // whether the weights are those to keep
  bool summed_ = false;  // the window's gradients over ranks, with sums_in_backward()
  KvCache cache_;
  std::map<int, Tensor> norms_;  // Runtime::norms; empty: not kept
  std::optional<ModelPass> reference_pass_, train_pass_, eval_pass_, prefill_pass_, decode_pass_;
  int block_ = -1;
  int root_ = -1, code_ = -1, load_ = -1, magnitudes_ = -1, micro_first_ = -1, micro_next_ = -1,
      micro_only_ = -1, micro_last_ = -1, update_ = -1, late_ = -1, to_kept_ = -1, to_trained_ = -1,
      eval_ = -1, save_ = -1;
  int generate_ = -1, prefill_program_ = -1, decode_program_ = -1, fork_program_ = -1;
};

}  // namespace snug
