#include "layers/models/encoder_family.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/core/error.h"
#include "engine/core/suggest.h"
#include "engine/io/json.h"

namespace snug {
namespace {

using nlohmann::json;

struct Head {
  HeadKind kind;
  std::string_view suffix;
};
constexpr std::array<Head, 3> kHeads = {
    {{HeadKind::masked_lm, "ForMaskedLM"},
     {HeadKind::sequence_classification, "ForSequenceClassification"},
     {HeadKind::token_classification, "ForTokenClassification"}}};

constexpr std::array<std::string_view, 33> kHarmless = {"architectures",
                                                        "model_type",
                                                        "torch_dtype",
                                                        "dtype",
                                                        "transformers_version",
                                                        "bos_token_id",
                                                        "eos_token_id",
                                                        "pad_token_id",
                                                        "sep_token_id",
                                                        "cls_token_id",
                                                        "mask_token_id",
                                                        "_name_or_path",
                                                        "name_or_path",
                                                        "task_specific_params",
                                                        "use_cache",
                                                        "gradient_checkpointing",
                                                        "output_past",
                                                        "id2label",
                                                        "label2id",
                                                        "num_labels",
                                                        "return_dict",
                                                        "output_attentions",
                                                        "output_hidden_states",
                                                        "problem_type",
                                                        "finetuning_task",
                                                        "tokenizer_class",
                                                        "torchscript",
                                                        "_attn_implementation_autoset",
                                                        "attn_implementation",
                                                        "is_encoder_decoder",
                                                        "directionality",
                                                        "pooler_type",
                                                        "qa_dropout"};

struct NamedProblem {
  Problem problem;
  const char* name;
};
constexpr std::array<NamedProblem, 3> kProblems = {
    {{Problem::single_label, "single_label_classification"},
     {Problem::multi_label, "multi_label_classification"},
     {Problem::regression, "regression"}}};

// "h.3.ln_1" as "h.#.ln_1" and 3; no layer: -1.
std::pair<std::string, int64_t> without_layer(std::string_view name) {
  if (!name.starts_with("h.")) return {std::string(name), -1};
  const size_t dot = name.find('.', 2);
  return {"h.#" + std::string(name.substr(dot)), std::stoll(std::string(name.substr(2, dot - 2)))};
}

bool chosen_head(const TensorName& row, HeadKind head) {
  return row.head == HeadKind::causal_lm || row.head == head;
}

int64_t one_token_id(const json& c, const char* key, const std::string& origin, int64_t fallback) {
  if (c.contains(key) && c[key].is_null()) return -1;
  return get_int(c, key, origin, fallback);
}

}  // namespace

std::string encoder_architecture(const EncoderKeys& keys, HeadKind head) {
  for (const Head& h : kHeads)
    if (h.kind == head) return std::string(keys.architecture) + std::string(h.suffix);
  fail(ErrorCode::internal, "a head of an encoder", "another one", "report this");
}

HeadKind encoder_head(const EncoderKeys& keys, const json& config, const std::string& origin) {
  if (!config.contains("architectures") || !config["architectures"].is_array() ||
      config["architectures"].empty() || !config["architectures"][0].is_string())
    return HeadKind::masked_lm;
  const std::string name = config["architectures"][0];
  for (const Head& h : kHeads)
    if (name.ends_with(h.suffix)) return h.kind;
  if (name.ends_with("Model") || name.ends_with("ForPreTraining")) return HeadKind::masked_lm;
  fail(ErrorCode::unsupported,
       fmt::format("architectures of {} among {}, {}, {} and the base model", origin,
                   encoder_architecture(keys, HeadKind::masked_lm),
                   encoder_architecture(keys, HeadKind::sequence_classification),
                   encoder_architecture(keys, HeadKind::token_classification)),
       name, "task=sequence_classification beside the base model");
}

void read_labels(const json& c, const std::string& origin, ModelSpec& spec) {
  if (c.contains("id2label") && c["id2label"].is_object() && !c["id2label"].empty()) {
    const json& map = c["id2label"];
    const auto count = static_cast<int64_t>(map.size());
    for (int64_t i = 0; i < count; ++i) {
      const std::string key = std::to_string(i);
      if (!map.contains(key) || !map[key].is_string())
        fail(ErrorCode::data,
             fmt::format("id2label with names of 0 to {} in {}", count - 1, origin),
             json_brief(map), "number the labels from 0 without a gap");
      spec.labels.push_back(map[key]);
    }
    if (c.contains("num_labels") && get_int(c, "num_labels", origin) != count)
      fail(ErrorCode::data, fmt::format("as many id2label as num_labels in {}", origin),
           fmt::format("{} and {}", count, get_int(c, "num_labels", origin)),
           "leave num_labels out");
  } else {
    const int64_t count = get_int(c, "num_labels", origin, 2);
    if (count < 1 || count > (int64_t{1} << 20))
      fail(ErrorCode::usage, fmt::format("num_labels between 1 and {} in {}", 1 << 20, origin),
           std::to_string(count), "num_labels: 2");
    for (int64_t i = 0; i < count; ++i) spec.labels.push_back("LABEL_" + std::to_string(i));
  }
  spec.problem = spec.labels.size() == 1 ? Problem::regression : Problem::single_label;
  if (c.contains("problem_type") && !c["problem_type"].is_null()) {
    const std::string name = get_string(c, "problem_type", origin);
    bool known = false;
    for (const NamedProblem& p : kProblems)
      if (name == p.name) {
        spec.problem = p.problem;
        known = true;
      }
    if (!known)
      fail(ErrorCode::usage,
           fmt::format("problem_type in {} as regression, single_label_classification or "
                       "multi_label_classification",
                       origin),
           name, "leave problem_type out");
  }
}

void write_labels(const ModelSpec& spec, json& c) {
  if (spec.head != HeadKind::sequence_classification && spec.head != HeadKind::token_classification)
    return;
  c["id2label"] = json::object();
  c["label2id"] = json::object();
  for (size_t i = 0; i < spec.labels.size(); ++i) {
    c["id2label"][std::to_string(i)] = spec.labels[i];
    c["label2id"][spec.labels[i]] = i;
  }
  if (spec.head == HeadKind::sequence_classification)
    for (const NamedProblem& p : kProblems)
      if (p.problem == spec.problem) c["problem_type"] = p.name;
}

Activation read_activation(const json& c, const char* key, const std::string& origin,
                           const char* unset) {
  try {
    return parse_activation(get_string(c, key, origin, unset));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::unsupported) throw;
    fail(e.code(), e.expected(), fmt::format("{} = {} in {}", key, e.found(), origin), e.advice());
  }
}

