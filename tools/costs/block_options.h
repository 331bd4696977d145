// What the ways to run one block cost: each is recorded on the place `plan`, by the code that
// trains, and its bytes and seconds are read off the record. Nothing here knows a formula.
#pragma once

#include <array>
#include <vector>

#include "engine/memory/linked_layers.h"
#include "engine/memory/planner.h"
#include "tools/costs/cost_model.h"
#include "tools/session/session.h"

namespace snug {

// What all layers alike may recompute; each does all that those before it do.
inline constexpr size_t kPresets = 5;
const std::vector<LayerWords>& presets();

struct BlockOptions {
  std::vector<LayerOption> options;
  std::vector<LayerWords> names;
  std::array<LayerOption, kPresets> presets;
  int64_t recorded = 0;  // ways of which these are the best
};

// The ways to run the layers of a model: its layers are of one shape, and of a few kinds
// (ModelSpec::kind), which take as many bytes and other seconds.
struct ModelOptions {
  std::vector<BlockOptions> kinds;
  std::vector<int> of_layer;  // which of them, of the layers that backward reaches
  int64_t below = 0;  // layers under these, which keep nothing; in words as the lowest of them

  int64_t layers(size_t kind) const;
  // A solver's problem but for its limits.
  LayerProblem problem() const;
  // Bytes that all layers save, each run in its last way, or as a preset.
  int64_t saved() const;
  int64_t saved(size_t preset) const;
};

// Stages of which every set is recorded, and sets from which those of one stage more are made.
inline constexpr size_t kMostGroups = 12, kMostSets = 128;

// Of each kind every set of stages whose outputs are made again (a number a row stays: it is small),
// and `block`, which keeps the input alone; those that another one beats in bytes and time are left
// out. Of more than `most_groups` stages sets grow stage by stage, from the best so far: 2^most_groups
// are recorded, and kMostSets for each stage more. For the first block of each kind of `model`, in a session of these decisions. The first way is
// always `none`.
ModelOptions record_block_options(const Model& model, const Decisions& decisions,
                                  const OptimizerConfig& optimizer, const Settings& settings,
                                  const CostModel& cost, size_t most_groups = kMostGroups);

// A way to run a layer of a stack in which slots are on their way to the host or back while a
// neighbour runs: what the solver of stacks asks of it, and what tells it beside any neighbour.
//
//   forward   layer l - 1's that leave | layer l
//   backward  layer l | l - 1's that come
struct StackOption : LinkedOption {
  LayerWords recompute, offload;
  int64_t forward = 0;        // at most in its forward, beyond what the layers before saved
  int64_t forward_after = 0;  // the same with those of a layer run the same way before it leaving
  int64_t leaving = 0;        // on their way out until the next layer's forward is over
  // What it sends, first sent first: the slot, its bytes, and what is left of its forward's seconds
  // when the slot of the layer before, if that sent the same, is through.
  struct Sent {
    int slot = -1;
    int64_t bytes = 0;
    double seconds_left = 0;
  };
  std::vector<Sent> sent;
  // Its forward in stretches: the most bytes beyond what layers before saved and what still leaves
  // of the one before, until the slot of the one before ends; the last until its own end.
  struct Stretch {
    int64_t most = 0;
    int until = -1;
  };
  std::vector<Stretch> stretches;
};

// The most bytes in the forward of a layer behind one that is run in another way, beyond what the
// layers before saved.
int64_t forward_behind(const StackOption& before, const StackOption& own);
// Of its forward's seconds, those after the wait for what the layer before sent last.
double seconds_after_sent(const StackOption& before, const StackOption& own);

// Whether all layers that backward reaches save the same slots: of one pair of them the bytes of a
// stack are known.
bool layers_save_alike(const Model& model);

// For each of these ways to recompute: what it is with nothing offloaded,
// in `kept`, and in `away` with the input, with each other large slot, with all and with all but
// the input offloaded; those that another one of `away` beats in everything are left out. For a
// model of two layers or more; of layers of several kinds two of that which takes the fewest seconds, so
// that seconds stay bounds from below.
struct StackOptions {
  std::vector<StackOption> kept, away;
  int64_t below = 0;  // as of ModelOptions
};
StackOptions record_stack_options(const Model& model, const Decisions& decisions,
                                  const OptimizerConfig& optimizer, const Settings& settings,
                                  const CostModel& cost, const ModelOptions& ways);

// The tick at which exactly what an op has at hand is alive: births and ends advance the clock, ops
// do not.
int64_t tick_of(const OpRecord& op);
// The largest sum of bytes alive at any tick of [first, last], as the packer rounds them.
int64_t most_live_bytes(const Program& program, int64_t first, int64_t last);

}  // namespace snug
