#include "tools/session/device_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "engine/core/error.h"
#include "engine/device/nvml.h"

namespace snug {

const char* device_word(Place place) {
  switch (place) {
    case Place::cpu:
      return "cpu";
    case Place::emu:
      return "emu";
    case Place::cuda:
      return "cuda";
    case Place::plan:
      break;
  }
  require(false, "a place that computes");
  return "";
}

std::string device_text(Place place, int gpu) {
  return place == Place::cuda && gpu > 0 ? fmt::format("cuda:{}", gpu) : device_word(place);
}

Place place_of(const std::string& device) {
  if (device == "emu") return Place::emu;
  return device.starts_with("cuda") ? Place::cuda : Place::cpu;
}

void choose_device(Settings& settings, const std::string& device, const char* key) {
  std::istringstream words{std::string(kDeviceWords)};
  std::string word;
  bool known = false;
  while (words >> word) known = known || word == device;
  if (!known)
    fail(ErrorCode::usage, std::string(key) + " as auto, cpu, emu, cuda or cuda:0 to cuda:7",
         device, std::string(key) + (key[0] == '-' ? " cuda" : "=cuda"));
  settings.target = place_of(device);
  settings.gpu = device.size() > 5 ? std::atoi(device.c_str() + 5) : 0;
  // The emulator's thread does copies too: it alone opens the arena.
  const bool emulated = settings.target == Place::emu;
  settings.device_private = emulated;
  settings.streams = emulated ? StreamMode::immediate : StreamMode::worker;
}

GpuRoom gpu_room(int gpu) {
  GpuRoom room;
  const auto used = [&] {
    const auto now = gpu_now(room.facts.pci);
    return now ? now->used_bytes : int64_t{-1};
  };
  // A context is made once; describing a GPU makes none.
  static int64_t context = -1, first_free = -1;
  static bool first = true;
  if constexpr (kCudaBuilt) room.facts = cuda_facts(gpu);
  const int64_t before = first ? used() : -1;
  const MemoryInfo memory = make_device(Place::cuda, gpu)->memory_info();
  if (first && before >= 0) context = std::max<int64_t>(0, used() - before);
  if (first) first_free = memory.available_bytes;
  first = false;
  room.context_bytes = context;
  room.first_free_bytes = first_free;
  room.total_bytes = memory.total_bytes;
  room.free_bytes = memory.available_bytes;
  return room;
}

int64_t budget_of(int64_t free, int64_t reserve) {
  return std::max<int64_t>(1, (free - reserve) / 4096 * 4096);
}

int64_t gpu_budget(const GpuRoom& room, int64_t* reserve, int64_t* free) {
  *free = room.free_bytes;
  *reserve = std::max<int64_t>(int64_t{256} << 20, room.total_bytes / 50);
  return budget_of(*free, *reserve);
}

void check_gpu_room(const Settings& settings, int64_t engine_bytes) {
  if (settings.target != Place::cuda) return;
  const GpuRoom room = gpu_room(settings.gpu);
  if (engine_bytes > room.free_bytes)
    refuse_cuda_memory(room.facts, engine_bytes, room.free_bytes, 0);
}

}  // namespace snug
