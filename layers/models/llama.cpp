// Llama and its kin: Mistral (a sliding window), Qwen2 (biases of queries, keys and values) and Gemma
// (norms by 1 + weight, a gelu gate, embeddings times the root of the width). config.json of
// transformers' LlamaConfig and so on, weights of their ForCausalLM classes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/suggest.h"
#include "engine/io/json.h"
#include "layers/models/encoder_family.h"
#include "layers/models/families.h"

namespace snug {
namespace {

using nlohmann::json;

struct NamedShape {
  const char* name;
  int64_t layers, heads, kv_heads, width, hidden, vocabulary, positions;
  double theta;
  bool tied;
};

// What differs, transformers' defaults among it.
struct Kin {
  const char* model_type;
  const char* architecture;
  const char* title;
  // Defaults; kv_heads 0: as many as heads, head_width 0: the width divided among the heads.
  int64_t vocabulary, positions, width, hidden, layers, heads, kv_heads, head_width;
  bool has_window;      // knows sliding_window
  int64_t window;       // where a config does not say
  bool always_windows;  // without use_sliding_window
  bool qkv_bias, gemma;
  std::span<const NamedShape> shapes;
  std::span<const std::string_view> keys;  // beside those of all
};

constexpr std::array<NamedShape, 6> kLlamaShapes = {
    {{"smollm2-135m", 30, 9, 3, 576, 1536, 49152, 8192, 100000, true},
     {"smollm2-360m", 32, 15, 5, 960, 2560, 49152, 8192, 100000, true},
     {"smollm2-1.7b", 24, 32, 32, 2048, 8192, 49152, 8192, 130000, true},
     {"tinyllama-1.1b", 22, 32, 4, 2048, 5632, 32000, 2048, 10000, false},
     {"llama-2-7b", 32, 32, 32, 4096, 11008, 32000, 4096, 10000, false},
     {"llama-3-8b", 32, 32, 8, 4096, 14336, 128256, 8192, 500000, false}}};
constexpr std::array<NamedShape, 1> kMistralShapes = {
    {{"mistral-7b-v0.3", 32, 32, 8, 4096, 14336, 32768, 32768, 1000000, false}}};
constexpr std::array<NamedShape, 4> kQwenShapes = {
    {{"qwen2.5-0.5b", 24, 14, 2, 896, 4864, 151936, 32768, 1000000, true},
     {"qwen2.5-1.5b", 28, 12, 2, 1536, 8960, 151936, 32768, 1000000, true},
     {"qwen2.5-3b", 36, 16, 2, 2048, 11008, 151936, 32768, 1000000, true},
     {"qwen2.5-7b", 28, 28, 4, 3584, 18944, 152064, 32768, 1000000, false}}};

constexpr std::array<NamedShape, 2> kGemmaShapes = {
    {{"gemma-2b", 18, 8, 1, 2048, 16384, 256000, 8192, 10000, true},
     {"gemma-7b", 28, 16, 16, 3072, 24576, 256000, 8192, 10000, true}}};

constexpr std::array<std::string_view, 2> kLlamaKeys = {"attention_bias", "mlp_bias"};
constexpr std::array<std::string_view, 2> kMistralKeys = {"sliding_window", "layer_types"};
constexpr std::array<std::string_view, 4> kQwenKeys = {"sliding_window", "use_sliding_window",
                                                       "max_window_layers", "layer_types"};
constexpr std::array<std::string_view, 3> kGemmaKeys = {"attention_bias", "hidden_activation",
                                                        "use_bidirectional_attention"};

constexpr Kin kLlama = {.model_type = "llama",
                        .architecture = "LlamaForCausalLM",
                        .title = "Llama",
                        .vocabulary = 32000,
                        .positions = 2048,
                        .width = 4096,
                        .hidden = 11008,
                        .layers = 32,
                        .heads = 32,
                        .kv_heads = 0,
                        .head_width = 0,
                        .has_window = false,
                        .window = 0,
                        .always_windows = false,
                        .qkv_bias = false,
                        .gemma = false,
                        .shapes = kLlamaShapes,
                        .keys = kLlamaKeys};
constexpr Kin kMistral = {.model_type = "mistral",
                          .architecture = "MistralForCausalLM",
                          .title = "Mistral",
                          .vocabulary = 32000,
                          .positions = 131072,
                          .width = 4096,
                          .hidden = 14336,
                          .layers = 32,
                          .heads = 32,
                          .kv_heads = 8,
                          .head_width = 0,
                          .has_window = true,
                          .window = 4096,
                          .always_windows = true,
                          .qkv_bias = false,
                          .gemma = false,
                          .shapes = kMistralShapes,
                          .keys = kMistralKeys};
constexpr Kin kQwen2 = {.model_type = "qwen2",
                        .architecture = "Qwen2ForCausalLM",
                        .title = "Qwen2",
                        .vocabulary = 151936,
                        .positions = 32768,
                        .width = 4096,
                        .hidden = 22016,
                        .layers = 32,
                        .heads = 32,
                        .kv_heads = 32,
                        .head_width = 0,
                        .has_window = true,
                        .window = 4096,
                        .always_windows = false,
                        .qkv_bias = true,
                        .gemma = false,
                        .shapes = kQwenShapes,
                        .keys = kQwenKeys};
constexpr Kin kGemma = {.model_type = "gemma",
                        .architecture = "GemmaForCausalLM",
                        .title = "Gemma",
                        .vocabulary = 256000,
                        .positions = 8192,
                        .width = 3072,
                        .hidden = 24576,
                        .layers = 28,
                        .heads = 16,
                        .kv_heads = 16,
                        .head_width = 256,
                        .has_window = false,
                        .window = 0,
                        .always_windows = false,
                        .qkv_bias = false,
                        .gemma = true,
                        .shapes = kGemmaShapes,
                        .keys = kGemmaKeys};

constexpr std::array<std::string_view, 19> kKnown = {
    "vocab_size",          "max_position_embeddings",
    "hidden_size",         "intermediate_size",
    "num_hidden_layers",   "num_attention_heads",
    "num_key_value_heads", "head_dim",
    "hidden_act",          "rms_norm_eps",
    "initializer_range",   "tie_word_embeddings",
    "rope_theta",          "rope_scaling",
    "rope_parameters",     "partial_rotary_factor",
    "attention_dropout",   "pretraining_tp",
    "pruned_heads"};
constexpr std::array<KeyAlias, 0> kAliases = {};

int64_t token_id(const json& c, const char* key, const std::string& origin) {
  if (!c.contains(key) || c[key].is_null()) return -1;
  if (c[key].is_array() && !c[key].empty()) return get_int(json{{key, c[key][0]}}, key, origin);
  return get_int(c, key, origin);
}

// `rope_parameters` of transformers 5, or rope_theta and rope_scaling of 4.
RopeParameters read_rope(const json& c, const std::string& origin) {
  RopeParameters r;
  const char* const key = c.contains("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const json none = json::object();
  const json& s = c.contains(key) && c[key].is_object() ? c[key] : none;
  const std::string where = fmt::format("{} of {}", key, origin);
  r.theta = get_number(s, "rope_theta", where, get_number(c, "rope_theta", origin, 10000.0));
  r.partial = get_number(s, "partial_rotary_factor", where,
                         get_number(c, "partial_rotary_factor", origin, 1.0));
  r.type = get_string(s, "rope_type", where, get_string(s, "type", where, "default"));
  if (r.type != "default" && r.type != "linear" && r.type != "llama3")
    fail(ErrorCode::unsupported, fmt::format("rope_type default, linear or llama3 in {}", where),
         r.type, "leave it out to train at the original length");
  r.factor = get_number(s, "factor", where, 1.0);
  r.low_frequency_factor = get_number(s, "low_freq_factor", where, 1.0);
  r.high_frequency_factor = get_number(s, "high_freq_factor", where, 4.0);
  r.original_positions = get_int(s, "original_max_position_embeddings", where, 8192);
  const bool good = r.theta > 1 && r.factor >= 1 && r.low_frequency_factor > 0 &&
                    r.high_frequency_factor > r.low_frequency_factor && r.original_positions > 0 &&
                    r.partial > 0 && r.partial <= 1;
  if (!good)
    fail(ErrorCode::usage,
         "rope_theta above 1, factor of at least 1, low_freq_factor below high_freq_factor",
         fmt::format("{} in {}", json_brief(s), where), "the values of the published config.json");
  return r;
}

// The window of all layers; those of only some layers are not built.
int64_t read_window(const Kin& kin, const json& c, const std::string& origin, int64_t layers) {
  if (!kin.has_window) return 0;
  if (!kin.always_windows && !get_bool(c, "use_sliding_window", origin, false)) return 0;
  if (c.contains("sliding_window") && c["sliding_window"].is_null()) return 0;
  int64_t sliding = layers;
  if (c.contains("layer_types") && c["layer_types"].is_array()) {
    sliding = 0;
    for (const json& type : c["layer_types"]) sliding += type == "sliding_attention";
  } else if (!kin.always_windows) {  // the layers from there on
    sliding = std::clamp<int64_t>(layers - get_int(c, "max_window_layers", origin, 28), 0, layers);
  }
  if (sliding == 0) return 0;
  if (sliding < layers)
    fail(ErrorCode::unsupported, fmt::format("layer_types all alike in {}", origin),
         fmt::format("{} of {} sliding_attention", sliding, layers),
         "a model whose layers all have the window, or none");
  return c.contains("sliding_window") ? get_int_in(c, "sliding_window", origin, 1, int64_t{1} << 30)
                                      : kin.window;
}

// Gemma's first files say gelu and mean its tanh form, which hidden_activation then names.
Activation read_gate(const Kin& kin, const json& c, const std::string& origin) {
  if (!kin.gemma) return read_activation(c, "hidden_act", origin, "silu");
  const bool named = c.contains("hidden_activation") && !c["hidden_activation"].is_null();
  const char* const key = named ? "hidden_activation" : "hidden_act";
  const Activation kind = read_activation(c, key, origin, "gelu_pytorch_tanh");
  return kind == Activation::gelu_erf && !named ? Activation::gelu_tanh : kind;
}

template <const Kin& kKin>
void check_keys(const json& c, const std::string& origin) {
  std::vector<std::string_view> known(kKnown.begin(), kKnown.end());
  known.insert(known.end(), kKin.keys.begin(), kKin.keys.end());
  check_config_keys(c, origin, kKin.title, known, kAliases);
}

template <const Kin& kKin>
ModelSpec parse(const json& c, const std::string& origin, bool strict) {
  if (strict) check_keys<kKin>(c, origin);
  if (c.contains("pruned_heads") && !c["pruned_heads"].empty())
    fail(ErrorCode::unsupported, "pruned_heads: none",
         fmt::format("{} in {}", json_brief(c["pruned_heads"]), origin),
         "a model with all its heads");
  if (get_bool(c, "use_bidirectional_attention", origin, false))
    fail(ErrorCode::unsupported, "use_bidirectional_attention: false", "true in " + origin,
         "a model that looks back alone");
  ModelSpec s;
  s.family = kKin.model_type;
  s.architecture = kKin.architecture;
  s.norm = NormKind::rmsnorm;
  s.positions = Positions::rope;
  s.gated_mlp = true;
  s.V = get_int(c, "vocab_size", origin, kKin.vocabulary);
  s.P = get_int(c, "max_position_embeddings", origin, kKin.positions);
  s.C = get_int(c, "hidden_size", origin, kKin.width);
  s.F = get_int(c, "intermediate_size", origin, kKin.hidden);
  s.L = get_int(c, "num_hidden_layers", origin, kKin.layers);
  s.H = get_int(c, "num_attention_heads", origin, kKin.heads);
  s.G = get_int(c, "num_key_value_heads", origin, kKin.kv_heads > 0 ? kKin.kv_heads : s.H);
  const bool head_dim = c.contains("head_dim") && !c["head_dim"].is_null();
  s.own_head_width = head_dim || kKin.head_width > 0;
  s.D = head_dim              ? get_int(c, "head_dim", origin)
        : kKin.head_width > 0 ? kKin.head_width
        : s.H > 0             ? s.C / s.H
                              : 0;
  s.activation = read_gate(kKin, c, origin);
  s.unit_offset = kKin.gemma;
  if (kKin.gemma) s.embedding_scale = std::sqrt(static_cast<float>(s.C));
  s.norm_epsilon = static_cast<float>(get_number(c, "rms_norm_eps", origin, 1e-6));
  s.init_std = static_cast<float>(get_number(c, "initializer_range", origin, 0.02));
  s.attention_dropout = static_cast<float>(get_number(c, "attention_dropout", origin, 0.0));
  s.tied = get_bool(c, "tie_word_embeddings", origin, kKin.gemma);
  const bool bias = get_bool(c, "attention_bias", origin, false);
  s.qkv_bias = kKin.qkv_bias || bias;
  s.projection_bias = bias;
  s.mlp_bias = get_bool(c, "mlp_bias", origin, false);
  s.rope = read_rope(c, origin);
  s.window = read_window(kKin, c, origin, s.L);
  s.bos_token = token_id(c, "bos_token_id", origin);
  s.eos_token = token_id(c, "eos_token_id", origin);
  validate(s, origin);
  return s;
}

template <const Kin& kKin>
json write(const ModelSpec& s, const char* torch_dtype) {
  json c;
  c["architectures"] = json::array({s.architecture});
  c["model_type"] = kKin.model_type;
  c["vocab_size"] = s.V;
  c["max_position_embeddings"] = s.P;
  c["hidden_size"] = s.C;
  c["intermediate_size"] = s.F;
  c["num_hidden_layers"] = s.L;
  c["num_attention_heads"] = s.H;
  c["num_key_value_heads"] = s.G;
  c["head_dim"] = s.D;
  c["hidden_act"] = activation_key(s.activation);
  c["rms_norm_eps"] = s.norm_epsilon;
  c["initializer_range"] = s.init_std;
  c["attention_dropout"] = s.attention_dropout;
  c["tie_word_embeddings"] = s.tied;
  if (!kKin.has_window) c["attention_bias"] = s.qkv_bias;
  if (!kKin.has_window && !kKin.gemma) c["mlp_bias"] = s.mlp_bias;
  if (kKin.gemma)
    c["hidden_act"] = c["hidden_activation"] =
        s.activation == Activation::gelu_tanh ? "gelu_pytorch_tanh" : activation_key(s.activation);
  c["rope_theta"] = s.rope.theta;
  if (s.rope.partial != 1) c["partial_rotary_factor"] = s.rope.partial;
  c["rope_scaling"] = nullptr;
  if (s.rope.type != "default") {
    c["rope_scaling"] = {{"rope_type", s.rope.type}, {"factor", s.rope.factor}};
    if (s.rope.type == "llama3") {
      c["rope_scaling"]["low_freq_factor"] = s.rope.low_frequency_factor;
      c["rope_scaling"]["high_freq_factor"] = s.rope.high_frequency_factor;
      c["rope_scaling"]["original_max_position_embeddings"] = s.rope.original_positions;
    }
  }
  if (kKin.has_window) c["sliding_window"] = s.window > 0 ? json(s.window) : json(nullptr);
  if (kKin.has_window && !kKin.always_windows) {
    c["use_sliding_window"] = s.window > 0;
    c["max_window_layers"] = s.window > 0 ? 0 : s.L;
  }
  c["bos_token_id"] = s.bos_token < 0 ? json(nullptr) : json(s.bos_token);
  c["eos_token_id"] = s.eos_token < 0 ? json(nullptr) : json(s.eos_token);
  c["use_cache"] = true;
  c["torch_dtype"] = torch_dtype;
  c["transformers_version"] = "4.44.0";
  return c;
}

template <const Kin& kKin>
std::optional<json> named(std::string_view name) {
  for (const NamedShape& s : kKin.shapes)
    if (name == s.name)
      return json{{"num_hidden_layers", s.layers},
                  {"num_attention_heads", s.heads},
                  {"num_key_value_heads", s.kv_heads},
                  {"hidden_size", s.width},
                  {"intermediate_size", s.hidden},
                  {"vocab_size", s.vocabulary},
                  {"max_position_embeddings", s.positions},
                  {"rope_theta", s.theta},
                  {"tie_word_embeddings", s.tied},
                  {kKin.has_window ? "sliding_window" : "rope_scaling", nullptr}};
  return std::nullopt;
}

template <const Kin& kKin>
std::vector<std::string> names() {
  std::vector<std::string> list;
  for (const NamedShape& s : kKin.shapes) list.emplace_back(s.name);
  return list;
}

constexpr std::array<TensorName, 9> kTensors = {{
    {"wte", "model.embed_tokens"},
    {"h.#.ln_1", "model.layers.#.input_layernorm"},
    {"h.#.attn.c_attn",
     "model.layers.#.self_attn.q_proj|model.layers.#.self_attn.k_proj|"
     "model.layers.#.self_attn.v_proj"},
    {"h.#.attn.c_proj", "model.layers.#.self_attn.o_proj"},
    {"h.#.ln_2", "model.layers.#.post_attention_layernorm"},
    {"h.#.mlp.c_fc", "model.layers.#.mlp.gate_proj|model.layers.#.mlp.up_proj"},
    {"h.#.mlp.c_proj", "model.layers.#.mlp.down_proj"},
    {"ln_f", "model.norm"},
    {"lm_head", "lm_head", false},
}};

std::vector<FilePiece> pieces(const ParamInfo& p, const ModelSpec& spec) {
  std::vector<FilePiece> list = named_pieces(kTensors, p, spec);
  if (list.size() == 3) {  // of H, G and G heads
    list[0].rows = spec.H * spec.D;
    list[1].rows = list[2].rows = spec.G * spec.D;
  }
  // A base model's files leave the prefix out.
  for (FilePiece& piece : list)
    if (piece.names.front().starts_with("model."))
      piece.names.push_back(piece.names.front().substr(6));
  if (spec.tied && p.name.view() == "wte.weight") list.front().names.emplace_back("lm_head.weight");
  return list;
}

// Buffers of files of old releases.
bool ignorable(std::string_view tensor) {
  return tensor.ends_with(".rotary_emb.inv_freq");
}

template <const Kin& kKin>
Family family_of() {
  return {.model_type = kKin.model_type,
          .parse = parse<kKin>,
          .write = write<kKin>,
          .named = named<kKin>,
          .names = names<kKin>,
          .pieces = pieces,
          .ignorable = ignorable,
          .embedding = "wte.weight",
          .head = "lm_head.weight",
          .gguf = nullptr,
          .check_keys = check_keys<kKin>,
          .aliases = kAliases};
}

}  // namespace

const Family kLlamaFamily = family_of<kLlama>();
const Family kMistralFamily = family_of<kMistral>();
const Family kQwen2Family = family_of<kQwen2>();
const Family kGemmaFamily = family_of<kGemma>();

}  // namespace snug
