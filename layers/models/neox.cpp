// GPT-NeoX: Pythia, Polyglot-ko. config.json of transformers' GPTNeoXConfig, weights of its
// GPTNeoXForCausalLM: layer norms, attention and MLP beside each other or one after the other, a part of
// each head turns, the rows of query_key_value lie head by head.
#include <array>

#include "engine/io/json.h"
#include "layers/models/decoder_family.h"

namespace snug {
namespace neox_keys {

using nlohmann::json;

constexpr const char* kPythia = R"({"bos_token_id": 0, "eos_token_id": 0})";
constexpr const char* kHalf = R"({"rotary_pct": 0.5})";
constexpr std::array<DecoderShape, 13> kShapes = {
    {{"pythia-70m", 6, 8, 0, 512, 2048, 50304, 2048, 10000, false, kPythia},
     {"pythia-160m", 12, 12, 0, 768, 3072, 50304, 2048, 10000, false, kPythia},
     {"pythia-410m", 24, 16, 0, 1024, 4096, 50304, 2048, 10000, false, kPythia},
     {"pythia-1b", 16, 8, 0, 2048, 8192, 50304, 2048, 10000, false, kPythia},
     {"pythia-1.4b", 24, 16, 0, 2048, 8192, 50304, 2048, 10000, false, kPythia},
     {"pythia-2.8b", 32, 32, 0, 2560, 10240, 50304, 2048, 10000, false, kPythia},
     {"pythia-6.9b", 32, 32, 0, 4096, 16384, 50432, 2048, 10000, false, kPythia},
     {"pythia-12b", 36, 40, 0, 5120, 20480, 50688, 2048, 10000, false, kPythia},
     {"gpt-neox-20b", 44, 64, 0, 6144, 24576, 50432, 2048, 10000, false, kPythia},
     {"polyglot-ko-1.3b", 24, 16, 0, 2048, 8192, 30080, 2048, 10000, false, kHalf},
     {"polyglot-ko-3.8b", 32, 24, 0, 3072, 12288, 30080, 2048, 10000, false, kHalf},
     {"polyglot-ko-5.8b", 28, 16, 0, 4096, 16384, 30080, 2048, 10000, false},
     {"polyglot-ko-12.8b", 40, 40, 0, 5120, 20480, 30080, 2048, 10000, false, kHalf}}};

constexpr std::array<TensorName, 9> kTensors = {{
    {"wte", "gpt_neox.embed_in"},
    {"h.#.ln_1", "gpt_neox.layers.#.input_layernorm"},
    {"h.#.attn.c_attn", "gpt_neox.layers.#.attention.query_key_value"},
    {"h.#.attn.c_proj", "gpt_neox.layers.#.attention.dense"},
    {"h.#.ln_2", "gpt_neox.layers.#.post_attention_layernorm"},
    {"h.#.mlp.c_fc", "gpt_neox.layers.#.mlp.dense_h_to_4h"},
    {"h.#.mlp.c_proj", "gpt_neox.layers.#.mlp.dense_4h_to_h"},
    {"ln_f", "gpt_neox.final_layer_norm"},
    {"lm_head", "embed_out", false},
}};

void read(const json& c, const std::string& origin, ModelSpec& s) {
  s.norm = NormKind::layernorm;
  s.gated_mlp = false;
  s.mlp_bias = true;
  s.qkv_by_head = true;
  s.qkv_bias = s.projection_bias = get_bool(c, "attention_bias", origin, true);
  s.placement = get_bool(c, "use_parallel_residual", origin, true) ? NormPlacement::parallel
                                                                   : NormPlacement::pre;
  s.residual_dropout = s.embedding_dropout =
      static_cast<float>(get_number(c, "hidden_dropout", origin, 0.0));
}

void write(const ModelSpec& s, json& c) {
  c["attention_bias"] = s.qkv_bias;
  c["use_parallel_residual"] = s.placement == NormPlacement::parallel;
  c["hidden_dropout"] = s.residual_dropout;
}

constexpr std::array<std::string_view, 4> kOwn = {"attention_bias", "use_parallel_residual",
                                                  "hidden_dropout", "classifier_dropout"};

constexpr DecoderKeys kNeox = {.model_type = "gpt_neox",
                               .architecture = "GPTNeoXForCausalLM",
                               .title = "GPT-NeoX",
                               .vocabulary = 50432,
                               .positions = 2048,
                               .width = 6144,
                               .hidden = 24576,
                               .layers = 44,
                               .heads = 64,
                               .epsilon = 1e-5,
                               .activation = "gelu",
                               .epsilon_key = "layer_norm_eps",
                               .theta_key = "rotary_emb_base",
                               .partial_key = "rotary_pct",
                               .partial = 0.25,
                               .grouped_heads = false,
                               .shapes = kShapes,
                               .shape_keys = R"({"bos_token_id": 0, "eos_token_id": 2})",
                               .keys = kOwn,
                               .tensors = kTensors,
                               .prefix = "gpt_neox.",
                               .gguf = {.name = "gptneox",
                                        .activation = Activation::gelu_tanh,
                                        .near_gelu = true,
                                        .heads_fill_width = true,
                                        .says_parallel = true,
                                        .qkv_bias = GgufPart::must,
                                        .projection_bias = GgufPart::must,
                                        .mlp_bias = GgufPart::must,
                                        .own_head = GgufPart::must,
                                        .partial_turns = GgufPart::may},
                               .read = read,
                               .write = write};

}  // namespace neox_keys

const Family kNeoxFamily = decoder_family<neox_keys::kNeox>();

}  // namespace snug
