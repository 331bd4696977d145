// DistilBERT: config.json of transformers' DistilBertConfig, weights of DistilBertForMaskedLM,
// DistilBertForSequenceClassification and DistilBertForTokenClassification. No token types.
#include <array>

#include "engine/core/error.h"
#include "engine/io/json.h"
#include "layers/models/encoder_family.h"

namespace snug {
namespace distilbert_keys {

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

constexpr std::array<std::string_view, 3> kOwn = {"sinusoidal_pos_embds", "seq_classif_dropout",
                                                  "tie_weights_"};
constexpr std::array<KeyAlias, 4> kAliases = {{{"hidden_size", "dim"},
                                               {"num_hidden_layers", "n_layers"},
                                               {"num_attention_heads", "n_heads"},
                                               {"intermediate_size", "hidden_dim"}}};

constexpr std::array<EncoderShape, 4> kShapes = {
    {{"distilbert", 6, 12, 768, 30522},
     {"distilbert-base-uncased", 6, 12, 768, 30522},
     {"distilbert-base-cased", 6, 12, 768, 28996},
     {"distilbert-base-multilingual-cased", 6, 12, 768, 119547}}};

void read(const json& c, const std::string& origin, bool strict, ModelSpec& s) {
  // A folder's table of positions is read, however it was made.
  if (strict && get_bool(c, "sinusoidal_pos_embds", origin, false))
    fail(ErrorCode::unsupported, "sinusoidal_pos_embds: false", "true in " + origin,
         "leave it out: positions are learned");
  s.norm_epsilon = 1e-12f;  // transformers fixes it; files do not say it
  s.head_dropout = static_cast<float>(get_number(c, "seq_classif_dropout", origin, 0.2));
}

void write(const ModelSpec& s, json& c) {
  c["sinusoidal_pos_embds"] = false;
  if (s.head == HeadKind::sequence_classification) c["seq_classif_dropout"] = s.head_dropout;
  c["pad_token_id"] = 0;
}

void set_head(ModelSpec& s, HeadKind head) {
  s.head = head;
  s.head_activation = head == HeadKind::masked_lm ? s.activation : Activation::relu;
  if (head == HeadKind::token_classification) s.head_dropout = s.residual_dropout;
}

constexpr EncoderKeys kKeys = {.model_type = "distilbert",
                               .prefix = "distilbert.",
                               .architecture = "DistilBert",
                               .title = "DistilBERT",
                               .tensors = kTensors,
                               .width = "dim",
                               .layers = "n_layers",
                               .heads = "n_heads",
                               .hidden = "hidden_dim",
                               .activation = "activation",
                               .dropout = "dropout",
                               .attention_dropout = "attention_dropout",
                               .own = kOwn,
                               .aliases = kAliases,
                               .shapes = kShapes,
                               .shape_keys = R"({})",
                               .read = read,
                               .write = write,
                               .set_head = set_head};

}  // namespace distilbert_keys

const Family kDistilBertFamily = encoder_family<distilbert_keys::kKeys>();

}  // namespace snug
