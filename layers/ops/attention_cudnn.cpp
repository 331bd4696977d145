// What is decided about cuDNN without it.
#include "layers/ops/attention_cudnn.h"

#include "engine/core/units.h"

namespace snug {

bool attention_cudnn_takes(DType dtype, const AttentionSpec& spec) {
  return (dtype == DType::bf16 || dtype == DType::f16) && spec.D % 8 == 0 && spec.D <= 128 &&
         spec.window == 0 && spec.softcap == 0 && spec.dropout == 0 &&
         !spec.document_start.defined();
}

bool attention_by_cudnn(const Context& ctx, const View& qkv, const AttentionSpec& spec) {
  return ctx.settings().cudnn && ctx.target() == Place::cuda &&
         attention_cudnn_takes(qkv.dtype, spec);
}

// Forward wants next to nothing. Backward, deterministic, has ds of every pair in 16 bits and delta
// in float, and with fewer key heads dk and dv of every query head before they are added.
CudnnScratch attention_cudnn_scratch(int64_t B, int64_t T, const AttentionSpec& spec,
                                     bool backward) {
  constexpr int64_t kFixed = int64_t{4} << 20, kPart = 256;
  const int64_t heads = B * spec.H, whole = round_up(T, 128);
  CudnnScratch s;
  s.graph = kFixed;
  if (backward) {
    s.graph += heads * whole * (2 * whole + 4);
    if (spec.G < spec.H) s.graph += 2 * heads * whole * spec.D * 2;
  }
  if (spec.key_lengths.defined()) s.lengths = round_up(B * 4, kPart);
  return s;
}

Tensor attention_cudnn_workspace(Context& ctx, const View& qkv, int64_t B, int64_t T,
                                 const AttentionSpec& spec, bool backward) {
  static const Name kWorkspace("attention.cudnn");
  if (!attention_by_cudnn(ctx, qkv, spec)) return {};
  return ctx.tensor(kWorkspace, {attention_cudnn_scratch(B, T, spec, backward).total()}, DType::u8,
                    Category::workspace);
}

}  // namespace snug
