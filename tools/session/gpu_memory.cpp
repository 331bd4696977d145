#include "tools/session/gpu_memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/device/nvml.h"

namespace snug {

void GpuBytes::note_step(int64_t step, int64_t free_bytes) {
  if (step == 1) step_1 = free_bytes;
  if (step == 10) step_10 = free_bytes;
  if (step == 100) step_100 = free_bytes;
}

bool GpuBytes::constant() const {
  const int64_t first = after_warm_up >= 0 ? after_warm_up : step_1;
  for (const int64_t later : {step_1, step_10, step_100})
    if (later >= 0 && later != first) return false;
  return true;
}

int64_t GpuBytes::runtime_bytes(int64_t engine_bytes) const {
  const int64_t now = after_warm_up >= 0 ? after_warm_up : after_arena;
  if (context < 0 || after_context < 0 || now < 0) return -1;
  return context + after_context - now - engine_bytes;
}

nlohmann::json GpuBytes::json() const {
  const auto known = [](int64_t bytes) {
    return bytes < 0 ? nlohmann::json() : nlohmann::json(bytes);
  };
  return {{"context_bytes", known(context)},
          {"free_bytes_after_context", known(after_context)},
          {"free_bytes_before_arena", known(before_arena)},
          {"free_bytes_after_arena", known(after_arena)},
          {"free_bytes_after_warm_up", known(after_warm_up)},
          {"free_bytes_after_step_1", known(step_1)},
          {"free_bytes_after_step_10", known(step_10)},
          {"free_bytes_after_step_100", known(step_100)},
          {"constant", constant()}};
}

int64_t process_gpu_bytes(const std::string& pci) {
  if (const auto now = gpu_now(pci))
    for (const GpuProcess& p : now->processes)
      if (p.pid == getpid()) return p.bytes;
  return -1;
}

std::string check_gpu_runtime(int64_t planned, int64_t measured, bool calibrated, bool own,
                              const std::string& device) {
  if (measured <= planned) return "";
  if (!calibrated)
    return fmt::format(
        "the GPU's context and libraries take {} B, {} were assumed; snug calibrate device={}, "
        "once, measures them for the plan",
        measured, planned, device);
  if (!own)
    return fmt::format(
        "{} B of the GPU's memory went since this process began, {} were measured of context, "
        "libraries and graphs; whether another process took the rest the driver does not say",
        measured, planned);
  fail(ErrorCode::out_of_memory,
       fmt::format("at most {} B ({}) of the GPU's memory for context, libraries and graphs, as "
                   "snug calibrate measured",
                   planned, human_bytes(planned)),
       fmt::format("{} B ({}) before the first step", measured, human_bytes(measured)),
       fmt::format("snug calibrate device={} --force measures again; cuda_graphs=off takes less",
                   device));
}

}  // namespace snug
