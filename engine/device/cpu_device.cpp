#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/core/work_list.h"
#include "engine/device/beside.h"
#include "engine/device/cpu_streams.h"
#include "engine/device/cuda.h"
#include "engine/device/device.h"
#include "engine/device/system_memory.h"

namespace snug {
namespace {

int64_t page_size() {
  return sysconf(_SC_PAGESIZE);
}

class CpuDevice : public Device {
 public:
  Place place() const override { return Place::cpu; }

  std::byte* reserve(int64_t bytes, Residence residence) override {
    const int64_t page = page_size();
    if (bytes > INT64_MAX - 4 * page) {  // no address space has it, and rounding up would overflow
      errno = ENOMEM;
      refuse(bytes, residence);
    }
    const int64_t size = round_up(std::max<int64_t>(bytes, 1), page);
    void* p = mmap(nullptr, static_cast<size_t>(size + 2 * page), PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) refuse(size, residence);
    auto* base = static_cast<std::byte*>(p) + page;
    if (mprotect(base, static_cast<size_t>(size), PROT_READ | PROT_WRITE) != 0) {
      munmap(p, static_cast<size_t>(size + 2 * page));
      refuse(size, residence);
    }
    // Huge pages save TLB misses; they never reach outside the mapping, so residency stays exact.
    madvise(base, static_cast<size_t>(size), MADV_HUGEPAGE);
    return base;
  }

  std::byte* reserve_shared(int64_t bytes, int file) override {
    std::byte* const base = reserve(bytes, Residence::device);
    const int64_t size = round_up(std::max<int64_t>(bytes, 1), page_size());
    if (ftruncate(file, size) != 0 || mmap(base, static_cast<size_t>(size), PROT_READ | PROT_WRITE,
                                           MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
      const int error = errno;
      release(base, bytes);
      errno = error;
      refuse(size, Residence::device);
    }
    return base;
  }

  void release(std::byte* base, int64_t bytes) noexcept override {
    const int64_t page = page_size(), size = round_up(std::max<int64_t>(bytes, 1), page);
    munmap(base - page, static_cast<size_t>(size + 2 * page));
  }

  void touch(std::byte* base, int64_t bytes, [[maybe_unused]] int threads) override {
    const int64_t page = page_size();
    // Clearing the pages is the system's work and most of a start. By whole huge pages, handed out
    // as threads come, so that a core that is busy elsewhere delays the others by one piece only.
    constexpr int64_t kPiece = int64_t{1} << 22, kHuge = int64_t{1} << 21;
    const int64_t ahead = (kHuge - reinterpret_cast<intptr_t>(base) % kHuge) % kHuge;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t begin = ahead - kPiece; begin < bytes; begin += kPiece) {
      const int64_t end = std::min(bytes, begin + kPiece);
      for (int64_t i = std::max<int64_t>(0, begin); i < end; i += page) base[i] = std::byte{0};
    }
  }

  int64_t resident(const std::byte* base, int64_t bytes) const override {
    const int64_t page = page_size();
    constexpr int64_t kWindow = 4096;  // pages asked at a time: no heap
    unsigned char map[kWindow];
    int64_t total = 0;
    for (int64_t at = 0; at < bytes; at += kWindow * page) {
      const int64_t length = std::min(kWindow * page, bytes - at);
      if (mincore(const_cast<std::byte*>(base) + at, static_cast<size_t>(length), map) != 0)
        fail(ErrorCode::device, "mincore to report the arena's pages", std::strerror(errno),
             "run on Linux 4.x or later");
      for (int64_t i = 0; i < ceil_div(length, page); ++i) total += (map[i] & 1) ? page : 0;
    }
    return total;
  }

  void allow_host(std::byte* base, int64_t bytes, bool allowed) override {
    const int64_t size = round_up(std::max<int64_t>(bytes, 1), page_size());
    require(mprotect(base, static_cast<size_t>(size),
                     allowed ? PROT_READ | PROT_WRITE : PROT_NONE) == 0,
            "pages whose protection can change");
  }

  void start_streams(StreamMode mode) override {
    streams_.start(mode);
  }
  void copy(void* to, const void* from, int64_t bytes, StreamId stream) override {
    streams_.copy(to, from, bytes, stream);
  }
  void fill(void* to, uint8_t value, int64_t bytes, StreamId stream) override {
    streams_.fill(to, value, bytes, stream);
  }
  void call(void (*f)(void*, int64_t), void* of, int64_t number, StreamId stream) override {
    streams_.call(f, of, number, stream);
  }
  void read_disk(TierFile& file, int64_t offset, void* to, int64_t bytes,
                 StreamId stream) override {
    streams_.read(file, offset, to, bytes, stream);
  }
  void write_disk(TierFile& file, int64_t offset, const void* from, int64_t bytes,
                  StreamId stream) override {
    streams_.write(file, offset, from, bytes, stream);
  }
  EventId record_event(StreamId stream) override {
    return streams_.record(stream);
  }
  void wait_event(StreamId stream, EventId event) override {
    streams_.wait(stream, event);
  }
  void synchronize() noexcept override {
    streams_.synchronize();
  }

  MemoryInfo memory_info() const override {
    return system_memory();
  }

