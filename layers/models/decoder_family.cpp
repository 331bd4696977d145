#include "layers/models/decoder_family.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/core/error.h"
#include "engine/io/json.h"

namespace snug {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 13> kKnown = {
    "vocab_size",        "max_position_embeddings", "hidden_size",       "intermediate_size",
    "num_hidden_layers", "num_attention_heads",     "initializer_range", "tie_word_embeddings",
    "rope_scaling",      "rope_parameters",         "attention_dropout", "hidden_act",
    "pruned_heads"};
constexpr std::array<std::string_view, 3> kGrouped = {"num_key_value_heads", "head_dim",
                                                      "pretraining_tp"};

// The width of a head that a config names, or that its family has; 0: neither.
int64_t named_head_width(const DecoderKeys& k, const json& c, const std::string& origin) {
  const bool named = k.grouped_heads && c.contains("head_dim") && !c["head_dim"].is_null();
  return named ? get_int(c, "head_dim", origin) : k.head_width;
}

}  // namespace

int64_t token_id(const json& c, const char* key, const std::string& origin) {
  if (!c.contains(key) || c[key].is_null()) return -1;
  if (c[key].is_array() && !c[key].empty()) return get_int(json{{key, c[key][0]}}, key, origin);
  return get_int(c, key, origin);
}

void read_windows(const json& c, const std::string& origin, ModelSpec& s, int64_t unset,
                  bool (*sliding)(const json& config, int64_t layer)) {
  if (c.contains("sliding_window") && c["sliding_window"].is_null()) return;
  const bool types = c.contains("layer_types") && c["layer_types"].is_array();
  if (types && static_cast<int64_t>(c["layer_types"].size()) != s.L)
    fail(ErrorCode::usage, fmt::format("{} layer_types, one a layer, in {}", s.L, origin),
         std::to_string(c["layer_types"].size()), "leave layer_types out");
  std::vector<bool> slides;
  for (int64_t l = 0; l < s.L; ++l) {
    if (!types) {
      slides.push_back(sliding(c, l));
      continue;
    }
    const json& type = c["layer_types"][static_cast<size_t>(l)];
    if (type != "sliding_attention" && type != "full_attention")
      fail(ErrorCode::unsupported,
           fmt::format("layer_types of sliding_attention and full_attention in {}", origin),
           json_brief(type), "a model of these layers");
    slides.push_back(type == "sliding_attention");
  }
  const auto count = std::count(slides.begin(), slides.end(), true);
  if (count == 0) return;
  const int64_t window = c.contains("sliding_window")
                             ? get_int_in(c, "sliding_window", origin, 1, int64_t{1} << 30)
                             : unset;
  if (window == 0) return;
  if (count == s.L) {
    s.window = window;
    return;
  }
  for (const bool slide : slides) s.layer_kinds.push_back({slide ? window : 0, LayerRope::main});
}

void write_layer_types(const ModelSpec& s, json& c) {
  json types = json::array();
  for (int64_t l = 0; l < s.L; ++l)
    types.push_back(s.kind(l).window > 0 ? "sliding_attention" : "full_attention");
  c["layer_types"] = types;
  int64_t window = 0;
  for (int64_t l = 0; l < s.L; ++l) window = std::max(window, s.kind(l).window);
  c["sliding_window"] = window > 0 ? json(window) : json(nullptr);
}

ModelSpec parse_decoder(const DecoderKeys& k, const json& c, const std::string& origin,
                        bool strict) {
  if (strict) check_decoder_keys(k, c, origin);
  if (c.contains("pruned_heads") && !c["pruned_heads"].empty())
    fail(ErrorCode::unsupported, "pruned_heads: none",
         fmt::format("{} in {}", json_brief(c["pruned_heads"]), origin),
         "a model with all its heads");
  if (get_bool(c, "use_bidirectional_attention", origin, false))
    fail(ErrorCode::unsupported, "use_bidirectional_attention: false", "true in " + origin,
         "a model that looks back alone");
  ModelSpec s;
  s.family = k.model_type;
  s.architecture = k.architecture;
  s.norm = NormKind::rmsnorm;
  s.positions = Positions::rope;
  s.gated_mlp = true;
  s.qkv_bias = s.projection_bias = s.mlp_bias = false;
  s.V = get_int(c, "vocab_size", origin, k.vocabulary);
  s.P = get_int(c, "max_position_embeddings", origin, k.positions);
  s.C = get_int(c, "hidden_size", origin, k.width);
  s.F = get_int(c, "intermediate_size", origin, k.hidden);
  s.L = get_int(c, "num_hidden_layers", origin, k.layers);
  s.H = get_int(c, "num_attention_heads", origin, k.heads);
  s.G = s.H;
  if (k.grouped_heads)
    s.G = get_int(c, "num_key_value_heads", origin, k.kv_heads > 0 ? k.kv_heads : s.H);
  s.D = named_head_width(k, c, origin);
  s.own_head_width = s.D != 0;
  if (s.D == 0 && s.H > 0) s.D = s.C / s.H;
  s.norm_epsilon = static_cast<float>(get_number(c, k.epsilon_key, origin, k.epsilon));
  s.init_std = static_cast<float>(get_number(c, "initializer_range", origin, 0.02));
  s.attention_dropout = static_cast<float>(get_number(c, "attention_dropout", origin, 0.0));
  s.tied = get_bool(c, "tie_word_embeddings", origin, k.tied);
  s.activation = read_activation(c, "hidden_act", origin, k.activation);
  std::string key;
  const json settings = rope_settings(c, &key);
  // Layers of two kinds have two of them, which their family reads.
  if (!settings.contains("full_attention"))
    s.rope = read_rope(c, settings, fmt::format("{} of {}", key, origin), k, s.P);
  s.bos_token = token_id(c, "bos_token_id", origin);
  s.eos_token = token_id(c, "eos_token_id", origin);
  validate(s, origin);  // so that what is read next finds sound extents
  k.read(c, origin, s);
  read_decoder_head(c, origin, k.classifier, s);
  validate(s, origin);
  return s;
}

