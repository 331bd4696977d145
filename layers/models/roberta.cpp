// RoBERTa: config.json of transformers' RobertaConfig, weights of RobertaForMaskedLM,
// RobertaForSequenceClassification and RobertaForTokenClassification. Positions begin behind the
// padding token's: the first padding_idx + 1 rows of the table are never read.
#include <array>

#include "engine/io/json.h"
#include "layers/models/encoder_family.h"

namespace snug {
namespace {

using nlohmann::json;

constexpr HeadKind kMasked = HeadKind::masked_lm, kSequence = HeadKind::sequence_classification,
                   kToken = HeadKind::token_classification;

constexpr std::array<TensorName, 16> kTensors = {{
    {"wte", "embeddings.word_embeddings"},
    {"wpe", "embeddings.position_embeddings"},
    {"wtt", "embeddings.token_type_embeddings"},
    {"embedding.norm", "embeddings.LayerNorm"},
    {"h.#.attn.c_attn",
     "encoder.layer.#.attention.self.query|encoder.layer.#.attention.self.key|"
     "encoder.layer.#.attention.self.value"},
    {"h.#.attn.c_proj", "encoder.layer.#.attention.output.dense"},
    {"h.#.ln_1", "encoder.layer.#.attention.output.LayerNorm"},
    {"h.#.mlp.c_fc", "encoder.layer.#.intermediate.dense"},
    {"h.#.mlp.c_proj", "encoder.layer.#.output.dense"},
    {"h.#.ln_2", "encoder.layer.#.output.LayerNorm"},
    {"head.dense", "lm_head.dense", false, kMasked},
    {"head.norm", "lm_head.layer_norm", false, kMasked},
    {"lm_head", "lm_head.decoder", false, kMasked},
    {"head.dense", "classifier.dense", false, kSequence},
    {"head.out", "classifier.out_proj", false, kSequence},
    {"head.out", "classifier", false, kToken},
}};

constexpr EncoderKeys kKeys = {.model_type = "roberta",
                               .prefix = "roberta.",
                               .architecture = "Roberta",
                               .tensors = kTensors,
                               .width = "hidden_size",
                               .layers = "num_hidden_layers",
                               .heads = "num_attention_heads",
                               .hidden = "intermediate_size",
                               .activation = "hidden_act",
                               .dropout = "hidden_dropout_prob",
                               .attention_dropout = "attention_probs_dropout_prob"};

constexpr std::array<std::string_view, 20> kKnown = {"vocab_size",
                                                     "max_position_embeddings",
                                                     "hidden_size",
                                                     "num_hidden_layers",
                                                     "num_attention_heads",
                                                     "intermediate_size",
                                                     "hidden_act",
                                                     "hidden_dropout_prob",
                                                     "attention_probs_dropout_prob",
                                                     "type_vocab_size",
                                                     "initializer_range",
                                                     "layer_norm_eps",
                                                     "position_embedding_type",
                                                     "classifier_dropout",
                                                     "tie_word_embeddings",
                                                     "is_decoder",
                                                     "add_cross_attention",
                                                     "pruned_heads",
                                                     "chunk_size_feed_forward",
                                                     "cross_attention_hidden_size"};

constexpr std::array<KeyAlias, 0> kAliases = {};

struct NamedShape {
  const char* name;
  int64_t layers, heads, width, vocabulary;
};
constexpr std::array<NamedShape, 3> kShapes = {{{"roberta-base", 12, 12, 768, 50265},
                                                {"roberta-large", 24, 16, 1024, 50265},
                                                {"distilroberta-base", 6, 12, 768, 50265}}};

void set_head(ModelSpec& s, HeadKind head) {
  s.head = head;
  s.head_activation = head == HeadKind::masked_lm ? Activation::gelu_erf : Activation::tanh;
  s.head_dropout_first = head == HeadKind::sequence_classification;
}

void check_keys(const json& c, const std::string& origin) {
  check_encoder_keys(c, origin, "RoBERTa", kKnown, kAliases);
}

ModelSpec parse(const json& c, const std::string& origin, bool strict) {
  if (strict) check_keys(c, origin);
  ModelSpec s = parse_encoder(kKeys, c, origin);
  s.V = get_int(c, "vocab_size", origin, 50265);
  s.types = get_int(c, "type_vocab_size", origin, 2);
  s.pad_token = get_int(c, "pad_token_id", origin, 1);
  s.first_position = s.pad_token + 1;
  s.P -= s.first_position;
  s.head_dropout =
      static_cast<float>(c.contains("classifier_dropout") && !c["classifier_dropout"].is_null()
                             ? get_number(c, "classifier_dropout", origin, 0.0)
                             : static_cast<double>(s.residual_dropout));
  set_head(s, s.head);
  validate(s, origin);
  return s;
}

json write(const ModelSpec& s, const char* torch_dtype) {
  json c = write_encoder(kKeys, s, torch_dtype);
  c["type_vocab_size"] = s.types;
  c["layer_norm_eps"] = s.norm_epsilon;
  c["position_embedding_type"] = "absolute";
  c["classifier_dropout"] =
      s.head_dropout == s.residual_dropout ? json(nullptr) : json(s.head_dropout);
  c["pad_token_id"] = s.pad_token;
  return c;
}

std::optional<json> named(std::string_view name) {
  for (const NamedShape& s : kShapes)
    if (name == s.name)
      return json{{"num_hidden_layers", s.layers},
                  {"num_attention_heads", s.heads},
                  {"hidden_size", s.width},
                  {"intermediate_size", 4 * s.width},
                  {"vocab_size", s.vocabulary},
                  {"max_position_embeddings", 514},
                  {"type_vocab_size", 1},
                  {"layer_norm_eps", 1e-5},
                  {"pad_token_id", 1},
                  {"bos_token_id", 0},
                  {"eos_token_id", 2}};
  return std::nullopt;
}

std::vector<std::string> names() {
  std::vector<std::string> list;
  for (const NamedShape& s : kShapes) list.emplace_back(s.name);
  return list;
}

std::vector<FilePiece> pieces(const ParamInfo& p, const ModelSpec& spec) {
  return encoder_pieces(kKeys, p, spec);
}

// Buffers of old files.
bool ignorable(std::string_view tensor) {
  return tensor.ends_with("embeddings.position_ids") ||
         tensor.ends_with("embeddings.token_type_ids");
}

}  // namespace

const Family kRobertaFamily = {.model_type = "roberta",
                               .parse = parse,
                               .write = write,
                               .named = named,
                               .names = names,
                               .pieces = pieces,
                               .ignorable = ignorable,
                               .embedding = "wte.weight",
                               .head = "lm_head.weight",
                               .gguf = nullptr,
                               .check_keys = check_keys,
                               .aliases = kAliases,
                               .set_head = set_head};

}  // namespace snug
