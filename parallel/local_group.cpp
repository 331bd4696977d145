#include "parallel/local_group.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>

#include "engine/core/error.h"
#include "engine/memory/context.h"
#include "parallel/local_transport.h"

namespace snug {

static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<double>::is_always_lock_free,
              "atomics that processes can share");

// What a rank says of a turn is kept for two turns: nobody is further ahead than one.
struct alignas(64) RankSlot {
  std::atomic<int64_t> arrived{0};  // turns that it came to
  std::atomic<int32_t> pid{0};
  std::atomic<double> went_on{0};  // monotonic_seconds(), of one clock for all processes
  std::atomic<int64_t> arena{0};   // of threads: its address
  std::atomic<int64_t> arena_bytes{0};
  std::atomic<uint64_t> tags[2];
  char what[2][Group::kMostWhat + 1];
  char notes[2][Group::kMostExchanged];
};

struct GroupBlock {
  std::atomic<uint32_t> word{0};  // grows with everybody who arrives or gives up
  std::atomic<uint32_t> sleepers{0};
  std::atomic<int32_t> given_up{0};  // 1 + the first rank that did
  std::atomic<int32_t> told{0};      // the reason is written: 1 + the rank that did
  char reason[1024];
  RankSlot slots[kMostRanks];
};

namespace {

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen) {
  const timespec most = {.tv_sec = 0, .tv_nsec = 50'000'000};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &most, nullptr, 0);
}

void wake(GroupBlock& block) {
  block.word.fetch_add(1);
  if (block.sleepers.load() > 0)
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&block.word), FUTEX_WAKE, INT32_MAX, nullptr,
            nullptr, 0);
}

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

[[noreturn]] void refused(const char* what) {
  fail(ErrorCode::device, fmt::format("the system to give ranks {}", what), std::strerror(errno),
       "ranks=1, or a system with memfd_create (Linux 3.17 or later)");
}

}  // namespace

std::vector<std::unique_ptr<LocalGroup>> LocalGroup::of_threads(int size) {
  require(size >= 1 && size <= kMostRanks, "1 to 64 ranks");
  const auto block = std::make_shared<GroupBlock>();
  std::vector<std::unique_ptr<LocalGroup>> groups;
  for (int r = 0; r < size; ++r) {
    groups.push_back(std::unique_ptr<LocalGroup>(new LocalGroup(r, size)));
    groups.back()->shared_ = block;
    groups.back()->block_ = block.get();
  }
  return groups;
}

LocalGroup::Files LocalGroup::make_files(int size) {
  require(size >= 1 && size <= kMostRanks, "1 to 64 ranks");
  Files files;
  // Without CLOEXEC: the processes of the ranks inherit them.
  files.block = memfd_create("snug-ranks", 0);
  if (files.block < 0 || ftruncate(files.block, sizeof(GroupBlock)) != 0) refused("shared memory");
  new (&map_block(files.block)) GroupBlock();
  for (int r = 0; r < size; ++r) {
    files.arenas.push_back(memfd_create("snug-arena", 0));
    if (files.arenas.back() < 0) refused("shared memory");
  }
  return files;
}

GroupBlock& LocalGroup::map_block(int file) {
  void* const at = mmap(nullptr, sizeof(GroupBlock), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) refused("shared memory");
  return *static_cast<GroupBlock*>(at);
}

std::unique_ptr<LocalGroup> LocalGroup::of_processes(int rank, const Files& files) {
  const int size = static_cast<int>(files.arenas.size());
  require(rank >= 0 && rank < size && size <= kMostRanks, "a rank of 1 to 64");
  auto group = std::unique_ptr<LocalGroup>(new LocalGroup(rank, size));
  group->files_ = files;
  group->block_ = &map_block(files.block);
  group->block_->slots[rank].pid = getpid();
  return group;
}

LocalGroup::~LocalGroup() {
  if (shared_) return;
  for (int r = 0; r < size(); ++r)
    if (r != rank() && arenas_[static_cast<size_t>(r)])
      munmap(arenas_[static_cast<size_t>(r)], static_cast<size_t>(arena_bytes_));
  munmap(block_, sizeof(GroupBlock));
}

int LocalGroup::arena_file() const {
  return shared_ ? -1 : files_.arenas[static_cast<size_t>(rank())];
}

void LocalGroup::attach(std::byte* arena, int64_t bytes) {
  RankSlot& own = block_->slots[rank()];
  own.arena = reinterpret_cast<int64_t>(arena);
  own.arena_bytes = bytes;
  barrier("attach", static_cast<uint64_t>(bytes));
  arena_bytes_ = bytes;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) {
      arenas_[static_cast<size_t>(r)] = arena;
    } else if (shared_) {
      arenas_[static_cast<size_t>(r)] = reinterpret_cast<std::byte*>(block_->slots[r].arena.load());
    } else {
      // Its pages are there already: faults one by one would fall into the first steps.
      void* const at = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_POPULATE, files_.arenas[static_cast<size_t>(r)], 0);
      if (at == MAP_FAILED) refused("shared memory");
      arenas_[static_cast<size_t>(r)] = static_cast<std::byte*>(at);
    }
  }
}

