// From a configuration to a model and a question for the planner: everything that is known before a
// byte is reserved or a file is written.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/device/processors.h"
#include "engine/text/tokenizer.h"
#include "layers/models/family.h"
#include "layers/models/peft.h"
#include "tools/calibrate/calibration.h"
#include "tools/calibrate/device_calibration.h"
#include "tools/config/run_config.h"
#include "tools/planner/plan.h"
#include "tools/setup/rank_setup.h"
#include "tools/setup/row_data.h"

namespace snug {

struct RunSetup {
  RunConfig config;
  std::optional<Tokenizer> tokenizer;
  std::string model_folder;  // weights to load; empty: random initialisation
  std::unique_ptr<Model> model;
  std::optional<PeftConfig> peft;  // its adapters
  std::string base;                // weights_fingerprint() of the frozen model, once it was read
  // Of a model whose head reads rows, where data is given, and of a causal one where the data is rows
  // of tokens; it has been read.
  std::shared_ptr<RowData> rows;
  RunSizes sizes;
  // What computes the products: this machine's calibration, or what a checkpoint pins. The
  // request's settings point to it.
  std::unique_ptr<KernelTable> kernels;
  std::unique_ptr<CostModel> cost;  // what the request's predictions rest on
  PlanRequest request;
};

// Reads tokenizer and model config and checks that they belong together. Throws usage and data.
// `looks`: to look at the data alone (check_task_keys). `ranks`: what one of several has of its machine.
RunSetup make_setup(RunConfig config, bool looks = false, const RankRoom& ranks = {});
// What a plan by the program's kernel says of cuDNN's, where a calibration of the GPU found that
// faster by kCudnnMargin; else empty.
std::string cudnn_note(const std::optional<DeviceCalibration>& device, int64_t D, int64_t T);
// Throws usage if `config` has a target: what runs does so on this machine.
void refuse_target(const RunConfig& config, const char* command);

// Throws usage for device: emu: a command that measures this machine has nothing to measure there.
void refuse_emulator(const RunConfig& config, const char* command);
// Where `device` says that programs run.
Place resolve_place(const RunConfig& config);

// Threads of the run: what was set, else one for every core this process may use (affinity, control
// group). Says on standard error if what was set is more than the process may use. Throws usage.
int resolve_threads(int64_t configured);
// That line; empty if there is nothing to say.
std::string threads_warning(int64_t configured, const Processors& processors);
// This machine's calibration; says on standard error if there is one that cannot be used.
std::optional<Calibration> resolve_calibration(int threads);
std::unique_ptr<KernelTable> resolve_kernels(int threads);
// Of the processor beside a GPU, with so many threads: what was measured, else what is assumed.
CostModel host_cost(int threads, DType compute);
// The budget: what was set, else what is free less a reserve, which are both stated; 0 where it was
// set. At least 1, since 0 is no limit.
int64_t resolve_memory(int64_t configured, int64_t* reserve, int64_t* free);

}  // namespace snug
