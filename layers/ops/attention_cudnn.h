// Attention of layers/ops/attention.h by cuDNN on a GPU (Settings::cudnn), which is loaded when it
// is first wanted; the descriptions of its graphs come from the cudnn-frontend headers.
//
// Modes     bf16 and f16, causal and bidirectional, G <= H, D a multiple of 8 up to 128. What is
//           left is the kernel's: f32, which cuDNN has not; dropout, whose mask it draws by a key
//           of its own and not by (seed, step, site, sample, position, channel); key lengths,
//           documents, windows.
// Numerics  softmax, lse and sums in fp32, one rounding on the way out, as the kernel. Different:
//           p and ds are rounded to the 16-bit type where a product takes them (as the form `pairs`
//           of the CPU, with its bounds), the order of sums is the library's, and so follows its
//           version and the GPU. Backward with its deterministic algorithm: equal bits again.
// Memory    a cap by shape, so that a plan needs no device; a graph that wants more is refused.
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

int64_t attention_cudnn_scratch(int64_t B, int64_t T, const AttentionSpec& spec, bool backward);
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

// "9.19.0"; empty where there is none. Numbers depend on it.
std::string cudnn_version();
// "cuDNN 9.19.0 (libcudnn.so.9)", or why there is none.
std::string describe_cudnn();

}  // namespace snug