 private:
  [[noreturn]] static void refuse(int64_t size, Residence residence) {
    const bool host = residence == Residence::host;
    fail(ErrorCode::out_of_memory, "the operating system to reserve " + human_bytes(size),
         std::strerror(errno),
         host ? "offload less, or raise the limit (ulimit -v)"
              : "lower memory=, or raise the limit (ulimit -v)");
  }

  CpuStreams streams_;
};

// The memory and the streams of a CPU; what differs is who computes: ops look at the place.
class EmulatedDevice final : public CpuDevice {
 public:
  Place place() const override { return Place::emu; }

  // Of two threads that are at work in it the last one closes it.
  void allow_host(std::byte* base, int64_t bytes, bool allowed) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int before = at_work_;
    at_work_ += allowed ? 1 : -1;
    if (before == 0 || at_work_ == 0) CpuDevice::allow_host(base, bytes, allowed);
  }
  void start_streams(StreamMode mode) override {
    in_order_ = mode == StreamMode::immediate;
    CpuDevice::start_streams(mode);
  }
  bool captures() const override { return in_order_; }
  void begin_capture() override {
    require(capturing_ == nullptr && in_order_, "one graph at a time, of work in one order");
    graphs_.push_back(std::make_unique<WorkList>());
    capturing_ = graphs_.back().get();
  }
  int end_capture() override {
    require(capturing_ != nullptr, "a graph that is being captured");
    capturing_ = nullptr;
    return static_cast<int>(graphs_.size()) - 1;
  }
  void cancel_capture() noexcept override {
    if (capturing_ != nullptr) graphs_.pop_back();
    capturing_ = nullptr;
  }
  void replay(int graph) override { graphs_.at(static_cast<size_t>(graph))->run(); }
  WorkList* capturing() override { return capturing_; }

  void copy(void* to, const void* from, int64_t bytes, StreamId stream) override {
    if (capturing_ == nullptr) return CpuDevice::copy(to, from, bytes, stream);
    capturing_->work.emplace_back([=] { std::memmove(to, from, static_cast<size_t>(bytes)); });
  }
  void fill(void* to, uint8_t value, int64_t bytes, StreamId stream) override {
    if (capturing_ == nullptr) return CpuDevice::fill(to, value, bytes, stream);
    capturing_->work.emplace_back([=] { std::memset(to, value, static_cast<size_t>(bytes)); });
  }

 private:
  std::mutex mutex_;
  int at_work_ = 1;  // whoever reserves it closes it
  bool in_order_ = true;
  std::vector<std::unique_ptr<WorkList>> graphs_;
  WorkList* capturing_ = nullptr;
};

// Shapes only: nothing may touch bytes here.
class PlanDevice final : public Device {
 public:
  Place place() const override { return Place::plan; }
  std::byte* reserve(int64_t, Residence) override { refuse(); }
  void release(std::byte*, int64_t) noexcept override {}
  void touch(std::byte*, int64_t, int) override { refuse(); }
  int64_t resident(const std::byte*, int64_t) const override { return 0; }
  void start_streams(StreamMode) override {}
  void copy(void*, const void*, int64_t, StreamId) override { refuse(); }
  void fill(void*, uint8_t, int64_t, StreamId) override { refuse(); }
  EventId record_event(StreamId) override { return 0; }
  void wait_event(StreamId, EventId) override {}
  void synchronize() noexcept override {}
  MemoryInfo memory_info() const override { return {}; }

 private:
  [[noreturn]] static void refuse() {
    fail(ErrorCode::internal, "an op that asks Op::run() before it touches bytes",
         "storage used on the place plan", "this is a defect in Snug: please report it");
  }
};

}  // namespace

std::byte* Device::reserve_shared(int64_t, int) {
  fail(ErrorCode::internal, "a place whose memory other ranks can map", to_string(place()),
       "this is a defect in Snug: please report it");
}

void Device::refuse_disk() {
  fail(ErrorCode::internal, "a place whose streams read and write files", "another place",
       "this is a defect in Snug: please report it");
}

void Device::read_disk(TierFile&, int64_t, void*, int64_t, StreamId) {
  refuse_disk();
}

void Device::write_disk(TierFile&, int64_t, const void*, int64_t, StreamId) {
  refuse_disk();
}

void Device::refuse_capture() {
  fail(ErrorCode::internal, "graphs on a place that captures them", "another place",
       "ask Device::captures first");
}

void copy_beside(Device& device, void* to, const void* from, int64_t bytes) {
  if constexpr (kCudaBuilt)
    if (device.place() == Place::cuda) return cuda_copy_beside(device, to, from, bytes);
  require(device.place() == Place::cpu || device.place() == Place::emu,
          "a place with storage to copy from");
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

bool event_done([[maybe_unused]] const Device& device, [[maybe_unused]] EventId event) {
  if constexpr (kCudaBuilt)
    if (device.place() == Place::cuda) return cuda_event_done(device, event);
  return true;  // compute is done when it is issued
}

std::unique_ptr<Device> make_device(Place place, [[maybe_unused]] int index) {
  switch (place) {
    case Place::cpu:
      return std::make_unique<CpuDevice>();
    case Place::emu:
      return std::make_unique<EmulatedDevice>();
    case Place::plan:
      return std::make_unique<PlanDevice>();
    case Place::cuda:
      if constexpr (kCudaBuilt) return make_cuda_device(index);
      refuse_no_cuda_build();
  }
  fail(ErrorCode::unsupported, "the place cpu, cuda, emu or plan", "another place", "device=cpu");
}

}  // namespace snug
