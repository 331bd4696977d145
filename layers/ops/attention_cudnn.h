// Attention of layers/ops/attention.h by cuDNN on a GPU (Settings::cudnn), which is loaded when it
// is first wanted; the descriptions of its graphs come from the cudnn-frontend headers.
//
// Modes     bf16 and f16, causal and bidirectional, G <= H, D a multiple of 8 up to 128, key
//           lengths. What is left is the kernel's: f32, which cuDNN has not; documents, causal or
//           not; windows; dropout.
// Dropout   cuDNN draws its bits by a key of its own and a place in the batch, so another number of
//           micro-batches would give other numbers; handed the mask of attention.h instead, its
//           deterministic backward gave wrong dk on an H200 with G < H (by 15 to 32 %).
// Padding   cuDNN hides keys and queries behind a length each: those of the queries are all T, so
//           the numbers are those of attention.h. Rows of dk and dv behind a length are cleared.
// Numerics  softmax, lse and sums in fp32, one rounding on the way out, as the kernel. Different:
//           p and ds are rounded to the 16-bit type where a product takes them (as the form `pairs`
//           of the CPU, with its bounds), the order of sums is the library's, and so follows its
//           version and the GPU. Backward with its deterministic algorithm: equal bits again.
// Memory    a cap by shape, so that a plan needs no device; algorithms that want more are not used.
//           Deterministic, backward of cuDNN holds ds of every pair: 2 B H T^2 bytes (found by
//           asking 9.19 for compute capabilities 8.0, 8.9 and 9.0; without that it is linear in T).
// Errors    unsupported where the library is absent or refuses the shape: nothing is computed in
//           another way than was planned.
#pragma once

#include <string>

#include "engine/simt/cuda_queue.h"
#include "layers/ops/attention.h"

namespace snug {

bool attention_cudnn_takes(DType dtype, const AttentionSpec& spec);
// Whether attention of `ctx` runs by it, or on plan will run.
bool attention_by_cudnn(const Context& ctx, const View& qkv, const AttentionSpec& spec);

// Bytes of one workspace, whose parts follow each other: the library's own, at most; the lengths
// (B) i32 of the queries. Parts begin at multiples of 256.
struct CudnnScratch {
  int64_t graph = 0, lengths = 0;
  int64_t total() const { return graph + lengths; }
};
CudnnScratch attention_cudnn_scratch(int64_t B, int64_t T, const AttentionSpec& spec,
                                     bool backward);
// Undefined where the kernel computes.
Tensor attention_cudnn_workspace(Context& ctx, const View& qkv, int64_t B, int64_t T,
                                 const AttentionSpec& spec, bool backward);

// With a build that has the place cuda alone.
void attention_cudnn_forward(const simt::cuda::Queue& queue, const View& out, const View& lse,
                             const View& qkv, int64_t B, int64_t T, const AttentionSpec& spec,
                             const View& workspace);
void attention_cudnn_backward(const simt::cuda::Queue& queue, const View& dqkv, const View& dout,
                              const View& qkv, const View& out, const View& lse, int64_t B,
                              int64_t T, const AttentionSpec& spec, const View& workspace);

// Bytes that the library would take of CudnnScratch::graph on a GPU that is described by what
// cuDNN serialises of one, without it: its kernels are chosen and compiled. `capability` as 90.
// Throws unsupported as the ops do.
int64_t attention_cudnn_asks(const std::string& gpu_json, int capability, DType dtype, int64_t B,
                             int64_t T, const AttentionSpec& spec, bool backward);

// "9.19.0"; empty where there is none. Numbers depend on it.
std::string cudnn_version();
// "cuDNN 9.19.0 (libcudnn.so.9)", or why there is none.
std::string describe_cudnn();

}  // namespace snug
