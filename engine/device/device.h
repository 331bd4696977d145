// Device: the few services a place offers. Ops are free functions that switch on the place; only
// what every op shares is here. Places: `cpu` runs, `cuda` runs kernels on a GPU, `emu` runs the
// same kernels on the host, `plan` has shapes and no storage.
//
// Streams: queues, each in order. Work of different streams is ordered by events alone: what
// follows wait_event(s, e) on stream s comes after all that was on e's stream when e was recorded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/core/view.h"

namespace snug {

// Whether this build has the place cuda (CMake: SNUG_CUDA).
#ifdef SNUG_CUDA
inline constexpr bool kCudaBuilt = true;
#else
inline constexpr bool kCudaBuilt = false;
#endif

struct MemoryInfo {
  int64_t total_bytes = 0;      // of the machine, or the cgroup limit where that is smaller
  int64_t available_bytes = 0;  // what a new process can take without swapping
};

using StreamId = int32_t;
using EventId = int64_t;

// Ops run on compute; the copies between the two arenas have a queue for each direction, and what ranks
// exchange has one. What the host itself does beside a device is in order with them too: it is done when it is
// issued, and to wait for an event there is to wait for it (Context::Beside).
inline constexpr StreamId kCompute = 0, kToHost = 1, kToDevice = 2, kHost = 3, kRanks = 4;
inline constexpr int kStreams = 5;
const char* stream_name(StreamId stream);

// Where a tensor lies: with the device that computes, or in the host's memory beside it. On the
// place cpu both are RAM.
enum class Residence : uint8_t { device, host };
inline constexpr int kResidences = 2;

// How the places cpu and emu work through their other streams. Compute is always done when it is
// issued.
enum class StreamMode : uint8_t {
  immediate,  // all of them too
  deferred,   // tests: as late as events allow, when one behind them is waited for
  worker  // a thread of its own does the copies, in the order in which they were issued; what ranks
          // exchange is done when it is issued
};
const char* to_string(StreamMode mode);

struct WorkList;
class TierFile;

class Device {
 public:
  virtual ~Device() = default;
  virtual Place place() const = 0;
  // Memory with an inaccessible page on either side (not on a GPU); page-aligned. Throws
  // out_of_memory.
  virtual std::byte* reserve(int64_t bytes, Residence residence) = 0;
  std::byte* reserve(int64_t bytes) { return reserve(bytes, Residence::device); }
  // Memory of the device that is a file's (memfd_create), so that other processes map it too. On the
  // places cpu and emu.
  virtual std::byte* reserve_shared(int64_t bytes, int file);
  virtual void release(std::byte* base, int64_t bytes) noexcept = 0;
  // Writes one byte of every page, so that the operating system backs all of them.
  virtual void touch(std::byte* base, int64_t bytes, int threads) = 0;
  // Bytes of [base, base+bytes) that are resident, as the operating system or driver reports them.
  virtual int64_t resident(const std::byte* base, int64_t bytes) const = 0;
  // From here on; before it, work on every stream is done when it is issued. Once.
  virtual void start_streams(StreamMode mode) = 0;
  virtual void copy(void* to, const void* from, int64_t bytes, StreamId stream) = 0;
  virtual void fill(void* to, uint8_t value, int64_t bytes, StreamId stream) = 0;
  // Whole blocks of a file (tier_file.h) to aligned memory, and back. On the place cpu. What goes wrong
  // on a thread is thrown by the next wait of compute.
  virtual void read_disk(TierFile& file, int64_t offset, void* to, int64_t bytes, StreamId stream);
  virtual void write_disk(TierFile& file, int64_t offset, const void* from, int64_t bytes,
                          StreamId stream);
  // Work of the host's own at its place on a stream: f(of, number). A GPU has none: it is done at once,
  // and puts there itself what is the device's.
  virtual void call(void (*f)(void* of, int64_t number), void* of, int64_t number, StreamId) {
    f(of, number);
  }
  // Complete when all that is on the stream now is done.
  virtual EventId record_event(StreamId stream) = 0;
  // What is put on the stream from now on comes after the event.
  virtual void wait_event(StreamId stream, EventId event) = 0;
  // Returns when the event has happened: what the host itself does then comes after it. Without a
  // GPU compute is always done when it is issued, so waiting there is all.
  virtual void wait_on_host(EventId event) { wait_event(kCompute, event); }
  // Returns when the work of all streams is done.
  virtual void synchronize() noexcept = 0;
  // Tests: whether the host may touch a reservation; without a GPU kernels and copies run there
  // too.
  virtual void allow_host(std::byte* /*base*/, int64_t /*bytes*/, bool /*allowed*/) {}
  // Throws device if work that was issued has failed since; errors of a GPU come late.
  virtual void check() {}
  // Graphs. What is issued from begin_capture to end_capture is not done but kept, with the numbers
  // and addresses it got, and done by every replay of the graph that end_capture names, in order
  // with what is on compute. Not while a worker or a deferred queue does copies on the host.
  virtual bool captures() const { return false; }
  virtual void begin_capture() { refuse_capture(); }
  virtual int end_capture() { refuse_capture(); }
  virtual void cancel_capture() noexcept {}
  virtual void replay(int /*graph*/) { refuse_capture(); }
  // Where launches go while a graph is being captured on the place emu; else null.
  virtual WorkList* capturing() { return nullptr; }
  // Marks: moments on the streams of a device that works while the host goes on. Without them
  // (places whose work is done when it is issued) the host's clock says when an op ran.
  virtual bool has_marks() const { return false; }
  virtual void make_marks(int /*count*/) {}  // there are at least so many from now on
  virtual void mark(int /*number*/, StreamId) {}
  // Seconds from mark 0 to mark `number`; all work was waited for.
  virtual double mark_seconds(int /*number*/) const { return 0; }
  // A named stretch of the host's work, for profilers of GPUs; they nest.
  virtual void begin_range(const char* /*name*/) {}
  virtual void end_range() noexcept {}
  // The stream by the name that libraries know it by; null where there is none.
  virtual void* native_stream(StreamId) { return nullptr; }
  virtual MemoryInfo memory_info() const = 0;

 private:
  [[noreturn]] static void refuse_capture();
  [[noreturn]] static void refuse_disk();
};

// index: which GPU, on the place cuda. Throws device or unsupported, with the reason, where there
// is none that can be used.
std::unique_ptr<Device> make_device(Place place, int index = 0);

}  // namespace snug
