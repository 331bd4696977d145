#include "engine/device/cpu_streams.h"

#include <cstring>

#include "engine/core/error.h"
#include "engine/device/tier_file.h"
#include "engine/device/worker_thread.h"

namespace snug {
namespace {
// The stream in the low bits, the number of the last command before the event above them.
StreamId stream_of(EventId event) {
  return static_cast<StreamId>(event % kStreams);
}
int64_t number_of(EventId event) {
  return event / kStreams;
}
}  // namespace

const char* stream_name(StreamId stream) {
  switch (stream) {
    case kCompute:
      return "compute";
    case kToHost:
      return "to_host";
    case kToDevice:
      return "to_device";
    case kHost:
      return "host";
    case kRanks:
      return "ranks";
  }
  return "?";
}

const char* to_string(StreamMode mode) {
  switch (mode) {
    case StreamMode::immediate:
      return "immediate";
    case StreamMode::deferred:
      return "deferred";
    case StreamMode::worker:
      return "worker";
  }
  return "?";
}

CpuStreams::~CpuStreams() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  arrived_.notify_one();
  thread_.join();
}

void CpuStreams::start(StreamMode mode) {
  require(mode_ == StreamMode::immediate, "streams to be started once");
  mode_ = mode;
  if (mode == StreamMode::immediate) return;
  for (Queue& q : queues_) q.ring = std::make_unique<Command[]>(kCapacity);
  if (mode != StreamMode::worker) return;
  if (const std::error_code refused = start_worker(thread_, [this] { work(); }))
    fail(ErrorCode::device, "a thread that copies between the device's memory and the host's",
         refused.message(),
         "a larger limit on processes (ulimit -u), or offload=none offload_optimizer=none");
}

void CpuStreams::run(const Command& c) {
  switch (c.kind) {
    case Command::Kind::copy:
      std::memcpy(c.to, c.from, static_cast<size_t>(c.bytes));
      return;
    case Command::Kind::fill:
      std::memset(c.to, c.value, static_cast<size_t>(c.bytes));
      return;
    case Command::Kind::read:
      return c.file->read(c.offset, c.to, c.bytes);
    case Command::Kind::write:
      return c.file->write(c.offset, c.from, c.bytes);
    case Command::Kind::call:
      return c.f(c.to, c.offset);
    case Command::Kind::wait:
      return;
  }
}

bool CpuStreams::complete(EventId event) const {
  const StreamId s = stream_of(event);
  return at_once(s) || queues_[static_cast<size_t>(s)].done >= number_of(event);
}

void CpuStreams::put(StreamId stream, Command command) {
  require(stream >= 0 && stream < kStreams, "a stream of the device");
  if (at_once(stream)) return run(command);
  Queue& q = queues_[static_cast<size_t>(stream)];
  std::unique_lock lock(mutex_);
  if (q.end - q.begin == kCapacity) {
    if (mode_ == StreamMode::deferred)
      drain(stream, q.front().number);
    else
      finished_.wait(lock, [&] { return q.end - q.begin < kCapacity; });
  }
  command.number = q.issued = ++issued_;
  q.ring[static_cast<size_t>(q.end++ % kCapacity)] = command;
  lock.unlock();
  if (mode_ == StreamMode::worker) arrived_.notify_one();
}

void CpuStreams::copy(void* to, const void* from, int64_t bytes, StreamId stream) {
  put(stream, {.kind = Command::Kind::copy, .to = to, .from = from, .bytes = bytes});
}

void CpuStreams::fill(void* to, uint8_t value, int64_t bytes, StreamId stream) {
  put(stream, {.kind = Command::Kind::fill, .value = value, .to = to, .bytes = bytes});
}

void CpuStreams::read(TierFile& file, int64_t offset, void* to, int64_t bytes, StreamId stream) {
  put(stream,
      {.kind = Command::Kind::read, .to = to, .bytes = bytes, .file = &file, .offset = offset});
}

void CpuStreams::write(TierFile& file, int64_t offset, const void* from, int64_t bytes,
                       StreamId stream) {
  put(stream, {.kind = Command::Kind::write,
               .from = from,
               .bytes = bytes,
               .file = &file,
               .offset = offset});
}

void CpuStreams::call(void (*f)(void*, int64_t), void* of, int64_t number, StreamId stream) {
  put(stream, {.kind = Command::Kind::call, .to = of, .offset = number, .f = f});
}

EventId CpuStreams::record(StreamId stream) {
  require(stream >= 0 && stream < kStreams, "a stream of the device");
  const std::lock_guard lock(mutex_);
  return queues_[static_cast<size_t>(stream)].issued * kStreams + stream;
}

void CpuStreams::wait(StreamId stream, EventId event) {
  if (mode_ == StreamMode::immediate) return;
  if (!at_once(stream)) {
    // The thread does all commands in the order of issue, an event's before those that wait for it.
    if (mode_ == StreamMode::deferred && stream_of(event) != kCompute)
      put(stream, {.kind = Command::Kind::wait, .event = event});
    return;
  }
  std::unique_lock lock(mutex_);
  if (mode_ == StreamMode::deferred)
    drain(stream_of(event), number_of(event));
  else
    finished_.wait(lock, [&] { return complete(event); });
  if (error_) std::rethrow_exception(error_);
}

// Commands of a stream up to a number, and first what they wait for: events are older than what
// waits for them, so this ends.
void CpuStreams::drain(StreamId stream, int64_t number) {
  Queue& q = queues_[static_cast<size_t>(stream)];
  while (q.begin < q.end && q.front().number <= number) {
    const Command c = q.front();
    if (c.kind == Command::Kind::wait && !complete(c.event))
      drain(stream_of(c.event), number_of(c.event));
    run(c);
    ++q.begin;
    q.done = c.number;
  }
}

CpuStreams::Queue* CpuStreams::oldest() {
  Queue* first = nullptr;
  for (Queue& q : queues_)
    if (q.begin < q.end && (!first || q.front().number < first->front().number)) first = &q;
  return first;
}

void CpuStreams::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    Queue* q = nullptr;
    arrived_.wait(lock, [&] { return (q = oldest()) != nullptr || stop_; });
    if (!q) return;  // what was asked for is done first
    const Command c = q->front();
    const bool ends = error_ != nullptr;  // nothing more is read or written
    std::exception_ptr error;
    lock.unlock();
    try {
      if (!ends) run(c);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) error_ = error;
    ++q->begin;
    q->done = c.number;
    finished_.notify_all();
  }
}

void CpuStreams::synchronize() noexcept {
  if (mode_ == StreamMode::immediate) return;
  std::unique_lock lock(mutex_);
  if (mode_ != StreamMode::deferred)
    return finished_.wait(lock, [&] { return oldest() == nullptr; });
  for (StreamId s = kToHost; s < kStreams; ++s) {
    Queue& q = queues_[static_cast<size_t>(s)];
    try {
      drain(s, issued_);
    } catch (...) {  // said by who waited, or nobody does any more
      q.begin = q.end;
    }
  }
}

}  // namespace snug
