// Group: the ranks of a run on one machine, and what they tell each other through a small block of
// shared memory: where everybody is, who gave up and why, notes of a few bytes. Ranks are threads of one
// process, or processes that inherited the block's file.
//
// A barrier is a counter of each rank. Who waits spins for some microseconds, then sleeps on a futex;
// it wakes up at least every 50 ms to see whether another rank has given up or its process is gone, or
// neither came nor went on (go_on()) for the time-out.
// Everybody who comes to a barrier says at which call it is, so that ranks that are at different ones
// are told apart instead of reading each other's bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace snug {

inline constexpr int kMostRanks = 64;

struct GroupBlock;

class Group {
 public:
  // Seconds that a rank waits for another, unless set_timeout() says otherwise.
  static constexpr double kTimeout = 600;

  // One for each rank, of threads of this process.
  static std::vector<std::unique_ptr<Group>> of_threads(int size);
  // Of processes: the files of a block and of an arena for every rank, for launch.h to hand on.
  struct Files {
    int block = -1;
    std::vector<int> arenas;
  };
  static Files make_files(int size);
  // The rank of this process in a group whose files it has.
  static std::unique_ptr<Group> of_processes(int rank, const Files& files);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  void set_timeout(double seconds) { timeout_ = seconds; }
  // The file that the arena of this process is of (Settings::arena_file); -1 of threads.
  int arena_file() const;
  // The others' arenas, once all ranks have reserved theirs, of one size.
  void attach(std::byte* arena, int64_t bytes);
  // The arena of a rank as it is mapped here; null before attach().
  std::byte* arena(int rank) const { return arenas_[static_cast<size_t>(rank)]; }

  // Returns when all ranks are here. `what` is a static string, `tag` a number that is the same on all
  // of them. Throws collective.
  void barrier(const char* what, uint64_t tag = 0);
  // out[r] = the `bytes` that rank r gave, Transport::kMostExchanged at most.
  void exchange(const char* what, void* out, const void* mine, int64_t bytes);
  // This rank gives up: whoever waits for it throws. The first reason stays.
  void give_up(const std::string& why) noexcept;
  static void give_up(GroupBlock& block, int rank, const std::string& why) noexcept;
  // This rank goes on with what others wait for, however long that takes: they count their time-out from
  // here. From any thread; takes no memory.
  void go_on() noexcept;
  // Gives up for `rank` if its process is gone.
  void look_after(int rank) noexcept;
  // The same, and if it has not gone on with `what` within the time-out of this rank, which waits for that
  // since `began` (monotonic_seconds()).
  void look_after(int rank, const char* what, double began) noexcept;
  double timeout() const { return timeout_; }
  // Who did, and the reason; -1: nobody.
  int who_gave_up() const;
  bool given_up() const;
  std::string reason() const;

  // What the process that starts ranks does with the block.
  static GroupBlock& map_block(int file);

 private:
  Group(int rank, int size) : rank_(rank), size_(size), arenas_(static_cast<size_t>(size)) {}
  [[noreturn]] void throw_given_up() const;
  void wait(int64_t turn);
  bool overdue(int rank, double began) const;
  void check_alike(int64_t turn, const char* what, uint64_t tag) const;

  int rank_, size_;
  double timeout_ = kTimeout;
  GroupBlock* block_ = nullptr;
  std::shared_ptr<GroupBlock> shared_;  // of threads
  Files files_;
  int64_t turn_ = 0;
  int64_t arena_bytes_ = 0;
  std::vector<std::byte*> arenas_;
};

}  // namespace snug
