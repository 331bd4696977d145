// engine/simt/copies.h for nvcc. Compute capability 8.0 and up.
#pragma once

#include "engine/simt/simt.h"

namespace snug::simt {
inline namespace on_cuda {

template <class T>
__device__ inline void copy_vector(const Shared<T>& s, Index i, const T* p, bool there) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(s.data + i));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(to), "l"(__cvta_generic_to_global(p)), "r"(there ? 16 : 0)
               : "memory");
}
template <class T>
__device__ inline void copy_number(const Shared<T>& s, Index i, const T* p, bool there) {
  static_assert(sizeof(T) == 4);
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(s.data + i));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :
               : "r"(to), "l"(__cvta_generic_to_global(p)), "r"(there ? 4 : 0)
               : "memory");
}
__device__ inline void end_copies() {
  asm volatile("cp.async.commit_group;" : : : "memory");
}
template <int kLeft>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kLeft) : "memory");
}

}  // namespace on_cuda
}  // namespace snug::simt