const char* activation_key(Activation kind) {
  switch (kind) {
    case Activation::gelu_tanh:
      return "gelu_new";
    case Activation::gelu_erf:
      return "gelu";
    case Activation::relu:
      return "relu";
    case Activation::silu:
      return "silu";
    case Activation::tanh:
      return "tanh";
  }
  return "gelu";
}

ModelSpec parse_encoder(const EncoderKeys& k, const json& config, const std::string& origin,
                        bool strict) {
  if (strict) check_encoder_keys(k, config, origin);
  json c = config;
  own_names(c, find_family(k.model_type, origin), origin);
  if (get_bool(c, "is_decoder", origin, false) || get_bool(c, "add_cross_attention", origin, false))
    fail(ErrorCode::unsupported, fmt::format("an encoder in {}", origin),
         "is_decoder or add_cross_attention: true", "a model that attends both ways");
  if (c.contains("pruned_heads") && !c["pruned_heads"].empty())
    fail(ErrorCode::unsupported, "pruned_heads: none",
         fmt::format("{} in {}", json_brief(c["pruned_heads"]), origin),
         "a model with all its heads");
  const std::string positions = get_string(c, "position_embedding_type", origin, "absolute");
  if (positions != "absolute")
    fail(ErrorCode::unsupported, "position_embedding_type: absolute",
         fmt::format("{} in {}", positions, origin), "a model with absolute positions");
  ModelSpec s;
  s.family = k.model_type;
  s.causal = false;
  s.placement = NormPlacement::post;
  s.embedding_norm = true;
  s.V = get_int(c, "vocab_size", origin, 30522);
  s.P = get_int(c, "max_position_embeddings", origin, 512);
  s.C = get_int(c, k.width, origin, 768);
  s.L = get_int(c, k.layers, origin, 12);
  s.H = get_int(c, k.heads, origin, 12);
  s.F = get_int(c, k.hidden, origin, 4 * s.C);
  s.G = s.H;
  s.D = s.H > 0 ? s.C / s.H : 0;
  s.activation = read_activation(c, k.activation, origin);
  s.residual_dropout = static_cast<float>(get_number(c, k.dropout, origin, 0.1));
  s.embedding_dropout = s.residual_dropout;
  s.attention_dropout = static_cast<float>(get_number(c, k.attention_dropout, origin, 0.1));
  s.norm_epsilon = static_cast<float>(get_number(c, "layer_norm_eps", origin, 1e-12));
  s.init_std = static_cast<float>(get_number(c, "initializer_range", origin, 0.02));
  s.tied = get_bool(c, "tie_word_embeddings", origin, true);
  s.bos_token = one_token_id(c, "bos_token_id", origin, -1);
  s.eos_token = one_token_id(c, "eos_token_id", origin, -1);
  read_labels(c, origin, s);
  k.read(c, origin, strict, s);
  k.set_head(s, encoder_head(k, c, origin));
  validate(s, origin);
  return s;
}

