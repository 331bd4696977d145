// GPT-2: config.json of transformers' GPT2Config, weights of GPT2LMHeadModel. Linear layers are
// stored (in, out), as Conv1D does; the tied head is not stored.
#include <fmt/format.h>

#include <array>

#include "engine/core/error.h"
#include "engine/core/suggest.h"
#include "engine/io/json.h"
#include "layers/models/decoder_family.h"
#include "layers/models/families.h"

namespace snug {
namespace {

using nlohmann::json;

constexpr const char* kClassifier = "GPT2ForSequenceClassification";

struct NamedShape {
  const char* name;
  int64_t layers, heads, width;
};
constexpr std::array<NamedShape, 5> kShapes = {{{"gpt2", 12, 12, 768},
                                                {"gpt2-medium", 24, 16, 1024},
                                                {"gpt2-large", 36, 20, 1280},
                                                {"gpt2-xl", 48, 25, 1600},
                                                {"distilgpt2", 6, 12, 768}}};

constexpr std::array<KeyAlias, 4> kAliases = {{{"max_position_embeddings", "n_positions"},
                                               {"hidden_size", "n_embd"},
                                               {"num_hidden_layers", "n_layer"},
                                               {"num_attention_heads", "n_head"}}};

// Keys that say nothing about the mathematics of pre-training; accepted from files.
bool is_harmless(std::string_view key) {
  static constexpr std::array<std::string_view, 44> kKeys = {"architectures",
                                                             "model_type",
                                                             "torch_dtype",
                                                             "dtype",
                                                             "transformers_version",
                                                             "n_ctx",
                                                             "bos_token_id",
                                                             "eos_token_id",
                                                             "pad_token_id",
                                                             "_name_or_path",
                                                             "name_or_path",
                                                             "task_specific_params",
                                                             "summary_activation",
                                                             "summary_first_dropout",
                                                             "summary_proj_to_labels",
                                                             "summary_type",
                                                             "summary_use_proj",
                                                             "use_cache",
                                                             "gradient_checkpointing",
                                                             "output_past",
                                                             "id2label",
                                                             "label2id",
                                                             "num_labels",
                                                             "reorder_and_upcast_attn",
                                                             "return_dict",
                                                             "output_attentions",
                                                             "output_hidden_states",
                                                             "chunk_size_feed_forward",
                                                             "is_encoder_decoder",
                                                             "is_decoder",
                                                             "problem_type",
                                                             "finetuning_task",
                                                             "tokenizer_class",
                                                             "prefix",
                                                             "tie_encoder_decoder",
                                                             "torchscript",
                                                             "use_bfloat16",
                                                             "sep_token_id",
                                                             "decoder_start_token_id",
                                                             "cross_attention_hidden_size",
                                                             "_attn_implementation_autoset",
                                                             "_commit_hash",
                                                             "attn_implementation",
                                                             "keys_to_ignore_at_inference"};
  for (const std::string_view k : kKeys)
    if (k == key) return true;
  return false;
}

Activation activation_of(const json& c, const std::string& origin) {
  try {
    return parse_activation(get_string(c, "activation_function", origin, "gelu_new"));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::unsupported) throw;
    fail(e.code(), e.expected(), fmt::format("activation_function = {} in {}", e.found(), origin),
         e.advice());
  }
}

// Keys of files that a user who writes them expects something of.
struct NoEffect {
  const char* key;
  const char* advice;
};
constexpr std::array<NoEffect, 4> kNoEffect = {
    {{"n_ctx", "n_positions"},
     {"gradient_checkpointing", "recompute=block beside the model, or recompute=auto"},
     {"use_bfloat16", "precision=bf16 beside the model"},
     {"attn_implementation", "attn_implementation beside the model"}}};

// What nanoGPT and llm.c call something that a config has under another name.
std::string other_word(std::string_view key, std::string otherwise) {
  if (key == "dropout") return "resid_pdrop, embd_pdrop and attn_pdrop, which it is in nanoGPT";
  if (key == "block_size" || key == "max_seq_len" || key == "sequence_length") return "n_positions";
  if (key == "bias")
    return "for false freeze='bias$' beside the model: they stay at zero, and are saved so; for "
           "true nothing";
  if (key == "channels") return "n_embd";
  if (key == "num_heads") return "n_head";
  if (key == "num_layers") return "n_layer";
  return otherwise;
}

void check_keys(const json& c, const std::string& origin) {
  static constexpr std::array<std::string_view, 17> kKnown = {"vocab_size",
                                                              "n_positions",
                                                              "n_embd",
                                                              "n_layer",
                                                              "n_head",
                                                              "n_inner",
                                                              "activation_function",
                                                              "resid_pdrop",
                                                              "embd_pdrop",
                                                              "attn_pdrop",
                                                              "layer_norm_epsilon",
                                                              "initializer_range",
                                                              "scale_attn_weights",
                                                              "scale_attn_by_inverse_layer_idx",
                                                              "tie_word_embeddings",
                                                              "add_cross_attention",
                                                              "pruned_heads"};
  for (const auto& [key, value] : c.items()) {
    bool known = is_harmless(key);
    for (const std::string_view k : kKnown) known = known || k == key;
    for (const KeyAlias& alias : kAliases) known = known || alias.general == key;
    if (!known)
      fail(ErrorCode::usage, "keys of a GPT-2 config (n_layer, n_embd, n_head, n_positions, ...)",
           fmt::format("\"{}\" in {}", key, origin),
           other_word(key, suggestion(key, {kKnown.begin(), kKnown.end()},
                                      "remove it, or check its spelling")));
    // A config.json that is pasted whole says n_ctx beside n_positions, and false.
    if (value == json(false) || value.is_null()) continue;
    if (key == "n_ctx" && c.contains("n_positions") && c["n_positions"] == value) continue;
    for (const NoEffect& none : kNoEffect)
      if (key == none.key)
        fail(ErrorCode::usage, fmt::format("keys of {} that have an effect", origin),
             fmt::format("{}: {}", key, json_brief(value)), none.advice);
  }
}

// Under the family's own names.
ModelSpec parse_own(const json& c, const std::string& origin) {
  if (c.contains("pruned_heads") && !c["pruned_heads"].empty())
    fail(ErrorCode::unsupported, "pruned_heads: none",
         fmt::format("{} in {}", json_brief(c["pruned_heads"]), origin),
         "a model with all its heads");
  if (get_bool(c, "add_cross_attention", origin, false))
    fail(ErrorCode::unsupported, "add_cross_attention: false", "true in " + origin,
         "a decoder without an encoder");
  ModelSpec s;
  s.family = "gpt2";
  s.architecture = "GPT2LMHeadModel";
  s.V = get_int(c, "vocab_size", origin, 50257);
  s.P = get_int(c, "n_positions", origin, 1024);
  s.C = get_int(c, "n_embd", origin, 768);
  s.L = get_int(c, "n_layer", origin, 12);
  s.H = get_int(c, "n_head", origin, 12);
  s.F = get_int(c, "n_inner", origin, 4 * s.C);
  s.G = s.H;
  s.linear_in_out = true;
  s.small_residual_init = true;
  s.D = s.H > 0 ? s.C / s.H : 0;
  s.activation = activation_of(c, origin);
  s.residual_dropout = static_cast<float>(get_number(c, "resid_pdrop", origin, 0.1));
  s.embedding_dropout = static_cast<float>(get_number(c, "embd_pdrop", origin, 0.1));
  s.attention_dropout = static_cast<float>(get_number(c, "attn_pdrop", origin, 0.1));
  s.norm_epsilon = static_cast<float>(get_number(c, "layer_norm_epsilon", origin, 1e-5));
  s.init_std = static_cast<float>(get_number(c, "initializer_range", origin, 0.02));
  s.scale_attention = get_bool(c, "scale_attn_weights", origin, true);
  s.scale_by_inverse_layer = get_bool(c, "scale_attn_by_inverse_layer_idx", origin, false);
  s.tied = get_bool(c, "tie_word_embeddings", origin, true);
  s.bos_token = token_id(c, "bos_token_id", origin);
  s.eos_token = token_id(c, "eos_token_id", origin);
  read_decoder_head(c, origin, kClassifier, s);
  validate(s, origin);
  return s;
}

ModelSpec parse(const json& config, const std::string& origin, bool strict) {
  if (strict) check_keys(config, origin);
  json c = config;
  own_names(c, kGpt2Family, origin);
  return parse_own(c, origin);
}

json write(const ModelSpec& s, const char* torch_dtype) {
  json c;
  c["architectures"] = json::array({s.architecture});
  c["model_type"] = "gpt2";
  c["vocab_size"] = s.V;
  c["n_positions"] = s.P;
  c["n_ctx"] = s.P;
  c["n_embd"] = s.C;
  c["n_layer"] = s.L;
  c["n_head"] = s.H;
  c["n_inner"] = s.F == 4 * s.C ? json(nullptr) : json(s.F);
  c["activation_function"] = activation_key(s.activation);
  c["resid_pdrop"] = s.residual_dropout;
  c["embd_pdrop"] = s.embedding_dropout;
  c["attn_pdrop"] = s.attention_dropout;
  c["layer_norm_epsilon"] = s.norm_epsilon;
  c["initializer_range"] = s.init_std;
  c["scale_attn_weights"] = s.scale_attention;
  c["scale_attn_by_inverse_layer_idx"] = s.scale_by_inverse_layer;
  c["reorder_and_upcast_attn"] = false;
  c["tie_word_embeddings"] = s.tied;
  c["bos_token_id"] = s.bos_token < 0 ? json(nullptr) : json(s.bos_token);
  c["eos_token_id"] = s.eos_token < 0 ? json(nullptr) : json(s.eos_token);
  c["use_cache"] = true;
  c["torch_dtype"] = torch_dtype;
  c["transformers_version"] = "4.44.0";
  write_decoder_head(s, c);
  return c;
}

std::optional<json> named(std::string_view name) {
  for (const NamedShape& s : kShapes)
    if (name == s.name)
      return json{{"n_layer", s.layers},
                  {"n_head", s.heads},
                  {"n_embd", s.width},
                  {"bos_token_id", 50256},
                  {"eos_token_id", 50256}};
  return std::nullopt;
}

std::vector<std::string> names() {
  std::vector<std::string> list;
  for (const NamedShape& s : kShapes) list.emplace_back(s.name);
  return list;
}

std::vector<FilePiece> pieces(const ParamInfo& p, const ModelSpec& spec) {
  const std::string name = decoder_tensor_name(p);
  if (name == "lm_head.weight") return {{{name}, p.rows}};
  if (name == "head.out.weight") return {{{"score.weight"}, p.rows}};
  std::vector<std::string> names = {"transformer." + name, name};
  if (spec.tied && name == "wte.weight") names.emplace_back("lm_head.weight");
  return {{names, p.rows}};
}

// Old files carry the causal mask as buffers.
bool ignorable(std::string_view tensor) {
  return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias");
}

constexpr GgufArchitecture kGguf = {.name = "gpt2",
                                    .activation = Activation::gelu_tanh,
                                    .heads_fill_width = true,
                                    .qkv_bias = GgufPart::must,
                                    .projection_bias = GgufPart::must,
                                    .mlp_bias = GgufPart::must,
                                    .own_head = GgufPart::must};

}  // namespace

const Family kGpt2Family = {
    .model_type = "gpt2",
    .parse = parse,
    .write = write,
    .named = named,
    .names = names,
    .pieces = pieces,
    .ignorable = ignorable,
    .embedding = "wte.weight",
    .head = "lm_head.weight",
    .gguf = &kGguf,
    .check_keys = check_keys,
    .aliases = kAliases,
    .set_head = [](ModelSpec& spec, HeadKind head) { set_decoder_head(spec, head, kClassifier); },
    .heads = kDecoderHeads};

}  // namespace snug
