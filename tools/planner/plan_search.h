// The search for the fastest plan: micro-batch, head chunks, what each layer keeps and what rests
// with the host are chosen together, by predicted time of the optimizer step that was asked for.
//
//   for each micro-batch x head chunk   one whole session is recorded: what is outside the layers
//     x optimizer state on device, host
//     for each way to run a block         one block is recorded: bytes and seconds
//     planner.h                           the fastest choice a layer under the budget
//     stack_plans.h                       the first layers offload: those that may be faster still
//                                         are recorded whole, the copies' waiting with them
//     linked_layers.h                     any layer any way: where that may be faster than two
//                                         groups by more than kTwoGroupTolerance, recorded too
//
// A configuration whose bound is slower than the best so far is not solved. Records are kept, so
// that other budgets cost a solve each.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/memory/planner.h"
#include "tools/costs/block_options.h"
#include "tools/costs/stack_plans.h"
#include "tools/planner/plan.h"

namespace snug {

inline constexpr int64_t kArenaUnit = 4096;  // Schedule::arena_bytes() rounds up to it

// What was recorded on the place `plan`, each once. Searches of one model, optimizer, settings and
// cost model may share it, whatever else they ask: a run that does not fit is planned a dozen times
// for what to offer (offers.h), and most of what that records is the same.
struct Recordings {
  // What packed weights gain at most: seconds by which products are predicted faster.
  struct Gain {
    double forward = 0, both = 0;  // of x W^T; of these and dy W
  };
  // Of a whole session: no more than what searches read off it.
  struct Whole {
    int64_t bound = 0, host = 0;             // of the two arenas
    double first = 0, next = 0, update = 0;  // seconds of its programs
    int64_t base = 0, others = 0;            // as in PlanSearch::Config
    int64_t residents = 0;                   // of the device, the batch left out
    int64_t between = 0, between_back = 0;   // live from the head on, and at its last op
    double last = 0;                         // seconds of that op
    Gain gain_first, gain_next;              // of its programs
  };
  struct Bytes {  // of both arenas
    int64_t device = 0, host = 0;
  };
  // Of programs of a session, which most decisions do not change: the most bytes that are alive in
  // any, beyond the residents.
  struct MicroSteps : Bytes {
    double first = 0, next = 0;
    int64_t between = 0, between_back = 0, outside = 0;  // of micro_next
    double last = 0;
    Gain gain_first, gain_next;
  };
  struct Evaluation : Bytes {
    double seconds = 0;
  };
  struct Rest : Bytes {  // all but the micro-steps and evaluation
    Program update;
    bool by_rows = false;  // its seconds are not the same of every micro-batch
    double seconds = 0;
  };
  struct Packed {  // bytes of both arenas
    int64_t engine = 0, host = 0;
  };
  struct Placed {  // of a program
    Packing packing, host_packing;
    int64_t base = 0, host_base = 0;
  };
  std::map<Decisions, Whole> whole;
  std::map<Decisions, MicroSteps> micro_programs;
  std::map<Decisions, Evaluation> evaluations;
  std::map<Decisions, Rest> rests;
  std::map<Decisions, Packed> packed;
  std::map<Decisions, std::vector<Placed>> placed;             // by program
  std::map<Decisions, int64_t> packed_rests;                   // PlanSearch::packed_at_least
  std::map<Decisions, std::pair<double, double>> micro_steps;  // seconds of the first, of the next
  std::map<Decisions, ModelOptions> blocks;
  std::map<Decisions, StackOptions> stacks;
};

class PlanSearch {
 public:
  // A stack of more groups is taken where every plan of two is slower by more than this share.
  static constexpr double kTwoGroupTolerance = 0.005;
  // A step that leaves anything with the host is predicted slower by this share than its streams
  // say: so the host is taken for a gain above it alone. It is in every comparison and in what a
  // plan predicts, so that more memory is still never predicted slower.
  static constexpr double kHostMargin = 0.005;

  // Larger micro-batches than of so many rows are looked at only if they are asked for: recording
  // one takes time and memory by its chunks of logits, which no budget bounds, and a million rows
  // fill any device. One sequence is always looked at.
  static constexpr int64_t kMostRows = int64_t{1} << 20;

  // So is one with packed weights, for the same reason: what they gain is the difference of two
  // measurements that agree to a percent or two, and they take a seventh of the memory.
  static constexpr double kPackingMargin = 0.02;

  // The request and what it points to outlive the search.
  explicit PlanSearch(const PlanRequest& request,
                      std::shared_ptr<Recordings> recordings = std::make_shared<Recordings>());

