// Gemma 1, 2 and 3 (text): norms by 1 + weight, a gelu gate, embeddings times the root of the width;
// from 2 on norms behind the branches too, windows of some layers and a scale of the scores of its own;
// in 2 soft-capped scores and logits; in 3 norms of each query's and key's head, and rotary positions of
// another base where there is a window. config.json of transformers' GemmaConfig and so on, weights of
// their ForCausalLM classes.
#include <fmt/format.h>

#include <array>
#include <cmath>

#include "engine/core/error.h"
#include "engine/io/json.h"
#include "layers/models/decoder_family.h"

namespace snug {
namespace {

using nlohmann::json;

constexpr std::array<DecoderShape, 2> kGemmaShapes = {
    {{"gemma-2b", 18, 8, 1, 2048, 16384, 256000, 8192, 10000, true},
     {"gemma-7b", 28, 16, 16, 3072, 24576, 256000, 8192, 10000, true}}};
constexpr std::array<DecoderShape, 3> kGemma2Shapes = {
    {{"gemma-2-2b", 26, 8, 4, 2304, 9216, 256000, 8192, 10000, true},
     {"gemma-2-9b", 42, 16, 8, 3584, 14336, 256000, 8192, 10000, true},
     {"gemma-2-27b", 46, 32, 16, 4608, 36864, 256000, 8192, 10000, true,
      R"({"head_dim": 128, "query_pre_attn_scalar": 144})"}}};
constexpr const char* kFar = R"({"sliding_window": 1024,
                                 "rope_scaling": {"rope_type": "linear", "factor": 8}})";
