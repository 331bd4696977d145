// The product takes all its memory from the caller: no operator new during a call.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "engine/blas/matmul_cpu.h"

namespace {
std::atomic<int64_t> news{0};
}

// Not inlined, so that the compiler does not pair malloc with delete.
__attribute__((noinline)) void* operator new(size_t size) {
  ++news;
  if (void* p = std::malloc(size == 0 ? 1 : size)) return p;
  throw std::bad_alloc();
}
// std::stable_sort asks for its buffer this way; memory from one must not be freed by another's
// delete.
__attribute__((noinline)) void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++news;
  return std::malloc(size == 0 ? 1 : size);
}
__attribute__((noinline)) void operator delete(void* p) noexcept {
  std::free(p);
}
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept {
  std::free(p);
}

namespace snug {
namespace {

TEST(MatmulMemory, OwnKernelsAllocateNothing) {
  for (const int64_t m : {1, 20, 200})
    for (const MatmulKernel kernel : kMatmulKernels) {
      const int64_t n = 70, k = 900;
      const std::vector<bf16> a(static_cast<size_t>(m * k)), b(static_cast<size_t>(k * n));
      std::vector<float> c(static_cast<size_t>(m * n));
      MatmulProblem p;
      p.M = m, p.N = n, p.K = k, p.ldc = n, p.c = c.data();
      p.a = {a.data(), DType::bf16, k, 1};
      p.b = {b.data(), DType::bf16, 1, k};
      if (!matmul_supports(p, kernel)) continue;
      std::vector<unsigned char> scratch(static_cast<size_t>(
          matmul_scratch_bytes(m, n, k, DType::bf16, DType::bf16, DType::f32, kernel, 2)));
      const int64_t before = news;
      matmul_cpu(p, kernel, scratch.data(), 2);
      EXPECT_EQ(news - before, 0) << to_string(kernel) << " M=" << m;
    }
  const int64_t before = news;
  ::operator delete(::operator new(4));
  EXPECT_EQ(news - before, 1) << "the counter counts";
}

}  // namespace
}  // namespace snug
