// Context: the first argument of every op. It knows the place, the streams, the settings and the
// program that is being recorded or run; tensors come from it and nowhere else.
//
// Ops run on the compute stream. Copies between the device's arena and the host's run on a stream
// for each direction, what ranks exchange may on another, and are ops of the program like all others:
//
//   compute    .. x written, read ..|e0|......... more ops .........|w1| x ends ...
//   to_host                         |w0| copy x to h |e1|
//
// Three promises order them, checked on plan and when run; what breaks one is an internal error:
//   - a copy, or another op beside compute, comes after an event of compute that covers the birth of
//     where it writes and the last op before it, and after the copies that made what it reads;
//   - compute has waited for the last copy of a tensor, from or to it, when the tensor ends: its
//     bytes are then free for whatever is born next;
//   - compute has waited for all copies when the program ends.
//
// The host may be at work beside all of these (Beside), on what was there when its stretch began.
#pragma once

#include <array>
#include <exception>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/view.h"
#include "engine/device/device.h"
#include "engine/device/tier_file.h"
#include "engine/memory/program.h"

namespace snug {

class Context;

// A moment on a stream: what was put there before it, and what that waited for. Of one program.
struct Event {
  int32_t number = -1;  // -1: none
  int64_t epoch = 0;
  EventId device = 0;
  std::array<int64_t, kStreams> reached{};  // position on every stream that is sure to be done

  bool defined() const { return number >= 0; }
};

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
  friend class Op;
  Context* context_ = nullptr;
  int64_t epoch_ = 0;   // which recording or run made it; 0: none
  int32_t record_ = 0;  // index in that program
  Residence residence_ = Residence::device;
  bool resident_ = false;  // of a resident program: others copy it too
  // Position on each stream behind the last use there, in the program `used_in_`; on compute,
  // behind its birth.
  std::array<int64_t, kStreams> used_{};
  int64_t used_in_ = 0;
  View view_;
};

class KernelTable;

struct Settings {
  int threads = 1;
  // Which kernel computes which matrix product (engine/blas); it outlives the context. Null: the
  // fastest by dtype and instruction set. Changes numbers, so it is the same on plan and when run.
  const KernelTable* kernels = nullptr;
  // On cuda: attention by cuDNN, where layers/ops/attention_cudnn.h takes it.
  bool cudnn = false;
  // Programs that Context::repeat runs are captured as graphs, where the place captures.
  bool graphs = false;
  // Tests: bytes of 0xA5 after every tensor, checked at its end; part of the plan.
  int64_t guard_bytes = 0;
  // Tests: fill a tensor with NaN patterns when it is born and when it dies.
  bool poison = false;
  // On plan: the place that will run the programs. Ops record its workspace.
  Place target = Place::cpu;
  // On emu, tests: in which order blocks and threads run. 0: as they come; 1: backwards; any other:
  // shuffled with this seed.
  uint64_t emulated_order = 0;
  int gpu = 0;        // on cuda: which one
  bool tf32 = false;  // on cuda: products of f32 by the matrix units, which round their operands
  // On cuda: products by cuBLASLt, where it takes them (engine/blas/matmul_cuda.h). On plan it says
  // that the library is there.
  bool cublaslt = true;
  // On emu, tests: the device's arena is there for kernels and copies alone, as that of a GPU is,
  // and whoever else touches it gets a signal. With copies that are done at once.
  bool device_private = false;
  // How the places cpu and emu work through copies, if the schedule has any.
  StreamMode streams = StreamMode::immediate;
  // On the places cpu and emu: a file (memfd_create) that the device's arena is of, so that other
  // ranks map it too. -1: memory of this process alone.
  int arena_file = -1;
  // On the place cpu: the folder of the file below the arenas, if the schedule has bytes there.
  std::string disk_folder = {};
};

