#include "tools/trainer/allocation_watch.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

#include "engine/core/sanitizers.h"

#if SNUG_ADDRESS_SANITIZER || SNUG_THREAD_SANITIZER

namespace snug::allocation_watch {
bool available() {
  return false;
}
void start() {}
void step_done() {}
void stop() {}
int64_t breaches() {
  return 0;
}
int64_t transient() {
  return 0;
}
}  // namespace snug::allocation_watch

#else

// glibc's own names for what malloc and friends do: calling them from our definitions cannot
// recurse.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
}

namespace snug::allocation_watch {
namespace {

// Blocks made since start() and not freed yet, in an open-addressing table without a heap of its
// own.
constexpr size_t kSlots = 1 << 15;
std::atomic<bool> watching{false};
std::atomic_flag lock = ATOMIC_FLAG_INIT;
void* live[kSlots];
uint32_t born[kSlots];
uint32_t step = 0;
size_t held = 0;
int64_t breach_count = 0, transient_count = 0;

class Guard {
 public:
  Guard() {
    while (lock.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~Guard() { lock.clear(std::memory_order_release); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
};

size_t hash(const void* p) {
  return (reinterpret_cast<size_t>(p) >> 4) * 0x9E3779B97F4A7C15ull >> 49;
}
static_assert(kSlots == 1 << 15, "hash() gives 15 bits");

void made(void* p) {
  if (!p || !watching.load(std::memory_order_relaxed)) return;
  const Guard guard;
  if (held >= kSlots / 2) {  // more than the table can hold were never freed: all are breaches
    ++breach_count;
    return;
  }
  size_t i = hash(p);
  while (live[i]) i = (i + 1) % kSlots;
  live[i] = p;
  born[i] = step;
  ++held;
}

void gone(const void* p) {
  if (!p || !watching.load(std::memory_order_relaxed)) return;
  const Guard guard;
  size_t i = hash(p);
  while (live[i] && live[i] != p) i = (i + 1) % kSlots;
  if (!live[i]) return;  // made before start()
  if (born[i] == step) ++transient_count;
  live[i] = nullptr;
  --held;
  // Entries behind the hole move up, so that a search never ends too early.
  for (size_t j = (i + 1) % kSlots; live[j]; j = (j + 1) % kSlots) {
    const size_t home = hash(live[j]);
    if ((j - home) % kSlots < (j - i) % kSlots) continue;
    live[i] = live[j];
    born[i] = born[j];
    live[j] = nullptr;
    i = j;
  }
}

}  // namespace

bool available() {
  return true;
}
void start() {
  const Guard guard;
  // What an earlier watch left may have been freed unseen, and its addresses come again.
  for (void*& p : live) p = nullptr;
  held = 0;
  ++step;
  watching.store(true);
}
void stop() {
  watching.store(false);
}
int64_t breaches() {
  return breach_count;
}
int64_t transient() {
  return transient_count;
}

void step_done() {
  const Guard guard;
  // Each surviving block counts once: at the end of the step that made it.
  for (size_t i = 0; i < kSlots && held > 0; ++i)
    if (live[i] && born[i] == step) ++breach_count;
  ++step;
}

}  // namespace snug::allocation_watch

extern "C" {

void* malloc(size_t n) {
  void* p = __libc_malloc(n);
  snug::allocation_watch::made(p);
  return p;
}
void* calloc(size_t n, size_t size) {
  void* p = __libc_calloc(n, size);
  snug::allocation_watch::made(p);
  return p;
}
void* realloc(void* old, size_t n) {
  snug::allocation_watch::gone(old);
  void* p = __libc_realloc(old, n);
  snug::allocation_watch::made(p);
  return p;
}
void free(void* p) {
  snug::allocation_watch::gone(p);
  __libc_free(p);
}
void* memalign(size_t alignment, size_t n) {
  void* p = __libc_memalign(alignment, n);
  snug::allocation_watch::made(p);
  return p;
}
void* aligned_alloc(size_t alignment, size_t n) {
  return memalign(alignment, n);
}
int posix_memalign(void** out, size_t alignment, size_t n) {
  void* p = memalign(alignment, n);
  if (!p) return ENOMEM;
  *out = p;
  return 0;
}
void* mmap(void* at, size_t n, int protection, int flags, int fd, off_t offset) noexcept {
  const long p = syscall(SYS_mmap, at, n, protection, flags, fd, offset);
  auto* block = reinterpret_cast<void*>(p);  // MAP_FAILED is -1, which is what the call returns
  if (block != MAP_FAILED) snug::allocation_watch::made(block);
  return block;
}
int munmap(void* at, size_t n) noexcept {
  snug::allocation_watch::gone(at);
  return static_cast<int>(syscall(SYS_munmap, at, n));
}

}  // extern "C"

#endif
