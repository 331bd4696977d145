// NcclTransport: ranks with a device each, whose memory NCCL moves on the device's own streams. Ranks find
// each other by a Group, of any kind; NCCL moves bytes alone, and sums are made here by kernels, of what was
// received, in the order of ranks: NCCL's own order follows the machine's topology and rounds bf16 between
// ranks.
//
//   all_gather       wait for all; ncclAllGather
//   reduce_scatter   wait for all; chunk by chunk, ncclSend each its span and ncclRecv what the others have of
//                    the own one into `staging`; sum it
//
// What is waited for is that all hosts issue the same call: the devices work when they come to it. A thread
// watches meanwhile: NCCL says nothing of a rank that is gone or stands still. With what it finds it ends
// what waits on the device (ncclCommAbort), and the next call of this rank throws. What a device still has
// to do before a call is not counted (device_calls.h).
//
// Memory  NCCL takes buffers of its own on the device, in attach() (nccl_bytes()).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "engine/device/device.h"
#include "parallel/device_calls.h"
#include "parallel/group.h"
#include "parallel/nccl_library.h"
#include "parallel/rank_comm.h"

namespace snug {

// An estimate, not measured, of what NCCL takes on a device for `ranks`: a ring's buffers for 16 channels
// (512 KiB LL, 4.7 MiB LL128, 4 MiB simple), 4.5 MiB for as many channels to other ranks, at least two to each,
// and 96 MiB of kernels and tables.
int64_t nccl_bytes(int ranks);

class NcclTransport final : public Transport {
 public:
  // Events of the stream: by default a GPU's, and of other places none, whose work is done when it is
  // issued.
  struct Events {
    std::function<EventId()> record;
    std::function<bool(EventId)> done;
  };
  // The group outlives it. Throws as NcclLibrary::load(), and collective if its versions differ.
  explicit NcclTransport(Group& group, Events events = {});
  ~NcclTransport() override { detach(); }
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  bool shares_memory() const override { return false; }
  bool on_device() const override { return true; }
  void set_stream(StreamId stream) override { stream_ = stream; }
  void attach(Context& ctx, std::byte* arena, int64_t bytes) override;
  void detach() noexcept override;
  void all_gather(Context& ctx, const View& full, const View& mine) override;
  void reduce_scatter_sum(Context& ctx, const GradView& mine, const View& full,
                          const View& staging) override;
  void exchange(const char* what, void* out, const void* mine, int64_t bytes) override {
    group_.exchange(what, out, mine, bytes);
  }

 private:
  // f(stream), a call of NCCL's, if there is still a communicator; returns when it is on its way, or done where
  // there are no streams.
  template <class F>
  void call(Context& ctx, const char* what, F&& f);
  void settle(const char* what);
  void meet(const char* what, int64_t bytes);
  void issued();
  EventId record() { return events_.record ? events_.record() : -1; }
  [[noreturn]] void broken(const char* what, int result);
  void swap(Context& ctx, const char* what, std::byte* room, int64_t chunk, const std::byte* spans,
            int64_t each, int64_t n);
  void watch();
  void end_device() noexcept;

  Group& group_;
  NcclLibrary& nccl_;
  std::mutex mutex_;
  NcclLibrary::Comm comm_ = nullptr;
  Events events_;
  StreamId stream_ = kCompute;
  DeviceCalls calls_;
  bool ends_ = false;
  std::condition_variable wake_;
  std::thread watch_;
};

}  // namespace snug