void read_bert_keys(const json& c, const std::string& origin, ModelSpec& s) {
  s.types = get_int(c, "type_vocab_size", origin, 2);
  s.head_dropout =
      static_cast<float>(c.contains("classifier_dropout") && !c["classifier_dropout"].is_null()
                             ? get_number(c, "classifier_dropout", origin, 0.0)
                             : static_cast<double>(s.residual_dropout));
}

void write_bert_keys(const ModelSpec& s, json& c) {
  c["type_vocab_size"] = s.types;
  c["layer_norm_eps"] = s.norm_epsilon;
  c["position_embedding_type"] = "absolute";
  c["classifier_dropout"] =
      s.head_dropout == s.residual_dropout ? json(nullptr) : json(s.head_dropout);
}

std::optional<json> named_encoder(const EncoderKeys& k, std::string_view name) {
  for (const EncoderShape& s : k.shapes)
    if (name == s.name) {
      json c = json::parse(k.shape_keys);
      c[k.layers] = s.layers;
      c[k.heads] = s.heads;
      c[k.width] = s.width;
      c[k.hidden] = 4 * s.width;
      c["vocab_size"] = s.vocabulary;
      return c;
    }
  return std::nullopt;
}

std::vector<std::string> encoder_names(const EncoderKeys& k) {
  std::vector<std::string> list;
  for (const EncoderShape& s : k.shapes) list.emplace_back(s.name);
  return list;
}

void check_encoder_keys(const EncoderKeys& k, const json& config, const std::string& origin) {
  std::vector<std::string_view> known = {"vocab_size",
                                         "max_position_embeddings",
                                         "initializer_range",
                                         "tie_word_embeddings",
                                         "is_decoder",
                                         "add_cross_attention",
                                         "pruned_heads",
                                         "chunk_size_feed_forward",
                                         k.width,
                                         k.layers,
                                         k.heads,
                                         k.hidden,
                                         k.activation,
                                         k.dropout,
                                         k.attention_dropout};
  known.insert(known.end(), k.own.begin(), k.own.end());
  check_config_keys(config, origin, k.title, known, k.aliases);
}

bool encoder_buffer(std::string_view tensor) {
  return tensor.ends_with("embeddings.position_ids") ||
         tensor.ends_with("embeddings.token_type_ids");
}

json write_encoder(const EncoderKeys& k, const ModelSpec& s, const char* torch_dtype) {
  json c;
  c["architectures"] = json::array({encoder_architecture(k, s.head)});
  c["model_type"] = k.model_type;
  c["vocab_size"] = s.V;
  c["max_position_embeddings"] = s.P + s.first_position;
  c[k.width] = s.C;
  c[k.layers] = s.L;
  c[k.heads] = s.H;
  c[k.hidden] = s.F;
  c[k.activation] = activation_key(s.activation);
  c[k.dropout] = s.residual_dropout;
  c[k.attention_dropout] = s.attention_dropout;
  c["initializer_range"] = s.init_std;
  c["tie_word_embeddings"] = s.tied;
  if (s.bos_token >= 0) c["bos_token_id"] = s.bos_token;
  if (s.eos_token >= 0) c["eos_token_id"] = s.eos_token;
  write_labels(s, c);
  c["torch_dtype"] = torch_dtype;
  c["transformers_version"] = "4.44.0";
  k.write(s, c);
  return c;
}

