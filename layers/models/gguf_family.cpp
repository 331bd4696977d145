#include "layers/models/gguf_family.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "engine/core/error.h"
#include "engine/io/gguf.h"
#include "layers/models/encoder_family.h"

namespace snug {
namespace {

// Our names and GGUF's, of all architectures: in as many pieces as the family's files have.
constexpr std::array<std::pair<std::string_view, std::string_view>, 15> kNames = {{
    {"wte", "token_embd"},
    {"wpe", "position_embd"},
    {"ln_f", "output_norm"},
    {"lm_head", "output"},
    {"ln_1", "attn_norm"},
    {"attn.c_attn", "attn_qkv"},
    {"attn.c_attn", "attn_q|attn_k|attn_v"},
    {"attn.qk_norm", "attn_q_norm|attn_k_norm"},
    {"attn.c_proj", "attn_output"},
    {"ln_1_out", "post_attention_norm"},
    {"ln_2", "ffn_norm"},
    {"mlp.c_fc", "ffn_up"},
    {"mlp.c_fc", "ffn_gate|ffn_up"},
    {"mlp.c_proj", "ffn_down"},
    {"ln_2_out", "post_ffw_norm"},
}};

std::vector<std::string_view> split_names(std::string_view text) {
  std::vector<std::string_view> list;
  for (size_t at = 0; at <= text.size();) {
    const size_t bar = std::min(text.find('|', at), text.size());
    list.push_back(text.substr(at, bar - at));
    at = bar + 1;
  }
  return list;
}

// GGUF's names of a parameter, given the pieces it has in files.
std::vector<std::string_view> names_of(std::string_view ours, size_t pieces) {
  for (const auto& [name, theirs] : kNames)
    if (name == ours && split_names(theirs).size() == pieces) return split_names(theirs);
  fail(ErrorCode::internal, "a GGUF name for every parameter", std::string(ours),
       "this is a defect in Snug: please report it");
}

// The width of what turns in a head.
int64_t turning_width(const ModelSpec& s) {
  return 2 * static_cast<int64_t>(s.rope.inverse_frequencies(s.D).size());
}

// The window of a layer, at most all positions, where it is shorter than they are or the layer turns as
// those with a window do; else 0.
int64_t window_of(const ModelSpec& s, int64_t l) {
  const LayerKind& kind = s.kind(l);
  if (kind.window <= 0 || (kind.window >= s.P && kind.rope != LayerRope::local)) return 0;
  return std::min(kind.window, s.P);
}

// The longest window of a layer; 0: none.
int64_t longest_window(const ModelSpec& s) {
  int64_t window = 0;
  for (int64_t l = 0; l < s.L; ++l) window = std::max(window, window_of(s, l));
  return window;
}

// n where all layers but every n-th have the window; 0: no such n.
int64_t window_period(const ModelSpec& s) {
  for (int64_t n = 1; n <= s.L + 1; ++n) {
    bool fits = true;
    for (int64_t l = 0; l < s.L; ++l) {
      fits = fits && (window_of(s, l) > 0) == ((l + 1) % n != 0);
    }
    if (fits) return n;
  }
  return 0;
}

// Yarn's own factor of sine and cosine.
double yarn_scale(const RopeParameters& rope) {
  return 0.1 * std::log(rope.factor) + 1;
}

class Check {
 public:
  Check(const GgufArchitecture& a, const ModelSpec& s, const std::string& origin)
      : a_(a), s_(s), origin_(origin) {}

  std::vector<std::string> run() {
    activation();
    parts();
    scales();
    rope();
    layers();
    return std::move(notes_);
  }

 private:
  [[noreturn]] void refuse(const std::string& expected, const std::string& found,
                           std::string advice = "") const {
    if (advice.empty())
      advice = fmt::format(
          "programs that read GGUF compute {} one way only; keep the Hugging Face folder", a_.name);
    fail(ErrorCode::unsupported, fmt::format("{}, as GGUF's {} computes", expected, a_.name),
         fmt::format("{} in {}", found, origin_), advice);
  }

  void activation() {
    if (s_.activation == a_.activation) return;
    if (!(a_.near_gelu && s_.activation == Activation::gelu_erf))
      refuse(activation_key(a_.activation), activation_key(s_.activation));
    notes_.push_back(
        fmt::format("llama.cpp computes gelu by tanh for every {}, this model by erf: logits "
                    "differ in the third digit",
                    a_.name));
  }

  void part(GgufPart wanted, bool here, const char* with, const char* without) const {
    if (here && wanted == GgufPart::never) refuse(without, with);
    if (!here && wanted == GgufPart::must) refuse(with, without);
  }

