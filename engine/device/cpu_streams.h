// The streams of the place cpu: queues of copies and of calls beside the compute stream, whose work is
// done when it is issued. Nothing here takes heap after start().
#pragma once

#include <array>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/device/device.h"

namespace snug {

class CpuStreams {
 public:
  CpuStreams() = default;
  ~CpuStreams();
  CpuStreams(const CpuStreams&) = delete;
  CpuStreams& operator=(const CpuStreams&) = delete;

  void start(StreamMode mode);
  void copy(void* to, const void* from, int64_t bytes, StreamId stream);
  void fill(void* to, uint8_t value, int64_t bytes, StreamId stream);
  // Whole blocks of a file to memory, and back. A command of a thread that fails is the last of those
  // that are done: wait() of compute throws what it met, from then on.
  void read(TierFile& file, int64_t offset, void* to, int64_t bytes, StreamId stream);
  void write(TierFile& file, int64_t offset, const void* from, int64_t bytes, StreamId stream);
  void call(void (*f)(void*, int64_t), void* of, int64_t number, StreamId stream);
  EventId record(StreamId stream);
  void wait(StreamId stream, EventId event);
  void synchronize() noexcept;

 private:
  // Every command has a number, in the order of issue over all streams. An event is a number and a
  // stream: it is complete when the stream has done all commands up to that number.
  struct Command {
    enum class Kind : uint8_t { copy, fill, wait, read, write, call } kind;
    uint8_t value = 0;
    void* to = nullptr;
    const void* from = nullptr;
    int64_t bytes = 0;
    EventId event = 0;
    int64_t number = 0;
    TierFile* file = nullptr;
    int64_t offset = 0;  // or the number of a call, whose object is `to`
    void (*f)(void*, int64_t) = nullptr;
  };
  // A full queue makes the next command wait for the oldest; a training step has a few for every
  // layer.
  static constexpr int64_t kCapacity = 1024;
  struct Queue {
    std::unique_ptr<Command[]> ring;
    int64_t begin = 0, end = 0;  // commands [begin, end) are waiting
    int64_t issued = 0;          // number of the last command that was put here
    int64_t done = 0;            // all commands up to this number are done
    const Command& front() const { return ring[static_cast<size_t>(begin % kCapacity)]; }
  };

  static void run(const Command& command);
  // Whether what is put there is done before put() returns.
  bool at_once(StreamId stream) const {
    return stream == kCompute || stream == kHost || mode_ == StreamMode::immediate ||
           (stream == kRanks && mode_ == StreamMode::worker);
  }
  void put(StreamId stream, Command command);
  bool complete(EventId event) const;
  void drain(StreamId stream, int64_t number);  // deferred
  void work();                                  // worker: the thread
  Queue* oldest();

  StreamMode mode_ = StreamMode::immediate;
  std::array<Queue, kStreams> queues_;  // those of compute and the host stay empty
  int64_t issued_ = 0;
  // Worker: all of the above is under the mutex, except the command the thread is running.
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable arrived_, finished_;
  bool stop_ = false;
  std::exception_ptr error_;
};

}  // namespace snug
