#include "engine/io/long_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/core/error.h"

namespace snug {
namespace {

constexpr int64_t kKept = int64_t{1} << 20, kPage = 4096;

}  // namespace

LongBuffer::~LongBuffer() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(capacity_));
}

void LongBuffer::reserve() {
  void* const p = ::mmap(nullptr, static_cast<size_t>(capacity_), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    fail(ErrorCode::out_of_memory, fmt::format("{} B of addresses for text", capacity_),
         std::strerror(errno), "raise ulimit -v and ulimit -d");
  data_ = static_cast<char*>(p);
#ifdef MADV_NOHUGEPAGE
  // Two MiB for a line of some bytes would not be what was reckoned with.
  ::madvise(p, static_cast<size_t>(capacity_), MADV_NOHUGEPAGE);
#endif
}

void LongBuffer::append(std::string_view text) {
  if (text.empty()) return;
  if (data_ == nullptr) reserve();
  require(size_ + static_cast<int64_t>(text.size()) <= capacity_, "text within its bound");
  std::memcpy(data_ + size_, text.data(), text.size());
  size_ += static_cast<int64_t>(text.size());
}

void LongBuffer::cut(int64_t size) {
  touched_ = std::max(touched_, size_);
  size_ = std::min(size_, size);
  const int64_t kept = (size_ + kKept) / kPage * kPage;
  if (touched_ <= kept) return;
  ::madvise(data_ + kept, static_cast<size_t>(touched_ - kept), MADV_DONTNEED);
  touched_ = kept;
}

}  // namespace snug
