#include "layers/parts/spec.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/core/error.h"

namespace snug {

std::vector<float> RopeParameters::inverse_frequencies(int64_t D) const {
  const auto R = static_cast<int64_t>(static_cast<double>(D) * partial) / 2 * 2;
  std::vector<float> list;
  for (int64_t i = 0; i < R / 2; ++i) {
    double f = 1.0 / std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(R));
    if (type == "linear") f /= factor;
    if (type == "llama3") {
      const double length = 2 * M_PI / f, original = static_cast<double>(original_positions);
      const double low = original / low_frequency_factor, high = original / high_frequency_factor;
      const double smooth = (original / length - low_frequency_factor) /
                            (high_frequency_factor - low_frequency_factor);
      if (length > low)
        f /= factor;
      else if (length >= high)
        f = (1 - smooth) * f / factor + smooth * f;
    }
    list.push_back(static_cast<float>(f));
  }
  return list;
}

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
  positive(s.G, "num_key_value_heads", s.H, origin);
  if (s.H % s.G != 0)
    fail(ErrorCode::usage, "num_attention_heads a multiple of num_key_value_heads",
         fmt::format("{} and {} in {}", s.H, s.G, origin), "num_key_value_heads=1");
  if (s.own_head_width) {
    positive(s.D, "head_dim", 256, origin);
  } else if (s.C % s.H != 0)
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
                       s.first_position == 0 && !s.embedding_norm &&
                       s.head == HeadKind::causal_lm && s.positions != Positions::none;
  const bool encoder = s.placement == NormPlacement::post && !s.causal && s.embedding_norm &&
                       s.head != HeadKind::causal_lm && s.norm == NormKind::layernorm &&
                       s.positions == Positions::learned && !s.gated_mlp && s.window == 0;
  if (!decoder && !encoder)
    fail(ErrorCode::unsupported,
         "a decoder with norms before its branches and a causal LM head, or an encoder with "
         "layernorms behind them, learned positions and a plain MLP",
         fmt::format("model_type {} in {}", s.family, origin), "model=gpt2, or model=bert-base");
}

}  // namespace snug
