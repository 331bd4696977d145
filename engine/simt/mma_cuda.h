// engine/simt/mma.h for nvcc. Compute capability 8.0 and up.
#pragma once

#include "engine/simt/simt.h"

namespace snug::simt {
inline namespace on_cuda {

template <class T>
__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                           SIMT_WHERE) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  if constexpr (std::is_same_v<T, bf16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The clobber keeps stores to shared memory on their side of the load.
template <class T>
__device__ inline void load_matrices(uint32_t (&r)[4], const Shared<T>& s, Index i) {
  static_assert(sizeof(T) == 2);
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(s.data + i));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
template <class T>
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], const Shared<T>& s, Index i) {
  static_assert(sizeof(T) == 2);
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(s.data + i));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

template <class T>
__device__ inline uint32_t pack_pair(float x, float y) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  uint32_t pair;
  if constexpr (std::is_same_v<T, bf16>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
  return pair;
}

}  // namespace on_cuda
}  // namespace snug::simt
