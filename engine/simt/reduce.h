// Reductions over a warp and over a block. Every lane or thread calls and gets the same bits; the
// order of a sum depends on the number of threads alone.
#pragma once

#include "engine/simt/simt.h"

namespace snug::simt {
inline namespace SIMT_SIDE {

// Pairs at distance 16, 8, 4, 2, 1: both partners add the same two numbers.
template <class T>
__device__ T warp_sum(T v, SIMT_WHERE) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    v += shuffle_xor(v, distance, kAllLanes, where.part(distance));
  return v;
}

__device__ inline float warp_max(float v, SIMT_WHERE) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    v = max(v, shuffle_xor(v, distance, kAllLanes, where.part(distance)));
  return v;
}
__device__ inline float warp_min(float v, SIMT_WHERE) {
  return -warp_max(-v, where);
}

// The same of whole numbers.
template <class T>
__device__ T warp_largest(T v, SIMT_WHERE) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const T other = shuffle_xor(v, distance, kAllLanes, where.part(distance));
    v = other > v ? other : v;
  }
  return v;
}

// Over each `group` of neighbouring lanes, a power of two. `lanes`: those that call, whole groups.
template <class T>
__device__ T group_sum(T v, int group, uint32_t lanes = kAllLanes, SIMT_WHERE) {
  for (int distance = 1; distance < group; distance *= 2)
    v += shuffle_xor(v, distance, lanes, where.part(distance));
  return v;
}
__device__ inline float group_max(float v, int group, uint32_t lanes = kAllLanes, SIMT_WHERE) {
  for (int distance = 1; distance < group; distance *= 2)
    v = max(v, shuffle_xor(v, distance, lanes, where.part(distance)));
  return v;
}

// Lane l gets the sum of lanes 0 to l.
template <class T>
__device__ T warp_scan(T v, SIMT_WHERE) {
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const T before = shuffle_up(v, distance, kAllLanes, where.part(distance));
    if (lane() >= distance) v += before;
  }
  return v;
}

// Two barriers. The first one ends what an earlier call still reads.
template <class T>
__device__ T block_sum(T v, SIMT_WHERE) {
  SHARED_ARRAY(T, warp_sums, kWarp);
  v = warp_sum(v, where);
  sync_threads(where.part(1));
  if (lane() == 0) warp_sums[warp()] = v;
  sync_threads(where.part(2));
  T sum = T(0);
  if (lane() < warps()) sum = warp_sums[lane()];
  return warp_sum(sum, where.part(100));
}

__device__ inline float block_max(float v, SIMT_WHERE) {
  SHARED_ARRAY(float, warp_maxima, kWarp);
  v = warp_max(v, where);
  sync_threads(where.part(1));
  if (lane() == 0) warp_maxima[warp()] = v;
  sync_threads(where.part(2));
  return warp_max(warp_maxima[lane() < warps() ? lane() : 0], where.part(100));
}

// True in all threads of the block that comes last, false in the others; the writes of all blocks
// before their call are then visible. `counter` is 0 before the launch and again after it.
__device__ inline bool last_block(unsigned* counter, SIMT_WHERE) {
  SHARED_ARRAY(int, is_last, 1);
  fence();
  sync_threads(where.part(1));
  if (thread() == 0) {
    const auto all = static_cast<unsigned>(blocks() * blocks_y() * blocks_z());
    const bool last = atomic_add(counter, 1u) == all - 1;
    if (last) atomic_exchange(counter, 0u);
    is_last[0] = last ? 1 : 0;
  }
  sync_threads(where.part(2));
  const bool last = is_last[0] != 0;
  fence();
  return last;
}

}  // namespace SIMT_SIDE
}  // namespace snug::simt
