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
//
// A stage owns both directions. Beside its backward it names what that reads and for whose sake, and
// which inputs have a gradient; the body derives the rest:
//
//   order       backward() runs the stages from the last to the first
//   assign/add  open_gradient(s) makes the gradient of a slot at its first contribution, which is
//               assigned; further ones are added. hand_gradient() passes one on in place
//   lifetimes   a slot ends after the last stage whose backward reads it or makes it again, a
//               gradient after the stage that wrote its slot
//   frozen      derive() leaves out what nobody wants: a stage with nothing trained in or before it
//               has no backward, and a slot that only such a backward reads is not kept
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
  int64_t rows = 0;  // of a sequence, where stages of a body choose as many of its T
  int64_t N() const { return B * T; }
  int64_t chosen() const { return B * rows; }
  // B and T of a tensor of n rows: all of them, or those that were chosen.
  Dims of(int64_t n) const { return n == N() ? *this : Dims{B, rows, rows}; }
};

class Pass;

struct Slot {
  Name name;
  DType dtype;
  Category category;
  std::function<Shape(Dims)> shape;
  unsigned presets =
      0;  // bits: the names that mean it among others; whoever wires bodies says which
};

struct Stage {
  Name name;
  std::vector<int> inputs, outputs;  // slots
  std::function<void(Context&, Pass&)> run;
  // Backward. Empty: of a body whose caller drives backward by need() and drop().
  std::function<void(Context&, Pass&)> backward = {};
  std::vector<int> params = {};      // of the ParamTable
  std::vector<int> for_params = {};  // slots that the gradients of the first of them read
  int reading_params = 1;            // how many: of a linear layer the weight alone, not the bias
  std::vector<int> for_inputs = {};  // slots that the gradients of the inputs read
  std::vector<int> gradients = {};   // inputs that have a gradient
};

class Body {
 public:
  int add_slot(Slot slot);
  void add_presets(int slot, unsigned presets) {
    slots_[static_cast<size_t>(slot)].presets |= presets;
  }
  // Stages are added in an order in which every input is given or written before it is read.
  void add_stage(Stage stage);
  // `run` does what stage `first` and the one after it do. A slot between the two that is dropped
  // at once is not made in forward: present() tells `run` so. `backward`, if there is one, does
  // both of their backwards where both run.
  void fuse(int first, std::function<void(Context&, Pass&)> run,
            std::function<void(Context&, Pass&)> backward = {});
  // Settles who wants a gradient: which parameters are trained, and whether the caller takes the
  // gradients of the slots that are given. After the last stage; until then everything is wanted.
  void derive(const std::function<bool(int param)>& trained, bool given_wanted);

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
  const std::function<void(Context&, Pass&)>& fused_backward(int first) const {
    return fused_backward_[static_cast<size_t>(first)];
  }
  // Whether the stages bring their backward.
  bool has_backward() const { return has_backward_; }
  bool runs_backward(int stage) const { return active_[static_cast<size_t>(stage)]; }
  bool gradient_wanted(int slot) const { return wanted_[static_cast<size_t>(slot)]; }
  // The stage whose backward reads a slot last, the first of them in forward order; -1: none does.
  int backward_reader(int slot) const { return backward_reader_[static_cast<size_t>(slot)]; }
  Name gradient_name(int slot) const { return gradient_names_[static_cast<size_t>(slot)]; }

 private:
  std::vector<Slot> slots_;
  std::vector<Name> gradient_names_;
  std::vector<Stage> stages_;
  std::vector<int> producer_, last_reader_, backward_reader_;
  std::vector<char> wanted_, active_;  // by slot, by stage
  bool has_backward_ = false;
  std::vector<std::function<void(Context&, Pass&)>> fused_, fused_backward_;
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

  // Runs backward, from the gradient of slot `out` to that of slot `in`, which is undefined if
  // nobody wants it or there is none (-1).
  Tensor backward(Context& ctx, int out, Tensor dout, int in);
  // In a stage's backward: the gradient of an output, all contributions in.
  const View& gradient(int slot) const;
  bool wants_gradient(int slot) const { return body_->gradient_wanted(slot); }
  // The gradient of an input, to write: assigned if this is the first contribution, else added to.
  GradView open_gradient(Context& ctx, int slot);
  // Whether forward sends a slot to the host: not one that backward does not read.
  bool offloaded(int slot) const;
  // Whether a contribution to the gradient of a slot is there.
  bool has_gradient(int slot) const { return gradients_[static_cast<size_t>(slot)].defined(); }
  // The gradient of `to` begins as that of `from`, in place; no contribution may be there.
  void hand_gradient(int from, int to);
  // Moves a gradient out, for its bytes; ends one before the stage does.
  Tensor take_gradient(int slot) { return std::move(gradients_[static_cast<size_t>(slot)]); }
  void end_gradient(int slot) { gradients_[static_cast<size_t>(slot)].reset(); }
  // Ends a slot before the stage does, unless a later backward reads it.
  void done(int slot);
  // Drops everything; for errors and for the end of a pass.
  void clear();
  const Body& body() const { return *body_; }
  // Stages run again by need() since begin().
  int stages_recomputed() const { return recomputed_; }

 private:
  void begin(Dims dims, PassMode mode);
  bool read_again(int slot) const;  // whether backward reads it or what is made of it
  bool kept(int slot) const;        // whether forward leaves it for backward
  bool away(int slot) const { return offload_ && offload_->away(index_, slot); }
  bool bring(Context& ctx, int slot);  // present now, or not to be had without running a stage
  // Makes the outputs of a stage that are missing; with `between`, not those that only the next
  // stage reads.
  void make_outputs(Context& ctx, int stage, Category category, bool between);
  void drop_after(Context& ctx, int stage);
  void leave(Context& ctx, int slot);
  void end_stage(int stage);  // of backward: what nothing after it reads

  const Body* body_;
  std::vector<SlotPolicy> policies_;
  std::vector<Tensor> tensors_, gradients_;
  // The stage in whose backward a slot is read last or made again last for another; none: not kept.
  static constexpr int kNone = -1;
  std::vector<int> ends_;
  int backward_stage_ = kNone;
  Offload* offload_;
  int index_;
  Dims dims_;
  PassMode mode_ = PassMode::train;
  int recomputed_ = 0;
  void* environment_ = nullptr;
};

}  // namespace snug
