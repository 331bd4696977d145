// Bodies and passes: the forward pass of a part written once, with memory decided from outside.
//
// A Body is a static list of stages. A stage names the slots it reads and writes; a slot is a
// tensor that backward may need, with a policy: keep it, recompute it, or offload it. A Pass is one
// walk through a body, owned by the caller, so several micro-batches or models can be in flight.
//
//   forward(): runs all stages in order; after its last reader a slot is dropped unless it is kept,
//              or sent to the host where the policy says so.
//   need(s):   the slot's view; if it was dropped, runs exactly the stages that are missing, in
//              order; if it is with the host, waits until it is back.
//
// Two neighbouring stages may have a form that runs both at once and stores the same bits (fuse()).
// It is used wherever both run, in forward and in need(); where one of them is kept, the other runs
// alone. So fusion follows the policies and changes no number.
//
// There is no second, hand-written forward: recomputation is the same stage run again on the same
// stored (rounded) inputs, so its result has the same bits.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "engine/memory/context.h"
#include "engine/memory/offload.h"

namespace snug {

// keep: stays from forward to its last use in backward. recompute: dropped in forward, made again
// by need(). offload: copied to the host arena in forward, and back by fetch() or need().
enum class SlotPolicy : uint8_t { keep, recompute, offload };
const char* to_string(SlotPolicy policy);

// The size of a pass: B sequences of T tokens, N = B*T rows.
struct Dims {
  int64_t B = 0, T = 0;
  int64_t N() const { return B * T; }
};

class Pass;

struct Slot {
  Name name;
  DType dtype;
  Category category;
  std::function<Shape(Dims)> shape;
};

struct Stage {
  Name name;
  std::vector<int> inputs, outputs;  // slots
  std::function<void(Context&, Pass&)> run;
};

class Body {
 public:
  int add_slot(Slot slot);
  // Stages are added in an order in which every input is given or written before it is read.
  void add_stage(Stage stage);
  // `run` does what stage `first` and the one after it do. A slot between the two that is dropped
  // at once is not made in forward: present() tells `run` so.
  void fuse(int first, std::function<void(Context&, Pass&)> run);

  int slots() const { return static_cast<int>(slots_.size()); }
  const Slot& slot(int i) const { return slots_[static_cast<size_t>(i)]; }
  const std::vector<Stage>& stages() const { return stages_; }
  int find_slot(std::string_view last_component) const;                          // -1 if absent
  int producer(int slot) const { return producer_[static_cast<size_t>(slot)]; }  // -1: given
  int last_reader(int slot) const { return last_reader_[static_cast<size_t>(slot)]; }  // -1: none
  // Of the pair that begins with a stage; empty: none.
  const std::function<void(Context&, Pass&)>& fused(int first) const {
    return fused_[static_cast<size_t>(first)];
  }

 private:
  std::vector<Slot> slots_;
  std::vector<Stage> stages_;
  std::vector<int> producer_, last_reader_;
  std::vector<std::function<void(Context&, Pass&)>> fused_;
};

enum class PassMode : uint8_t {
  train,     // slots follow their policies; backward comes
  inference  // every slot is dropped after its last reader
};

class Pass {
 public:
  // `policies` has one entry per slot. Slots that are given from outside are kept in training if
  // they are not offloaded. With the policy offload anywhere, `offload` keeps what is in flight;
  // the pass is number `index` of those that share it, and it outlives them.
  Pass(const Body& body, std::vector<SlotPolicy> policies, Offload* offload = nullptr,
       int index = 0);

  // `environment` is what the stages need besides slots (weights, step state); it outlives the
  // pass.
  template <class E>
  void begin(Dims dims, PassMode mode, E& environment) {
    begin(dims, mode);
    environment_ = &environment;
  }
  template <class E>
  E& environment() const {
    return *static_cast<E*>(environment_);
  }
  Dims dims() const { return dims_; }
  PassMode mode() const { return mode_; }

  void give(int slot, Tensor tensor);  // an input
  Tensor take(int slot);               // moves a result out; the slot is then absent
  void forward(Context& ctx);
  // In a stage: the slot, which is present. In backward: the slot, made again if it is missing.
  const View& view(int slot) const;
  const View& need(Context& ctx, int slot);
  void drop(int slot);
  // Begins to bring back all that is with the host, what backward needs first before the rest.
  void fetch(Context& ctx);
  bool present(int slot) const { return tensors_[static_cast<size_t>(slot)].defined(); }
  // Drops everything; for errors and for the end of a pass.
  void clear();
  const Body& body() const { return *body_; }
  // Stages run again by need() since begin().
  int stages_recomputed() const { return recomputed_; }

 private:
  void begin(Dims dims, PassMode mode);
  bool kept(int slot) const;       // whether forward leaves it for backward
  bool offloaded(int slot) const;  // whether forward sends it to the host
  bool away(int slot) const { return offload_ && offload_->away(index_, slot); }
  bool bring(Context& ctx, int slot);  // present now, or not to be had without running a stage
  // Makes the outputs of a stage that are missing; with `between`, not those that only the next
  // stage reads.
  void make_outputs(Context& ctx, int stage, Category category, bool between);
  void drop_after(Context& ctx, int stage);
  void leave(Context& ctx, int slot);

  const Body* body_;
  std::vector<SlotPolicy> policies_;
  std::vector<Tensor> tensors_;
  Offload* offload_;
  int index_;
  Dims dims_;
  PassMode mode_ = PassMode::train;
  int recomputed_ = 0;
  void* environment_ = nullptr;
};

}  // namespace snug