std::vector<FilePiece> named_pieces(std::span<const TensorName> tensors, const ParamInfo& param,
                                    const ModelSpec& spec) {
  const std::string_view full = param.name.view();
  const size_t dot = full.rfind('.');
  const auto [ours, layer] = without_layer(full.substr(0, dot));
  const std::string suffix(full.substr(dot));
  for (const TensorName& row : tensors) {
    if (row.ours != ours || !chosen_head(row, spec.head)) continue;
    std::vector<FilePiece> pieces;
    for (std::string_view rest = row.file; !rest.empty();) {
      const size_t bar = rest.find('|');
      std::string file(rest.substr(0, bar));
      if (const size_t at = file.find('#'); at != std::string::npos)
        file.replace(at, 1, std::to_string(layer));
      pieces.push_back({{file + suffix}, 0});
      rest = bar == std::string_view::npos ? std::string_view() : rest.substr(bar + 1);
    }
    for (FilePiece& piece : pieces) piece.rows = param.rows / static_cast<int64_t>(pieces.size());
    return pieces;
  }
  fail(ErrorCode::internal, "every parameter in the family's table", std::string(full),
       "this is a defect in Snug: please report it");
}

std::vector<FilePiece> encoder_pieces(const EncoderKeys& k, const ParamInfo& param,
                                      const ModelSpec& spec) {
  std::vector<FilePiece> pieces = named_pieces(k.tensors, param, spec);
  const std::string_view full = param.name.view();
  const std::string suffix(full.substr(full.rfind('.')));
  const bool of_head = std::any_of(k.tensors.begin(), k.tensors.end(), [&](const TensorName& row) {
    return !row.base && row.ours == full.substr(0, full.rfind('.')) && chosen_head(row, spec.head);
  });
  for (FilePiece& piece : pieces) {
    const std::string file =
        piece.names.front().substr(0, piece.names.front().size() - suffix.size());
    piece.names.clear();
    for (const char* prefix : {k.prefix, ""}) {
      if (of_head && *prefix) continue;
      piece.names.push_back(prefix + file + suffix);
      // Files of the first releases, converted from TensorFlow.
      if (file.ends_with("LayerNorm"))
        piece.names.push_back(prefix + file + (suffix == ".weight" ? ".gamma" : ".beta"));
    }
    // Two spellings of the decoder's bias.
    if (full == "lm_head.bias" && file.ends_with(".decoder"))
      piece.names.insert(piece.names.begin(), file.substr(0, file.size() - 8) + suffix);
  }
  // The embedding of a tied model may stand under the name of the head alone.
  if (full == "wte.weight" && spec.tied && spec.head == HeadKind::masked_lm)
    for (const TensorName& other : k.tensors)
      if (other.ours == "lm_head" && chosen_head(other, spec.head))
        pieces.front().names.push_back(std::string(other.file) + suffix);
  return pieces;
}

void check_config_keys(const json& c, const std::string& origin, const char* family,
                       std::span<const std::string_view> known, std::span<const KeyAlias> aliases) {
  for (const auto& [key, value] : c.items()) {
    const std::string_view name = key;
    bool good = std::find(known.begin(), known.end(), name) != known.end() ||
                std::find(kHarmless.begin(), kHarmless.end(), name) != kHarmless.end();
    for (const KeyAlias& alias : aliases) good = good || name == alias.general;
    if (!good)
      fail(ErrorCode::usage, fmt::format("keys of a {} config", family),
           fmt::format("\"{}\" in {}", key, origin),
           suggestion(key, {known.begin(), known.end()}, "remove it, or check its spelling"));
    if (value.is_null() || value == json(false)) continue;
    if (name == "gradient_checkpointing")
      fail(ErrorCode::usage, fmt::format("keys of {} that have an effect", origin),
           fmt::format("{}: {}", key, json_brief(value)),
           "recompute=block beside the model, or recompute=auto");
    if (name == "attn_implementation")
      fail(ErrorCode::usage, fmt::format("keys of {} that have an effect", origin),
           fmt::format("{}: {}", key, json_brief(value)), "attn_implementation beside the model");
  }
}

}  // namespace snug
