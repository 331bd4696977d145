// Device: the few services a place offers. Ops are free functions that switch on the place; only
// what every op shares is here. Places: `cpu` runs, `plan` has shapes and no storage.
//
// Streams: the CPU place has one inline queue (stream 0): work happens when it is issued, so an
// event is already complete when it is recorded. The calls exist so that code written against them
// is ordered correctly on a place where streams are real.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/core/view.h"

namespace snug {

struct MemoryInfo {
  int64_t total_bytes = 0;      // of the machine, or the cgroup limit where that is smaller
  int64_t available_bytes = 0;  // what a new process can take without swapping
};

using StreamId = int32_t;
using EventId = int64_t;

class Device {
 public:
  virtual ~Device() = default;
  virtual Place place() const = 0;
  // Memory with an inaccessible page on either side; page-aligned. Throws out_of_memory.
  virtual std::byte* reserve(int64_t bytes) = 0;
  virtual void release(std::byte* base, int64_t bytes) noexcept = 0;
  // Writes one byte of every page, so that the operating system backs all of them.
  virtual void touch(std::byte* base, int64_t bytes, int threads) = 0;
  // Bytes of [base, base+bytes) that are resident, as the operating system or driver reports them.
  virtual int64_t resident(const std::byte* base, int64_t bytes) const = 0;
  virtual void copy(void* to, const void* from, int64_t bytes, StreamId stream) = 0;
  virtual void fill(void* to, uint8_t value, int64_t bytes, StreamId stream) = 0;
  virtual EventId record_event(StreamId stream) = 0;
  virtual void wait_event(StreamId stream, EventId event) = 0;
  virtual void synchronize() = 0;
  virtual MemoryInfo memory_info() const = 0;
};

std::unique_ptr<Device> make_device(Place place);

}  // namespace snug
