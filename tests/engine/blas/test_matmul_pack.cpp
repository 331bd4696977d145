// Packing reads no byte behind a matrix, whatever its strides: the page that follows it is closed.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/blas/matmul_pack.h"
#include "engine/core/isa.h"

namespace snug {
namespace {

// Memory that ends where a closed page begins.
class Room {
 public:
  Room() : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    void* p = mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return;
    start_ = static_cast<char*>(p);
    mprotect(start_ + page_, page_, PROT_NONE);
  }
  ~Room() { munmap(start_, 2 * page_); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  // The last n elements.
  template <class T>
  T* last(int64_t n) const {
    return reinterpret_cast<T*>(start_ + page_) - n;
  }

 private:
  const size_t page_;
  char* start_ = nullptr;
};

template <class T>
void check(DType dtype, int64_t lanes, int64_t width, int64_t k_stride, int64_t kc) {
  SCOPED_TRACE(std::string(to_string(dtype)) + " lanes=" + std::to_string(lanes) +
               " width=" + std::to_string(width) + " k_stride=" + std::to_string(k_stride) +
               " kc=" + std::to_string(kc));
  const Room room;
  // The furthest lane of all rows is the last element; rows may walk back.
  const int64_t span = std::abs(k_stride) * (kc - 1) + lanes;
  T* first = room.last<T>(span);
  for (int64_t i = 0; i < span; ++i) first[i] = from_f32<T>(static_cast<float>(i % 97));
  const T* row0 = k_stride < 0 ? first - k_stride * (kc - 1) : first;
  const int64_t panels = (lanes + width - 1) / width;
  std::vector<float> out(static_cast<size_t>(panels * width * kc + blas::kPackSpill), -1.0f);
  blas::pack_block({row0, dtype, 1, k_stride}, false, 0, lanes, 0, kc, width, width * kc, false,
                   out.data());
  for (int64_t l = 0; l < lanes; ++l) {
    const int64_t panel = l / width, wide = std::min(width, lanes - panel * width);
    for (int64_t k = 0; k < kc; ++k)
      EXPECT_EQ(out[static_cast<size_t>(panel * width * kc + k * wide + l % width)],
                to_f32(row0[k * k_stride + l]))
          << "lane " << l << " k " << k;
  }
}

void check_all() {
  for (const int64_t kc : {1, 2, 8, 9, 17})
    for (const int64_t lanes : {5, 6, 7, 12, 16, 18, 38})
      for (const int64_t width : {6, 16})
        for (const int64_t k_stride : {int64_t{0}, int64_t{1}, int64_t{-1}, int64_t{2}, int64_t{-2},
                                       lanes, -lanes, lanes + 1}) {
          check<float>(DType::f32, lanes, width, k_stride, kc);
          check<bf16>(DType::bf16, lanes, width, k_stride, kc);
          check<f16>(DType::f16, lanes, width, k_stride, kc);
        }
}

TEST(MatmulPack, NothingBehindTheMatrixIsRead) {
  check_all();
  const WithoutAvx512 narrow;
  check_all();
}

}  // namespace
}  // namespace snug
