#include "engine/memory/context.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>

#include "engine/core/error.h"
#include "engine/core/units.h"

namespace snug {
namespace {
constexpr uint8_t kGuard = 0xA5;
constexpr int64_t kMostTensorBytes = (int64_t{1} << 61) - 1;
constexpr uint8_t kPoison = 0xFF;  // NaN as f32, bf16 and f16; -1 as an integer

[[noreturn]] void drift(const Program& program, const std::string& expected,
                        const std::string& found) {
  fail(ErrorCode::internal,
       fmt::format("program {} to do what was planned: {}", program.name.view(), expected), found,
       "this is a defect in Snug: please report it with the command you ran");
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
    : device_(make_device(place)), settings_(settings) {}

Context::~Context() {
  if (arena_) device_->release(arena_, arena_bytes_);
}

void Context::reserve(const Schedule& schedule) {
  require(arena_ == nullptr, "one reservation per context");
  require(!planning(), "a place with storage");
  arena_bytes_ = schedule.arena_bytes();
  arena_ = device_->reserve(arena_bytes_);
  device_->touch(arena_, arena_bytes_, settings_.threads);
}

int64_t Context::resident_bytes() const {
  return arena_ ? device_->resident(arena_, arena_bytes_) : 0;
}

void Context::begin(Schedule& schedule, int index) {
  require(program_ == nullptr, "one program at a time");
  require(index >= 0 && index < schedule.size(), "a program of the schedule");
  if (!planning()) {
    const Program& p = schedule.at(index);
    require(arena_ != nullptr, "a reserved arena");
    require(p.packing.offsets.size() == p.tensors.size() && p.end() <= arena_bytes_,
            "a packed schedule that fits the reserved arena");
  }
  program_ = &schedule.at(index);
  ++epoch_;
  clock_ = 0;
  next_tensor_ = next_op_ = 0;
  broken_ = nullptr;
  if (planning()) {
    program_->tensors.clear();
    program_->ops.clear();
  }
}

void Context::end() {
  Program& p = *program_;
  program_ = nullptr;
  if (broken_) drift(p, broken_, fmt::format("tensor {}", broken_name_.view()));
  if (planning()) {
    p.ticks = clock_;
    for (const TensorRecord& t : p.tensors)
      if ((t.died == kNever) != p.resident)
        drift(p, p.resident ? "resident tensors to outlive it" : "all tensors to end inside it",
              fmt::format("tensor {}", t.name.view()));
    return;
  }
  if (next_tensor_ != static_cast<int32_t>(p.tensors.size()) || clock_ != p.ticks)
    drift(p, fmt::format("{} tensors in {} ticks", p.tensors.size(), p.ticks),
          fmt::format("{} tensors in {} ticks", next_tensor_, clock_));
  if (next_op_ != static_cast<int32_t>(p.ops.size()))
    drift(p, fmt::format("{} ops", p.ops.size()), fmt::format("{} ops", next_op_));
}

void Context::abandon() noexcept {
  // Tensors of the abandoned run that still live no longer match: a new epoch makes their end a
  // no-op.
  program_ = nullptr;
  ++epoch_;
}

Tensor Context::tensor(Name name, Shape shape, DType dtype, Category category) {
  require(program_ != nullptr, "tensors to be made inside a program");
  Program& p = *program_;
  const int64_t elements = shape.elements();
  if (elements > kMostTensorBytes / size_of(dtype))
    fail(ErrorCode::shape, "a tensor of less than 2^61 bytes",
         fmt::format("{} {} {}", name.view(), to_string(shape), to_string(dtype)),
         "check the sizes in the config");
  const int64_t bytes = elements * size_of(dtype) + settings_.guard_bytes;
  Tensor t;
  t.record_ = next_tensor_;
  t.view_.shape = shape;
  t.view_.dtype = dtype;
  t.view_.place = place();
  t.view_.name = name;
  if (planning()) {
    p.tensors.push_back({name, scope_, shape, dtype, category, bytes, clock_, kNever,
                         static_cast<int32_t>(p.ops.size()), 0});
  } else {
    if (t.record_ >= static_cast<int32_t>(p.tensors.size()))
      drift(p, fmt::format("{} tensors", p.tensors.size()),
            fmt::format("one more, {}", name.view()));
    const TensorRecord& r = p.tensors[static_cast<size_t>(t.record_)];
    if (!(r.name == name) || bytes > r.bytes || r.born != clock_)
      drift(p, fmt::format("tensor {} of {} bytes at tick {}", r.name.view(), r.bytes, r.born),
            fmt::format("tensor {} of {} bytes at tick {}", name.view(), bytes, clock_));
    std::byte* data = arena_ + p.base + p.packing.offsets[static_cast<size_t>(t.record_)];
    t.view_.data = data;
    if (settings_.poison)
      std::memset(data, kPoison, static_cast<size_t>(elements * size_of(dtype)));
    if (settings_.guard_bytes > 0)
      std::memset(data + r.bytes - settings_.guard_bytes, kGuard,
                  static_cast<size_t>(settings_.guard_bytes));
  }
  // Only now is it a tensor whose end counts: one that was refused above has none.
  t.context_ = this;
  t.epoch_ = epoch_;
  ++next_tensor_;
  ++clock_;
  return t;
}

void Context::release(Tensor& tensor) noexcept {
  if (program_ == nullptr || tensor.epoch_ != epoch_) return;  // resident, or an abandoned run
  TensorRecord& r = program_->tensors[static_cast<size_t>(tensor.record_)];
  if (planning()) {
    r.died = clock_;
    r.last_op = static_cast<int32_t>(program_->ops.size());
  } else {
    auto* data = static_cast<std::byte*>(tensor.view_.data);
    if (r.died != clock_ && !broken_) {
      broken_ = "every tensor to end at its planned tick";
      broken_name_ = r.name;
    }
    if (settings_.guard_bytes > 0) check_guard(r, data);
    if (settings_.poison)
      std::memset(data, kPoison, static_cast<size_t>(r.bytes - settings_.guard_bytes));
  }
  ++clock_;
}

void Context::check_guard(const TensorRecord& record, const std::byte* data) noexcept {
  const std::byte* guard = data + record.bytes - settings_.guard_bytes;
  for (int64_t i = 0; i < settings_.guard_bytes; ++i)
    if (guard[i] != std::byte{kGuard} && !broken_) {
      broken_ = "no op to write past the end of a tensor (guard bytes were changed)";
      broken_name_ = record.name;
    }
}

Op::Op(Context& ctx, const char* name, OpCost cost) : ctx_(ctx), run_(!ctx.planning()) {
  require(ctx.program_ != nullptr, "ops to run inside a program");
  if (!run_) {
    ctx.program_->ops.push_back(
        {name, ctx.scope_, cost.flops, cost.bytes, ctx.clock_, cost.variant});
    return;
  }
  index_ = ctx.next_op_++;
  const auto& ops = ctx.program_->ops;
  if (index_ >= static_cast<int32_t>(ops.size()))
    drift(*ctx.program_, fmt::format("{} ops", ops.size()), fmt::format("one more, {}", name));
  // The tick too: an op that moved past a release would work on bytes that are no longer its own.
  const OpRecord& r = ops[static_cast<size_t>(index_)];
  if (std::strcmp(r.name, name) != 0 || r.time != ctx.clock_)
    drift(*ctx.program_, fmt::format("op {} at tick {} as number {}", r.name, r.time, index_),
          fmt::format("op {} at tick {}", name, ctx.clock_));
  if (ctx.listener_) started_ = monotonic_seconds();
}

Op::~Op() {
  if (run_ && ctx_.listener_ && ctx_.program_)
    ctx_.listener_->op_done(*ctx_.program_, index_, monotonic_seconds() - started_);
}

}  // namespace snug
