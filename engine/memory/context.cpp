#include "engine/memory/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "engine/core/error.h"
#include "engine/core/units.h"

namespace snug {
namespace {
constexpr uint8_t kGuard = 0xA5;
constexpr int64_t kMostTensorBytes = (int64_t{1} << 61) - 1;
constexpr int kNotRun = -2, kRunOnce = -1;  // of Context::graphs_
constexpr uint8_t kPoison = 0xFF;           // NaN as f32, bf16 and f16; -1 as an integer

[[noreturn]] void drift(const Program& program, const std::string& expected,
                        const std::string& found) {
  fail(ErrorCode::internal,
       fmt::format("program {} to do what was planned: {}", program.name.view(), expected), found,
       "this is a defect in Snug: please report it with the command you ran");
}
bool uses(const Schedule& schedule, StreamId stream) {
  for (int i = 0; i < schedule.size(); ++i)
    for (const OpRecord& op : schedule.at(i).ops)
      if (op.stream == stream) return true;
  return false;
}
}  // namespace

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  if (this == &other) return *this;
  reset();
  context_ = other.context_;
  epoch_ = other.epoch_;
  record_ = other.record_;
  residence_ = other.residence_;
  resident_ = other.resident_;
  used_ = other.used_;
  used_in_ = other.used_in_;
  view_ = other.view_;
  other.context_ = nullptr;
  other.view_ = View{};
  return *this;
}

void Tensor::reset() noexcept {
  if (context_) context_->release(*this);
  context_ = nullptr;
  view_ = View{};
}

Context::Context(Place place, Settings settings)
    : device_(make_device(place, settings.gpu)), settings_(settings) {}

Context::~Context() {
  device_->synchronize();
  for (const Arena& a : arenas_)
    if (a.base) device_->release(a.base, a.bytes);
}

void Context::reserve(const Schedule& schedule) {
  require(arena(Residence::device).base == nullptr, "one reservation per context");
  require(!planning(), "a place with storage");
  for (const Residence r : {Residence::device, Residence::host}) {
    const int64_t bytes = r == Residence::host ? schedule.host_bytes() : schedule.arena_bytes();
    if (r == Residence::host && bytes == 0) continue;
    Arena& a = arenas_[static_cast<size_t>(r)];
    const bool shared = r == Residence::device && settings_.arena_file >= 0;
    a.base =
        shared ? device_->reserve_shared(bytes, settings_.arena_file) : device_->reserve(bytes, r);
    a.bytes = bytes;
    device_->touch(a.base, bytes, settings_.threads);
  }
  if (const int64_t bytes = schedule.disk_bytes(); bytes > 0)
    disk_ = std::make_unique<TierFile>(settings_.disk_folder, bytes);
  // No thread of copies where there are none.
  const bool exchanges =
      uses(schedule, kRanks) && (settings_.streams != StreamMode::worker || place() == Place::cuda);
  if (host_bytes() > 0 || disk_ || exchanges) device_->start_streams(settings_.streams);
  if (settings_.graphs) graphs_.assign(static_cast<size_t>(schedule.size()), kNotRun);
  allow_host(false);
}

int64_t Context::resident(Residence residence) const {
  const Arena& a = arena(residence);
  return a.base ? device_->resident(a.base, a.bytes) : 0;
}

// The first run is as it is: what libraries choose and code that is loaded when first used is then
// there.
Context::Graph Context::graph_state(int index) {
  using How = Graph::How;
  if (!settings_.graphs || planning() || listener_ != nullptr || settings_.poison ||
      settings_.guard_bytes > 0 || !device_->captures())
    return {How::run, -1};
  require(program_ == nullptr && index >= 0 && index < static_cast<int>(graphs_.size()),
          "a program of the reserved schedule, and one at a time");
  int& graph = graphs_[static_cast<size_t>(index)];
  if (graph >= 0) return {How::replay, graph};
  if (graph == kRunOnce) return {How::capture, -1};
  graph = kRunOnce;
  return {How::run, -1};
}

void Context::replay(int graph) {
  const AtWork work(*this);
  device_->replay(graph);
}

int Context::graphs() const {
  return static_cast<int>(
      std::count_if(graphs_.begin(), graphs_.end(), [](int g) { return g >= 0; }));
}