  void parts() const {
    constexpr const char *kBias = "attention_bias: true", *kNone = "attention_bias: false";
    part(a_.qkv_bias, s_.qkv_bias, kBias, kNone);
    part(a_.projection_bias, s_.projection_bias, kBias, kNone);
    part(a_.mlp_bias, s_.mlp_bias, "mlp_bias: true", "mlp_bias: false");
    if (a_.own_head == GgufPart::never)
      part(a_.own_head, !s_.tied, "tie_word_embeddings: false", "tie_word_embeddings: true");
    part(a_.attention_cap, s_.attention_softcap != 0, "attn_logit_softcapping",
         "no attn_logit_softcapping");
    part(a_.head_cap, s_.head_softcap != 0, "final_logit_softcapping",
         "no final_logit_softcapping");
    if (a_.heads_fill_width && s_.H * s_.D != s_.C)
      refuse("heads as wide together as the model",
             fmt::format("{} heads of width {} and a hidden_size of {}", s_.H, s_.D, s_.C));
  }

  void scales() const {
    if (!s_.scale_attention) refuse("scale_attn_weights: true", "false");
    if (s_.scale_by_inverse_layer) refuse("scale_attn_by_inverse_layer_idx: false", "true");
    const int64_t scalar = s_.L == a_.wide_scale_layers ? s_.C / s_.H : s_.D;
    if (s_.attention_scalar != 0 && s_.attention_scalar != static_cast<double>(scalar))
      refuse(fmt::format("query_pre_attn_scalar: {}", scalar),
             fmt::format("{}", s_.attention_scalar));
  }

  void rope() {
    if (s_.positions != Positions::rope) return;
    const RopeParameters& r = s_.rope;
    part(a_.partial_turns, turning_width(s_) != s_.D, "partial_rotary_factor below 1",
         "partial_rotary_factor: 1");
    const std::string found = "rope_type " + r.type;
    if (r.type == "llama3" || r.type == "longrope") {
      // One kind each has its tensors: rope_freqs, or rope_factors_long and rope_factors_short.
      if (a_.turn_factors == GgufPart::never) refuse("rope_type default, linear or yarn", found);
      if (r.type == "llama3" && a_.two_turn_factors)
        refuse("rope_type default, linear, yarn or longrope", found);
      if (r.type == "longrope")
        notes_.push_back(fmt::format(
            "llama.cpp takes the long factors of rotary positions where its context has "
            "more than {} tokens, however short the text",
            r.original_positions));
    } else if (r.type == "yarn") {
      if (!r.truncate) refuse("truncate: true for rope_type yarn", "truncate: false");
      if (r.beta_fast != 32 || r.beta_slow != 1)
        refuse("beta_fast: 32 and beta_slow: 1 for rope_type yarn",
               fmt::format("{} and {}", r.beta_fast, r.beta_slow));
      if (s_.local_rope.theta != s_.rope.theta && has_local_turns())
        refuse("rope_type default or linear", found);
    } else if (r.type != "default" && r.type != "linear") {
      refuse("rope_type default, linear, yarn or one with factors a pair", found);
    }
  }

  bool has_local_turns() const {
    return std::any_of(s_.layer_kinds.begin(), s_.layer_kinds.end(),
                       [](const LayerKind& kind) { return kind.rope == LayerRope::local; });
  }

  void layers() const {
    for (int64_t l = 0; l < s_.L && s_.positions == Positions::rope; ++l) {
      const bool still = a_.still_every > 0 && (l + 1) % a_.still_every == 0;
      if ((s_.kind(l).rope == LayerRope::none) != still)
        refuse(fmt::format("no_rope_layers: every {}th that does not turn", a_.still_every),
               fmt::format("layer {} that {}", l, still ? "turns" : "does not turn"));
    }
    const int64_t window = longest_window(s_);
    if (window == 0) return;
    if (a_.windows == GgufPart::never)
      refuse(fmt::format("no sliding_window below the {} positions", s_.P), std::to_string(window),
             fmt::format(
                 "\"sliding_window\": null in a copy of the folder, which is the same model for "
                 "texts of at most {} tokens",
                 window));
    if (window_period(s_) == 0)
      refuse("layer_types that repeat, the last of each period full_attention",
             "layer_types in another order");
  }

