// LocalGroup: the ranks of a run on one machine, through a small block of shared memory: where everybody
// is, who gave up and why, notes. Ranks are threads of one process, or processes that inherited the
// block's file or were handed it.
//
// A barrier is a counter of each rank. Who waits spins for some microseconds, then sleeps on a futex;
// it wakes up at least every 50 ms to see who is late.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/group.h"

namespace snug {

struct GroupBlock;

class LocalGroup final : public Group {
 public:
  // One for each rank, of threads of this process.
  static std::vector<std::unique_ptr<LocalGroup>> of_threads(int size);
  // Of processes: the files of a block and of an arena for every rank, for launch.h to hand on.
  struct Files {
    int block = -1;
    std::vector<int> arenas;
  };
  static Files make_files(int size);
  // The rank of this process in a group whose files it has.
  static std::unique_ptr<LocalGroup> of_processes(int rank, const Files& files);
  ~LocalGroup() override;

  std::unique_ptr<Transport> transport() override;
  int arena_file() const override;
  // The others' arenas, once all ranks have reserved theirs, of one size.
  void attach(std::byte* arena, int64_t bytes);
  // The arena of a rank as it is mapped here; null before attach().
  std::byte* arena(int rank) const { return arenas_[static_cast<size_t>(rank)]; }

  void barrier(const char* what, uint64_t tag = 0) override;
  void exchange(const char* what, void* out, const void* mine, int64_t bytes) override;
  void give_up(const std::string& why) noexcept override;
  // Of `rank`, as `teller` says.
  static void give_up(GroupBlock& block, int rank, const std::string& why, int teller) noexcept;
  void go_on() noexcept override;
  void look_after(int rank) noexcept override;
  void look_after(int rank, const char* what, double began) noexcept override;
  void await_end(int rank, double seconds) noexcept override;
  int who_gave_up() const override;
  int who_told() const override;
  std::string reason() const override;

  // What the process that starts ranks does with the block.
  static GroupBlock& map_block(int file);

 private:
  LocalGroup(int rank, int size) : Group(rank, size), arenas_(static_cast<size_t>(size)) {}
  void wait(int64_t turn);
  bool overdue(int rank, double began) const;
  void check_alike(int64_t turn, const char* what, uint64_t tag) const;

  GroupBlock* block_ = nullptr;
  std::shared_ptr<GroupBlock> shared_;  // of threads
  Files files_;
  int64_t turn_ = 0;
  int64_t arena_bytes_ = 0;
  std::vector<std::byte*> arenas_;
};

}  // namespace snug
