// Phi-3 and Phi-4: queries, keys and values in one tensor, gate and up in another; rotary positions
// stretched by a factor a pair (longrope). config.json of transformers' Phi3Config, weights of its
// Phi3ForCausalLM.
#include <fmt/format.h>

#include <array>

#include "engine/core/error.h"
#include "engine/io/json.h"
#include "layers/models/decoder_family.h"

namespace snug {
namespace phi3_keys {

using nlohmann::json;

constexpr const char* kMini4 = R"({"sliding_window": 2047})";
constexpr std::array<DecoderShape, 3> kShapes = {
    {{"phi-3-mini", 32, 32, 32, 3072, 8192, 32064, 4096, 10000, false, kMini4},
     {"phi-3-medium", 40, 40, 10, 5120, 17920, 32064, 4096, 10000, false, kMini4},
     {"phi-4", 40, 40, 10, 5120, 17920, 100352, 16384, 250000, false}}};

constexpr std::array<TensorName, 9> kTensors = {{
    {"wte", "model.embed_tokens"},
    {"h.#.ln_1", "model.layers.#.input_layernorm"},
    {"h.#.attn.c_attn", "model.layers.#.self_attn.qkv_proj"},
    {"h.#.attn.c_proj", "model.layers.#.self_attn.o_proj"},
    {"h.#.ln_2", "model.layers.#.post_attention_layernorm"},
    {"h.#.mlp.c_fc", "model.layers.#.mlp.gate_up_proj"},
    {"h.#.mlp.c_proj", "model.layers.#.mlp.down_proj"},
    {"ln_f", "model.norm"},
    {"lm_head", "lm_head", false},
}};

void read(const json& c, const std::string& origin, ModelSpec& s) {
  s.residual_dropout = static_cast<float>(get_number(c, "resid_pdrop", origin, 0.0));
  // transformers' model does not read it.
  if (const double p = get_number(c, "embd_pdrop", origin, 0.0); p != 0)
    fail(ErrorCode::unsupported, fmt::format("embd_pdrop: 0 in {}", origin), fmt::format("{}", p),
         "resid_pdrop or attention_dropout");
  read_windows(c, origin, s, 0, [](const json&, int64_t) { return true; });
}

void write(const ModelSpec& s, json& c) {
  c["resid_pdrop"] = s.residual_dropout;
  c["sliding_window"] = s.window > 0 ? json(s.window) : json(nullptr);
  if (s.rope.type != "longrope") c["original_max_position_embeddings"] = s.P;
}

constexpr std::array<std::string_view, 4> kOwn = {"resid_pdrop", "embd_pdrop", "sliding_window",
                                                  "original_max_position_embeddings"};

constexpr DecoderKeys kPhi3 = {.model_type = "phi3",
                               .architecture = "Phi3ForCausalLM",
                               .title = "Phi-3",
                               .vocabulary = 32064,
                               .positions = 4096,
                               .width = 3072,
                               .hidden = 8192,
                               .layers = 32,
                               .heads = 32,
                               .epsilon = 1e-5,
                               .shapes = kShapes,
                               .keys = kOwn,
                               .tensors = kTensors,
                               .gguf = {.name = "phi3",
                                        .heads_fill_width = true,
                                        .partial_turns = GgufPart::may,
                                        .turn_factors = GgufPart::may,
                                        .two_turn_factors = true},
                               .read = read,
                               .write = write};

}  // namespace phi3_keys

const Family kPhi3Family = decoder_family<phi3_keys::kPhi3>();

}  // namespace snug
