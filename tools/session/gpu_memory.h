// What the driver says of a GPU's memory while a run goes, and what that makes of its runtime
// bytes.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace snug {

// Free bytes; -1: not asked, or not known.
struct GpuBytes {
  int64_t after_context = -1;  // before libraries made handles
  int64_t before_arena = -1, after_arena = -1;
  int64_t after_warm_up = -1;  // what comes later is compared with it; without one with step_1
  int64_t step_1 = -1, step_10 = -1, step_100 = -1;  // of this process
  int64_t context = -1;                              // bytes that the process's context took

  void note_step(int64_t step, int64_t free_bytes);
  // Whether nothing was taken or given back by any of the steps that were looked at.
  bool constant() const;
  // Bytes there that are not the arena: of the context, of libraries' handles, and what the warm-up
  // took. -1: not known.
  int64_t runtime_bytes(int64_t engine_bytes) const;
  nlohmann::json json() const;
};

// What this process has of the GPU's memory by NVML, `pci` as in gpu_now(); -1: it does not say.
int64_t process_gpu_bytes(const std::string& pci);

// Before the first step: bytes that were measured of the libraries' side and planned for it. Where
// the plan's come from `snug calibrate` they are part of the budget: throws out_of_memory if more
// are taken, and if they are known to be this process's (`own`), not what became of the whole
// device's free bytes, which others take too. Else a line to print; empty if there is nothing to
// say. `device` is what snug calibrate is told to measure, "cuda:1".
std::string check_gpu_runtime(int64_t planned, int64_t measured, bool calibrated, bool own,
                              const std::string& device);

}  // namespace snug
