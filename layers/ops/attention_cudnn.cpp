// What is decided about cuDNN without it.
#include "layers/ops/attention_cudnn.h"

#include "engine/core/units.h"

namespace snug {

bool attention_cudnn_takes(DType dtype, const AttentionSpec& spec) {
  return (dtype == DType::bf16 || dtype == DType::f16) && spec.D % 8 == 0 && spec.D <= 128 &&
         spec.dropout == 0 && spec.window == 0 && spec.softcap == 0 &&
         !spec.key_lengths.defined() && !spec.document_start.defined();
}

bool attention_by_cudnn(const Context& ctx, const View& qkv, const AttentionSpec& spec) {
  return ctx.settings().cudnn && ctx.target() == Place::cuda &&
         attention_cudnn_takes(qkv.dtype, spec);
}

// Forward wants next to nothing. Backward sums dq in float and, with fewer key heads, has dk and dv
// of every query head before they are added; the library may want as much again for an order of
// sums that is always the same.
int64_t attention_cudnn_scratch(int64_t B, int64_t T, const AttentionSpec& spec, bool backward) {
  constexpr int64_t kFixed = int64_t{4} << 20;
  if (!backward) return kFixed;
  const int64_t rows = B * spec.H * round_up(T, 128);
  const int64_t heads = spec.G < spec.H ? 2 * rows * spec.D * 4 : 0;
  return kFixed + 2 * rows * (spec.D + 2) * 4 + heads;
}

Tensor attention_cudnn_workspace(Context& ctx, const View& qkv, int64_t B, int64_t T,
                                 const AttentionSpec& spec, bool backward) {
  static const Name kWorkspace("attention.cudnn");
  if (!attention_by_cudnn(ctx, qkv, spec)) return {};
  return ctx.tensor(kWorkspace, {attention_cudnn_scratch(B, T, spec, backward)}, DType::u8,
                    Category::workspace);
}

}  // namespace snug
