// SaveRing: what a checkpoint holds goes from the arena to its files while training goes on.
//
//   arena --gather--> ring of slots --write--> files
//
// A thread made before the first step gathers and writes. Forward and backward do not change what
// is saved; the next update does, parameter by parameter, and each passes a gate
// (optim/optimizer.h) that opens when that parameter was gathered. An update that has to wait
// helps: while a slot is free it gathers itself, so a ring of R bytes takes R bytes at the speed of
// memory, and only what is beyond waits for the disk:
//
//   stall = max(0, (bytes - R) / disk rate - seconds of forward and backward)
//
// The ring is a planned tensor; nothing is reserved after the constructor, on no thread. Without a
// thread (`background` false) start() does all of it before it returns.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "optim/optimizer.h"
#include "tools/costs/save_ring_size.h"

namespace snug {

// What is saved and where to. gather() is called by one thread at a time, which may change from
// call to call; write() and finish() by one thread.
class SaveJob {
 public:
  struct Piece {
    int file = 0;
    int64_t bytes = 0;  // 0: nothing is left
  };
  virtual ~SaveJob() = default;
  // Copies the next bytes of the next file to `out`, at most `room`, which is 4096 at least. Must
  // not take memory; may throw, as copies from a device do, and is then not called again.
  virtual Piece gather(char* out, int64_t room) = 0;
  // Every parameter below was gathered whole.
  virtual int64_t gathered() const = 0;
  // In the order of gather(). May throw, and so may finish(), which makes all of it durable.
  virtual void write(int file, const char* data, int64_t bytes) = 0;
  virtual void finish() = 0;
};

class SaveRing final : public UpdateGate {
 public:
  static constexpr int64_t kSlotBytes = kSaveSlotBytes, kLeastBytes = kLeastSaveRingBytes;
  static constexpr int64_t kMostSlots = 256;  // of a large ring, whose slots are larger

  // `memory` holds `bytes`, kLeastBytes at least, and outlives the ring. Throws device if the
  // system gives no thread.
  SaveRing(char* memory, int64_t bytes, bool background);
  // A job on its way is left as it is: nothing of it was given its final name.
  ~SaveRing() override;
  SaveRing(const SaveRing&) = delete;
  SaveRing& operator=(const SaveRing&) = delete;

  // Not while busy(). `job` must live until the ring is idle again.
  void start(SaveJob& job);
  bool busy() const { return busy_.load(std::memory_order_acquire); }
  // Waits for the job's end.
  void wait();
  // Throws, once, what the last job met. Not while busy().
  void rethrow();

  // Returns when `param` may be changed; from any thread. Does not throw: after an error nothing is
  // waited for.
  void pass(int64_t param) override;
  // Seconds that updates waited here so far.
  double update_stall() const;

 private:
  static constexpr int kMostPieces = 16;
  static constexpr int64_t kPieceAlignment = 4;  // in a slot, since pieces are floats or bytes
  struct Slot {
    int count = 0;
    SaveJob::Piece pieces[kMostPieces];
  };
  using Lock = std::unique_lock<std::mutex>;

  void work();
  void drain(Lock& lock);
  void fill_slot(Lock& lock);
  void empty_slot(Lock& lock);
  void end_job();

  char* memory_;
  int64_t slot_bytes_;
  std::vector<Slot> slots_;

  std::atomic<bool> busy_{false};
  // Parameters below this one may be changed.
  std::atomic<int64_t> passed_{INT64_MAX};
  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  SaveJob* job_ = nullptr;
  int64_t filled_ = 0, emptied_ = 0;  // slots since the job's start; filled_ - emptied_ are full
  bool filling_ = false;              // some thread gathers into the slot filled_
  bool ended_ = false;                // nothing is left to gather
  bool stop_ = false;
  std::exception_ptr error_;
  int waiting_ = 0;
  double stall_ = 0, stall_began_ = 0;
  std::thread thread_;
};

}  // namespace snug
