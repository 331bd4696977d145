// Seconds from ops: what a plan's programs will take, before they run.
//
//   measured   an op of a kind and a size that `snug calibrate` timed on this machine (op_rates.h)
//   rates      every other one: max(FLOPs / rate of its kind, bytes / bandwidth) + a constant, and of
//              products on a CPU the sum of both
//
// The rates are those of the calibration, of a described device (targets.h), or, where nothing was
// measured, careful ones for the instruction set; the plan says which.
#pragma once

#include <memory>
#include <string>

#include "tools/costs/op_rates.h"

namespace snug {

// Bytes a second that a disk is supposed to read or write.
inline constexpr double kDiskRate = 500e6;

// Whether the op's time is the disk's.
bool on_disk(const OpRecord& op);

struct Rates {
  double fp32_matrix = 0, bf16_matrix = 0;        // FLOP/s of products
  double fp32_attention = 0, bf16_attention = 0;  // FLOP/s
  double vector = 0;                              // FLOP/s of everything else, in fp32
  double memory = 0;                              // bytes/s
  double link = 0;                                // bytes/s between device and host
  double op = 0;                                  // seconds to start an op
  double disk = kDiskRate;  // bytes/s of the file below the memory, either way
  // Between `ranks` (links.h); 0: they share memory.
  double rank_link = 0, rank_latency = 0;
  int ranks = 1;
  // A product of so many rows runs at half its rate: a wide device is not filled by a few. 0: none.
  double half_rate_rows = 0;
  // A product's traffic takes time beside its sums: on CPUs the gradient of a head's weights, added to
  // for 64 rows of logits at a time, took 12.3 ms where sums alone take 8.7 and traffic alone 5.3.
  bool product_traffic_adds = false;
  // Ops of attention by a GPU's kernels do not say what they multiply: bf16, on its matrix units.
  bool kernels_in_bf16 = false;
};

class CostModel {
 public:
  enum class Source { uncalibrated, calibrated, described, emulated };

  // Of this machine, from what is known without measuring.
  static CostModel uncalibrated(const std::string& instruction_set, int threads);
  // Of what was measured (tools/calibrate/calibrated_cost.h): `ops` where they know an op, else
  // `rates`.
  static CostModel measured(const std::string& text, const Rates& rates, const OpRates& ops);
  // Of the emulator, roughly: it is there to show what kernels do, not how fast.
  static CostModel emulated();
  // Of a GPU that was not measured, by its number of multiprocessors, at the low end.
  static CostModel uncalibrated_gpu(const std::string& name, int multiprocessors, int capability,
                                    DType compute);
  static CostModel described(const std::string& device, const Rates& rates);

  // `rows` of a micro-batch; they matter where half_rate_rows is set.
  double seconds(const OpRecord& op, int64_t rows) const;
  // Of them, what lies between an op and the next; 0 where that was not measured.
  double between() const { return ops_.between(); }
  // Whether products of packed weights and the packing were measured; if not, they are predicted as
  // without, and packing as what memory takes.
  bool packing() const { return ops_.packing(); }
  // Of copies one way of so many bytes together, at least, however many they are.
  double copies_seconds(double bytes) const;
  // Its ops in order, on the streams they are on.
  double seconds(const Program& program, int64_t rows) const;
  Source source() const { return source_; }
  // "calibrated on this machine", "uncalibrated: assumed rates of avx512", "described: rtx4090".
  const std::string& text() const { return text_; }
  const Rates& rates() const { return rates_; }
  // What the host beside the device takes for its own ops; null: not known, and as the device.
  const CostModel* host() const { return host_.get(); }
  // Of another than the assumed one: "calibrated", or the key that says it.
  void state_disk(double rate, const std::string& from) { rates_.disk = rate, disk_from_ = from; }
  const std::string& disk_from() const { return disk_from_; }
  void set_host(const CostModel& host) { host_ = std::make_shared<const CostModel>(host); }

 private:
  Source source_ = Source::uncalibrated;
  std::string text_;
  Rates rates_;
  OpRates ops_;
  std::shared_ptr<const CostModel> host_;
  std::string disk_from_ = "assumed";
};

}  // namespace snug
