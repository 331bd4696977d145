// DistilBERT: config.json of transformers' DistilBertConfig, weights of DistilBertForMaskedLM,
// DistilBertForSequenceClassification and DistilBertForTokenClassification. No token types.
#include <array>

#include "engine/core/error.h"
#include "engine/io/json.h"
#include "layers/models/encoder_family.h"

namespace snug {
namespace {

using nlohmann::json;

constexpr HeadKind kMasked = HeadKind::masked_lm, kSequence = HeadKind::sequence_classification,
                   kToken = HeadKind::token_classification;

constexpr std::array<TensorName, 15> kTensors = {{
    {"wte", "embeddings.word_embeddings"},
    {"wpe", "embeddings.position_embeddings"},
    {"embedding.norm", "embeddings.LayerNorm"},
    {"h.#.attn.c_attn",
     "transformer.layer.#.attention.q_lin|transformer.layer.#.attention.k_lin|"
     "transformer.layer.#.attention.v_lin"},
    {"h.#.attn.c_proj", "transformer.layer.#.attention.out_lin"},
    {"h.#.ln_1", "transformer.layer.#.sa_layer_norm"},
    {"h.#.mlp.c_fc", "transformer.layer.#.ffn.lin1"},
    {"h.#.mlp.c_proj", "transformer.layer.#.ffn.lin2"},
    {"h.#.ln_2", "transformer.layer.#.output_layer_norm"},
    {"head.dense", "vocab_transform", false, kMasked},
    {"head.norm", "vocab_layer_norm", false, kMasked},
    {"lm_head", "vocab_projector", false, kMasked},
    {"head.dense", "pre_classifier", false, kSequence},
    {"head.out", "classifier", false, kSequence},
    {"head.out", "classifier", false, kToken},
}};

constexpr EncoderKeys kKeys = {.model_type = "distilbert",
                               .prefix = "distilbert.",
                               .architecture = "DistilBert",
                               .tensors = kTensors,
                               .width = "dim",
                               .layers = "n_layers",
                               .heads = "n_heads",
                               .hidden = "hidden_dim",
                               .activation = "activation",
                               .dropout = "dropout",
                               .attention_dropout = "attention_dropout"};

constexpr std::array<std::string_view, 18> kKnown = {"vocab_size",
                                                     "max_position_embeddings",
                                                     "sinusoidal_pos_embds",
                                                     "dim",
                                                     "n_layers",
                                                     "n_heads",
                                                     "hidden_dim",
                                                     "activation",
                                                     "dropout",
                                                     "attention_dropout",
                                                     "seq_classif_dropout",
                                                     "initializer_range",
                                                     "tie_word_embeddings",
                                                     "is_decoder",
                                                     "add_cross_attention",
                                                     "pruned_heads",
                                                     "tie_weights_",
                                                     "chunk_size_feed_forward"};

constexpr std::array<KeyAlias, 4> kAliases = {{{"hidden_size", "dim"},
                                               {"num_hidden_layers", "n_layers"},
                                               {"num_attention_heads", "n_heads"},
                                               {"intermediate_size", "hidden_dim"}}};

struct NamedShape {
  const char* name;
  int64_t vocabulary;
};
constexpr std::array<NamedShape, 4> kShapes = {{{"distilbert", 30522},
                                                {"distilbert-base-uncased", 30522},
                                                {"distilbert-base-cased", 28996},
                                                {"distilbert-base-multilingual-cased", 119547}}};

void set_head(ModelSpec& s, HeadKind head) {
  s.head = head;
  s.head_activation = head == HeadKind::masked_lm ? s.activation : Activation::relu;
  if (head == HeadKind::token_classification) s.head_dropout = s.residual_dropout;
}

void check_keys(const json& c, const std::string& origin) {
  check_encoder_keys(c, origin, "DistilBERT", kKnown, kAliases);
}

ModelSpec parse(const json& config, const std::string& origin, bool strict) {
  if (strict) check_keys(config, origin);
  // A folder's table of positions is read, however it was made.
  if (strict && get_bool(config, "sinusoidal_pos_embds", origin, false))
    fail(ErrorCode::unsupported, "sinusoidal_pos_embds: false", "true in " + origin,
         "leave it out: positions are learned");
  json c = config;
  own_names(c, kDistilBertFamily, origin);
  // transformers fixes the norms' epsilon; files do not say it.
  ModelSpec s = parse_encoder(kKeys, c, origin);
  s.norm_epsilon = 1e-12f;
  s.head_dropout = static_cast<float>(get_number(c, "seq_classif_dropout", origin, 0.2));
  set_head(s, s.head);
  validate(s, origin);
  return s;
}

json write(const ModelSpec& s, const char* torch_dtype) {
  json c = write_encoder(kKeys, s, torch_dtype);
  c["sinusoidal_pos_embds"] = false;
  if (s.head == HeadKind::sequence_classification) c["seq_classif_dropout"] = s.head_dropout;
  c["pad_token_id"] = 0;
  return c;
}

std::optional<json> named(std::string_view name) {
  for (const NamedShape& s : kShapes)
    if (name == s.name)
      return json{{"n_layers", 6},
                  {"n_heads", 12},
                  {"dim", 768},
                  {"hidden_dim", 3072},
                  {"vocab_size", s.vocabulary}};
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

const Family kDistilBertFamily = {.model_type = "distilbert",
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