constexpr std::array<DecoderShape, 5> kGemma3Shapes = {
    {{"gemma-3-270m", 18, 4, 1, 640, 2048, 262144, 32768, 1000000, true,
      R"({"sliding_window": 512})"},
     {"gemma-3-1b", 26, 4, 1, 1152, 6912, 262144, 32768, 1000000, true,
      R"({"sliding_window": 512})"},
     {"gemma-3-4b-text", 34, 8, 4, 2560, 10240, 262208, 131072, 1000000, true, kFar},
     {"gemma-3-12b-text", 48, 16, 8, 3840, 15360, 262208, 131072, 1000000, true, kFar},
     {"gemma-3-27b-text", 62, 32, 16, 5376, 21504, 262208, 131072, 1000000, true,
      R"({"head_dim": 128, "query_pre_attn_scalar": 168, "sliding_window": 1024,
          "rope_scaling": {"rope_type": "linear", "factor": 8}})"}}};

constexpr std::array<TensorName, 12> kGemma2Tensors = {{
    {"wte", "model.embed_tokens"},
    {"h.#.ln_1", "model.layers.#.input_layernorm"},
    {"h.#.attn.c_attn",
     "model.layers.#.self_attn.q_proj|model.layers.#.self_attn.k_proj|"
     "model.layers.#.self_attn.v_proj"},
    {"h.#.attn.qk_norm", "model.layers.#.self_attn.q_norm|model.layers.#.self_attn.k_norm"},
    {"h.#.attn.c_proj", "model.layers.#.self_attn.o_proj"},
    {"h.#.ln_1_out", "model.layers.#.post_attention_layernorm"},
    {"h.#.ln_2", "model.layers.#.pre_feedforward_layernorm"},
    {"h.#.mlp.c_fc", "model.layers.#.mlp.gate_proj|model.layers.#.mlp.up_proj"},
    {"h.#.mlp.c_proj", "model.layers.#.mlp.down_proj"},
    {"h.#.ln_2_out", "model.layers.#.post_feedforward_layernorm"},
    {"ln_f", "model.norm"},
    {"lm_head", "lm_head", false},
}};

// The first files say gelu and mean its tanh form, which hidden_activation then names.
Activation read_gate(const json& c, const std::string& origin) {
  const bool named = c.contains("hidden_activation") && !c["hidden_activation"].is_null();
  const char* const key = named ? "hidden_activation" : "hidden_act";
  const Activation kind = read_activation(c, key, origin, "gelu_pytorch_tanh");
  return kind == Activation::gelu_erf && !named ? Activation::gelu_tanh : kind;
}

void read_gemma(const json& c, const std::string& origin, ModelSpec& s) {
  s.activation = read_gate(c, origin);
  s.unit_offset = true;
  s.embedding_scale = std::sqrt(static_cast<float>(s.C));
  s.qkv_bias = s.projection_bias = get_bool(c, "attention_bias", origin, false);
}

void write_gemma(const ModelSpec& s, json& c) {
  c["attention_bias"] = s.qkv_bias;
  c["hidden_act"] = c["hidden_activation"] =
      s.activation == Activation::gelu_tanh ? "gelu_pytorch_tanh" : activation_key(s.activation);
}

// A softcap; null: none.
float read_cap(const json& c, const char* key, const std::string& origin, double unset) {
  if (c.contains(key) && c[key].is_null()) return 0;
  const double cap = get_number(c, key, origin, unset);
  if (!(cap >= 0) || !std::isfinite(cap))
    fail(ErrorCode::usage, fmt::format("{} above 0, or null for none, in {}", key, origin),
         fmt::format("{}", cap), fmt::format("{}: null", key));
  return static_cast<float>(cap);
}

// What Gemma 2 and 3 say alike; softcaps where a config does not say.
void read_gemma2_keys(const json& c, const std::string& origin, ModelSpec& s, double attention_cap,
                      double head_cap) {
  read_gemma(c, origin, s);
  s.placement = NormPlacement::sandwich;
  s.attention_scalar = get_number(c, "query_pre_attn_scalar", origin, 256.0);
  if (!(s.attention_scalar > 0) || !std::isfinite(s.attention_scalar))
    fail(ErrorCode::usage, fmt::format("query_pre_attn_scalar above 0 in {}", origin),
         fmt::format("{}", s.attention_scalar), "the width of a head");
  s.attention_softcap = read_cap(c, "attn_logit_softcapping", origin, attention_cap);
  s.head_softcap = read_cap(c, "final_logit_softcapping", origin, head_cap);
}

void write_gemma2(const ModelSpec& s, json& c) {
  write_gemma(s, c);
  // transformers takes an integer alone.
  const auto whole = static_cast<int64_t>(s.attention_scalar);
  c["query_pre_attn_scalar"] =
      static_cast<double>(whole) == s.attention_scalar ? json(whole) : json(s.attention_scalar);
  const auto cap = [](float value) { return value == 0 ? json(nullptr) : json(value); };
  c["attn_logit_softcapping"] = cap(s.attention_softcap);
  c["final_logit_softcapping"] = cap(s.head_softcap);
  write_layer_types(s, c);
}

void read_gemma2(const json& c, const std::string& origin, ModelSpec& s) {
  read_gemma2_keys(c, origin, s, 50.0, 30.0);
  read_windows(c, origin, s, 4096, [](const json&, int64_t layer) { return layer % 2 == 0; });
}

void read_gemma3(const json& c, const std::string& origin, ModelSpec& s);
void write_gemma3(const ModelSpec& s, json& c);

constexpr std::array<std::string_view, 8> kGemma2Own = {"attention_bias",
                                                        "hidden_activation",
                                                        "use_bidirectional_attention",
                                                        "query_pre_attn_scalar",
                                                        "attn_logit_softcapping",
                                                        "final_logit_softcapping",
                                                        "sliding_window",
                                                        "layer_types"};
constexpr std::array<std::string_view, 3> kGemmaOwn = {"attention_bias", "hidden_activation",
                                                       "use_bidirectional_attention"};
constexpr std::array<std::string_view, 10> kGemma3Own = {"attention_bias",
                                                         "hidden_activation",
                                                         "use_bidirectional_attention",
                                                         "query_pre_attn_scalar",
                                                         "attn_logit_softcapping",
                                                         "final_logit_softcapping",
                                                         "sliding_window",
                                                         "layer_types",
                                                         "sliding_window_pattern",
                                                         "rope_local_base_freq"};

constexpr DecoderKeys kGemma = {
    .model_type = "gemma",
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
    .tied = true,
    .shapes = kGemmaShapes,
    .keys = kGemmaOwn,
    .tensors = kLlamaTensors,
    .gguf = {.name = "gemma", .activation = Activation::gelu_tanh, .own_head = GgufPart::never},
    .read = read_gemma,
    .write = write_gemma};
constexpr DecoderKeys kGemma2 = {.model_type = "gemma2",
                                 .architecture = "Gemma2ForCausalLM",
                                 .title = "Gemma 2",
                                 .vocabulary = 256000,
                                 .positions = 8192,
                                 .width = 2304,
                                 .hidden = 9216,
                                 .layers = 26,
                                 .heads = 8,
                                 .kv_heads = 4,
                                 .head_width = 256,
                                 .tied = true,
                                 .shapes = kGemma2Shapes,
                                 .keys = kGemma2Own,
                                 .tensors = kGemma2Tensors,
                                 .gguf = {.name = "gemma2",
                                          .activation = Activation::gelu_tanh,
                                          .own_head = GgufPart::never,
                                          .attention_cap = GgufPart::must,
                                          .head_cap = GgufPart::must,
                                          .windows = GgufPart::must,
                                          .window_every = 2,
                                          .wide_scale_layers = 46},
                                 .read = read_gemma2,
                                 .write = write_gemma2};
constexpr DecoderKeys kGemma3 = {.model_type = "gemma3_text",
                                 .architecture = "Gemma3ForCausalLM",
                                 .title = "Gemma 3",
                                 .classifier = "Gemma3TextForSequenceClassification",
                                 .vocabulary = 262208,
                                 .positions = 131072,
                                 .width = 2304,
                                 .hidden = 9216,
                                 .layers = 26,
                                 .heads = 8,
                                 .kv_heads = 4,
                                 .head_width = 256,
                                 .theta = 1000000,
                                 .tied = true,
                                 .shapes = kGemma3Shapes,
                                 .keys = kGemma3Own,
                                 .tensors = kGemma2Tensors,
                                 .gguf = {.name = "gemma3",
                                          .activation = Activation::gelu_tanh,
                                          .head_cap = GgufPart::may,
                                          .windows = GgufPart::may,
                                          .window_every = 6,
                                          .wide_scale_layers = 62},
                                 .read = read_gemma3,
                                 .write = write_gemma3};

// The layers with a window turn by a base of their own; scalings are those of the others.
void read_gemma3(const json& c, const std::string& origin, ModelSpec& s) {
  read_gemma2_keys(c, origin, s, 0.0, 0.0);
  s.qk_norm = QkNorm::head;
  get_int_in(c, "sliding_window_pattern", origin, 1, int64_t{1} << 30, 6);  // its range
  read_windows(c, origin, s, 4096, [](const json& config, int64_t layer) {
    return (layer + 1) % get_int(config, "sliding_window_pattern", "", 6) != 0;
  });
  std::string key;
  const json settings = rope_settings(c, &key);
  const auto settings_of = [&](const char* layers) {
    return settings.contains(layers) && settings[layers].is_object() ? settings[layers]
                                                                     : json::object();
  };
  const bool nested = settings.contains("full_attention");
  if (nested)
    s.rope = read_rope(c, settings_of("full_attention"), fmt::format("{} of {}", key, origin),
                       kGemma3, s.P);
  DecoderKeys local = kGemma3;
  local.theta_key = "rope_local_base_freq";
  local.theta = 10000;
  s.local_rope = read_rope(c, nested ? settings_of("sliding_attention") : json::object(),
                           fmt::format("{} of {}", key, origin), local, s.P);
  if (s.local_rope.type != "default")
    fail(ErrorCode::unsupported,
         fmt::format("rope_type default for sliding_attention in {}", origin), s.local_rope.type,
         "a scaling of full_attention alone");
  if (s.layer_kinds.empty())
    s.layer_kinds.assign(static_cast<size_t>(s.L), {s.window, LayerRope::main});
  for (LayerKind& kind : s.layer_kinds)
    kind.rope = kind.window > 0 ? LayerRope::local : LayerRope::main;
  if (s.distinct_layers().size() == 1 && s.kind(0).rope == LayerRope::main) s.layer_kinds.clear();
  s.window = 0;
}

void write_gemma3(const ModelSpec& s, json& c) {
  write_gemma2(s, c);
  c["rope_local_base_freq"] = s.local_rope.theta;
}

}  // namespace

const Family kGemmaFamily = decoder_family<kGemma>();
const Family kGemma2Family = decoder_family<kGemma2>();
const Family kGemma3Family = decoder_family<kGemma3>();

}  // namespace snug