void LocalGroup::barrier(const char* what, uint64_t tag) {
  const int64_t turn = ++turn_;
  RankSlot& own = block_->slots[rank()];
  own.tags[turn & 1] = tag;
  std::strncpy(own.what[turn & 1], what, sizeof(own.what[0]) - 1);
  own.arrived.store(turn, std::memory_order_release);
  wake(*block_);
  wait(turn);
  check_alike(turn, what, tag);
}

void LocalGroup::exchange(const char* what, void* out, const void* mine, int64_t bytes) {
  require(bytes <= Group::kMostExchanged, "a note of few bytes");
  const int64_t turn = turn_ + 1;
  std::memcpy(block_->slots[rank()].notes[turn & 1], mine, static_cast<size_t>(bytes));
  barrier(what, static_cast<uint64_t>(bytes));
  for (int r = 0; r < size(); ++r)
    std::memcpy(static_cast<char*>(out) + r * bytes, block_->slots[r].notes[turn & 1],
                static_cast<size_t>(bytes));
}

void LocalGroup::wait(int64_t turn) {
  const auto all_here = [&] {
    for (int r = 0; r < size(); ++r)
      if (block_->slots[r].arrived.load(std::memory_order_acquire) < turn) return false;
    return true;
  };
  constexpr int kSpins = 2000;
  for (int i = 0; i < kSpins; ++i) {
    if (all_here()) return;
    pause_briefly();
  }
  const double began = monotonic_seconds();
  while (true) {
    const uint32_t seen = block_->word.load();
    if (all_here()) return;
    if (block_->given_up.load() != 0) throw_given_up();
    block_->sleepers.fetch_add(1);
    if (block_->word.load() == seen) futex_wait(block_->word, seen);
    block_->sleepers.fetch_sub(1);
    for (int r = 0; r < size(); ++r) {
      const RankSlot& s = block_->slots[r];
      const int32_t pid = s.pid.load();
      const bool late = s.arrived.load(std::memory_order_acquire) < turn;
      const int64_t at = s.arrived.load();
      const char* const last = at > 0 ? s.what[at & 1] : "the start";
      if (late && pid > 0 && process_gone(pid)) give_up(*block_, r, gone_text(pid, last), rank());
      if (late && overdue(r, began))
        give_up(*block_, r, late_text(block_->slots[rank()].what[turn & 1], last), rank());
    }
  }
}

// Everybody is here, so what each said of this turn stays until all have left it.
void LocalGroup::check_alike(int64_t turn, const char* what, uint64_t tag) const {
  for (int r = 0; r < size(); ++r) {
    const RankSlot& s = block_->slots[r];
    if (s.tags[turn & 1] == tag && std::strncmp(s.what[turn & 1], what, sizeof(s.what[0]) - 1) == 0)
      continue;
    const std::string found =
        apart_text(what, tag, r, s.what[turn & 1], s.tags[turn & 1].load(), turn);
    give_up(*block_, rank(), found, rank());
    throw_apart(found);
  }
}

void LocalGroup::give_up(GroupBlock& block, int rank, const std::string& why, int teller) noexcept {
  int32_t nobody = 0;
  if (block.given_up.compare_exchange_strong(nobody, rank + 1)) {
    std::strncpy(block.reason, why.c_str(), sizeof(block.reason) - 1);
    block.told.store(1 + teller, std::memory_order_release);
  }
  wake(block);
}

void LocalGroup::give_up(const std::string& why) noexcept {
  give_up(*block_, rank(), why, rank());
}

void LocalGroup::look_after(int rank) noexcept {
  const int32_t pid = block_->slots[rank].pid.load();
  if (pid > 0 && process_gone(pid))
    give_up(*block_, rank, fmt::format("its process {} is gone", pid), this->rank());
}

void LocalGroup::look_after(int rank, const char* what, double began) noexcept {
  look_after(rank);
  if (overdue(rank, began))
    give_up(*block_, rank, fmt::format("it did not go on with {} within {:.0f} s", what, timeout()),
            this->rank());
}

void LocalGroup::go_on() noexcept {
  block_->slots[rank()].went_on.store(monotonic_seconds(), std::memory_order_relaxed);
}

bool LocalGroup::overdue(int rank, double began) const {
  const double sign = block_->slots[rank].went_on.load(std::memory_order_relaxed);
  return monotonic_seconds() - std::max(began, sign) > timeout_;
}

int LocalGroup::who_gave_up() const {
  return block_->given_up.load() - 1;
}

int LocalGroup::who_told() const {
  return block_->told.load(std::memory_order_acquire) - 1;
}

std::string LocalGroup::reason() const {
  const int by = block_->given_up.load();
  if (by == 0) return "";
  return fmt::format("rank {}: {}", by - 1,
                     block_->told.load(std::memory_order_acquire) ? block_->reason : "it gave up");
}

std::unique_ptr<Transport> LocalGroup::transport() {
  return std::make_unique<LocalTransport>(*this);
}

void LocalGroup::await_end(int rank, double seconds) noexcept {
  const int32_t pid = block_->slots[rank].pid.load();
  const double until = monotonic_seconds() + seconds;
  while (pid > 0 && !process_gone(pid) && monotonic_seconds() < until) usleep(10'000);
}

}  // namespace snug
