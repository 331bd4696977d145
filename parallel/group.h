// Group: the ranks of a run and what they tell each other besides tensors: that they are there, notes of a
// few bytes, who gave up and why. What carries that is a transport's own:
//
//   local_group.h   ranks of one machine, by a block of memory that they share
//   mpi_group.h     ranks of any machines, by messages of Open MPI's
//
// Everybody who comes to a barrier says at which call it is, so that ranks that are at different ones
// are told apart instead of reading each other's bytes. Nobody waits for ever: a rank that has given up,
// whose process is gone, or that neither came nor went on (go_on()) within the time-out ends the wait of
// all others with its name.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace snug {

inline constexpr int kMostRanks = 64;

class Transport;

class Group {
 public:
  // Seconds that a rank waits for another, unless set_timeout() says otherwise.
  static constexpr double kTimeout = 600;
  static constexpr int64_t kMostExchanged = 512;  // bytes of a note
  static constexpr size_t kMostWhat = 31;         // characters of a call's name that are told apart

  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  void set_timeout(double seconds) { timeout_ = seconds; }
  double timeout() const { return timeout_; }

  // What moves tensors between these ranks; the group outlives it.
  virtual std::unique_ptr<Transport> transport() = 0;
  // The file that the arena of this process is of, for others to read (Settings::arena_file); -1: none.
  virtual int arena_file() const = 0;

  // Returns when all ranks are here. `what` is a static string, `tag` a number that is the same on all
  // of them. Throws collective.
  virtual void barrier(const char* what, uint64_t tag = 0) = 0;
  // out[r] = the `bytes` that rank r gave, kMostExchanged at most.
  virtual void exchange(const char* what, void* out, const void* mine, int64_t bytes) = 0;
  // This rank gives up: whoever waits for it throws. The first reason stays.
  virtual void give_up(const std::string& why) noexcept = 0;
  // This rank goes on with what others wait for, however long that takes: they count their time-out from
  // here. From any thread; takes no memory.
  virtual void go_on() noexcept = 0;
  // Gives up for `rank` if its process is gone. From any thread.
  virtual void look_after(int rank) noexcept = 0;
  // The same, and if it has not gone on with `what` within the time-out of this rank, which waits for that
  // since `began` (monotonic_seconds()).
  virtual void look_after(int rank, const char* what, double began) noexcept = 0;
  // Waits until the process of `rank` is gone, `seconds` at most: it has something to say first.
  virtual void await_end(int rank, double seconds) noexcept = 0;
  // Who did, and the reason; -1: nobody.
  virtual int who_gave_up() const = 0;
  // Which rank said so: that one itself, or another of it.
  virtual int who_told() const = 0;
  bool given_up() const { return who_gave_up() >= 0; }
  // Throws collective if somebody did.
  void check() const {
    if (given_up()) throw_given_up();
  }
  virtual std::string reason() const = 0;

 protected:
  Group(int rank, int size) : rank_(rank), size_(size) {}
  // What all groups say alike.
  [[noreturn]] void throw_given_up() const;
  [[noreturn]] void throw_apart(const std::string& found) const;
  std::string late_text(const char* what, const char* last) const;
  static std::string gone_text(int pid, const char* last);
  // `found` of throw_apart(): two ranks at a call, each with its tag.
  std::string apart_text(const char* what, uint64_t tag, int other, const char* others_what,
                         uint64_t others_tag, int64_t call) const;

  std::atomic<double> timeout_{kTimeout};

 private:
  int rank_, size_;
};

// Whether a process of this machine has ended, one that nobody has waited for yet too.
bool process_gone(int pid);

}  // namespace snug