json write_decoder(const DecoderKeys& k, const ModelSpec& s, const char* torch_dtype) {
  json c;
  c["architectures"] = json::array({s.architecture});
  c["model_type"] = k.model_type;
  c["vocab_size"] = s.V;
  c["max_position_embeddings"] = s.P;
  c["hidden_size"] = s.C;
  c["intermediate_size"] = s.F;
  c["num_hidden_layers"] = s.L;
  c["num_attention_heads"] = s.H;
  if (k.grouped_heads) {
    c["num_key_value_heads"] = s.G;
    c["head_dim"] = s.D;
  }
  c["hidden_act"] = activation_key(s.activation);
  c[k.epsilon_key] = s.norm_epsilon;
  c["initializer_range"] = s.init_std;
  c["attention_dropout"] = s.attention_dropout;
  c["tie_word_embeddings"] = s.tied;
  write_rope(s.rope, k, c);
  c["bos_token_id"] = s.bos_token < 0 ? json(nullptr) : json(s.bos_token);
  c["eos_token_id"] = s.eos_token < 0 ? json(nullptr) : json(s.eos_token);
  c["use_cache"] = true;
  c["torch_dtype"] = torch_dtype;
  c["transformers_version"] = "4.44.0";
  k.write(s, c);
  write_decoder_head(s, c);
  return c;
}

std::optional<json> named_decoder(const DecoderKeys& k, std::string_view name) {
  for (const DecoderShape& s : k.shapes) {
    if (name != s.name) continue;
    json c = json::parse(k.shape_keys);
    c.update({{"num_hidden_layers", s.layers},
              {"num_attention_heads", s.heads},
              {"hidden_size", s.width},
              {"intermediate_size", s.hidden},
              {"vocab_size", s.vocabulary},
              {"max_position_embeddings", s.positions},
              {k.theta_key, s.theta},
              {"tie_word_embeddings", s.tied}});
    if (k.grouped_heads) c["num_key_value_heads"] = s.kv_heads;
    if (s.more) c.update(json::parse(s.more));
    return c;
  }
  return std::nullopt;
}

std::vector<std::string> decoder_names(const DecoderKeys& k) {
  std::vector<std::string> list;
  for (const DecoderShape& s : k.shapes) list.emplace_back(s.name);
  return list;
}

void check_decoder_keys(const DecoderKeys& k, const json& c, const std::string& origin) {
  std::vector<std::string_view> known(kKnown.begin(), kKnown.end());
  if (k.grouped_heads) known.insert(known.end(), kGrouped.begin(), kGrouped.end());
  for (const char* key : {k.epsilon_key, k.theta_key, k.partial_key}) known.emplace_back(key);
  known.insert(known.end(), k.keys.begin(), k.keys.end());
  check_config_keys(c, origin, k.title, known, {});
}

std::vector<FilePiece> decoder_pieces(const DecoderKeys& k, const ParamInfo& p,
                                      const ModelSpec& spec) {
  if (p.name.view() == "head.out.weight") return {{{"score.weight"}, p.rows}};
  ParamInfo named = p;
  named.name = Name(decoder_tensor_name(p));
  std::vector<FilePiece> list = named_pieces(k.tensors, named, spec);
  if (list.size() == 3) {  // of H, G and G heads
    list[0].rows = spec.H * spec.D;
    list[1].rows = list[2].rows = spec.G * spec.D;
  }
  if (spec.qk_norm == QkNorm::full && list.size() == 2 &&
      p.name.view().find(".attn.qk_norm.") != std::string_view::npos) {
    list[0].rows = spec.H * spec.D;
    list[1].rows = spec.G * spec.D;
  }
  if (spec.qkv_by_head && p.name.view().find(".attn.c_attn.") != std::string_view::npos)
    list.front().groups = {spec.H, 3, spec.D};
  // A base model's files leave the prefix out.
  const std::string_view prefix = k.prefix;
  for (FilePiece& piece : list)
    if (piece.names.front().starts_with(prefix))
      piece.names.push_back(piece.names.front().substr(prefix.size()));
  if (spec.tied && p.name.view() == "wte.weight")
    for (const TensorName& row : k.tensors)
      if (row.ours == "lm_head") list.front().names.push_back(std::string(row.file) + ".weight");
  return list;
}

bool decoder_buffer(std::string_view tensor) {
  return tensor.ends_with(".rotary_emb.inv_freq") || tensor.ends_with(".attention.bias") ||
         tensor.ends_with(".attention.masked_bias");
}

}  // namespace snug
