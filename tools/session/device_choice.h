// Where a run computes: the words of the key `device`, and what a GPU has for it.
#pragma once

#include <string>

#include "engine/device/cuda.h"
#include "engine/memory/context.h"

namespace snug {

// auto: cpu, also where there is a GPU: what a configuration says does not depend on the machine.
inline constexpr const char* kDeviceWords =
    "auto cpu emu cuda cuda:0 cuda:1 cuda:2 cuda:3 cuda:4 cuda:5 cuda:6 cuda:7";

// "cpu", "emu" or "cuda".
const char* device_word(Place place);
Place place_of(const std::string& device);
// As somebody would ask for this one: a GPU that is not the first as "cuda:1".
std::string device_text(Place place, int gpu);
// Sets the place and, for cuda, which GPU; on emu closes the arena to the host, as a GPU does.
// `device` is one of kDeviceWords; throws usage naming `key` otherwise.
void choose_device(Settings& settings, const std::string& device, const char* key);

// What a GPU has before anything is reserved; the driver counts what all processes took.
struct GpuRoom {
  CudaFacts facts;
  int64_t total_bytes = 0, free_bytes = 0;
  // What the process's context took, by NVML before and after it was made: what other processes did
  // meanwhile is in it. -1: not known.
  int64_t context_bytes = -1;
  // What was free right behind it, before libraries made handles.
  int64_t first_free_bytes = -1;
};
// Makes the process's context there, which takes some of it. Throws as make_device() does.
GpuRoom gpu_room(int gpu);
// For a run that says no memory=: what is free less a reserve. At least 1, since 0 is no limit.
int64_t budget_of(int64_t free, int64_t reserve);
// The same of a GPU; sets both.
int64_t gpu_budget(const GpuRoom& room, int64_t* reserve, int64_t* free);
// Throws out_of_memory, with the other processes there if NVML names them, where less is free than
// the arena takes. Does nothing on other places.
void check_gpu_room(const Settings& settings, int64_t engine_bytes);

}  // namespace snug