void Context::begin(Schedule& schedule, int index) {
  require(program_ == nullptr, "one program at a time");
  require(index >= 0 && index < schedule.size(), "a program of the schedule");
  if (!planning()) {
    const Program& p = schedule.at(index);
    require(arena(Residence::device).base != nullptr, "a reserved arena");
    require(p.packing.offsets.size() == p.tensors.size() && p.end() <= arena_bytes() &&
                p.host_packing.offsets.size() == p.tensors.size() && p.host_end() <= host_bytes(),
            "a packed schedule that fits the reserved arena");
  }
  program_ = &schedule.at(index);
  on_host_ = beside_ = false;
  host_since_ = -1;
  ++epoch_;
  clock_ = 0;
  next_tensor_ = next_op_ = next_sync_ = next_event_ = 0;
  placed_ = 0;
  reached_ = {};
  last_op_ = 0;
  broken_ = nullptr;
  device_->begin_range(program_->name.c_str());
  marking_ = listener_ != nullptr && !planning() && device_->has_marks();
  if (marking_) {
    device_->make_marks(1 + 2 * static_cast<int>(program_->ops.size()));
    device_->synchronize();
    device_->mark(0, kCompute);
    marked_from_ = monotonic_seconds();
  }
  if (planning()) {
    program_->tensors.clear();
    program_->ops.clear();
    program_->syncs.clear();
  }
}

void Context::end() {
  Program& p = *program_;
  program_ = nullptr;
  device_->end_range();
  bool joined = true;
  for (StreamId s = 0; s < kStreams; ++s) joined = joined && reached(kCompute, s) == position(s);
  if (broken_ || !joined) device_->synchronize();  // nothing is written behind the program's back
  if (broken_) drift(p, broken_, fmt::format("tensor {}", broken_name_.view()));
  if (!joined)
    drift(p, "compute to have waited for all copies at its end", "copies that it did not wait for");
  if (planning()) {
    p.ticks = clock_;
    p.disk_bytes = placed_;
    for (const TensorRecord& t : p.tensors)
      if ((t.died == kNever) != p.resident)
        drift(p, p.resident ? "resident tensors to outlive it" : "all tensors to end inside it",
              fmt::format("tensor {}", t.name.view()));
    return;
  }
  if (next_tensor_ != static_cast<int32_t>(p.tensors.size()) || clock_ != p.ticks)
    drift(p, fmt::format("{} tensors in {} ticks", p.tensors.size(), p.ticks),
          fmt::format("{} tensors in {} ticks", next_tensor_, clock_));
  if (placed_ != p.disk_bytes)
    drift(p, fmt::format("{} bytes on disk", p.disk_bytes), fmt::format("{} bytes", placed_));
  if (next_op_ != static_cast<int32_t>(p.ops.size()))
    drift(p, fmt::format("{} ops", p.ops.size()), fmt::format("{} ops", next_op_));
  if (next_sync_ != static_cast<int32_t>(p.syncs.size()))
    drift(p, fmt::format("{} events and waits", p.syncs.size()),
          fmt::format("{} events and waits", next_sync_));
  if (marking_) tell_marks(p);
}

// Of an op: mark 1 + 2 * op is its begin, the next one its end.
void Context::tell_marks(const Program& program) {
  device_->synchronize();
  device_->check();
  for (int32_t op = 0; op < static_cast<int32_t>(program.ops.size()) && listener_; ++op)
    listener_->op_span(program, op, marked_from_ + device_->mark_seconds(1 + 2 * op),
                       marked_from_ + device_->mark_seconds(2 + 2 * op));
}

void Context::abandon() noexcept {
  // Tensors of the abandoned run that still live no longer match: a new epoch makes their end a
  // no-op. Copies that were issued end before anything else takes their bytes.
  device_->synchronize();
  if (program_ != nullptr) device_->end_range();
  program_ = nullptr;
  ++epoch_;
}