  struct Choice {
    bool feasible = false;
    Decisions decisions;
    double step_seconds = 0;   // predicted of an optimizer step; 0 without training
    int64_t engine_bytes = 0;  // lower bound of the arena, which packing nearly always meets
    int64_t host_bytes = 0;    // the same of the host's
    std::string optimality;    // of the layers' choice
    double bound_seconds = 0;  // of a step: nothing that the search looks at is faster
    // The search itself took the host's memory; what the fastest takes without it, 0 if none fits.
    bool moved = false;
    double unmoved_seconds = 0;
  };
  // The fastest whose arena's lower bound is at most `room` bytes. Where its bound is not asked
  // for, it is 0: what may be faster costs as much to know as the fastest.
  Choice best(int64_t room, bool bounded = true);
  // The same with weights packed as the request says, or not at all.
  Choice best_unpacked(int64_t room, bool bounded = true);
  // The same without stacks of more than two groups that offload.
  const Choice& best_of_groups(int64_t room);
  // Choices among which one has the smallest arena there is, lowest bound first.
  const std::vector<Choice>& least();
  // What becomes of gradients: their dtype, and whether backward consumes them.
  using Gradients = std::pair<DType, bool>;
  // Every plan of this micro-batch and chunk whose first layers offload; `step_seconds` is what it
  // takes at least. Empty where the search offloads nothing.
  std::vector<Choice> stacks(int64_t micro, int64_t head_rows, bool states_away,
                             Gradients gradients = {DType::f32, false});
  // Any way for any layer, of a random sort: bytes as the solver counts them, `step_seconds` as
  // above.
  std::vector<Choice> mixed_stacks(int64_t micro, int64_t head_rows, bool states_away,
                                   int64_t count, uint32_t seed,
                                   Gradients gradients = {DType::f32, false});
  // What bounds say of every configuration that takes the host's memory before it is recorded, and
  // what it takes: never less.
  struct Bounded {
    Decisions decisions;
    double before = 0, behind = 0;  // of others' records
    double seconds = 0;
  };
  std::vector<Bounded> bounded();
  // make_plan keeps its answer to `least` here, which is the same for every budget.
  std::unique_ptr<Plan> smallest;
  // Micro-batch x head chunk x what becomes of gradients, as far as looked at.
  int64_t configurations() const { return static_cast<int64_t>(configs_.size()); }
  const CostModel& cost() const { return *cost_; }
  const std::shared_ptr<Recordings>& recordings() const { return recordings_; }

  // Recorded with these decisions, not packed.
  std::unique_ptr<Session> record(const Decisions& decisions) const;
  Recordings::Packed packed(const Decisions& decisions);
  // Packs a schedule that was recorded with these decisions, or takes what that was packed to
  // before: rungs of a ladder and the smallest plan often share one, and some take longer to pack
  // than to record.
  void pack(Schedule& schedule, const Decisions& decisions) const;
  // Bytes of the arena that packing cannot be below: those of what other decisions were packed to,
  // in programs that are the same. 0: not known.
  int64_t packed_at_least(const Decisions& decisions) const;
  // Of a recorded schedule.
  double step_seconds(const Schedule& schedule, const Decisions& decisions) const;

