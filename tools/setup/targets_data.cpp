// The described devices. TFLOP/s dense, sums in fp32; GB/s; bytes: memory is the total that NVIDIA's
// driver reports of a card (nvidia-smi), which is less than the name on the box. Where a maker publishes a rate
// for sparse operands alone it is halved.
#include "tools/setup/targets.h"

namespace snug {

const char* const kTargetsJson = R"json([
{"name": "rtx3060", "title": "NVIDIA GeForce RTX 3060, 12 GB", "memory_bytes": 12884901888,
 "runtime_bytes": 734003200, "fp32_tflops": 12.7, "tf32_tflops": 12.7, "bf16_tflops": 25.5,
 "fp16_tflops": 25.5, "memory_gbytes_per_second": 360, "link_gbytes_per_second": 31.5,
 "source": "NVIDIA product page (3584 cores, 1.78 GHz, 360 GB/s); tensor rates by the GA10x whitepaper's 128 FLOP a tensor core and clock"},
{"name": "rtx3090", "title": "NVIDIA GeForce RTX 3090, 24 GB", "memory_bytes": 25769803776,
 "runtime_bytes": 734003200, "fp32_tflops": 35.6, "tf32_tflops": 35.6, "bf16_tflops": 71.2,
 "fp16_tflops": 71.2, "memory_gbytes_per_second": 936, "link_gbytes_per_second": 31.5,
 "source": "NVIDIA Ampere GA102 GPU architecture whitepaper"},
{"name": "rtx4090", "title": "NVIDIA GeForce RTX 4090, 24 GB", "memory_bytes": 25757220864,
 "runtime_bytes": 734003200, "fp32_tflops": 82.6, "tf32_tflops": 82.6, "bf16_tflops": 165.2,
 "fp16_tflops": 165.2, "memory_gbytes_per_second": 1008, "link_gbytes_per_second": 31.5,
 "source": "NVIDIA Ada GPU architecture whitepaper"},
{"name": "rtx5090", "title": "NVIDIA GeForce RTX 5090, 32 GB", "memory_bytes": 34190917632,
 "runtime_bytes": 734003200, "fp32_tflops": 104.8, "tf32_tflops": 104.8, "bf16_tflops": 209.5,
 "fp16_tflops": 209.5, "memory_gbytes_per_second": 1792, "link_gbytes_per_second": 63,
 "source": "NVIDIA RTX Blackwell GPU architecture whitepaper"},
{"name": "a100-40", "title": "NVIDIA A100 SXM, 40 GB", "memory_bytes": 42949672960,
 "runtime_bytes": 734003200, "fp32_tflops": 19.5, "tf32_tflops": 156, "bf16_tflops": 312,
 "fp16_tflops": 312, "memory_gbytes_per_second": 1555, "link_gbytes_per_second": 31.5,
 "source": "NVIDIA A100 datasheet"},
{"name": "a100-80", "title": "NVIDIA A100 SXM, 80 GB", "memory_bytes": 85899345920,
 "runtime_bytes": 734003200, "fp32_tflops": 19.5, "tf32_tflops": 156, "bf16_tflops": 312,
 "fp16_tflops": 312, "memory_gbytes_per_second": 2039, "link_gbytes_per_second": 31.5,
 "source": "NVIDIA A100 datasheet"},
{"name": "h100", "title": "NVIDIA H100 SXM, 80 GB", "memory_bytes": 85520809984,
 "runtime_bytes": 734003200, "fp32_tflops": 67, "tf32_tflops": 494.5, "bf16_tflops": 989.5,
 "fp16_tflops": 989.5, "memory_gbytes_per_second": 3350, "link_gbytes_per_second": 63,
 "source": "NVIDIA H100 datasheet, half of the rates with sparsity"},
{"name": "h200", "title": "NVIDIA H200 SXM, 141 GB", "memory_bytes": 150754820096,
 "runtime_bytes": 734003200, "fp32_tflops": 67, "tf32_tflops": 494.5, "bf16_tflops": 989.5,
 "fp16_tflops": 989.5, "memory_gbytes_per_second": 4800, "link_gbytes_per_second": 63,
 "source": "NVIDIA H200 datasheet, half of the rates with sparsity"},
{"name": "t4", "title": "NVIDIA T4, 16 GB", "memory_bytes": 16106127360,
 "runtime_bytes": 734003200, "fp32_tflops": 8.1, "tf32_tflops": 0, "bf16_tflops": 0,
 "fp16_tflops": 65, "memory_gbytes_per_second": 300, "link_gbytes_per_second": 15.75,
 "source": "NVIDIA T4 datasheet; 15 GiB are left with error correction on"},
{"name": "l4", "title": "NVIDIA L4, 24 GB", "memory_bytes": 24152899584,
 "runtime_bytes": 734003200, "fp32_tflops": 30.3, "tf32_tflops": 60, "bf16_tflops": 121,
 "fp16_tflops": 121, "memory_gbytes_per_second": 300, "link_gbytes_per_second": 31.5,
 "source": "NVIDIA L4 datasheet, half of the rates with sparsity"},
{"name": "cpu-8", "title": "8 cores with AVX2, 32 GiB of DDR5", "memory_bytes": 34359738368,
 "runtime_bytes": 134217728, "shares_host": true, "fp32_tflops": 1.15, "tf32_tflops": 0, "bf16_tflops": 0,
 "fp16_tflops": 0, "memory_gbytes_per_second": 89.6, "link_gbytes_per_second": 44.8,
 "source": "arithmetic: 8 cores x 32 FLOP a clock x 4.5 GHz; two channels of DDR5-5600"}
])json";

}  // namespace snug
