// snug calibrate: measures once what this machine can do and which kernels are fastest on it.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "tools/calibrate/calibration.h"
#include "tools/calibrate/device_calibration.h"
#include "tools/calibrate/disk_calibration.h"
#include "tools/cli/argument_parser.h"
#include "tools/commands.h"
#include "tools/session/device_choice.h"
#include "tools/session/tell.h"
#include "tools/setup/setup.h"

namespace snug {
namespace {

void check_cache_folder(const std::string& path) {
  if (path.empty())
    fail(ErrorCode::usage, "a folder for the result: XDG_CACHE_HOME or HOME as an absolute path",
         "neither", "XDG_CACHE_HOME=$PWD/cache snug calibrate");
}

constexpr double kBusy = 0.05;  // more waiting than this and the rates are another machine's

// Behind what was measured: that it is too slow, or how to measure anew what was measured before.
void print_end(double waited, bool measured, std::string_view of) {
  if (waited > kBusy)
    fmt::print(
        "Other work had the processors in {:.0f} % of that time, so what was measured is too slow: "
        "snug calibrate {}--force measures again, best on an idle machine.\n",
        100 * waited, of);
  else if (!measured)
    fmt::print("--force measures again.\n");
}

void print(const Calibration& c, const std::string& path, bool measured) {
  fmt::print("{} ({}), {} thread{}\n\n", c.key.cpu, c.key.instruction_set, c.key.threads,
             c.key.threads == 1 ? "" : "s");
  fmt::print("{:<26}{:>9.0f} GFLOP/s\n", "fp32 multiply-adds", c.roofs.fp32_flops * 1e-9);
  if (c.roofs.bf16_flops > 0)
    fmt::print("{:<26}{:>9.0f} GFLOP/s\n", "bf16 multiply-adds", c.roofs.bf16_flops * 1e-9);
  fmt::print("{:<26}{:>9.1f} GB/s\n", "memory, read", c.roofs.read_bytes * 1e-9);
  fmt::print("{:<26}{:>9.1f} GB/s read and written\n", "memory, copied", c.roofs.copy_bytes * 1e-9);
  fmt::print("{:<26}{:>9.1f} GB/s read and written\n\n", "memory, past the caches",
             c.roofs.stream_bytes * 1e-9);
  fmt::print("{:<22}{:<12}{:<16}{}\n", "products", "operands", "kernel", "GFLOP/s of one thread");
  for (const MeasuredProduct& m : c.products) {
    std::string rates;
    for (const KernelRate& r : m.rates)
      rates += fmt::format("{}{} {:.0f}", rates.empty() ? "" : ", ", to_string(r.kernel),
                           r.flops * 1e-9);
    fmt::print("{:<22}{:<12}{:<16}{}\n", to_string(m.choice.shapes),
               fmt::format("{} {}", to_string(m.choice.a), to_string(m.choice.b)),
               to_string(m.choice.kernel), rates);
  }
  fmt::print("\n{} {}; plan, train, eval and generate use it. It took {:.1f} s.\n",
             measured ? "Written to" : "Measured before, in", path, c.seconds);
  print_end(c.waited, measured, "");
}

void print(const DeviceCalibration& c, const std::string& path, bool measured) {
  fmt::print("{}\n{}\n\n", c.key.libraries, to_string(c.roofs));
  fmt::print("{:<26}{:>9.1f} GB/s to the device, {:.1f} to the host\n", "link, pinned memory",
             c.to_device * 1e-9, c.to_host * 1e-9);
  fmt::print("{:<26}{:>9.2f} us an op, {:.2f} in a graph\n", "launches", c.launch * 1e6,
             c.graph_launch * 1e6);
  fmt::print(
      "{:<26}context {}, code and libraries {}, graphs {}; a plan of {} layers "
      "takes {}\n\n",
      "runtime", c.runtime.context < 0 ? "not known" : human_bytes(c.runtime.context),
      human_bytes(c.runtime.libraries), human_bytes(c.runtime.graphs), RuntimeParts::kGraphLayers,
      human_bytes(c.runtime.planned()));
  fmt::print("{:<22}{:<8}{:>22}  {}\n", "products", "dtype", "M x N x K", "TFLOP/s");
  for (const ProductRate& p : c.products)
    fmt::print("{:<22}{:<8}{:>22}  {:.2f}\n", to_string(p.shapes),
               p.tf32 ? "tf32" : to_string(p.dtype), fmt::format("{} x {} x {}", p.M, p.N, p.K),
               p.flops * 1e-12);
  for (const AttentionRate& a : c.attention)
    fmt::print("attention, heads of {}, {} tokens: {:.3f} ms by our kernel, {} by cuDNN\n", a.D,
               a.T, a.own * 1e3,
               a.cudnn < 0 ? std::string("not taken") : fmt::format("{:.3f}", a.cudnn * 1e3));
  fmt::print("\n{} {}; plans for this device use it. It took {:.1f} s.\n",
             measured ? "Written to" : "Measured before, in", path, c.seconds);
  if (!measured) fmt::print("--force measures again.\n");
}

void print(const DiskCalibration& c, const std::string& path, bool measured) {
  fmt::print("{}, a file of {}{}\n\n", c.disk, human_bytes(c.file_bytes),
             c.direct ? "" : ", written through the page cache");
  fmt::print("{:<26}{:>9.2f} GB/s\n", "read, in turn with writing", c.read_bytes * 1e-9);
  fmt::print("{:<26}{:>9.2f} GB/s\n", "written", c.written_bytes * 1e-9);
  fmt::print(
      "\n{} {}; plans with offload_optimizer=disk there use {:.2f} GB/s. It took {:.1f} s.\n",
      measured ? "Written to" : "Measured before, in", path, c.rate() * 1e-9, c.seconds);
  print_end(c.waited, measured, "disk=FOLDER ");
}

// What is to be measured, the only word that may stand beside flags: of device=WORD or disk=FOLDER.
struct What {
  std::string device = "cpu", disk;
};
What what_of(const std::vector<std::string>& words) {
  What what;
  if (words.empty()) return what;
  const std::string& word = words.front();
  const size_t equals = word.find('=');
  const std::string key = word.substr(0, equals);
  if (words.size() > 1 || equals == std::string::npos || equals + 1 == word.size() ||
      (key != "device" && key != "disk"))
    fail(ErrorCode::usage,
         "flags and device=cpu, device=cuda, device=emu or disk=FOLDER after snug calibrate",
         fmt::format("\"{}\"", fmt::join(words, "\", \"")),
         "snug calibrate, or snug calibrate device=cuda for a GPU");
  (key == "device" ? what.device : what.disk) = word.substr(equals + 1);
  return what;
}

// What is kept of this machine or device, or measured now and kept; and prints it.
template <class Key, class Read, class Measure, class Write, class ToJson>
int keep(const std::string& path, const Key& key, bool force, bool json, Read read, Measure measure,
         Write write, ToJson to_json) {
  check_cache_folder(path);
  std::string ignored;
  auto kept = force ? decltype(read(path, key, &ignored)){} : read(path, key, &ignored);
  if (!ignored.empty()) tell(stderr, "Note: {}.\n", ignored);
  const bool measured = !kept;
  if (!kept) {
    kept = measure();
    write(path, *kept);
  }
  if (json) {
    nlohmann::json j = to_json(*kept);
    j["path"] = path;
    j["measured_now"] = measured;
    fmt::print("{}\n", j.dump(2));
  } else {
    print(*kept, path, measured);
  }
  return 0;
}

int calibrate_the_device(const Settings& settings, double seconds, bool force, bool json) {
  const bool gpu = settings.target == Place::cuda;
  GpuRoom room;  // before the key, for which libraries make handles
  if (gpu) room = gpu_room(settings.gpu);
  const DeviceKey key = device_key(settings.target, settings.gpu);
  const auto measure = [&] {
    tell(stderr, "Measuring {} ...\n", key.device);
    const int64_t handles =
        gpu ? std::max<int64_t>(0, room.first_free_bytes - gpu_room(settings.gpu).free_bytes) : 0;
    DeviceCalibration c =
        calibrate_device(settings.target, settings.gpu, seconds, room.context_bytes);
    c.runtime.libraries += handles;
    return c;
  };
  const auto read = [&](const std::string& path, const DeviceKey& of, std::string* ignored) {
    return read_device_calibration(path, of, device_text(settings.target, settings.gpu), ignored);
  };
  return keep(device_calibration_path(key), key, force, json, read, measure,
              write_device_calibration, device_calibration_json);
}

int calibrate_the_disk(const std::string& folder, double seconds, bool force, bool json) {
  std::error_code code;
  if (const std::filesystem::path path = folder;
      std::filesystem::exists(path, code) && !std::filesystem::is_directory(path, code))
    fail(ErrorCode::usage, "a folder to measure a disk in", fmt::format("{}, a file", folder),
         fmt::format("snug calibrate disk={}",
                     path.has_parent_path() ? path.parent_path().string() : "."));
  if (access(folder.c_str(), R_OK | W_OK | X_OK) != 0)
    fail(ErrorCode::usage, "a folder to measure a disk in",
         fmt::format("{}: {}", folder, std::strerror(errno)), "snug calibrate disk=.");
  const std::string disk = disk_of(folder);
  const auto measure = [&] {
    tell(stderr, "Measuring {} ...\n", disk);
    return calibrate_disk(folder, seconds);
  };
  return keep(disk_calibration_path(disk), disk, force, json, read_disk_calibration, measure,
              write_disk_calibration, disk_calibration_json);
}

}  // namespace

int calibrate_command(const Arguments& arguments) {
  int64_t threads = 0;
  double seconds = 15;
  bool json = false, force = false;
  std::vector<std::string> words;
  ArgumentParser parser(
      "calibrate",
      "measures this machine for some 30 seconds: its roofs, which kernel is fastest for "
      "which products, and how long the operations of a step take. Plans predict "
      "with it, and runs started later use the kernels.");
  parser.threads(threads, "threads of the runs it is for; auto: one per core the process may use")
      .option("--seconds", seconds, "S", "about how long to measure; longer is surer")
      .flag("--force", force, "measure again even if it was done")
      .flag("--json", json, "print what was measured as JSON")
      .positionals("device=WORD", words,
                   "cpu; cuda or cuda:N, a GPU: its roofs, products, link, launches, and the "
                   "bytes of its context and libraries; emu: the same of the emulator, to try it. "
                   "Or disk=FOLDER: how fast the disk there reads and writes optimizer states")
      .example("snug calibrate")
      .example("snug calibrate device=cuda")
      .example("snug calibrate disk=. --seconds 5")
      .example("snug calibrate --threads 4 --force --json");
  if (!parser.parse(arguments)) return 0;
  if (!(seconds >= 0 && seconds <= 600))
    fail(ErrorCode::usage, "--seconds from 0 to 600", fmt::format("{}", seconds), "--seconds 15");
  const What what = what_of(words);
  if (!what.disk.empty()) {
    if (parser.given("--threads"))
      fail(ErrorCode::usage, "--threads for device=cpu", "--threads of a disk",
           "leave --threads out");
    return calibrate_the_disk(what.disk, seconds, force, json);
  }
  Settings settings;
  choose_device(settings, what.device, "device");
  if (settings.target != Place::cpu) {
    if (parser.given("--threads"))
      fail(ErrorCode::usage, "--threads for device=cpu", "--threads of a GPU or the emulator",
           "leave --threads out");
    return calibrate_the_device(settings, seconds, force, json);
  }
  const MachineKey key = machine_key(resolve_threads(threads));
  const auto measure = [&] {
    tell(stderr, "Measuring for about {:.0f} s ...\n", seconds);
    return calibrate(key.threads, seconds);
  };
  return keep(calibration_path(key), key, force, json, read_calibration, measure, write_calibration,
              calibration_json);
}

}  // namespace snug