Tensor Context::tensor(Name name, Shape shape, DType dtype, Category category,
                       Residence residence) {
  require(program_ != nullptr, "tensors to be made inside a program");
  Program& p = *program_;
  const int64_t elements = shape.elements();
  if (elements > kMostTensorBytes / size_of(dtype))
    fail(ErrorCode::out_of_memory, "a tensor of less than 2^61 bytes",
         fmt::format("{} {} {}", name.view(), to_string(shape), to_string(dtype)),
         "check the sizes of the model and of the batch");
  const int64_t bytes = elements * size_of(dtype) + settings_.guard_bytes;
  Tensor t;
  t.record_ = next_tensor_;
  t.view_.shape = shape;
  t.view_.dtype = dtype;
  t.view_.place = place();
  t.view_.name = name;
  t.view_.with_host = residence == Residence::host && !on_host_;
  if (planning()) {
    p.tensors.push_back({name, scope_, shape, dtype, category, bytes, birth(), kNever,
                         static_cast<int32_t>(p.ops.size()), 0, residence});
  } else {
    if (t.record_ >= static_cast<int32_t>(p.tensors.size()))
      drift(p, fmt::format("{} tensors", p.tensors.size()),
            fmt::format("one more, {}", name.view()));
    const TensorRecord& r = p.tensors[static_cast<size_t>(t.record_)];
    if (!(r.name == name) || bytes > r.bytes || r.born != birth() || r.residence != residence)
      drift(p, fmt::format("tensor {} of {} bytes at tick {}", r.name.view(), r.bytes, r.born),
            fmt::format("tensor {} of {} bytes at tick {}", name.view(), bytes, clock_));
    const bool host = residence == Residence::host;
    const Packing& packing = host ? p.host_packing : p.packing;
    std::byte* data = arena(residence).base + (host ? p.host_base : p.base) +
                      packing.offsets[static_cast<size_t>(t.record_)];
    t.view_.data = data;
    if (settings_.poison) set_bytes(residence, data, kPoison, elements * size_of(dtype));
    if (settings_.guard_bytes > 0)
      set_bytes(residence, data + r.bytes - settings_.guard_bytes, kGuard, settings_.guard_bytes);
  }
  // Only now is it a tensor whose end counts: one that was refused above has none.
  t.context_ = this;
  t.epoch_ = t.used_in_ = epoch_;
  t.residence_ = residence;
  t.resident_ = p.resident;
  t.used_[kCompute] = ++position(kCompute);
  ++next_tensor_;
  ++clock_;
  return t;
}

// Whether what stream s does now comes after all that matters of a tensor elsewhere: its birth (and
// with that the end of what had its bytes before), what wrote it, what still reads it.
void Context::check_ordered(StreamId stream, const Tensor& tensor) const {
  for (StreamId q = 0; q < kStreams; ++q) {
    int64_t needed = tensor.used_[static_cast<size_t>(q)];
    // Ops do not say what they read and write: all of them count.
    if (q == kCompute && tensor.residence_ == Residence::device)
      needed = std::max(needed, last_op_);
    if (q == kHost && tensor.residence_ == Residence::host)
      needed = std::max(needed, reached(kHost, kHost));
    if (q != stream && reached(stream, q) < needed)
      drift(*program_,
            fmt::format("{} to wait for {} before a copy", stream_name(stream), stream_name(q)),
            fmt::format("a copy of {} without it", tensor.view_.name.view()));
  }
}

std::vector<Tensor> Context::split(const Tensor& whole, std::span<const int64_t> elements) {
  require(whole.context_ == this && whole.resident_ && whole.view_.shape.rank() == 1,
          "pieces of a resident tensor of one dimension");
  std::vector<Tensor> pieces(elements.size());
  int64_t at = 0;
  for (size_t i = 0; i < pieces.size(); at += elements[i++]) {
    Tensor& t = pieces[i];
    t.epoch_ = 0;  // of no program: its end is not the whole's
    t.used_in_ = whole.used_in_;
    t.used_ = whole.used_;
    t.record_ = whole.record_;
    t.residence_ = whole.residence_;
    t.resident_ = true;
    t.view_ = whole.view_.rows(at, elements[i]);
    t.context_ = this;
  }
  require(at == whole.view_.elements(), "pieces that are the whole");
  return pieces;
}

void Context::enter_copy(Tensor& t) {
  require(program_ != nullptr, "copies to be made inside a program");
  require(t.context_ == this && (t.epoch_ == epoch_ || t.resident_),
          "copies between tensors of the program that runs and residents");
  // Every program ends with all streams joined: what a resident was used for before is over.
  if (t.used_in_ != epoch_) t.used_ = {};
  t.used_in_ = epoch_;
}

