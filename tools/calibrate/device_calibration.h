// What `snug calibrate device=cuda` measures on a GPU, and the file that keeps it. The same code
// measures the emulator (device=emu), in small: what comes out says nothing of a device, it shows
// that what a GPU is asked can be asked.
//
// File      device-calibration-KEY.json beside the CPU's (calibration.h). It holds for one model of
//           GPU, the versions of driver, CUDA and cuBLASLt, and one build of Snug.
// Times     are the device's own, between two marks of a stream (Device::mark).
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/blas/kernel_table.h"
#include "tools/calibrate/roofs.h"
#include "tools/costs/op_rates.h"

namespace snug {

inline constexpr const char* kEmulatorName = "the emulator";
struct DeviceKey {
  std::string device;     // "NVIDIA H200, compute capability 9.0", or kEmulatorName
  std::string libraries;  // "driver 13.0, CUDA 13.0, cuBLASLt 13.1.0"
  std::string version, build;

  friend bool operator==(const DeviceKey&, const DeviceKey&) = default;
};
// place: cuda or emu. Throws as make_device does.
DeviceKey device_key(Place place, int gpu);

struct ProductRate {
  ProductClass shapes;
  DType dtype = DType::f32;
  bool tf32 = false;
  int64_t M = 0, N = 0, K = 0;  // the shape that stands for the class
  double flops = 0;             // FLOP/s
};

// Causal attention of 16 bits, forward and backward: seconds by our kernel and by cuDNN.
struct AttentionRate {
  int64_t D = 0, T = 0;
  double own = 0, cudnn = -1;  // cudnn: -1, it is not there or refused the shape
};

// Bytes of a GPU that are not the arena. Never fitted: as the driver counted them.
struct RuntimeParts {
  int64_t context = -1;   // -1: NVML did not tell
  int64_t libraries = 0;  // code that was loaded, handles, what they keep
  int64_t graphs = 0;     // of the programs of kGraphLayers layers
  static constexpr int64_t kGraphLayers = 24;
  static constexpr int64_t kUnknownContext = int64_t{512} << 20;
  static constexpr int64_t kRoom = int64_t{64} << 20;

  // What a plan for so many layers takes for them: graphs of twice as many, of kGraphLayers at
  // least, and kRoom; a whole number of MiB.
  int64_t planned(int64_t layers = kGraphLayers) const;
};

struct DeviceCalibration {
  DeviceKey key;
  Roofs roofs;
  std::vector<ProductRate> products;
  std::vector<AttentionRate> attention;
  double to_host = 0, to_device = 0;    // bytes/s between pinned memory of the host and the device
  double launch = 0, graph_launch = 0;  // seconds from an op to the next one, both empty
  RuntimeParts runtime;
  OpRates fp32_ops, bf16_ops, fp16_ops;
  OpRates tf32_ops;    // of fp32 with rounded products; empty where there is no such mode
  double seconds = 0;  // it took

  const OpRates& ops(DType compute, bool tf32) const;

  // How many times as fast cuDNN was for heads of the next size and the next length; 0: not known.
  double cudnn_speedup(int64_t D, int64_t T) const;
};
// Below it the choice of `attn_implementation: auto` is our kernel.
inline constexpr double kCudnnMargin = 1.03;

// The roofs alone, with what memory there is beside a run: products of large squares by the
// library, and reading and copying arrays that no cache holds.
Roofs measure_device_roofs(Place place, int gpu);

// context_bytes: what the process's context took there, -1 if that is not known. free_bytes: what
// the driver says is free; tests say it themselves.
DeviceCalibration calibrate_device(Place place, int gpu, double seconds, int64_t context_bytes,
                                   const std::function<int64_t()>& free_bytes = nullptr);

std::string device_calibration_path(const DeviceKey& key);
nlohmann::json device_calibration_json(const DeviceCalibration& c);
void write_device_calibration(const std::string& path, const DeviceCalibration& c);
// As read_calibration; `device` is what snug calibrate is told to measure it again, "cuda:1".
std::optional<DeviceCalibration> read_device_calibration(const std::string& path,
                                                         const DeviceKey& key,
                                                         const std::string& device,
                                                         std::string* ignored);

}  // namespace snug
