// Programs: what a piece of training does to memory, recorded by running the code itself on the
// place `plan`, and the contract that code is held to when it runs for real.
//
//   record                                   run
//   ------                                   ---
//   tensor() appends a record, born at t     the k-th tensor() takes the k-th offset; name equal,
//   its end sets died = t'                     bytes at most planned, born and died at the same
//   Op appends a record at t                   ticks of the clock, or the run stops
//   pack() gives every record an offset
//
// Programs form a tree: while a program runs, the tensors that its ancestors left alive (a
// *resident* program: weights, optimizer state, a KV cache) are below it in the arena.
//
//   arena  | root: weights, gradients, state | micro_first ..............|
//          |                                 | update ......|
//          |                                 | generate: kv cache | decode ...|
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/name.h"
#include "engine/core/view.h"
#include "engine/memory/packer.h"

namespace snug {

// What bytes are for. The order is the order of the picture's layers, from the bottom.
enum class Category : uint8_t {
  weights,
  master,
  gradients,
  optimizer,
  state,
  batch,
  kv_cache,
  activations,
  recomputed,
  logits,
  workspace,
  offload,
  packed_weights
};
inline constexpr int kCategories = 13;
const char* to_string(Category category);
using CategoryBytes = std::array<int64_t, kCategories>;

inline constexpr int64_t kTensorAlignment = 256;
inline constexpr int64_t kNever = INT64_MAX;  // `died` of a resident tensor

struct TensorRecord {
  Name name;
  Name scope;  // the part that made it, for example h.3
  Shape shape;
  DType dtype = DType::f32;
  Category category = Category::workspace;
  int64_t bytes = 0;  // as placed: guard bytes included when guards are on
  int64_t born = 0, died = kNever;
  int32_t first_op = 0, last_op = 0;  // ops between which it lives, for explanations
};

struct OpRecord {
  const char* name;  // static string
  Name scope;
  int64_t flops, bytes;  // arithmetic and memory traffic the op reports of itself
  int64_t time;          // tick of the program's clock
  Name variant = {};     // how it computes, where there is a choice
};

struct Program {
  Name name;
  int parent = -1;        // index in the schedule; -1 for the root
  bool resident = false;  // its tensors outlive it
  std::vector<TensorRecord> tensors;
  std::vector<OpRecord> ops;
  int64_t ticks = 0;
  Packing packing;   // offsets relative to base
  int64_t base = 0;  // where the ancestors' bytes end

  int64_t end() const { return base + packing.height; }
  int64_t flops() const;
  int64_t bytes_moved() const;
};

// All programs of a run and their places.
class Schedule {
 public:
  // Returns the index of a new, empty program. The first is the root.
  int add(Name name, int parent, bool resident);
  Program& at(int index) { return programs_[static_cast<size_t>(index)]; }
  const Program& at(int index) const { return programs_[static_cast<size_t>(index)]; }
  int find(std::string_view name) const;  // -1 if absent
  int size() const { return static_cast<int>(programs_.size()); }

  // Largest lower bound over all programs: no packing can be below it. Cheap; used to discard
  // candidates before packing.
  int64_t lower_bound() const { return lower_bound_except({}); }
  // The same without these programs.
  int64_t lower_bound_except(std::initializer_list<std::string_view> names) const;
  // Places every tensor of every program. With `shuffle`, a random valid packing instead (tests).
  void pack(const PackOptions& options = {}, uint64_t shuffle = 0);
  // Bytes of the arena: the highest end over all programs, rounded up to 4 KiB.
  int64_t arena_bytes() const;
  int peak_program() const;  // the one that reaches highest
  // Bytes by meaning at the peak. Rounding and unused space are in `padding`, so that the sum of
  // all is arena_bytes().
  CategoryBytes at_peak(int64_t* padding) const;
  // Live bytes by category at tick `time` of a program, its ancestors' residents included.
  CategoryBytes live(int program, int64_t time) const;

 private:
  std::deque<Program> programs_;  // addresses stay valid as programs are added
};

std::vector<Interval> intervals_of(const Program& program);

}  // namespace snug
