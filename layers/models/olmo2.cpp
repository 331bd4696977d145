// OLMo 2: norms of what the branches make instead of what they read, and of all queries and all keys as
// one row each. config.json of transformers' Olmo2Config, weights of its Olmo2ForCausalLM.
#include <array>

#include "engine/io/json.h"
#include "layers/models/decoder_family.h"

namespace snug {
namespace olmo2_keys {

using nlohmann::json;

constexpr std::array<DecoderShape, 4> kShapes = {
    {{"olmo2-1b", 16, 16, 16, 2048, 8192, 100352, 4096, 500000, false},
     {"olmo2-7b", 32, 32, 32, 4096, 11008, 100352, 4096, 500000, false},
     {"olmo2-13b", 40, 40, 40, 5120, 13824, 100352, 4096, 500000, false},
     {"olmo2-32b", 64, 40, 8, 5120, 27648, 100352, 4096, 500000, false}}};

constexpr std::array<TensorName, 10> kTensors = {{
    {"wte", "model.embed_tokens"},
    {"h.#.attn.c_attn",
     "model.layers.#.self_attn.q_proj|model.layers.#.self_attn.k_proj|"
     "model.layers.#.self_attn.v_proj"},
    {"h.#.attn.qk_norm", "model.layers.#.self_attn.q_norm|model.layers.#.self_attn.k_norm"},
    {"h.#.attn.c_proj", "model.layers.#.self_attn.o_proj"},
    {"h.#.ln_1_out", "model.layers.#.post_attention_layernorm"},
    {"h.#.mlp.c_fc", "model.layers.#.mlp.gate_proj|model.layers.#.mlp.up_proj"},
    {"h.#.mlp.c_proj", "model.layers.#.mlp.down_proj"},
    {"h.#.ln_2_out", "model.layers.#.post_feedforward_layernorm"},
    {"ln_f", "model.norm"},
    {"lm_head", "lm_head", false},
}};

void read(const json& c, const std::string& origin, ModelSpec& s) {
  s.qkv_bias = s.projection_bias = get_bool(c, "attention_bias", origin, false);
  s.placement = NormPlacement::sublayer;
  s.qk_norm = QkNorm::full;
}

void write(const ModelSpec& s, json& c) {
  c["attention_bias"] = s.qkv_bias;
}

constexpr std::array<std::string_view, 1> kOwn = {"attention_bias"};

constexpr DecoderKeys kOlmo2 = {
    .model_type = "olmo2",
    .architecture = "Olmo2ForCausalLM",
    .title = "OLMo2",
    .vocabulary = 50304,
    .positions = 2048,
    .width = 4096,
    .hidden = 11008,
    .layers = 32,
    .heads = 32,
    .epsilon = 1e-5,
    .shapes = kShapes,
    .shape_keys = R"({"rms_norm_eps": 1e-6, "eos_token_id": 100257})",
    .keys = kOwn,
    .tensors = kTensors,
    .gguf = {.name = "olmo2", .heads_fill_width = true, .own_head = GgufPart::must},
    .read = read,
    .write = write};

}  // namespace olmo2_keys

const Family kOlmo2Family = decoder_family<olmo2_keys::kOlmo2>();

}  // namespace snug
