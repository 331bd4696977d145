#include "layers/models/fingerprint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/io/fingerprint.h"
#include "layers/models/family.h"

namespace snug {

std::string model_fingerprint(const ModelSpec& s) {
  std::string text = fmt::format("{} V{} P{} C{} F{} L{} H{} G{} D{}", s.family, s.V, s.P, s.C, s.F,
                                 s.L, s.H, s.G, s.D);
  for (const int kind :
       {static_cast<int>(s.norm), static_cast<int>(s.placement), static_cast<int>(s.positions),
        static_cast<int>(s.activation), static_cast<int>(s.head)})
    text += fmt::format(" {}", kind);
  for (const bool flag : {s.gated_mlp, s.qkv_bias && s.projection_bias && s.mlp_bias, s.causal,
                          s.tied, s.scale_attention, s.scale_by_inverse_layer})
    text += fmt::format(" {}", flag);
  for (const float value :
       {s.norm_epsilon, s.embedding_dropout, s.attention_dropout, s.residual_dropout})
    text += fmt::format(" {}", value);
  if (s.positions == Positions::rope)
    text += fmt::format(" {} {} {} {} {} {} {} {}", s.rope.theta, s.rope.partial, s.rope.type,
                        s.rope.factor, s.rope.low_frequency_factor, s.rope.high_frequency_factor,
                        s.rope.original_positions, s.window);
  const auto more = [](const RopeParameters& r) {
    return fmt::format(" {} {} {} {} {} {} {} {}", r.beta_fast, r.beta_slow, r.truncate,
                       r.attention_factor, r.mscale, r.mscale_all, fmt::join(r.short_factors, " "),
                       fmt::join(r.long_factors, " "));
  };
  if (s.rope.type == "yarn" || s.rope.type == "longrope") text += more(s.rope);
  for (const LayerKind& kind : s.layer_kinds)
    text += fmt::format(" {}.{}", kind.window, static_cast<int>(kind.rope));
  if (std::any_of(s.layer_kinds.begin(), s.layer_kinds.end(),
                  [](const LayerKind& kind) { return kind.rope == LayerRope::local; }))
    text += fmt::format(" local {} {} {} {}{}", s.local_rope.theta, s.local_rope.partial,
                        s.local_rope.type, s.local_rope.factor, more(s.local_rope));
  if (s.qk_norm != QkNorm::none) text += fmt::format(" qk norm {}", static_cast<int>(s.qk_norm));
  if (s.attention_scalar != 0) text += fmt::format(" scores by {}", s.attention_scalar);
  if (s.attention_softcap != 0 || s.head_softcap != 0)
    text += fmt::format(" softcaps {} {}", s.attention_softcap, s.head_softcap);
  if (s.unit_offset) text += fmt::format(" unit offset, embedding times {}", s.embedding_scale);
  if (s.encoder())
    text += fmt::format(" {} {} {} {} {} {} {}", s.types, s.first_position, s.head_dropout,
                        s.head_dropout_first, static_cast<int>(s.head_activation),
                        static_cast<int>(s.problem), s.label_count());
  else if (s.head != HeadKind::causal_lm)
    text +=
        fmt::format(" {} {} {}", to_string(s.head), static_cast<int>(s.problem), s.label_count());
  return fingerprint_text(fingerprint(text));
}

}  // namespace snug
