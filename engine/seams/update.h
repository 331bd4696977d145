// What an update reads and writes besides the states: the line between the stores, which have the
// bytes, and an optimizer, which has the arithmetic.
#pragma once

#include "engine/memory/context.h"

namespace snug {

// Holds an update back until whoever still reads a parameter has read it.
class UpdateGate {
 public:
  virtual ~UpdateGate() = default;
  // Returns when `param` (an index in the table) and its states may be changed. Called by the
  // threads of an update, in the order in which each of them goes; does not throw.
  virtual void pass(int64_t param) = 0;
};

// Gradients that rest elsewhere and are brought window by window of the store, in order.
class GradientWindows {
 public:
  struct Window {
    View gradients;
    int64_t first;  // the element of the flat range that they begin with
  };
  virtual ~GradientWindows() = default;
  virtual Window open_window(Context& ctx, int w) = 0;
  virtual void close_window(Context& ctx, int w) = 0;
};

// Flat views over the trained range.
struct UpdateTargets {
  View master;   // f32, or bf16 where there is no other copy. It may be the weights themselves
  View weights;  // bf16 or f16, rewritten as the rounded master; undefined if master is the weights
  // f32 or bf16, as summed: loss scale and clipping are applied by update(). bf16 is widened first.
  View gradients;
  int64_t first = 0;                   // the element of the range that gradients begins with
  UpdateGate* gate = nullptr;          // null: nobody reads
  GradientWindows* brought = nullptr;  // not null: gradients are its, of all windows of the store
};

}  // namespace snug