// Receives the time of every op while a program runs: of the trace of a step, and of measurements.
class OpListener {
 public:
  virtual ~OpListener() = default;
  virtual void op_done(const Program& program, int32_t op, double seconds) = 0;
  // The same with its begin and end, as monotonic_seconds() counts. On a GPU these are the device's
  // own times, and the ops of a program come when it has ended: nothing waits between them.
  virtual void op_span(const Program& program, int32_t op, double begin, double end) {
    op_done(program, op, end - begin);
  }
};

class Context {
 public:
  // place plan: records. places cpu, emu and cuda: run programs of a packed schedule in a reserved
  // arena.
  Context(Place place, Settings settings);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Place place() const { return on_host_ && !planning() ? Place::cpu : device_->place(); }
  bool planning() const { return device_->place() == Place::plan; }
  // Where ops run, or on plan will run.
  Place target() const { return on_host_ ? Place::cpu : planning() ? settings_.target : place(); }
  // Whether that is as kernels, on a GPU or emulated (engine/kernels/kernel_queue.h).
  bool by_kernels() const { return target() == Place::emu || target() == Place::cuda; }
  // Whether the host can read and write tensors of the device by their pointers. Ops that look at
  // values before they compute do so only there.
  bool host_reads() const {
    return place() == Place::cpu || (place() == Place::emu && !settings_.device_private);
  }
  // While one lives ops are the host's own work, on its tensors: loops of its threads, with the bits
  // of the place cpu. Tensors that are made meanwhile lie in the host arena. It begins when all is
  // done that compute has done, or has waited for, so what copies bring is joined by events, as for
  // ops of the device; and what is put on a stream behind it comes after it. Within a program; they
  // do not nest, and programs with one are no graphs.
  class OnHost {
   public:
    explicit OnHost(Context& ctx);
    ~OnHost() { ctx_.on_host_ = false; }
    OnHost(const OnHost&) = delete;
    OnHost& operator=(const OnHost&) = delete;

   private:
    Context& ctx_;
  };
  // While one lives, such a stretch is beside the device's work: it does not wait for what compute was
  // given since host_from_here(), and its tensors take no bytes that were another's since then. Of what
  // the device or a copy writes meanwhile it reads nothing. Compute has to wait for it: join_host().
  // On the place cpu, whose cores have one thing to do at a time, a stretch like others.
  //
  //   compute    | a | b |h|  c  |  d  |j|      h: host_from_here(), j: join_host()
  //   host               | stretch |
  class Beside {
   public:
    explicit Beside(Context& ctx);
    ~Beside() { ctx_.beside_ = false; }
    Beside(const Beside&) = delete;
    Beside& operator=(const Beside&) = delete;

   private:
    Context& ctx_;
  };
  // In a program, each once, around the stretches that are beside others: when what was put on the
  // streams so far is done these may begin; and compute goes on when they are done.
  void host_from_here();
  void join_host();
  // While one lives the device is at work: its private arena can be reached.
  class AtWork {
   public:
    explicit AtWork(Context& ctx) : ctx_(ctx) { ctx_.allow_host(true); }
    ~AtWork() { ctx_.allow_host(false); }
    AtWork(const AtWork&) = delete;
    AtWork& operator=(const AtWork&) = delete;

   private:
    Context& ctx_;
  };
  Device& device() { return *device_; }
  const Settings& settings() const { return settings_; }
  int threads() const { return settings_.threads; }
  StreamId stream() const { return kCompute; }

  // Reserves and touches both arenas for a packed schedule, which must outlive the context's use,
  // and starts the streams if it copies between them.
  void reserve(const Schedule& schedule);
  int64_t arena_bytes() const { return arena(Residence::device).bytes; }
  std::byte* arena_base() const { return arena(Residence::device).base; }
  int64_t host_bytes() const { return arena(Residence::host).bytes; }
  // Of the arenas, from the operating system.
  int64_t resident_bytes() const { return resident(Residence::device); }
  int64_t host_resident_bytes() const { return resident(Residence::host); }

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

