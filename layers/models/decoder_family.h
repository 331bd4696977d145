// What the families of decoders share: they differ in the names of keys and tensors, in numbers, in
// published shapes and in what only one of them says.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "layers/models/encoder_family.h"
#include "layers/models/families.h"

namespace snug {

// A published shape. `more`: what it says beside, as JSON; null: nothing.
struct DecoderShape {
  const char* name;
  int64_t layers, heads, kv_heads, width, hidden, vocabulary, positions;
  double theta;
  bool tied;
  const char* more = nullptr;
};

// What differs between the families, transformers' defaults among it.
struct DecoderKeys {
  const char* model_type;
  const char* architecture;
  const char* title;  // in messages
  // Of sequence classification; null: that of causal_lm with another end.
  const char* classifier = nullptr;
  // Defaults; kv_heads 0: as many as heads, head_width 0: the width divided among the heads.
  int64_t vocabulary, positions, width, hidden, layers, heads, kv_heads = 0, head_width = 0;
  double theta = 10000, epsilon = 1e-6;
  bool tied = false;
  const char* activation = "silu";
  // What other families call rms_norm_eps, rope_theta and partial_rotary_factor.
  const char *epsilon_key = "rms_norm_eps", *theta_key = "rope_theta",
             *partial_key = "partial_rotary_factor";
  double partial = 1;
  bool grouped_heads = true;  // knows num_key_value_heads and head_dim
  std::span<const DecoderShape> shapes;
  const char* shape_keys = "{}";           // of every published shape, as JSON
  std::span<const std::string_view> keys;  // beside those of all
  std::span<const TensorName> tensors;
  const char* prefix = "model.";  // of the base model's tensors, which its own files leave out
  GgufArchitecture gguf = {};     // without a name: not written so
  // What only this family's config says, read and written.
  void (*read)(const nlohmann::json& config, const std::string& origin, ModelSpec& spec);
  void (*write)(const ModelSpec& spec, nlohmann::json& config);
};

// The tensors of Llama and of all that are named as it names them.
inline constexpr std::array<TensorName, 10> kLlamaTensors = {{
    {"wte", "model.embed_tokens"},
    {"h.#.ln_1", "model.layers.#.input_layernorm"},
    {"h.#.attn.c_attn",
     "model.layers.#.self_attn.q_proj|model.layers.#.self_attn.k_proj|"
     "model.layers.#.self_attn.v_proj"},
    {"h.#.attn.qk_norm", "model.layers.#.self_attn.q_norm|model.layers.#.self_attn.k_norm"},
    {"h.#.attn.c_proj", "model.layers.#.self_attn.o_proj"},
    {"h.#.ln_2", "model.layers.#.post_attention_layernorm"},
    {"h.#.mlp.c_fc", "model.layers.#.mlp.gate_proj|model.layers.#.mlp.up_proj"},
    {"h.#.mlp.c_proj", "model.layers.#.mlp.down_proj"},
    {"ln_f", "model.norm"},
    {"lm_head", "lm_head", false},
}};

// Rotary settings as `rope_parameters` of transformers 5 or rope_theta and rope_scaling of 4 give them,
// in `config` or in an object of its own (of one kind of layers). Throws usage, or unsupported for a
// kind that is not known.
RopeParameters read_rope(const nlohmann::json& config, const nlohmann::json& settings,
                         const std::string& origin, const DecoderKeys& keys, int64_t positions);
// The object under either key; empty where there is none.
nlohmann::json rope_settings(const nlohmann::json& config, std::string* key = nullptr);
// rope_theta, partial_rotary_factor and rope_scaling.
void write_rope(const RopeParameters& rope, const DecoderKeys& keys, nlohmann::json& config);

// A token of a config, the first of a list; -1: none.
int64_t token_id(const nlohmann::json& config, const char* key, const std::string& origin);
// The windows of layers: `sliding_window` of those that layer_types calls sliding_attention, or that
// `sliding` does where there are none. `unset`: the window where the config has no such key.
void read_windows(const nlohmann::json& config, const std::string& origin, ModelSpec& spec,
                  int64_t unset, bool (*sliding)(const nlohmann::json& config, int64_t layer));
void write_layer_types(const ModelSpec& spec, nlohmann::json& config);

ModelSpec parse_decoder(const DecoderKeys& keys, const nlohmann::json& config,
                        const std::string& origin, bool strict);
nlohmann::json write_decoder(const DecoderKeys& keys, const ModelSpec& spec,
                             const char* torch_dtype);
std::optional<nlohmann::json> named_decoder(const DecoderKeys& keys, std::string_view name);
std::vector<std::string> decoder_names(const DecoderKeys& keys);
void check_decoder_keys(const DecoderKeys& keys, const nlohmann::json& config,
                        const std::string& origin);
std::vector<FilePiece> decoder_pieces(const DecoderKeys& keys, const ParamInfo& param,
                                      const ModelSpec& spec);
// Buffers of files of old releases.
bool decoder_buffer(std::string_view tensor);

// The heads that decoders have: of tokens, and of sequences, which reads the last token of each that is no
// padding (transformers' ForSequenceClassification: a last norm and `score`).
inline constexpr std::array<HeadKind, 2> kDecoderHeads = {HeadKind::causal_lm,
                                                          HeadKind::sequence_classification};
// Gives the spec of a causal LM that of sequences, whose class is `classifier`, or its own by another end.
void set_decoder_head(ModelSpec& spec, HeadKind head, const char* classifier);
// What a config says of such a head: labels, problem and the token of padding, which is that of the end where
// none is named, as TRL has it. Nothing of other architectures.
void read_decoder_head(const nlohmann::json& config, const std::string& origin,
                       const char* classifier, ModelSpec& spec);
void write_decoder_head(const ModelSpec& spec, nlohmann::json& config);
// The name in the tables of tensors of a parameter of the head of sequences: that of the last norm.
std::string decoder_tensor_name(const ParamInfo& param);

template <const DecoderKeys& kKeys>
Family decoder_family() {
  return {
      .model_type = kKeys.model_type,
      .parse = [](const nlohmann::json& config, const std::string& origin,
                  bool strict) { return parse_decoder(kKeys, config, origin, strict); },
      .write = [](const ModelSpec& spec,
                  const char* torch_dtype) { return write_decoder(kKeys, spec, torch_dtype); },
      .named = [](std::string_view name) { return named_decoder(kKeys, name); },
      .names = [] { return decoder_names(kKeys); },
      .pieces = [](const ParamInfo& param,
                   const ModelSpec& spec) { return decoder_pieces(kKeys, param, spec); },
      .ignorable = decoder_buffer,
      .embedding = "wte.weight",
      .head = "lm_head.weight",
      .gguf = kKeys.gguf.name ? &kKeys.gguf : nullptr,
      .check_keys = [](const nlohmann::json& config,
                       const std::string& origin) { check_decoder_keys(kKeys, config, origin); },
      .aliases = {},
      .set_head = [](ModelSpec& spec,
                     HeadKind head) { set_decoder_head(spec, head, kKeys.classifier); },
      .heads = kDecoderHeads};
}

}  // namespace snug
