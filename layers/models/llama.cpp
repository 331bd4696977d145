// Llama and its kin: Mistral (a sliding window), Qwen2 (biases of queries, keys and values), Qwen3 (norms
// of each query's and key's head). config.json of transformers' LlamaConfig and so on, weights of their
// ForCausalLM classes.
#include <algorithm>
#include <array>

#include "engine/io/json.h"
#include "layers/models/decoder_family.h"

namespace snug {
namespace {

using nlohmann::json;

constexpr const char* kLlama31 =
    R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
        "high_freq_factor": 4, "original_max_position_embeddings": 8192}})";
constexpr const char* kLlama32 =
    R"({"rope_scaling": {"rope_type": "llama3", "factor": 32, "low_freq_factor": 1,
        "high_freq_factor": 4, "original_max_position_embeddings": 8192}})";

constexpr std::array<DecoderShape, 17> kLlamaShapes = {
    {{"smollm2-135m", 30, 9, 3, 576, 1536, 49152, 8192, 100000, true},
     {"smollm2-360m", 32, 15, 5, 960, 2560, 49152, 8192, 100000, true},
     {"smollm2-1.7b", 24, 32, 32, 2048, 8192, 49152, 8192, 130000, true},
     {"tinyllama-1.1b", 22, 32, 4, 2048, 5632, 32000, 2048, 10000, false},
     {"yi-6b", 32, 32, 4, 4096, 11008, 64000, 4096, 5000000, false},
     {"yi-9b", 48, 32, 4, 4096, 11008, 64000, 4096, 10000, false},
     {"yi-34b", 60, 56, 8, 7168, 20480, 64000, 4096, 5000000, false},
     {"llama-2-7b", 32, 32, 32, 4096, 11008, 32000, 4096, 10000, false},
     {"llama-2-13b", 40, 40, 40, 5120, 13824, 32000, 4096, 10000, false},
     {"llama-2-70b", 80, 64, 8, 8192, 28672, 32000, 4096, 10000, false},
     {"llama-3-8b", 32, 32, 8, 4096, 14336, 128256, 8192, 500000, false},
     {"llama-3-70b", 80, 64, 8, 8192, 28672, 128256, 8192, 500000, false},
     {"llama-3.1-8b", 32, 32, 8, 4096, 14336, 128256, 131072, 500000, false, kLlama31},
     {"llama-3.1-70b", 80, 64, 8, 8192, 28672, 128256, 131072, 500000, false, kLlama31},
     {"llama-3.2-1b", 16, 32, 8, 2048, 8192, 128256, 131072, 500000, true, kLlama32},
     {"llama-3.2-3b", 28, 24, 8, 3072, 8192, 128256, 131072, 500000, true, kLlama32},
     {"llama-3.3-70b", 80, 64, 8, 8192, 28672, 128256, 131072, 500000, false, kLlama31}}};
constexpr std::array<DecoderShape, 3> kMistralShapes = {
    {{"mistral-7b-v0.1", 32, 32, 8, 4096, 14336, 32000, 32768, 10000, false,
      R"({"sliding_window": 4096})"},
     {"mistral-7b-v0.3", 32, 32, 8, 4096, 14336, 32768, 32768, 1000000, false},
     {"mistral-nemo-12b", 40, 32, 8, 5120, 14336, 131072, 131072, 1000000, false,
      R"({"head_dim": 128})"}}};
constexpr std::array<DecoderShape, 7> kQwen2Shapes = {
    {{"qwen2.5-0.5b", 24, 14, 2, 896, 4864, 151936, 32768, 1000000, true},
     {"qwen2.5-1.5b", 28, 12, 2, 1536, 8960, 151936, 32768, 1000000, true},
     {"qwen2.5-3b", 36, 16, 2, 2048, 11008, 151936, 32768, 1000000, true},
     {"qwen2.5-7b", 28, 28, 4, 3584, 18944, 152064, 32768, 1000000, false},
     {"qwen2.5-14b", 48, 40, 8, 5120, 13824, 152064, 32768, 1000000, false},
     {"qwen2.5-32b", 64, 40, 8, 5120, 27648, 152064, 32768, 1000000, false},
     {"qwen2.5-72b", 80, 64, 8, 8192, 29568, 152064, 32768, 1000000, false}}};
constexpr std::array<DecoderShape, 6> kQwen3Shapes = {
    {{"qwen3-0.6b", 28, 16, 8, 1024, 3072, 151936, 40960, 1000000, true},
     {"qwen3-1.7b", 28, 16, 8, 2048, 6144, 151936, 40960, 1000000, true},
     {"qwen3-4b", 36, 32, 8, 2560, 9728, 151936, 40960, 1000000, true},
     {"qwen3-8b", 36, 32, 8, 4096, 12288, 151936, 40960, 1000000, false},
     {"qwen3-14b", 40, 40, 8, 5120, 17408, 151936, 40960, 1000000, false},
     {"qwen3-32b", 64, 64, 8, 5120, 25600, 151936, 40960, 1000000, false}}};

void read_llama(const json& c, const std::string& origin, ModelSpec& s) {
  s.qkv_bias = s.projection_bias = get_bool(c, "attention_bias", origin, false);
  s.mlp_bias = get_bool(c, "mlp_bias", origin, false);
}

void write_llama(const ModelSpec& s, json& c) {
  c["attention_bias"] = s.qkv_bias;
  c["mlp_bias"] = s.mlp_bias;
}

