#include "layers/parts/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/core/error.h"

namespace snug {

namespace {

// The pairs of R/2 between which yarn mixes: those that turn beta_fast and beta_slow times.
std::pair<double, double> mixed_pairs(const RopeParameters& r, int64_t R) {
  const auto pair = [&](double turns) {
    return static_cast<double>(R) *
           std::log(static_cast<double>(r.original_positions) / (turns * 2 * M_PI)) /
           (2 * std::log(r.theta));
  };
  double low = pair(r.beta_fast), high = pair(r.beta_slow);
  if (r.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(R - 1));
  return {low, low == high ? high + 0.001 : high};
}

double yarn_scale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

}  // namespace

float RopeParameters::attention_scale() const {
  if (type != "yarn" && type != "longrope") return 1;
  if (attention_factor != 0) return static_cast<float>(attention_factor);
  if (type == "longrope")
    return factor <= 1
               ? 1.0f
               : static_cast<float>(std::sqrt(
                     1 + std::log(factor) / std::log(static_cast<double>(original_positions))));
  if (mscale != 0 && mscale_all != 0)
    return static_cast<float>(yarn_scale(factor, mscale) / yarn_scale(factor, mscale_all));
  return static_cast<float>(yarn_scale(factor, 1));
}

std::vector<float> RopeParameters::inverse_frequencies(int64_t D, bool beyond_original) const {
  const auto R = static_cast<int64_t>(static_cast<double>(D) * partial) / 2 * 2;
  const std::vector<double>& divisors = beyond_original ? long_factors : short_factors;
  const std::pair<double, double> mixed =
      type == "yarn" ? mixed_pairs(*this, R) : std::pair(0.0, 1.0);
  std::vector<float> list;
  for (int64_t i = 0; i < R / 2; ++i) {
    double f = 1.0 / std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(R));
    if (type == "linear") f /= factor;
    if (type == "longrope") f /= divisors.at(static_cast<size_t>(i));
    if (type == "yarn") {
      const double ramp = std::clamp(
          (static_cast<double>(i) - mixed.first) / (mixed.second - mixed.first), 0.0, 1.0);
      f = f / factor * ramp + f * (1 - ramp);
    }
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
  const double by = attention_scalar != 0 ? attention_scalar : static_cast<double>(D);
  float scale = scale_attention ? 1.0f / std::sqrt(static_cast<float>(by)) : 1.0f;
  if (scale_by_inverse_layer) scale /= static_cast<float>(layer + 1);
  return scale;
}

LayerKind ModelSpec::kind(int64_t layer) const {
  if (layer_kinds.empty()) return {window, LayerRope::main};
  return layer_kinds.at(static_cast<size_t>(layer));
}

std::vector<int64_t> ModelSpec::distinct_layers() const {
  std::vector<int64_t> list = {0};
  for (int64_t l = 1; l < static_cast<int64_t>(layer_kinds.size()); ++l)
    if (std::none_of(list.begin(), list.end(), [&](int64_t k) { return kind(k) == kind(l); }))
      list.push_back(l);
  return list;
}

namespace {
void positive(int64_t value, const char* name, int64_t most, const std::string& origin) {
  if (value >= 1 && value <= most) return;
  fail(ErrorCode::usage, fmt::format("{} between 1 and {}", name, most),
       fmt::format("{} = {} in {}", name, value, origin),
       "model='{type: gpt2, n_layer: 4, n_embd: 128, n_head: 4, n_positions: 128}'");
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
  for (const RopeParameters* rope : {&s.rope, &s.local_rope}) {
    if (s.positions != Positions::rope) break;
    const auto pairs = static_cast<int64_t>(static_cast<double>(s.D) * rope->partial) / 2;
    if (pairs < 1)
      fail(ErrorCode::usage, fmt::format("a head that turns in part at least in {}", origin),
           fmt::format("{} of a width of {}", rope->partial, s.D), "partial_rotary_factor=1");
    for (const std::vector<double>* list : {&rope->short_factors, &rope->long_factors})
      if (rope->type == "longrope" && static_cast<int64_t>(list->size()) != pairs)
        fail(ErrorCode::usage,
             fmt::format("{} numbers in short_factor and long_factor, one a pair that turns, in {}",
                         pairs, origin),
             std::to_string(list->size()), "the values of the published config.json");
  }
  require(s.layer_kinds.empty() || static_cast<int64_t>(s.layer_kinds.size()) == s.L,
          "a kind for every layer");
  const bool decoder =
      s.placement != NormPlacement::post && s.causal && s.types == 0 && s.first_position == 0 &&
      !s.embedding_norm &&
      (s.head == HeadKind::causal_lm || s.head == HeadKind::sequence_classification) &&
      s.positions != Positions::none;
  const bool encoder = s.placement == NormPlacement::post && !s.causal && s.embedding_norm &&
                       s.head != HeadKind::causal_lm && s.norm == NormKind::layernorm &&
                       s.positions == Positions::learned && !s.gated_mlp && s.window == 0;
  if (!decoder && !encoder)
    fail(ErrorCode::unsupported,
         "a decoder with a head of causal_lm or sequence_classification whose norms are not behind "
         "its sums, or an encoder with "
         "layernorms behind them, learned positions and a plain MLP",
         fmt::format("model_type {} in {}", s.family, origin), "model=gpt2, or model=bert-base");
}

}  // namespace snug
