// What can be said and refused about GPUs without a header of CUDA. The device itself is in
// device_cuda.cpp, which builds with SNUG_CUDA alone have.
#pragma once

#include <memory>
#include <string>

#include "engine/device/device.h"

namespace snug {

struct CudaFacts {
  std::string name;          // as the driver says it
  std::string pci;           // bus id
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t total_bytes = 0;
  int64_t l2_bytes = 0;
  int driver = 0, runtime = 0;  // CUDA versions: 13000 is 13.0
};

// Of GPU `index`, with kCudaBuilt alone; throws as make_device(Place::cuda, index) does.
CudaFacts cuda_facts(int index);
std::unique_ptr<Device> make_cuda_device(int index);

// "NVIDIA H100, compute capability 9.0, 132 SMs, 80 GiB, CUDA driver 13.0, runtime 13.0"
std::string describe(const CudaFacts& facts);

// Whether SNUG_SYNC_CHECK=1: every launch is waited for, so that an error names its kernel.
bool cuda_sync_check();

// Whether kernels compiled for a list like "80,86,90" (and as PTX for the last) run on a GPU: a
// binary runs on its own major version from its minor one up, PTX on whatever is not older.
bool cuda_kernels_fit(const std::string& architectures, int major, int minor);

// Why there is no place cuda; three parts each.
[[noreturn]] void refuse_no_cuda_build();
// driver: the newest CUDA it serves, 0 if there is none; runtime: that of this build.
[[noreturn]] void refuse_cuda_driver(int driver, int runtime);
[[noreturn]] void refuse_cuda_device(int index, int count);
[[noreturn]] void refuse_cuda_architecture(const CudaFacts& facts,
                                           const std::string& architectures);
// held_bytes: what this process has reserved there already.
[[noreturn]] void refuse_cuda_memory(const CudaFacts& facts, int64_t bytes, int64_t free_bytes,
                                     int64_t held_bytes);

}  // namespace snug