 private:
  double evaluations(const Decisions& decisions) const;
  // What is the same of all layers, and where the optimizer's state rests.
  struct Way {
    LayerWords recompute, offload;
    bool states_away = false;
    bool moved = false;        // the search itself took the host's memory
    bool params_away = false;  // and the states with them
    bool grads_away = false;
    bool updates_away = false;  // by the host: states and gradients are there then
    bool late = false;          // and these are one step late
    bool streams() const { return params_away || grads_away; }
    auto operator<=>(const Way&) const = default;
  };
  struct Key {
    int64_t micro = 0, head_rows = 0;
    Gradients gradients{DType::f32, false};
    Way way;
    auto operator<=>(const Key&) const = default;
  };
  // One micro-batch and head chunk, recorded with every layer's input alone kept (or as the user
  // fixed it).
  struct Config {
    Decisions decisions;
    int64_t bound = 0;       // of the arena as recorded
    int64_t host = 0;        // of the host's arena
    double seconds = 0;      // of a step as recorded
    double floor = 0;        // of a step with all the memory there could be
    int64_t base = 0;        // residents; of streamed ways but for the batch
    int64_t others = 0;      // the arena that other programs, and this one outside the layers, need
    int64_t tail = 0;        // between the passes, beyond what layers keep
    int64_t tail_back = 0;   // of them, at the last op
    double last = 0;         // seconds of that op
    double outside = 0;      // seconds of a step outside the layers
    double update = 0;       // of them, the update's
    double micro_steps = 1;  // of a step
    Recordings::Gain gain;   // of a step
    bool moved = false;
    bool layered = false;  // each layer is run its own way, else all as recorded
  };
  // Where the request leaves packed weights open: the same search with them. Its products are never
  // faster than `gain` says of the plain ones, and it needs `copies` bytes more: most budgets are
  // done with that and record nothing.
  struct PackedSearch {
    int index = 0;  // 0: both, 1: forward
    PlanRequest request;
    int64_t copies = 0;
    double packing = 0;  // seconds of a step
    std::unique_ptr<PlanSearch> search;
  };
  bool packing_open() const;
  void open_packed_searches();
  Recordings::Gain gain_of_packing(const Program& program, int64_t rows);
  Name packed_variant(Name plain);
  double gain(const Config& config, const PackedSearch& packed) const;
  double packing_floor(const Key& key);
  double packing_floor(const Config& config, const PackedSearch& packed) const;
  Choice best_packed(PackedSearch& packed, int64_t room, Choice best);
  void open_tried();
  Choice with_tried(int64_t room, Choice best, bool bounded);
  Decisions decide(const Key& key) const;
  std::vector<Gradients> gradients(int64_t micro) const;
  std::vector<int64_t> micros() const;
  std::vector<int64_t> head_chunks(int64_t micro) const;
  double inputs(int64_t micro) const;
  // The block that runs has its input and its output.
  bool block_fits(int64_t micro, int64_t room) const {
    return 2 * inputs(micro) <=
           static_cast<double>(room) * static_cast<double>(request_.model->backward_layers());
  }
  // What may hold the block that runs: each micro-batch, head chunk, gradients and residence of the
  // states, with seconds that nothing of it is below, the least first.
  struct Open {
    int64_t micro, rows;
    Gradients gradients;
    bool states;
    double floor;
  };
  std::vector<Open> open_configs(int64_t room);
  Config* config(const Key& key);
  const Recordings::Whole& whole(const Decisions& decisions);
  const Recordings::MicroSteps& micro_steps(const Decisions& decisions, const Schedule& schedule);
  const ModelOptions& block_options(const Decisions& decisions);
  const StackOptions& stack_options(const Decisions& decisions);
  // Seconds that no step of these decisions is below, whatever an op of any size takes: what rests
  // with the host is passed on in other pieces than what stays, so the compute of an update there
  // says nothing of one here. Micro-steps take no less than with all the memory there could be; an
  // update what was recorded of it, or before that what the link takes.
  double floor(const Key& key) { return micro_floor(key) + update_floor(key).seconds; }
  double micro_floor(const Key& key);
  struct UpdateFloor {
    double seconds = 0;
    bool recorded = false;
  };
  const UpdateFloor& update_floor(const Key& key);
  // Numbers of the parameters.
  struct Elements {
    int64_t parts_bytes = 0;        // of the layers' weights, as layers read them or in codes
    int64_t parts_bytes_again = 0;  // of those that backward reaches
    int64_t trainable_parts = 0, trainable = 0;  // of the layers, and of all
    int64_t parts_states = 0, states = 0;        // bytes of the optimizer's state of these two
  };
  const Elements& elements();
  // Bytes of the parameters that go with states which are away.
  int64_t masters_away(const Way& way, int64_t elements) const {
    const Precision& precision = request_.model->precision();
    const bool some = way.params_away || precision.separate_master();
    return some ? elements * size_of(precision.master) : 0;
  }
  // Of what every rank keeps its piece of from this stage on, how much a rank has.
  double share(int stage) const { return request_.zero < stage ? 1.0 : 1.0 / request_.ranks; }
  // Seconds of a step with the margin, where something is left with the host.
  static double judged(const Decisions& decisions, double seconds);
  // Both arenas are RAM of this machine, and take from the same free bytes.
  bool one_memory() const { return request_.settings.target != Place::cuda; }
  Choice solve(const Config& config, int64_t room, double tolerance, double* bound);
  // The fastest of these ways, or `best` if none is faster; what none of them is below, in `least`.
  Choice best_way(int64_t room, bool moved, Choice best, double* least);
  // The fastest whose first layers offload, or `best`.
  Choice best_stack(int64_t room, Choice best);
  Choice best_stack(int64_t room, const Config& config, Choice best);
  // Weights and gradients that rest with the host (plan_streamed.cpp): which ways there are, those
  // with the same there next to each other; the fastest of them or `best`, of those that are the
  // search's doing or of the others; what a configuration takes at least; and whether one that
  // leaves there less and is else the same fits.
  std::vector<Way> streamed_ways() const;
  Choice best_streamed(int64_t room, bool moved, Choice best);
  double streamed_link(const Key& key);
  bool less_does(const Key& key, int64_t room);
  // Bytes that its layers leave on the device between the passes, and seconds that they recompute
  // at least; 0 where the ways of a block are not looked at.
  int64_t streamed_saved(const Key& key);
  double streamed_again(const Key& key);
  // The preset that a streamed way is, of kPresets; null: none, or the ways are not looked at.
  const LayerWords* streamed_preset(const Key& key);
  // What is known of a configuration before it is recorded, asked for every budget.
  struct Streamed {
    int64_t saved = 0;  // streamed_saved
    double again = 0;   // streamed_again
    double micro = 0;   // seconds of the micro-steps, at least
    UpdateFloor update;
    double seconds() const { return micro + update.seconds; }
  };
  const Streamed& streamed_bounds(const Key& key);
  // Stacks of any ways under the budgets of a fixed series, so that what a larger budget gets is
  // never slower: it may have all that a smaller one has.
  struct Mixed {
    double bound = 0;  // of a step: nothing is faster
    Choice choice;     // if there is one that is faster than two groups by more than the tolerance
  };
  Choice with_mixed(int64_t room, Choice best, bool bounded);
  void look_between(int64_t low, int64_t high, Choice& best);
  const Mixed& mixed(int64_t room);
  double mixed_bound(int64_t room);
  double mixed_bound(const Config& config, int64_t room, const LinkedProblem& problem,
                     double below);
  struct MixedConfig {
    const Config* config = nullptr;
    LinkedProblem* problem = nullptr;
    double bound = 0;  // of a step
  };
  std::vector<MixedConfig> mixed_configs(int64_t room, double below, bool lowest);
  LinkedProblem& linked(const Config& config);
  bool set_limits(const Config& config, int64_t room, LinkedProblem& problem) const;
  Choice choice_of(const Config& config, const LinkedSolution& solution);
  Choice choice_of(const Config& config, const ModelOptions& ways, const LayerSolution& solution);
  const Config& stack_config(int64_t micro, int64_t head_rows, const Gradients& gradients,
                             bool states_away);
  const Way& stack_way(bool states_away) const;
  StackProblem stack_problem(const Config& config);
  Choice choice_of(const Config& config, const StackProblem& problem, const StackPlan& plan);
  double seconds_of(const Config& config, const Decisions& decisions);