void read_mistral(const json& c, const std::string& origin, ModelSpec& s) {
  read_windows(c, origin, s, 4096, [](const json&, int64_t) { return true; });
}

void write_mistral(const ModelSpec& s, json& c) {
  if (!s.layer_kinds.empty()) return write_layer_types(s, c);
  c["sliding_window"] = s.window > 0 ? json(s.window) : json(nullptr);
}

// The layers from max_window_layers on, if any.
void read_qwen_windows(const json& c, const std::string& origin, ModelSpec& s) {
  if (!get_bool(c, "use_sliding_window", origin, false)) return;
  get_int(c, "max_window_layers", origin, 28);  // its type
  read_windows(c, origin, s, 4096, [](const json& config, int64_t layer) {
    return layer >= get_int(config, "max_window_layers", "", 28);
  });
}

void write_qwen_windows(const ModelSpec& s, json& c) {
  const bool some = s.window > 0 || !s.layer_kinds.empty();
  if (s.layer_kinds.empty())
    c["sliding_window"] = some ? json(s.window) : json(nullptr);
  else
    write_layer_types(s, c);
  c["use_sliding_window"] = some;
  int64_t full = 0;  // before the first with a window
  while (full < s.L && s.kind(full).window == 0) ++full;
  c["max_window_layers"] = full;
}

void read_qwen2(const json& c, const std::string& origin, ModelSpec& s) {
  s.qkv_bias = true;
  read_qwen_windows(c, origin, s);
}

void read_qwen3(const json& c, const std::string& origin, ModelSpec& s) {
  s.qkv_bias = s.projection_bias = get_bool(c, "attention_bias", origin, false);
  s.qk_norm = QkNorm::head;
  read_qwen_windows(c, origin, s);
}

void write_qwen3(const ModelSpec& s, json& c) {
  c["attention_bias"] = s.qkv_bias;
  write_qwen_windows(s, c);
}

constexpr std::array<std::string_view, 2> kLlamaOwn = {"attention_bias", "mlp_bias"};
constexpr std::array<std::string_view, 2> kMistralOwn = {"sliding_window", "layer_types"};
constexpr std::array<std::string_view, 4> kQwen2Own = {"sliding_window", "use_sliding_window",
                                                       "max_window_layers", "layer_types"};
constexpr std::array<std::string_view, 5> kQwen3Own = {
    "sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "attention_bias"};

constexpr DecoderKeys kLlama = {.model_type = "llama",
                                .architecture = "LlamaForCausalLM",
                                .title = "Llama",
                                .vocabulary = 32000,
                                .positions = 2048,
                                .width = 4096,
                                .hidden = 11008,
                                .layers = 32,
                                .heads = 32,
                                .shapes = kLlamaShapes,
                                .shape_keys = R"({"rms_norm_eps": 1e-5})",
                                .keys = kLlamaOwn,
                                .tensors = kLlamaTensors,
                                .gguf = {.name = "llama",
                                         .adjacent_pairs = true,
                                         .qkv_bias = GgufPart::may,
                                         .projection_bias = GgufPart::may,
                                         .mlp_bias = GgufPart::may,
                                         .turn_factors = GgufPart::may},
                                .read = read_llama,
                                .write = write_llama};
constexpr DecoderKeys kMistral = {
    .model_type = "mistral",
    .architecture = "MistralForCausalLM",
    .title = "Mistral",
    .vocabulary = 32000,
    .positions = 131072,
    .width = 4096,
    .hidden = 14336,
    .layers = 32,
    .heads = 32,
    .kv_heads = 8,
    .shapes = kMistralShapes,
    .shape_keys = R"({"sliding_window": null, "rms_norm_eps": 1e-5})",
    .keys = kMistralOwn,
    .tensors = kLlamaTensors,
    .gguf = {.name = "llama", .adjacent_pairs = true, .turn_factors = GgufPart::may},
    .read = read_mistral,
    .write = write_mistral};
constexpr DecoderKeys kQwen2 = {
    .model_type = "qwen2",
    .architecture = "Qwen2ForCausalLM",
    .title = "Qwen2",
    .vocabulary = 151936,
    .positions = 32768,
    .width = 4096,
    .hidden = 22016,
    .layers = 32,
    .heads = 32,
    .kv_heads = 32,
    .shapes = kQwen2Shapes,
    .shape_keys = R"({"sliding_window": null})",
    .keys = kQwen2Own,
    .tensors = kLlamaTensors,
    .gguf = {.name = "qwen2", .heads_fill_width = true, .qkv_bias = GgufPart::may},
    .read = read_qwen2,
    .write = write_qwen_windows};
constexpr DecoderKeys kQwen3 = {.model_type = "qwen3",
                                .architecture = "Qwen3ForCausalLM",
                                .title = "Qwen3",
                                .vocabulary = 151936,
                                .positions = 32768,
                                .width = 4096,
                                .hidden = 22016,
                                .layers = 32,
                                .heads = 32,
                                .kv_heads = 32,
                                .head_width = 128,
                                .shapes = kQwen3Shapes,
                                .shape_keys = R"({"sliding_window": null})",
                                .keys = kQwen3Own,
                                .tensors = kLlamaTensors,
                                .gguf = {.name = "qwen3"},
                                .read = read_qwen3,
                                .write = write_qwen3};

}  // namespace

const Family kLlamaFamily = decoder_family<kLlama>();
const Family kMistralFamily = decoder_family<kMistral>();
const Family kQwen2Family = decoder_family<kQwen2>();
const Family kQwen3Family = decoder_family<kQwen3>();

}  // namespace snug
