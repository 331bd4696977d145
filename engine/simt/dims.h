// The shape of a launch and the limits that hold on every place: the least of compute
// capability 8.0 and up (CUDA C++ Programming Guide, "Technical Specifications per Compute
// Capability"), so that what runs in emulation can be launched on any device we support.
#pragma once

#include <cstdint>

namespace snug::simt {

inline constexpr int kWarp = 32;
inline constexpr int kMaxThreads = 1024;            // of a block
inline constexpr int64_t kMaxBlocksX = 0x7fffffff;  // of a grid
inline constexpr int64_t kMaxBlocksYZ = 65535;
inline constexpr int64_t kMaxStaticShared = 48 * 1024;  // bytes a block, declared in the kernel
// Bytes a block, declared and dynamic together: that of 8.6 and 8.9; 8.0 has 163 KiB, 9.0 227.
inline constexpr int64_t kMaxShared = 99 * 1024;
inline constexpr int64_t kMaxArgumentBytes = 32764;  // of a kernel; CUDA 12.1 and up

// Blocks have one dimension, a multiple of 32; grids have up to three.
struct Dims {
  int64_t blocks = 0;        // along x
  int threads = 0;           // of a block
  int64_t shared_bytes = 0;  // dynamic shared memory of a block, exactly
  int64_t blocks_y = 1, blocks_z = 1;

  bool empty() const { return blocks == 0 || blocks_y == 0 || blocks_z == 0; }
};

// Throws device, naming the kernel and the limit, if no device could run it.
void check_dims(const char* kernel, const Dims& dims);

}  // namespace snug::simt
