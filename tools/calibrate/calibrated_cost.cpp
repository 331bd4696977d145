#include "tools/calibrate/calibrated_cost.h"

#include <algorithm>

namespace snug {

CostModel calibrated_cost(const Calibration& c, DType compute) {
  Rates r = CostModel::uncalibrated(c.key.instruction_set, c.key.threads).rates();
  r.memory = c.roofs.copy_bytes;
  r.link = c.roofs.copy_bytes / 2;  // bytes copied, not read and written
  r.vector = c.roofs.fp32_flops / 8;
  r.fp32_matrix = c.roofs.fp32_flops * 0.7;
  r.bf16_matrix = c.roofs.flops(true) * 0.5;
  r.fp32_attention = r.fp32_matrix / 2;
  r.bf16_attention = r.bf16_matrix / 2;
  return CostModel::measured("calibrated on this machine", r,
                             compute == DType::bf16 ? c.bf16_ops : c.fp32_ops);
}

CostModel calibrated_cost(const DeviceCalibration& c, DType compute, bool tf32) {
  const auto best = [&](DType dtype, bool rounded) {
    double flops = 0;
    for (const ProductRate& p : c.products)
      if (p.dtype == dtype && p.tf32 == rounded) flops = std::max(flops, p.flops);
    return flops;
  };
  Rates r = {.fp32_matrix = tf32 ? best(DType::f32, true) : best(DType::f32, false),
             .bf16_matrix = best(DType::bf16, false),
             .fp32_attention = c.roofs.fp32_flops / 2,
             .bf16_attention = c.roofs.bf16_flops / 8,
             .vector = c.roofs.fp32_flops / 8,
             .memory = c.roofs.memory_bytes(),
             .link = std::min(c.to_host, c.to_device),
             .op = c.launch,
             .half_rate_rows = 0,
             .kernels_in_bf16 = compute == DType::bf16};
  // What is of f16 is recorded as if it were of f32 (engine/blas/kernel_table.h).
  if (compute == DType::f16) {
    r.fp32_matrix = best(DType::f16, false);
    r.fp32_attention = r.bf16_attention;
  }
  return CostModel::measured("calibrated on " + c.key.device, r, c.ops(compute, tf32));
}

}  // namespace snug
