// The dialect of engine/simt/simt.h for nvcc: every word is one of CUDA's.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <type_traits>

#include "engine/core/dtype.h"
#include "engine/core/error.h"
#include "engine/simt/cuda_queue.h"
#include "engine/simt/dims.h"

// The inline namespace of this side, for the headers that both share.
#define SIMT_SIDE on_cuda

#define SIMT_WHERE [[maybe_unused]] ::snug::simt::Where where = {}

#define SHARED_ARRAY(T, name, n)       \
  __shared__ T name##_in_block[n];     \
  const ::snug::simt::Shared<T> name { \
    name##_in_block                    \
  }

namespace snug::simt {
inline namespace on_cuda {

struct Where {
  __device__ Where part(int) const { return {}; }
};

// A stream of the device that is current.
using Queue = cuda::Queue;

__device__ inline int thread() {
  return static_cast<int>(threadIdx.x);
}
__device__ inline int threads() {
  return static_cast<int>(blockDim.x);
}
__device__ inline int64_t block() {
  return blockIdx.x;
}
__device__ inline int64_t block_y() {
  return blockIdx.y;
}
__device__ inline int64_t block_z() {
  return blockIdx.z;
}
__device__ inline int64_t blocks() {
  return gridDim.x;
}
__device__ inline int64_t blocks_y() {
  return gridDim.y;
}
__device__ inline int64_t blocks_z() {
  return gridDim.z;
}
__device__ inline int lane() {
  return thread() % kWarp;
}
__device__ inline int warp() {
  return thread() / kWarp;
}
__device__ inline int warps() {
  return threads() / kWarp;
}

__device__ inline void sync_threads(SIMT_WHERE) {
  __syncthreads();
}
__device__ inline void sync_warp(SIMT_WHERE) {
  __syncwarp();
}
__device__ inline void fence() {
  __threadfence();
}

inline constexpr uint32_t kAllLanes = 0xffffffffu;

__device__ inline int count_bits(uint32_t x) {
  return __popc(x);
}

template <class T>
__device__ T shuffle(T value, int from, uint32_t lanes = kAllLanes, SIMT_WHERE) {
  return __shfl_sync(lanes, value, from);
}
template <class T>
__device__ T shuffle_xor(T value, int mask, uint32_t lanes = kAllLanes, SIMT_WHERE) {
  return __shfl_xor_sync(lanes, value, mask);
}
template <class T>
__device__ T shuffle_up(T value, int distance, uint32_t lanes = kAllLanes, SIMT_WHERE) {
  return __shfl_up_sync(lanes, value, static_cast<unsigned>(distance));
}
template <class T>
__device__ T shuffle_down(T value, int distance, uint32_t lanes = kAllLanes, SIMT_WHERE) {
  return __shfl_down_sync(lanes, value, static_cast<unsigned>(distance));
}
__device__ inline uint32_t ballot(bool vote, uint32_t lanes = kAllLanes, SIMT_WHERE) {
  return __ballot_sync(lanes, vote);
}
__device__ inline bool any(bool vote, uint32_t lanes = kAllLanes, SIMT_WHERE) {
  return __any_sync(lanes, vote) != 0;
}
__device__ inline bool all(bool vote, uint32_t lanes = kAllLanes, SIMT_WHERE) {
  return __all_sync(lanes, vote) != 0;
}

// Shared memory is small.
using Index = int;

template <class T>
struct Shared {
  T* data;
  __device__ T& operator[](Index i) const { return data[i]; }
  __device__ Shared part(Index from) const { return {data + from}; }
};

template <class T>
__device__ Shared<T> dynamic_smem(int64_t byte_offset = 0, SIMT_WHERE) {
  extern __shared__ __align__(16) unsigned char snug_dynamic_shared[];
  return {reinterpret_cast<T*>(snug_dynamic_shared + byte_offset)};
}

// CUDA has its own words for the widths of integers.
template <class T>
using AtomicOf =
    std::conditional_t<sizeof(T) == 8,
                       std::conditional_t<std::is_signed_v<T>, long long, unsigned long long>,
                       std::conditional_t<std::is_signed_v<T>, int, unsigned>>;
// Where sums, exchanges and comparisons know no sign.
template <class T>
using AtomicBits = std::conditional_t<sizeof(T) == 8, unsigned long long, unsigned>;
template <class T>
inline constexpr bool kAtomic = std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8);

template <class T>
__device__ T atomic_add(T* at, std::type_identity_t<T> value) {
  static_assert(kAtomic<T>);
  return static_cast<T>(
      atomicAdd(reinterpret_cast<AtomicBits<T>*>(at), static_cast<AtomicBits<T>>(value)));
}
template <class T>
__device__ T atomic_min(T* at, std::type_identity_t<T> value) {
  static_assert(kAtomic<T>);
  return static_cast<T>(
      atomicMin(reinterpret_cast<AtomicOf<T>*>(at), static_cast<AtomicOf<T>>(value)));
}
template <class T>
__device__ T atomic_max(T* at, std::type_identity_t<T> value) {
  static_assert(kAtomic<T>);
  return static_cast<T>(
      atomicMax(reinterpret_cast<AtomicOf<T>*>(at), static_cast<AtomicOf<T>>(value)));
}
template <class T>
__device__ T atomic_exchange(T* at, std::type_identity_t<T> value) {
  static_assert(kAtomic<T>);
  return static_cast<T>(
      atomicExch(reinterpret_cast<AtomicBits<T>*>(at), static_cast<AtomicBits<T>>(value)));
}
template <class T>
__device__ T atomic_cas(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  static_assert(kAtomic<T>);
  return static_cast<T>(atomicCAS(reinterpret_cast<AtomicBits<T>*>(at),
                                  static_cast<AtomicBits<T>>(expected),
                                  static_cast<AtomicBits<T>>(value)));
}
template <class T>
__device__ T atomic_add(const Shared<T>& s, Index i, std::type_identity_t<T> value) {
  return atomic_add(s.data + i, value);
}
template <class T>
__device__ T atomic_min(const Shared<T>& s, Index i, std::type_identity_t<T> value) {
  return atomic_min(s.data + i, value);
}
template <class T>
__device__ T atomic_max(const Shared<T>& s, Index i, std::type_identity_t<T> value) {
  return atomic_max(s.data + i, value);
}

template <class P, class T>
__device__ P load_vector(const T* p, Where) {
  return *reinterpret_cast<const P*>(p);
}
template <class P, class T>
__device__ void store_vector(T* p, const P& value, Where) {
  *reinterpret_cast<P*>(p) = value;
}
template <class P, class T>
__device__ P load_vector(const Shared<T>& s, Index i) {
  return *reinterpret_cast<const P*>(s.data + i);
}
template <class P, class T>
__device__ void store_vector(const Shared<T>& s, Index i, const P& value) {
  *reinterpret_cast<P*>(s.data + i) = value;
}

// A kernel's argument, as `const __grid_constant__ Constant<T>`: what all threads read, by any
// index, from where the launch put it.
template <class T>
struct Constant {
  Constant(const T& v) : value(v) {}  // NOLINT: launch takes a T
  __device__ const T* operator->() const { return &value; }
  T value;
};

inline void check_device(cudaError_t error, const char* name, bool sync_check) {
  if (error != cudaSuccess)
    fail(ErrorCode::device, std::string("the device to take ") + name,
         std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error),
         sync_check ? "this kernel or its launch is wrong: please report it"
                    : "an earlier kernel may have made it: run with SNUG_SYNC_CHECK=1, which waits "
                      "after every kernel");
}

template <class... P, class... A>
void launch(Queue& queue, const Dims& dims, const char* name, void (*kernel)(P...), A... values) {
  static_assert((std::is_trivially_copyable_v<P> && ...), "kernels take plain values");
  check_dims(name, dims);
  if (dims.empty()) return;
  // What the kernel declares counts too against what it gets without asking.
  if (dims.shared_bytes > kMaxStaticShared / 2)
    check_device(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(dims.shared_bytes)),
                 name, queue.sync_check);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(dims.blocks), static_cast<unsigned>(dims.blocks_y),
                        static_cast<unsigned>(dims.blocks_z));
  config.blockDim = dim3(static_cast<unsigned>(dims.threads));
  config.dynamicSmemBytes = static_cast<size_t>(dims.shared_bytes);
  config.stream = queue.stream;
  check_device(cudaLaunchKernelEx(&config, kernel, static_cast<P>(values)...), name,
               queue.sync_check);
  if (queue.sync_check) check_device(cudaStreamSynchronize(queue.stream), name, true);
}

}  // namespace on_cuda
}  // namespace snug::simt
