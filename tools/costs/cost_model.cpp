#include "tools/costs/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/memory/context.h"
#include "engine/memory/simulate.h"
#include "parallel/rank_comm.h"

namespace snug {

CostModel CostModel::uncalibrated(const std::string& instruction_set, int threads) {
  // Of a core, what large products reach on common ones: of 3 GHz times two units about three
  // quarters with AVX2, somewhat more than half with AVX-512; of AMX tiles and of bf16 dot
  // products, whose units differ most, less.
  double fp32 = 2e9, bf16 = 2e9;
  if (instruction_set == "avx2") fp32 = bf16 = 75e9;
  if (instruction_set == "avx512") fp32 = bf16 = 110e9;
  if (instruction_set == "avx512_bf16") fp32 = 110e9, bf16 = 150e9;
  if (instruction_set == "amx_bf16") fp32 = 110e9, bf16 = 550e9;
  CostModel m;
  const double n = threads;
  m.text_ = fmt::format("uncalibrated: assumed rates of {}; snug calibrate, once, measures them",
                        instruction_set);
  m.rates_ = {.fp32_matrix = n * fp32,
              .bf16_matrix = n * bf16,
              .fp32_attention = n * fp32 / 2,
              .bf16_attention = n * bf16 / 2,
              .vector = n * fp32 / 8,
              .memory = std::min(n * 12e9, 60e9),
              .link = std::min(n * 3e9, 10e9),
              .op = 5e-6,
              .product_traffic_adds = true};
  return m;
}

CostModel CostModel::measured(const std::string& text, const Rates& rates, const OpRates& ops) {
  CostModel m;
  m.source_ = Source::calibrated;
  m.text_ = text;
  m.rates_ = rates;
  m.ops_ = ops;
  return m;
}

CostModel CostModel::described(const std::string& device, const Rates& rates) {
  CostModel m;
  m.source_ = Source::described;
  m.text_ = "described: " + device;
  m.rates_ = rates;
  return m;
}

CostModel CostModel::emulated() {
  CostModel m;
  m.source_ = Source::emulated;
  m.text_ = "the emulator's rates, roughly";
  m.rates_ = {.fp32_matrix = 400e6,
              .bf16_matrix = 400e6,
              .fp32_attention = 150e6,
              .bf16_attention = 150e6,
              .vector = 150e6,
              .memory = 1e9,
              .link = 3e9,
              .op = 20e-6};
  return m;
}

CostModel CostModel::uncalibrated_gpu(const std::string& name, int multiprocessors, int capability,
                                      DType compute) {
  CostModel m;
  m.text_ = "uncalibrated: assumed rates of " + name;
  const double n = multiprocessors;
  // What an H200 was measured to do, of 132 multiprocessors; of all others no more than a guess.
  const bool hopper = capability == 90;
  m.rates_ = {.fp32_matrix = n * (hopper ? 0.36e12 : 0.1e12),
              .bf16_matrix = n * (hopper ? 5.3e12 : 1.5e12),
              .fp32_attention = n * 0.08e12,
              .bf16_attention = n * (hopper ? 0.6e12 : 0.3e12),
              .vector = n * (hopper ? 0.13e12 : 0.05e12),
              .memory = n * (hopper ? 22e9 : 10e9),
              .link = hopper ? 50e9 : 12e9,
              .op = 5e-6,
              .half_rate_rows = 1024,
              .kernels_in_bf16 = compute == DType::bf16};
  if (compute == DType::f16) {
    m.rates_.fp32_matrix = m.rates_.bf16_matrix;
    m.rates_.fp32_attention = m.rates_.bf16_attention;
  }
  return m;
}

bool on_disk(const OpRecord& op) {
  return op.stream == kToHost &&
         (std::string_view(op.name) == kReadDisk || std::string_view(op.name) == kWriteDisk);
}

double CostModel::seconds(const OpRecord& op, int64_t rows) const {
  if (on_disk(op)) return rates_.op + static_cast<double>(op.bytes) / rates_.disk;
  if (op.stream == kToHost || op.stream == kToDevice)
    return rates_.op + (rates_.link > 0 ? static_cast<double>(op.bytes) / rates_.link : 0.0);
  if (op.on_host && host_) return host_->seconds(op, rows);
  if (op.link_bytes > 0) {
    OpRecord rest = op;
    rest.bytes -= op.link_bytes;
    rest.link_bytes = 0;
    return seconds(rest, rows) + copies_seconds(static_cast<double>(op.link_bytes));
  }
  if (rates_.rank_link > 0)
    if (const int64_t bytes = received_bytes(op, rates_.ranks); bytes >= 0)
      return rates_.op + static_cast<double>(bytes) / rates_.rank_link +
             rates_.rank_latency * std::ceil(std::log2(rates_.ranks));
  if (const double measured = ops_.seconds(op); measured >= 0) return measured + between();
  const std::string_view variant = op.variant.view();
  const bool narrow = variant.find("bf16 bf16") != std::string_view::npos;
  const bool kernels = variant == "attention cuda" || variant == "attention cudnn";
  double rate = rates_.vector;
  if (variant.starts_with("attention"))
    rate = narrow || (kernels && rates_.kernels_in_bf16) ? rates_.bf16_attention
                                                         : rates_.fp32_attention;
  else if (!variant.empty())
    rate = narrow ? rates_.bf16_matrix : rates_.fp32_matrix;
  if (!variant.empty() && rates_.half_rate_rows > 0)
    rate *= static_cast<double>(rows) / (static_cast<double>(rows) + rates_.half_rate_rows);
  const double sums = static_cast<double>(op.flops) / rate;
  const double traffic = static_cast<double>(op.bytes) / rates_.memory;
  const bool product = !variant.empty() && !variant.starts_with("attention");
  return (product && rates_.product_traffic_adds ? sums + traffic : std::max(sums, traffic)) +
         rates_.op + between();
}

double CostModel::copies_seconds(double bytes) const {
  return rates_.link > 0 ? bytes / rates_.link : 0.0;
}

double CostModel::seconds(const Program& program, int64_t rows) const {
  std::vector<double> list;
  list.reserve(program.ops.size());
  for (const OpRecord& op : program.ops) list.push_back(seconds(op, rows));
  return last_end(op_spans(program, list));
}

}  // namespace snug
