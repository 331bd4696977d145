// A NCCL without GPUs: the functions that nccl_library.cpp loads, whose ranks are processes or threads of one
// machine and whose bytes go through memory that they share. As of a communicator that does not wait, calls
// begin something and ncclCommGetAsyncError goes on with it: it is done when that says so. Streams are
// none: a test's device has done all when it is issued.
//
//   FAKE_NCCL_VERSION=number   what ncclGetVersion says
//   FAKE_NCCL_FAILS=count      the communicator's call of that number fails as one of a peer that is gone,
//   FAKE_NCCL_FAILS_ON=rank    of this rank
//   FAKE_NCCL_STALLS=count     that call is never done, of the same rank
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace {

enum Result { kSuccess = 0, kInternal = 3, kInvalidArgument = 4, kRemote = 6, kInProgress = 7 };
constexpr int kMostRanks = 8, kUint8 = 1;

struct Id {
  char name[128];
};

// Of the library's 2.17 and later, as far as it goes.
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};

// Bytes from one rank to another, in order.
struct Box {
  static constexpr uint64_t kRoom = 64 << 10;
  std::atomic<uint64_t> written{0}, read{0};
  char data[kRoom];
};

struct Block {
  std::atomic<int> arrived{0};
  Box boxes[kMostRanks][kMostRanks];  // from, to
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

struct Part {
  bool out;
  int peer;
  char* data;
  uint64_t left;
};
// Of all ranks, to and from: no memory is taken for it while a run goes.
struct Call {
  Part parts[2 * kMostRanks];
  int count = 0;
  void add(const Part& part) {
    if (count == 2 * kMostRanks) std::abort();  // more than a test of ours sends at once
    parts[count++] = part;
  }
};

int number(const char* variable, int unset) {
  const char* const text = std::getenv(variable);
  return text ? std::atoi(text) : unset;
}

struct Comm {
  Block* block = nullptr;
  std::string name;
  int rank = 0, size = 0, calls = 0;
  bool here = false;
  Call begun;
};

thread_local int depth = 0;
thread_local Comm* grouped = nullptr;
thread_local Call group;

void move(Comm& c, Part& p) {
  Box& box = p.out ? c.block->boxes[c.rank][p.peer] : c.block->boxes[p.peer][c.rank];
  const uint64_t written = box.written.load(std::memory_order_acquire),
                 read = box.read.load(std::memory_order_acquire);
  const uint64_t at = (p.out ? written : read) % Box::kRoom;
  const uint64_t n =
      std::min({p.left, p.out ? Box::kRoom - (written - read) : written - read, Box::kRoom - at});
  if (p.out)
    std::memcpy(box.data + at, p.data, n);
  else
    std::memcpy(p.data, box.data + at, n);
  (p.out ? box.written : box.read).store((p.out ? written : read) + n, std::memory_order_release);
  p.data += n;
  p.left -= n;
}

int begin(Comm& c, const Call& parts) {
  if (depth > 0) {
    grouped = &c;
    for (int i = 0; i < parts.count; ++i) group.add(parts.parts[i]);
  } else {
    ++c.calls;
    if (c.begun.count > 0) std::abort();  // the call before it is not done
    c.begun = parts;
  }
  return kInProgress;
}

bool chosen(const Comm& c, const char* variable) {
  return c.calls >= number(variable, INT_MAX) && c.rank == number("FAKE_NCCL_FAILS_ON", 0);
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = number("FAKE_NCCL_VERSION", 22809);
  return kSuccess;
}

const char* ncclGetErrorString(int result) {
  return result == kRemote ? "remote process exited or there was a network error"
                           : "invalid argument";
}

const char* ncclGetLastError(Comm*) {
  return "the fake says so";
}

int ncclGetUniqueId(Id* id) {
  static std::atomic<int> made{0};
  std::snprintf(id->name, sizeof id->name, "/snug-fake-nccl-%d-%d", getpid(), ++made);
  return kSuccess;
}

int ncclCommInitRankConfig(Comm** comm, int size, Id id, int rank, const Config* config) {
  if (size < 1 || size > kMostRanks || rank < 0 || rank >= size || config->magic != 0xcafebeef ||
      config->version < 21700 || config->size < 48 || config->blocking != 0)
    return kInvalidArgument;
  const int file = shm_open(id.name, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof(Block)) != 0) return kInternal;
  void* const at = mmap(nullptr, sizeof(Block), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (at == MAP_FAILED) return kInternal;
  auto* const c = new Comm;
  c->block = static_cast<Block*>(at);
  c->name = id.name;
  c->rank = rank;
  c->size = size;
  ++c->block->arrived;
  *comm = c;
  return kInProgress;
}

int ncclCommGetAsyncError(Comm* c, int* state) {
  *state = kInProgress;
  if (!c->here) {
    c->here = c->block->arrived == c->size;
    if (c->here && c->rank == 0) shm_unlink(c->name.c_str());
    if (!c->here) return kSuccess;
  }
  if (chosen(*c, "FAKE_NCCL_FAILS")) *state = kRemote;
  if (*state == kRemote || chosen(*c, "FAKE_NCCL_STALLS")) return kSuccess;
  bool waits[2][kMostRanks] = {};  // what goes to, and comes from, a peer does so in order
  for (int i = 0; i < c->begun.count; ++i) {
    Part& p = c->begun.parts[i];
    bool& behind = waits[p.out ? 1 : 0][p.peer];
    if (!behind && p.left > 0) move(*c, p);
    behind = behind || p.left > 0;
  }
  for (int i = 0; i < c->begun.count; ++i)
    if (c->begun.parts[i].left > 0) return kSuccess;
  c->begun.count = 0;
  *state = kSuccess;
  return kSuccess;
}

int ncclGroupStart() {
  ++depth;
  return kSuccess;
}

int ncclGroupEnd() {
  if (--depth > 0 || grouped == nullptr) return kSuccess;
  const Call parts = group;
  group.count = 0;
  return begin(*std::exchange(grouped, nullptr), parts);
}

int ncclSend(const void* data, size_t count, int type, int peer, Comm* c, void*) {
  if (type != kUint8 || peer < 0 || peer >= c->size) return kInvalidArgument;
  Call one;
  one.add({true, peer, static_cast<char*>(const_cast<void*>(data)), count});
  return begin(*c, one);
}

int ncclRecv(void* data, size_t count, int type, int peer, Comm* c, void*) {
  if (type != kUint8 || peer < 0 || peer >= c->size) return kInvalidArgument;
  Call one;
  one.add({false, peer, static_cast<char*>(data), count});
  return begin(*c, one);
}

int ncclAllGather(const void* mine, void* all, size_t count, int type, Comm* c, void*) {
  if (type != kUint8) return kInvalidArgument;
  auto* const to = static_cast<char*>(all);
  auto* const from = static_cast<char*>(const_cast<void*>(mine));
  if (to + static_cast<size_t>(c->rank) * count != from)
    std::memmove(to + static_cast<size_t>(c->rank) * count, from, count);
  Call parts;
  for (int r = 0; r < c->size; ++r) {
    if (r == c->rank) continue;
    parts.add({true, r, to + static_cast<size_t>(c->rank) * count, count});
    parts.add({false, r, to + static_cast<size_t>(r) * count, count});
  }
  return begin(*c, parts);
}

int ncclCommFinalize(Comm*) {
  return kSuccess;
}

int ncclCommDestroy(Comm* c) {
  munmap(c->block, sizeof(Block));
  delete c;
  return kSuccess;
}

int ncclCommAbort(Comm* c) {
  if (!c->here) shm_unlink(c->name.c_str());
  return ncclCommDestroy(c);
}
}
