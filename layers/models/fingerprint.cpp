#include "layers/models/fingerprint.h"

#include <fmt/format.h>

#include "engine/io/fingerprint.h"

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
  if (s.unit_offset) text += fmt::format(" unit offset, embedding times {}", s.embedding_scale);
  if (s.encoder())
    text += fmt::format(" {} {} {} {} {} {} {}", s.types, s.first_position, s.head_dropout,
                        s.head_dropout_first, static_cast<int>(s.head_activation),
                        static_cast<int>(s.problem), s.label_count());
  return fingerprint_text(fingerprint(text));
}

}  // namespace snug