void Context::enter_beside(StreamId stream, std::span<Tensor* const> tensors) {
  if (reached(stream, kCompute) < last_op_)
    drift(*program_,
          fmt::format("{} to wait for compute before an op beside it", stream_name(stream)),
          "an op without it");
  for (Tensor* t : tensors) {
    enter_copy(*t);
    check_ordered(stream, *t);
  }
}

void Context::copy_to_device(Tensor& device, std::span<Tensor* const> host) {
  require(!host.empty(), "pieces to copy");
  enter_copy(device);
  int64_t elements = 0;
  for (Tensor* piece : host) {
    enter_copy(*piece);
    require(piece->residence_ == Residence::host && piece->record_ == host.front()->record_ &&
                piece->view_.dtype == device.view_.dtype &&
                (planning() || static_cast<std::byte*>(piece->view_.data) ==
                                   static_cast<std::byte*>(host.front()->view_.data) +
                                       elements * size_of(device.view_.dtype)),
            "consecutive pieces of one host tensor");
    elements += piece->view_.elements();
    check_ordered(kToDevice, *piece);
  }
  require(device.residence_ == Residence::device && device.view_.shape == Shape{elements},
          "a tensor of the device with room for exactly the pieces");
  check_ordered(kToDevice, device);
  const int64_t bytes = device.view_.bytes();
  {
    const Op op(*this, "copy_to_device", {.flops = 0, .bytes = bytes}, kToDevice);
    const AtWork work(*this);
    if (op.run()) device_->copy(device.view_.data, host.front()->view_.data, bytes, kToDevice);
  }
  device.used_[kToDevice] = position(kToDevice);
  for (Tensor* piece : host) piece->used_[kToDevice] = position(kToDevice);
}

void Context::copy(StreamId stream, Tensor& to, Tensor& from) {
  for (Tensor* t : {&to, &from}) enter_copy(*t);
  const Residence target = stream == kToHost ? Residence::host : Residence::device;
  require(to.residence_ == target && from.residence_ != target,
          "copies in the direction of their stream");
  require(to.view_.shape == from.view_.shape && to.view_.dtype == from.view_.dtype,
          "copies between tensors of one shape and dtype");
  check_ordered(stream, to);
  check_ordered(stream, from);
  const int64_t bytes = from.view_.bytes();
  {
    const Op op(*this, stream == kToHost ? "copy_to_host" : "copy_to_device",
                {.flops = 0, .bytes = bytes}, stream);
    const AtWork work(*this);
    if (op.run()) device_->copy(to.view_.data, from.view_.data, bytes, stream);
  }
  for (Tensor* t : {&to, &from}) t->used_[static_cast<size_t>(stream)] = position(stream);
}

int64_t Context::place_on_disk(int64_t bytes) {
  require(program_ != nullptr && program_->resident && program_->parent < 0,
          "bytes on disk of the root program");
  require(bytes > 0 && bytes % TierFile::kBlock == 0, "whole blocks on disk");
  const int64_t offset = placed_;
  placed_ += bytes;
  if (!planning() && placed_ > program_->disk_bytes)
    drift(*program_, fmt::format("{} bytes on disk", program_->disk_bytes),
          fmt::format("{} bytes", placed_));
  return offset;
}

View Context::aligned_for_disk(const View& room, int64_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(room.data);
  const auto over = static_cast<int64_t>(at % TierFile::kAlignment);
  return room.rows(over == 0 ? 0 : TierFile::kAlignment - over, bytes);
}

void Context::disk_copy(bool write, Tensor& tensor, int64_t offset, int64_t bytes) {
  enter_copy(tensor);
  require(tensor.view_.dtype == DType::u8 && tensor.view_.bytes() >= disk_room(bytes),
          "a tensor with room for what is on disk");
  check_ordered(kToHost, tensor);
  {
    const Op op(*this, write ? kWriteDisk : kReadDisk, {.flops = 0, .bytes = bytes}, kToHost);
    if (op.run()) {
      void* const data = aligned_for_disk(tensor.view_, bytes).data;
      if (write)
        device_->write_disk(*disk_, offset, data, bytes, kToHost);
      else
        device_->read_disk(*disk_, offset, data, bytes, kToHost);
    }
  }
  tensor.used_[kToHost] = position(kToHost);
}

