// What `snug calibrate` measured on this machine, and the file that keeps it.
//
// File      calibration-KEY.json in $XDG_CACHE_HOME/snug, else ~/.cache/snug (XDG base directory
//           specification: a path that is not absolute is ignored). It holds for one CPU model, one
//           widest instruction set, one number of threads and one build of Snug.
// Choice    for every class of products and pair of dtypes the fastest kernel of ours, if it beats
// the
//           one matmul_best names by 3 % or more. The library is measured for comparison and never
//           chosen: it takes neither packed operands nor what is fused behind a product, and with
//           it a row's bits would depend on both, hence on memory.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/blas/kernel_table.h"
#include "tools/calibrate/roofs.h"
#include "tools/costs/op_rates.h"

namespace snug {

struct MachineKey {
  std::string cpu, instruction_set, version, build;
  int threads = 0;
};
MachineKey machine_key(int threads);

struct KernelRate {
  MatmulKernel kernel = MatmulKernel::reference;
  double flops = 0;  // FLOP/s of one thread, by its processor time
};
struct MeasuredProduct {
  KernelChoice choice;
  int64_t M = 0, N = 0, K = 0;  // the shape that stands for the class
  std::vector<KernelRate> rates;
};

struct Calibration {
  MachineKey key;
  Roofs roofs;
  std::vector<MeasuredProduct> products;
  OpRates fp32_ops, bf16_ops;  // by the compute dtype of the model they are in
  double seconds = 0;          // it took
  // The share of that time in which a thread was ready and other work had its processor.
  double waited = 0;
  KernelTable table() const;
};

// What the margin makes of the rates of one product; `usual` is what matmul_best names.
MatmulKernel fastest_kernel(const std::vector<KernelRate>& rates, MatmulKernel usual);

// Measures. `seconds`: about how long; more rounds make the best of them better.
Calibration calibrate(int threads, double seconds = 15);

// NAME.json in that folder; empty if the environment names none.
std::string calibration_file(const std::string& name);
std::string calibration_path(const MachineKey& key);
nlohmann::json calibration_json(const Calibration& c);
// Creates the folder; the file is seen whole or not at all. Throws device.
void write_calibration(const std::string& path, const Calibration& c);
void write_calibration_file(const std::string& path, const nlohmann::json& calibration);
// Nothing if there is no file, and nothing with a reason in `ignored` if it cannot be used. Throws
// nothing.
std::optional<Calibration> read_calibration(const std::string& path, const MachineKey& key,
                                            std::string* ignored);

// The table of this machine's calibration for a run with so many threads; an empty one without.
KernelTable calibrated_kernels(int threads, std::string* ignored);

}  // namespace snug