  // The same for a program that hands the same numbers and addresses to the device each time it
  // runs, whatever else happens between, and whose body leaves nothing on the host that matters
  // later. With Settings::graphs its second run is captured, and from then on the graph is run
  // instead of the body. Bits are the same. Runs with a listener, poison or guards are not graphs.
  template <class F>
  void repeat(Schedule& schedule, int index, F&& body) {
    const Graph state = graph_state(index);
    if (state.how == Graph::How::replay) return replay(state.graph);
    if (state.how == Graph::How::run) return program(schedule, index, body);
    device_->begin_capture();
    try {
      program(schedule, index, body);
    } catch (...) {
      device_->cancel_capture();
      throw;
    }
    replay(graphs_[static_cast<size_t>(index)] = device_->end_capture());
  }
  int graphs() const;  // captured so far

  // A tensor of the current program. Contents are undefined.
  Tensor tensor(Name name, Shape shape, DType dtype, Category category) {
    if (on_host_) return host_tensor(name, shape, dtype);
    return tensor(name, shape, dtype, category, Residence::device);
  }
  // The same in the host arena, of category offload. Ops of the device do not touch it, but to gather
  // rows (layers/ops/embedding.h), over the link: copies do, the host's own ops (OnHost), and between
  // programs the host.
  Tensor host_tensor(Name name, Shape shape, DType dtype) {
    return tensor(name, shape, dtype, Category::offload, Residence::host);
  }

  // Between the host's own memory and a tensor, on any place with storage: the whole tensor, in
  // order with the ops. When they return the bytes are there; read() throws what went wrong before.
  void write(const View& to, const void* from);
  void read(void* to, const View& from);

  // A resident tensor of one dimension cut into consecutive pieces, each to be copied by itself.
  // Their ends record nothing.
  std::vector<Tensor> split(const Tensor& whole, std::span<const int64_t> elements);

  // Copies of a whole tensor to one of the same shape and dtype, on their stream. Both are of the
  // program that runs, or of a resident one before it.
  void copy_to_host(Tensor& host, Tensor& device) { copy(kToHost, host, device); }
  void copy_to_device(Tensor& device, Tensor& host) { copy(kToDevice, device, host); }
  // One copy of consecutive pieces of a resident host tensor (split()) to a tensor of one dimension
  // that has room for exactly these.
  void copy_to_device(Tensor& device, std::span<Tensor* const> host);
  // Of the file below the arenas: in a resident program the place of so many bytes, whole blocks of
  // TierFile. Between it and a tensor of u8 with room for them (disk_room()), on the stream kToHost,
  // whose copies go one behind the other as those of one disk do.
  int64_t place_on_disk(int64_t bytes);
  void read_disk(Tensor& to, int64_t offset, int64_t bytes) { disk_copy(false, to, offset, bytes); }
  void write_disk(Tensor& from, int64_t offset, int64_t bytes) {
    disk_copy(true, from, offset, bytes);
  }
  // A tensor for that, and the bytes of it that are aligned as files want.
  static int64_t disk_room(int64_t bytes) {
    return bytes + TierFile::kAlignment - kTensorAlignment;
  }
  static View aligned_for_disk(const View& room, int64_t bytes);
  // Where the schedule has bytes there, and the arena is reserved; else null.
  TierFile* disk() { return disk_.get(); }
  Event record_event(StreamId stream);
  void wait_event(StreamId stream, const Event& event);
  // Whether an event is of the program that is being recorded or run.
  bool current(const Event& event) const {
    return program_ != nullptr && event.defined() && event.epoch == epoch_;
  }

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
  struct Arena {
    std::byte* base = nullptr;
    int64_t bytes = 0;
  };
  void allow_host(bool allowed) {
    if (!settings_.device_private || place() != Place::emu) return;
    const Arena& a = arena(Residence::device);
    device_->allow_host(a.base, a.bytes, allowed);
  }
  struct Graph {
    enum class How : uint8_t { run, capture, replay } how;
    int graph;
  };
  Graph graph_state(int index);
  void replay(int graph);
  void begin(Schedule& schedule, int index);
  void end();
  void abandon() noexcept;
  Tensor tensor(Name name, Shape shape, DType dtype, Category category, Residence residence);
  void release(Tensor& tensor) noexcept;
  void check_guard(const TensorRecord& record, std::byte* data);
  void tell_marks(const Program& program);
  void set_bytes(Residence residence, std::byte* data, uint8_t value, int64_t bytes);
  void copy(StreamId stream, Tensor& to, Tensor& from);
  void enter_beside(StreamId stream, std::span<Tensor* const> tensors);
  void disk_copy(bool write, Tensor& tensor, int64_t offset, int64_t bytes);
  void enter_copy(Tensor& tensor);
  void check_ordered(StreamId stream, const Tensor& tensor) const;
  void sync(const SyncRecord& now);
  int64_t resident(Residence residence) const;
  const Arena& arena(Residence r) const { return arenas_[static_cast<size_t>(r)]; }
  // Whether ops and tensors are of a stretch beside the device's work.
  bool host_beside() const { return on_host_ && beside_; }
  int64_t birth() const { return host_beside() ? host_since_ : clock_; }
  int64_t& position(StreamId s) { return reached_[static_cast<size_t>(s)][static_cast<size_t>(s)]; }
  int64_t reached(StreamId by, StreamId of) const {
    return reached_[static_cast<size_t>(by)][static_cast<size_t>(of)];
  }

