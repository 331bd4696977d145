// Context: the first argument of every op. It knows the place, the stream, the settings and the
// program that is being recorded or run; tensors come from it and nowhere else.
#pragma once

#include <exception>
#include <initializer_list>
#include <memory>
#include <vector>

#include "engine/core/view.h"
#include "engine/device/device.h"
#include "engine/memory/program.h"

namespace snug {

class Context;

// Move-only owner of planned bytes; the context outlives it. Its end is a release on its stream,
// recorded on `plan` and checked against the record when running. Tensors of resident programs may
// end at any time: their bytes stay.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Tensor&& other) noexcept { *this = std::move(other); }
  Tensor& operator=(Tensor&& other) noexcept;
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() { reset(); }

  void reset() noexcept;
  bool defined() const { return context_ != nullptr; }
  const View& view() const { return view_; }
  operator const View&() const { return view_; }  // NOLINT: a tensor reads as its view

 private:
  friend class Context;
  Context* context_ = nullptr;
  int64_t epoch_ = 0;   // which recording or run made it
  int32_t record_ = 0;  // index in that program
  View view_;
};

class KernelTable;

struct Settings {
  int threads = 1;
  // Which kernel computes which matrix product (engine/blas); it outlives the context. Null: the
  // fastest by dtype and instruction set. Changes numbers, so it is the same on plan and when run.
  const KernelTable* kernels = nullptr;
  // Tests: bytes of 0xA5 after every tensor, checked at its end; part of the plan.
  int64_t guard_bytes = 0;
  // Tests: fill a tensor with NaN patterns when it is born and when it dies.
  bool poison = false;
};

// Receives the time of every op while a program runs (snug bench).
class OpListener {
 public:
  virtual ~OpListener() = default;
  virtual void op_done(const Program& program, int32_t op, double seconds) = 0;
};

class Context {
 public:
  // place plan: records. place cpu: runs programs of a packed schedule in a reserved arena.
  Context(Place place, Settings settings);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Place place() const { return device_->place(); }
  bool planning() const { return place() == Place::plan; }
  Device& device() { return *device_; }
  const Settings& settings() const { return settings_; }
  int threads() const { return settings_.threads; }
  StreamId stream() const { return 0; }

  // Reserves and touches the arena for a packed schedule, which must outlive the context's use.
  void reserve(const Schedule& schedule);
  int64_t arena_bytes() const { return arena_bytes_; }
  int64_t resident_bytes() const;  // of the arena, from the operating system

  // Runs `body` as program `index` of `schedule`: on plan it is recorded into it, elsewhere it is
  // held to the record. Exceptions pass through and leave the context usable.
  template <class F>
  void program(Schedule& schedule, int index, F&& body) {
    begin(schedule, index);
    try {
      body();
    } catch (...) {
      abandon();
      throw;
    }
    end();
  }

  // A tensor of the current program. Contents are undefined.
  Tensor tensor(Name name, Shape shape, DType dtype, Category category);

  // While a Scope lives, ops and tensors carry its name, and errors say where they happened.
  class Scope {
   public:
    Scope(Context& ctx, Name name) : ctx_(ctx), previous_(ctx.scope_) { ctx.scope_ = name; }
    ~Scope() { ctx_.scope_ = previous_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Context& ctx_;
    Name previous_;
  };
  Name scope() const { return scope_; }

  void set_listener(OpListener* listener) { listener_ = listener; }
  const Program* current() const { return program_; }

 private:
  friend class Tensor;
  friend class Op;
  void begin(Schedule& schedule, int index);
  void end();
  void abandon() noexcept;
  void release(Tensor& tensor) noexcept;
  void check_guard(const TensorRecord& record, const std::byte* data) noexcept;

  std::unique_ptr<Device> device_;
  Settings settings_;
  Program* program_ = nullptr;
  int64_t epoch_ = 0;
  int64_t clock_ = 0;
  int32_t next_tensor_ = 0;
  int32_t next_op_ = 0;
  Name scope_;
  // The first broken promise seen where throwing is impossible (a destructor); thrown by end().
  const char* broken_ = nullptr;
  Name broken_name_;
  std::byte* arena_ = nullptr;
  int64_t arena_bytes_ = 0;
  OpListener* listener_ = nullptr;
};

// Opens every op: reports its cost, says whether to compute, and times it when someone listens.
//   Op op(ctx, "layernorm_forward", {.flops = 8 * n * c, .bytes = ...});
//   if (!op.run()) return;   // on plan
struct OpCost {
  int64_t flops = 0;
  int64_t bytes = 0;
  Name variant = {};  // how the op will compute, where it has a choice; recorded on plan only
};
class Op {
 public:
  Op(Context& ctx, const char* name, OpCost cost);
  ~Op();
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;
  bool run() const { return run_; }

 private:
  Context& ctx_;
  bool run_;
  int32_t index_ = 0;
  double started_ = 0;
};

double monotonic_seconds();

}  // namespace snug
