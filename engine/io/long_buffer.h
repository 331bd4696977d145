// Text that grows up to a bound and is never copied while it grows: the bound is reserved as
// addresses, and a page becomes memory when it is written to. A std::string would take three times
// its length while it grows, and leave pieces of the heap behind.
#pragma once

#include <cstdint>
#include <string_view>

namespace snug {

class LongBuffer {
 public:
  // Reserves nothing until the first append.
  explicit LongBuffer(int64_t capacity) : capacity_(capacity) {}
  ~LongBuffer();
  LongBuffer(const LongBuffer&) = delete;
  LongBuffer& operator=(const LongBuffer&) = delete;

  int64_t capacity() const { return capacity_; }
  int64_t size() const { return size_; }
  char* data() { return data_; }
  std::string_view view() const { return {data_, static_cast<size_t>(size_)}; }
  // size() + text.size() must be at most capacity(). Throws out_of_memory if the addresses are
  // refused.
  void append(std::string_view text);
  void push_back(char c) {
    if (data_ == nullptr || size_ == capacity_) return append({&c, 1});
    data_[size_++] = c;
  }
  // size() becomes `size`, at most what it was. What lies more than a MiB behind it is given back.
  void cut(int64_t size);

 private:
  void reserve();

  int64_t capacity_, size_ = 0, touched_ = 0;
  char* data_ = nullptr;
};

}  // namespace snug
