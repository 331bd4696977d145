#include "layers/parts/spec.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/core/error.h"

namespace snug {

float ModelSpec::attention_scale(int64_t layer) const {
  float scale = scale_attention ? 1.0f / std::sqrt(static_cast<float>(D)) : 1.0f;
  if (scale_by_inverse_layer) scale /= static_cast<float>(layer + 1);
  return scale;
}

namespace {
void positive(int64_t value, const char* name, int64_t most, const std::string& origin) {
  if (value >= 1 && value <= most) return;
  fail(ErrorCode::usage, fmt::format("{} between 1 and {}", name, most),
       fmt::format("{} = {} in {}", name, value, origin),
       "model={type: gpt2, n_layer: 4, n_embd: 128, n_head: 4, n_positions: 128}");
}
void probability(float p, const char* name, const std::string& origin) {
  if (p >= 0.0f && p < 1.0f) return;
  fail(ErrorCode::usage, fmt::format("{} in [0, 1)", name),
       fmt::format("{} = {} in {}", name, p, origin), fmt::format("model.{}=0.1", name));
}
}  // namespace

void validate(const ModelSpec& s, const std::string& origin) {
  // Bounds keep every product of extents far below 2^63.
  positive(s.V, "vocab_size", 1 << 24, origin);
  positive(s.P, "n_positions", 1 << 24, origin);
  positive(s.C, "n_embd", 1 << 20, origin);
  positive(s.F, "n_inner", 1 << 22, origin);
  positive(s.L, "n_layer", 4096, origin);
  positive(s.H, "n_head", 1 << 16, origin);
  if (s.C % s.H != 0)
    fail(ErrorCode::usage, "n_embd divisible by n_head",
         fmt::format("n_embd = {}, n_head = {} in {}", s.C, s.H, origin),
         // The weights of a folder have the width that they have.
         origin.ends_with("config.json") ? fmt::format("an n_head that divides {} in it", s.C)
                                         : fmt::format("model.n_embd={}", (s.C / s.H + 1) * s.H));
  if (s.D > 256)
    fail(ErrorCode::unsupported, "a head width n_embd / n_head of at most 256",
         fmt::format("{} in {}", s.D, origin), "more heads");
  probability(s.embedding_dropout, "embd_pdrop", origin);
  probability(s.attention_dropout, "attn_pdrop", origin);
  probability(s.residual_dropout, "resid_pdrop", origin);
  if (!(s.norm_epsilon > 0.0f))
    fail(ErrorCode::usage, "layer_norm_epsilon above 0",
         fmt::format("{} in {}", s.norm_epsilon, origin), "layer_norm_epsilon: 1.0e-5");
  if (!(s.init_std >= 0.0f) || !std::isfinite(s.init_std))
    fail(ErrorCode::usage, "initializer_range of at least 0",
         fmt::format("{} in {}", s.init_std, origin), "initializer_range: 0.02");
  probability(s.head_dropout, "classifier_dropout", origin);
  const bool decoder = s.placement == NormPlacement::pre && s.causal && s.types == 0 &&
                       s.first_position == 0 && !s.embedding_norm && s.head == HeadKind::causal_lm;
  const bool encoder = s.placement == NormPlacement::post && !s.causal && s.embedding_norm &&
                       s.head != HeadKind::causal_lm;
  const bool built = s.norm == NormKind::layernorm && s.positions == Positions::learned &&
                     !s.gated_mlp && s.bias && s.G == s.H && (decoder || encoder);
  if (!built)
    fail(ErrorCode::unsupported,
         "a decoder with pre-layernorm and a causal LM head, or an encoder with post-layernorm; "
         "learned positions, plain MLP and biases",
         fmt::format("model_type {} in {}", s.family, origin), "model=gpt2, or model=bert-base");
}

}  // namespace snug