// Held to the record like ops.
void Context::sync(const SyncRecord& now) {
  if (planning()) {
    program_->syncs.push_back(now);
    return;
  }
  const auto text = [](const SyncRecord& r) {
    return fmt::format("{} to {} event {} at tick {}", stream_name(r.stream),
                       r.kind == SyncRecord::Kind::record ? "record" : "wait for", r.event, r.time);
  };
  const auto& syncs = program_->syncs;
  const auto index = static_cast<size_t>(next_sync_++);
  const SyncRecord* r = index < syncs.size() ? &syncs[index] : nullptr;
  if (!r || r->kind != now.kind || r->stream != now.stream || r->event != now.event ||
      r->time != now.time || r->op != now.op)
    drift(*program_, r ? text(*r) : fmt::format("{} events and waits", syncs.size()), text(now));
}

Event Context::record_event(StreamId stream) {
  require(program_ != nullptr, "events to be recorded inside a program");
  Event e;
  e.number = next_event_++;
  e.epoch = epoch_;
  e.reached = reached_[static_cast<size_t>(stream)];
  sync({SyncRecord::Kind::record, stream, e.number, clock_,
        planning() ? static_cast<int32_t>(program_->ops.size()) : next_op_});
  e.device = device_->record_event(stream);
  return e;
}

void Context::wait_event(StreamId stream, const Event& event) {
  require(current(event), "a wait for an event of the program that runs");
  sync({SyncRecord::Kind::wait, stream, event.number, clock_,
        planning() ? static_cast<int32_t>(program_->ops.size()) : next_op_});
  device_->wait_event(stream, event.device);
  auto& mine = reached_[static_cast<size_t>(stream)];
  for (size_t q = 0; q < kStreams; ++q) mine[q] = std::max(mine[q], event.reached[q]);
}

Context::OnHost::OnHost(Context& ctx) : ctx_(ctx) {
  require(!ctx.on_host_, "one stretch of the host's work at a time");
  if (!ctx.beside_) {
    const Event before = ctx.record_event(kCompute);
    if (!ctx.planning()) ctx.device_->wait_on_host(before.device);
  }
  ctx.on_host_ = true;
}

Context::Beside::Beside(Context& ctx) : ctx_(ctx) {
  require(!ctx.on_host_ && !ctx.beside_, "one stretch of the host's work at a time");
  if (!ctx.by_kernels()) return;
  require(ctx.host_since_ >= 0, "host_from_here() before what is beside the device");
  ctx.beside_ = true;
}

void Context::host_from_here() {
  if (!by_kernels()) return;
  require(host_since_ < 0, "one beginning of the host's work in a program");
  wait_event(kHost, record_event(kCompute));
  host_since_ = clock_;
}

void Context::join_host() {
  if (by_kernels()) wait_event(kCompute, record_event(kHost));
}

void Context::release(Tensor& tensor) noexcept {
  if (program_ == nullptr || tensor.epoch_ != epoch_) return;  // resident, or an abandoned run
  TensorRecord& r = program_->tensors[static_cast<size_t>(tensor.record_)];
  for (StreamId s = 0; s < kStreams; ++s)
    if (reached(kCompute, s) < tensor.used_[static_cast<size_t>(s)] && !broken_) {
      broken_ = "compute to wait for the copies of a tensor before it ends";
      broken_name_ = r.name;
    }
  if (planning()) {
    r.died = clock_;
    r.last_op = static_cast<int32_t>(program_->ops.size());
  } else {
    auto* data = static_cast<std::byte*>(tensor.view_.data);
    if (r.died != clock_ && !broken_) {
      broken_ = "every tensor to end at its planned tick";
      broken_name_ = r.name;
    }
    try {
      if (settings_.guard_bytes > 0) check_guard(r, data);
      if (settings_.poison)
        set_bytes(tensor.residence_, data, kPoison, r.bytes - settings_.guard_bytes);
    } catch (const Error&) {
      if (!broken_) {
        broken_ = "the device to read and fill the bytes of a tensor that ends";
        broken_name_ = r.name;
      }
    }
  }
  ++clock_;
  ++position(kCompute);
}