  const GgufArchitecture& a_;
  const ModelSpec& s_;
  const std::string& origin_;
  std::vector<std::string> notes_;
};

}  // namespace

std::vector<std::string> check_gguf(const GgufArchitecture& architecture, const ModelSpec& spec,
                                    const std::string& origin) {
  return Check(architecture, spec, origin).run();
}

void add_gguf_keys(const GgufArchitecture& a, const ModelSpec& s, GgufMetadata& out) {
  const auto name = [&](const char* key) { return fmt::format("{}.{}", a.name, key); };
  const auto count = [&](const char* key, int64_t value) {
    out.add(name(key), static_cast<uint32_t>(value));
  };
  const auto number = [&](const char* key, double value) {
    out.add(name(key), static_cast<float>(value));
  };
  count("block_count", s.L);
  count("context_length", s.P);
  count("embedding_length", s.C);
  count("feed_forward_length", s.F);
  count("attention.head_count", s.H);
  out.add(name(s.norm == NormKind::rmsnorm ? "attention.layer_norm_rms_epsilon"
                                           : "attention.layer_norm_epsilon"),
          s.norm_epsilon);
  if (a.says_parallel)
    out.add(name("use_parallel_residual"), s.placement == NormPlacement::parallel);
  if (s.positions != Positions::rope) return;
  count("vocab_size", s.V);
  count("attention.head_count_kv", s.G);
  if (s.D * s.H != s.C || s.own_head_width) {
    count("attention.key_length", s.D);
    count("attention.value_length", s.D);
  }
  if (s.attention_softcap != 0) number("attn_logit_softcapping", s.attention_softcap);
  if (s.head_softcap != 0) number("final_logit_softcapping", s.head_softcap);
  const RopeParameters& r = s.rope;
  count("rope.dimension_count", turning_width(s));
  number("rope.freq_base", r.theta);
  if (r.type == "linear" || r.type == "yarn" || r.type == "longrope") {
    out.add(name("rope.scaling.type"), std::string_view(r.type));
    if (r.type != "longrope") number("rope.scaling.factor", r.factor);
    if (r.type != "linear") count("rope.scaling.original_context_length", r.original_positions);
    const double own = r.type == "yarn" ? yarn_scale(r) : 1;
    if (const double scale = r.attention_scale() / own; std::fabs(scale - 1) > 1e-6)
      number("rope.scaling.attn_factor", scale);
  }
  const int64_t window = longest_window(s);
  if (window == 0 && a.windows != GgufPart::must) return;
  if (a.windows == GgufPart::never) return;
  count("attention.sliding_window", window > 0 ? window : s.P);
  if (window == 0) return;
  if (const int64_t period = window_period(s); period != a.window_every)
    count("attention.sliding_window_pattern", period);
  for (const LayerKind& kind : s.layer_kinds)
    if (kind.rope == LayerRope::local) {
      number("rope.freq_base_swa", s.local_rope.theta);
      break;
    }
}

std::vector<GgufPiece> gguf_pieces(const Family& family, const ParamInfo& p, const ModelSpec& s) {
  const std::string_view full = p.name.view();
  const size_t dot = full.rfind('.');
  std::string_view ours = full.substr(0, dot);
  std::string block;
  if (ours.starts_with("h.")) {
    const size_t end = ours.find('.', 2);
    block = fmt::format("blk.{}.", ours.substr(2, end - 2));
    ours = ours.substr(end + 1);
  }
  const std::vector<FilePiece> files = family.pieces(p, s);
  const std::vector<std::string_view> names = names_of(ours, files.size());
  const bool norm = ours.starts_with("ln_") || ours == "attn.qk_norm";
  std::vector<GgufPiece> pieces;
  int64_t first = 0;
  for (size_t k = 0; k < files.size(); ++k) {
    GgufPiece piece{fmt::format("{}{}{}", block, names[k], full.substr(dot)), first, files[k].rows};
    if (family.gguf->adjacent_pairs && ours == "attn.c_attn" && k < 2)
      piece.groups = {s.D / 2, 2, 1};
    if (norm && s.unit_offset) piece.plus = 1;
    pieces.push_back(piece);
    first += files[k].rows;
  }
  if (s.tied && full == family.embedding && family.gguf->own_head == GgufPart::must) {
    pieces.push_back(pieces.front());
    pieces.back().name = "output.weight";
  }
  return pieces;
}

std::vector<GgufVector> gguf_vectors(const ModelSpec& s) {
  if (s.positions != Positions::rope) return {};
  const auto floats = [](const std::vector<double>& list) {
    return std::vector<float>(list.begin(), list.end());
  };
  if (s.rope.type == "longrope")
    return {{"rope_factors_long.weight", floats(s.rope.long_factors)},
            {"rope_factors_short.weight", floats(s.rope.short_factors)}};
  if (s.rope.type != "llama3") return {};
  RopeParameters plain;
  plain.theta = s.rope.theta;
  plain.partial = s.rope.partial;
  std::vector<float> divisors = plain.inverse_frequencies(s.D);
  const std::vector<float> scaled = s.rope.inverse_frequencies(s.D);
  for (size_t i = 0; i < divisors.size(); ++i) divisors[i] /= scaled[i];
  return {{"rope_freqs.weight", divisors}};
}

bool gguf_always_f32(std::string_view name) {
  return name == "position_embd.weight";
}

}  // namespace snug
