// A queue of launches on a device, in words that need no header of CUDA, so that host code can hand
// one to a launcher which nvcc compiled.
#pragma once

struct CUstream_st;  // the runtime's cudaStream_t points to one

namespace snug::simt::cuda {

struct Queue {
  CUstream_st* stream = nullptr;
  // Wait after every launch, so that an error names the kernel that made it.
  bool sync_check = false;
};

}  // namespace snug::simt::cuda