  std::unique_ptr<TierFile> disk_;  // the device's thread uses it to its end
  std::unique_ptr<Device> device_;
  Settings settings_;
  Program* program_ = nullptr;
  int64_t epoch_ = 0;
  int64_t clock_ = 0;
  int32_t next_tensor_ = 0;
  int32_t next_op_ = 0;
  int32_t next_sync_ = 0;
  int32_t next_event_ = 0;
  int64_t placed_ = 0;  // bytes on disk
  // reached_[s][q]: how far stream q is sure to be when stream s does what is put on it now. Of a
  // stream itself it is its position: the number of births, ends, ops and copies put there.
  std::array<std::array<int64_t, kStreams>, kStreams> reached_{};
  int64_t last_op_ = 0;  // position of compute behind its last op
  Name scope_;
  // The first broken promise seen where throwing is impossible (a destructor); thrown by end().
  const char* broken_ = nullptr;
  Name broken_name_;
  std::array<Arena, kResidences> arenas_;
  std::vector<int> graphs_;  // by program: a graph's number, or one of those in context.cpp
  OpListener* listener_ = nullptr;
  bool on_host_ = false, beside_ = false;
  int64_t host_since_ = -1;  // the tick of host_from_here() in this program
  bool marking_ = false;     // the program that runs is heard by marks
  double marked_from_ = 0;
};

// Opens every op: reports its cost, says whether to compute, and times it when someone listens.
//   Op op(ctx, "layernorm_forward", {.flops = 8 * n * c, .bytes = ...});
//   if (!op.run()) return;   // on plan
struct OpCost {
  int64_t flops = 0;
  int64_t bytes = 0;
  int64_t link_bytes = 0;  // of these, what a device reads with the host
  Name variant = {};       // how the op will compute, where it has a choice; recorded on plan only
};
class Op {
 public:
  Op(Context& ctx, const char* name, OpCost cost) : Op(ctx, name, cost, kCompute) {}
  // Of another stream, behind all that compute has done: the stream has waited for an event of it. Its
  // work is put there by Device::call. `tensors`, of the program or of a resident one, are those that
  // end or change before the program does: the first promise is checked for them, and the second.
  Op(Context& ctx, const char* name, OpCost cost, StreamId stream,
     std::span<Tensor* const> tensors);
  ~Op();
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;
  bool run() const { return run_; }

 private:
  friend class Context;
  Op(Context& ctx, const char* name, OpCost cost, StreamId stream);

  Context& ctx_;
  bool run_;
  int32_t index_ = 0;
  double started_ = 0;
};

// Names of the ops that read and write the file below the arenas; what they take is the disk's time.
inline constexpr const char *kReadDisk = "read_disk", *kWriteDisk = "write_disk";

double monotonic_seconds();

}  // namespace snug
