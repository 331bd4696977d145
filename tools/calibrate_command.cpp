// snug calibrate: measures once what this machine can do and which kernels are fastest on it.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "tools/cli/argument_parser.h"
#include "tools/commands.h"
#include "tools/trainer/calibration.h"
#include "tools/trainer/setup.h"

namespace snug {
namespace {

constexpr double kBusy = 0.05;  // more waiting than this and the rates are another machine's

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
  if (c.waited > kBusy)
    fmt::print(
        "Other work had the processors in {:.0f} % of that time, so what was measured is too slow: "
        "snug calibrate --force measures again, best on an idle machine.\n",
        100 * c.waited);
  else if (!measured)
    fmt::print("--force measures again.\n");
}

}  // namespace

int calibrate_command(const Arguments& arguments) {
  int64_t threads = 0;
  double seconds = 15;
  bool json = false, force = false;
  ArgumentParser parser(
      "calibrate",
      "measures this machine for some 20 seconds: its roofs, which kernel is fastest for "
      "which products, and how long the operations of a step take. Plans predict "
      "with it, and runs started later use the kernels.");
  parser.option("--threads", threads, "N", "threads of the runs it is for; 0: all cores")
      .option("--seconds", seconds, "S", "about how long to measure; longer is surer")
      .flag("--force", force, "measure again even if it was done")
      .flag("--json", json, "print what was measured as JSON")
      .example("snug calibrate")
      .example("snug calibrate --threads 4 --force --json");
  if (!parser.parse(arguments)) return 0;
  if (threads < 0)
    fail(ErrorCode::usage, "--threads of at least 0", std::to_string(threads), "--threads 2");
  if (!(seconds >= 0 && seconds <= 600))
    fail(ErrorCode::usage, "--seconds from 0 to 600", fmt::format("{}", seconds), "--seconds 15");
  const MachineKey key = machine_key(resolve_threads(threads));
  const std::string path = calibration_path(key);
  if (path.empty())
    fail(ErrorCode::usage, "a folder for the result: XDG_CACHE_HOME or HOME as an absolute path",
         "neither", "XDG_CACHE_HOME=$PWD/cache snug calibrate");
  std::string ignored;
  std::optional<Calibration> c;
  if (!force) c = read_calibration(path, key, &ignored);
  if (!ignored.empty()) fmt::print(stderr, "Note: {}.\n", ignored);
  const bool measured = !c;
  if (!c) {
    fmt::print(stderr, "Measuring for about {:.0f} s ...\n", seconds);
    c = calibrate(key.threads, seconds);
    write_calibration(path, *c);
  }
  if (json) {
    nlohmann::json j = calibration_json(*c);
    j["path"] = path;
    j["measured_now"] = measured;
    fmt::print("{}\n", j.dump(2));
  } else {
    print(*c, path, measured);
  }
  return 0;
}

}  // namespace snug
