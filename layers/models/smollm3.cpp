// SmolLM3: Llama with some layers whose queries and keys do not turn. config.json of transformers'
// SmolLM3Config, weights of its SmolLM3ForCausalLM.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/core/error.h"
#include "engine/io/json.h"
#include "layers/models/decoder_family.h"

namespace snug {
namespace smollm3_keys {

using nlohmann::json;

constexpr std::array<DecoderShape, 1> kShapes = {
    {{"smollm3-3b", 36, 16, 4, 2048, 11008, 128256, 65536, 5000000, true}}};

// Whether each layer turns: no_rope_layers has 1 for those that do.
std::vector<bool> read_turning(const json& c, const std::string& origin, int64_t layers) {
  std::vector<bool> turns;
  const bool listed = c.contains("no_rope_layers") && !c["no_rope_layers"].is_null();
  const json list = listed ? c["no_rope_layers"] : json::array();
  const int64_t every = get_int_in(c, "no_rope_layer_interval", origin, 1, int64_t{1} << 30, 4);
  if (listed && (!list.is_array() || static_cast<int64_t>(list.size()) < layers))
    fail(ErrorCode::usage, fmt::format("{} no_rope_layers, one a layer, in {}", layers, origin),
         json_brief(list), "leave no_rope_layers out: every fourth layer does not turn");
  for (int64_t l = 0; l < layers; ++l) {
    if (!listed) {
      turns.push_back((l + 1) % every != 0);
      continue;
    }
    const json& value = list[static_cast<size_t>(l)];
    if (value != json(0) && value != json(1))
      fail(ErrorCode::usage, fmt::format("no_rope_layers of 0 and 1 in {}", origin),
           json_brief(value), "1 for a layer that turns, 0 for one that does not");
    turns.push_back(value == json(1));
  }
  return turns;
}

void read(const json& c, const std::string& origin, ModelSpec& s) {
  s.qkv_bias = s.projection_bias = get_bool(c, "attention_bias", origin, false);
  s.mlp_bias = get_bool(c, "mlp_bias", origin, false);
  const std::vector<bool> turns = read_turning(c, origin, s.L);
  // Unless layer_types say otherwise, the layers that do not turn have the window.
  const bool windows = get_bool(c, "use_sliding_window", origin, false);
  if (windows && c.contains("layer_types") && c["layer_types"].is_array()) {
    read_windows(c, origin, s, 0, [](const json&, int64_t) { return false; });
  } else if (windows && c.contains("sliding_window") && !c["sliding_window"].is_null()) {
    const int64_t window = get_int_in(c, "sliding_window", origin, 1, int64_t{1} << 30);
    for (const bool turn : turns) s.layer_kinds.push_back({turn ? 0 : window, LayerRope::main});
  }
  if (std::find(turns.begin(), turns.end(), false) == turns.end() && s.layer_kinds.empty()) return;
  if (s.layer_kinds.empty())
    s.layer_kinds.assign(static_cast<size_t>(s.L), {s.window, LayerRope::main});
  s.window = 0;
  for (size_t l = 0; l < s.layer_kinds.size(); ++l)
    s.layer_kinds[l].rope = turns[l] ? LayerRope::main : LayerRope::none;
}

void write(const ModelSpec& s, json& c) {
  c["attention_bias"] = s.qkv_bias;
  c["mlp_bias"] = s.mlp_bias;
  json turns = json::array();
  for (int64_t l = 0; l < s.L; ++l) turns.push_back(s.kind(l).rope == LayerRope::none ? 0 : 1);
  c["no_rope_layers"] = turns;
  write_layer_types(s, c);
  c["use_sliding_window"] = !c["sliding_window"].is_null();
}

constexpr std::array<std::string_view, 7> kOwn = {
    "attention_bias",     "mlp_bias",       "no_rope_layers", "no_rope_layer_interval",
    "use_sliding_window", "sliding_window", "layer_types"};

constexpr DecoderKeys kSmollm3 = {
    .model_type = "smollm3",
    .architecture = "SmolLM3ForCausalLM",
    .title = "SmolLM3",
    .vocabulary = 128256,
    .positions = 32768,
    .width = 2048,
    .hidden = 11008,
    .layers = 36,
    .heads = 16,
    .kv_heads = 4,
    .theta = 2000000,
    .tied = true,
    .shapes = kShapes,
    .keys = kOwn,
    .tensors = kLlamaTensors,
    .gguf = {.name = "smollm3", .adjacent_pairs = true, .still_every = 4},
    .read = read,
    .write = write};

}  // namespace smollm3_keys

const Family kSmollm3Family = decoder_family<smollm3_keys::kSmollm3>();

}  // namespace snug
