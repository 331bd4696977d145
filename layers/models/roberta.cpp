// RoBERTa: config.json of transformers' RobertaConfig, weights of RobertaForMaskedLM,
// RobertaForSequenceClassification and RobertaForTokenClassification. Positions begin behind the
// padding token's: the first padding_idx + 1 rows of the table are never read.
#include <array>

#include "engine/io/json.h"
#include "layers/models/encoder_family.h"

namespace snug {
namespace roberta_keys {

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

constexpr std::array<std::string_view, 5> kOwn = {"type_vocab_size", "layer_norm_eps",
                                                  "position_embedding_type", "classifier_dropout",
                                                  "cross_attention_hidden_size"};
constexpr std::array<KeyAlias, 0> kAliases = {};

constexpr std::array<EncoderShape, 3> kShapes = {{{"roberta-base", 12, 12, 768, 50265},
                                                  {"roberta-large", 24, 16, 1024, 50265},
                                                  {"distilroberta-base", 6, 12, 768, 50265}}};

void read(const json& c, const std::string& origin, bool, ModelSpec& s) {
  read_bert_keys(c, origin, s);
  s.V = get_int(c, "vocab_size", origin, 50265);
  s.pad_token = get_int(c, "pad_token_id", origin, 1);
  s.first_position = s.pad_token + 1;
  s.P -= s.first_position;
}

void write(const ModelSpec& s, json& c) {
  write_bert_keys(s, c);
  c["pad_token_id"] = s.pad_token;
}

void set_head(ModelSpec& s, HeadKind head) {
  s.head = head;
  s.head_activation = head == HeadKind::masked_lm ? Activation::gelu_erf : Activation::tanh;
  s.head_dropout_first = head == HeadKind::sequence_classification;
}

constexpr EncoderKeys kKeys = {
    .model_type = "roberta",
    .prefix = "roberta.",
    .architecture = "Roberta",
    .title = "RoBERTa",
    .tensors = kTensors,
    .width = "hidden_size",
    .layers = "num_hidden_layers",
    .heads = "num_attention_heads",
    .hidden = "intermediate_size",
    .activation = "hidden_act",
    .dropout = "hidden_dropout_prob",
    .attention_dropout = "attention_probs_dropout_prob",
    .own = kOwn,
    .aliases = kAliases,
    .shapes = kShapes,
    .shape_keys = R"({"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
 "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2})",
    .read = read,
    .write = write,
    .set_head = set_head};

}  // namespace roberta_keys

const Family kRobertaFamily = encoder_family<roberta_keys::kKeys>();

}  // namespace snug