  const PlanRequest& request_;
  std::unique_ptr<CostModel> own_cost_;
  const CostModel* cost_;
  bool layers_ = false;  // what they recompute is chosen here
  bool stacks_ = false;  // and what they offload
  std::vector<bool> states_away_;
  // All layers alike, as recorded: those that the user left open, without the host's memory first.
  std::vector<Way> ways_;
  // The same with the weights of the layers with the host, their gradients, or both.
  std::vector<Way> streamed_;
  std::vector<PackedSearch> packed_searches_;
  bool packed_searches_open_ = false;
  // A search with another value of a decision that is open (Decision::tries). `hosts`: that is of the
  // host's memory.
  struct Tried {
    Tried(const PlanRequest& r, bool of_host) : request(r), hosts(of_host) {}
    PlanRequest request;
    bool hosts;
    std::unique_ptr<PlanSearch> search;
  };
  std::vector<std::unique_ptr<Tried>> tried_;
  // What the fastest plan without takes, were there all the room there could be.
  double fastest_ = -1;
  std::map<std::string_view, Name> packed_variants_;
  // Of a search with packed weights: the one without, and what its fastest takes under this budget.
  PlanSearch* unpacked_ = nullptr;
  const PackedSearch* packed_as_ = nullptr;
  double below_ = std::numeric_limits<double>::infinity();
  std::vector<Choice> least_;
  std::map<Key, std::unique_ptr<Config>> configs_;
  std::shared_ptr<Recordings> recordings_;
  std::map<Decisions, LinkedProblem> linked_of_;  // by what a block minds
  std::map<std::tuple<int64_t, int64_t, Gradients>, double> micro_floors_;
  std::map<Key, Streamed> streamed_bounds_;
  Elements elements_;
  std::array<UpdateFloor, 128> update_floors_;  // by dtype, in backward, and what is away
  std::map<int64_t, Choice> of_groups_;         // by room
  std::map<int64_t, Mixed> mixed_;
  std::map<int64_t, double> mixed_bounds_;
  std::map<std::pair<const Config*, int64_t>, double> config_bounds_;  // of mixed stacks
};

// Whether decoding wins by packed copies of `copies` bytes beside weights of `weights` bytes: where they
// are twice the size, nothing. They are padded to whole panels, a good part of them in tiny models.
bool packed_copies_pay(int64_t weights, int64_t copies);

}  // namespace snug