// For tests, like the guards: on a GPU it waits, since the host's memory is written at once.
void Context::set_bytes(Residence residence, std::byte* data, uint8_t value, int64_t bytes) {
  if (!host_reads() && residence == Residence::device) {
    const AtWork work(*this);
    return device_->fill(data, value, bytes, kCompute);
  }
  if (place() == Place::cuda) device_->synchronize();
  std::memset(data, value, static_cast<size_t>(bytes));
}

void Context::write(const View& to, const void* from) {
  require(!planning(), "values to be written where there is storage");
  if (to.bytes() == 0) return;
  if (host_reads()) {
    std::memcpy(to.data, from, static_cast<size_t>(to.bytes()));
    return;
  }
  const AtWork work(*this);
  device_->copy(to.data, from, to.bytes(), kCompute);
  device_->synchronize();
}

void Context::read(void* to, const View& from) {
  require(!planning(), "values to be read where there is storage");
  if (from.bytes() == 0) return;
  if (host_reads()) {
    std::memcpy(to, from.data, static_cast<size_t>(from.bytes()));
    return;
  }
  const AtWork work(*this);
  device_->copy(to, from.data, from.bytes(), kCompute);
  device_->synchronize();
  device_->check();
}

void Context::check_guard(const TensorRecord& record, std::byte* data) {
  std::byte* guard = data + record.bytes - settings_.guard_bytes;
  std::vector<std::byte> copied;  // tests alone have guards
  if (!host_reads()) {
    const AtWork work(*this);
    copied.resize(static_cast<size_t>(settings_.guard_bytes));
    device_->copy(copied.data(), guard, settings_.guard_bytes, kCompute);
    device_->synchronize();
    guard = copied.data();
  }
  for (int64_t i = 0; i < settings_.guard_bytes; ++i)
    if (guard[i] != std::byte{kGuard} && !broken_) {
      broken_ = "no op to write past the end of a tensor (guard bytes were changed)";
      broken_name_ = record.name;
    }
}

Op::Op(Context& ctx, const char* name, OpCost cost, StreamId stream)
    : ctx_(ctx), run_(!ctx.planning()) {
  require(ctx.program_ != nullptr, "ops to run inside a program");
  if (ctx.host_beside() && stream == kCompute) stream = kHost;
  const int64_t position = ++ctx.position(stream);
  if (stream == kCompute) ctx.last_op_ = position;
  if (!run_) {
    ctx.program_->ops.push_back({name, ctx.scope_, cost.flops, cost.bytes, ctx.clock_, cost.variant,
                                 stream, ctx.on_host_, cost.link_bytes});
    return;
  }
  index_ = ctx.next_op_++;
  const auto& ops = ctx.program_->ops;
  if (index_ >= static_cast<int32_t>(ops.size()))
    drift(*ctx.program_, fmt::format("{} ops", ops.size()), fmt::format("one more, {}", name));
  // The tick too: an op that moved past a release would work on bytes that are no longer its own.
  const OpRecord& r = ops[static_cast<size_t>(index_)];
  if (std::strcmp(r.name, name) != 0 || r.time != ctx.clock_ || r.stream != stream ||
      r.on_host != ctx.on_host_)
    drift(*ctx.program_, fmt::format("op {} at tick {} as number {}", r.name, r.time, index_),
          fmt::format("op {} at tick {}", name, ctx.clock_));
  ctx.device_->begin_range(name);
  if (ctx.marking_)
    ctx.device_->mark(1 + 2 * index_, stream);
  else if (ctx.listener_)
    started_ = monotonic_seconds();
}

Op::Op(Context& ctx, const char* name, OpCost cost, StreamId stream,
       std::span<Tensor* const> tensors)
    : Op((ctx.enter_beside(stream, tensors), ctx), name, cost, stream) {
  for (Tensor* t : tensors) t->used_[static_cast<size_t>(stream)] = ctx.position(stream);
}

Op::~Op() {
  if (!run_) return;
  ctx_.device_->end_range();
  if (!ctx_.listener_ || !ctx_.program_) return;
  if (ctx_.marking_)
    ctx_.device_->mark(2 + 2 * index_, ctx_.program_->ops[static_cast<size_t>(index_)].stream);
  else
    ctx_.listener_->op_span(*ctx_.program_, index_, started_, monotonic_seconds());
}

}  // namespace snug
