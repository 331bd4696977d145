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
//
// There are two arenas, the device's and the host's; a tensor lies in one of them for its whole
// life. Both are packed in the same way, each on its own.
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
#include "engine/device/device.h"
#include "engine/memory/packer.h"

namespace snug {

// What bytes are for. The order is the order of the picture's layers, from the bottom. Tensors of
// the host arena are `offload`, and they alone; what has come back from there is on the device what
// it was before.
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
inline constexpr int64_t kHostAlignment = 4096;  // whole pages: what copy engines like best
inline constexpr int64_t kNever = INT64_MAX;     // `died` of a resident tensor

struct TensorRecord {
  Name name;
  Name scope;  // the part that made it, for example h.3
  Shape shape;
  DType dtype = DType::f32;
  Category category = Category::workspace;
  int64_t bytes = 0;  // as placed: guard bytes included when guards are on
  int64_t born = 0, died = kNever;
  int32_t first_op = 0, last_op = 0;  // ops between which it lives, for explanations
  Residence residence = Residence::device;
};

struct OpRecord {
  const char* name;  // static string
  Name scope;
  int64_t flops, bytes;  // arithmetic and memory traffic the op reports of itself
  int64_t time;          // tick of the program's clock
  Name variant = {};     // how it computes, where there is a choice
  StreamId stream =
      kCompute;            // a copy between the arenas is on another: bytes are those that cross
  bool on_host = false;    // computed by the host beside a device (Context::OnHost)
  int64_t link_bytes = 0;  // of the bytes, what a device reads with the host
};

// What orders the streams. An event has the number of its record among all of the program.
struct SyncRecord {
  enum class Kind : uint8_t { record, wait };
  Kind kind = Kind::record;
  StreamId stream = kCompute;  // that records, or that waits
  int32_t event = 0;           // number of the event
  int64_t time = 0;            // tick of the program's clock
  int32_t op = 0;              // ops of the program before it
};

struct Program {
  Name name;
  int parent = -1;        // index in the schedule; -1 for the root
  bool resident = false;  // its tensors outlive it
  std::vector<TensorRecord> tensors;
  std::vector<OpRecord> ops;
  std::vector<SyncRecord> syncs;
  int64_t ticks = 0;
  // One offset a tensor, relative to base; of those in the other arena it is 0.
  Packing packing;
  int64_t base = 0;  // where the ancestors' bytes end
  // The same of the host arena.
  Packing host_packing;
  int64_t host_base = 0;

  int64_t end() const { return base + packing.height; }
  int64_t host_end() const { return host_base + host_packing.height; }
  int64_t flops() const;
  int64_t bytes_moved() const;                  // by ops of the compute stream
  int64_t bytes_copied(StreamId stream) const;  // to the device: and what ops read with the host
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
  int64_t lower_bound(Residence residence = Residence::device) const {
    return lower_bound_except({}, residence);
  }
  // The same without these programs.
  int64_t lower_bound_except(std::initializer_list<std::string_view> names,
                             Residence residence = Residence::device) const;
  // Places every tensor of every program. With `shuffle`, a random valid packing instead (tests).
  void pack(const PackOptions& options = {}, uint64_t shuffle = 0);
  // Bytes of the arena: the highest end over all programs, rounded up to 4 KiB.
  int64_t arena_bytes() const;
  int64_t host_bytes() const;  // the same of the host arena; 0 where no tensor lies there
  int peak_program() const;    // the one that reaches highest
  // Bytes of the device's arena by meaning at its peak. Rounding and unused space are in `padding`,
  // so that the sum of all is arena_bytes().
  CategoryBytes at_peak(int64_t* padding) const;
  // Live bytes of the device's arena by category at tick `time` of a program, its ancestors'
  // residents included.
  CategoryBytes live(int program, int64_t time) const;

 private:
  std::deque<Program> programs_;  // addresses stay valid as programs are added
};

// One for each tensor; those of the other arena have no bytes.
std::vector<Interval> intervals_of(const Program& program, Residence residence = Residence::device);

}  // namespace snug
