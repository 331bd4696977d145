#include "tests/engine/data/heap_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

static std::atomic<int64_t> requests{0}, bytes_asked{0};

void* operator new(size_t bytes) {
  ++requests;
  bytes_asked += static_cast<int64_t>(bytes);
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
// As std::stable_sort asks: its delete is the one below, so its new must be of the same kind.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++requests;
  bytes_asked += static_cast<int64_t>(bytes);
  return std::malloc(bytes);
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  std::free(p);
}

namespace snug {

int64_t heap_requests() {
  return requests;
}

int64_t heap_bytes() {
  return bytes_asked;
}

}  // namespace snug
