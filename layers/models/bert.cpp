// BERT: config.json of transformers' BertConfig, weights of BertForMaskedLM,
// BertForSequenceClassification and BertForTokenClassification. The pooler belongs to the head.
#include <array>

#include "engine/io/json.h"
#include "layers/models/encoder_family.h"

namespace snug {
namespace bert_keys {

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
    {"head.dense", "cls.predictions.transform.dense", false, kMasked},
    {"head.norm", "cls.predictions.transform.LayerNorm", false, kMasked},
    {"lm_head", "cls.predictions.decoder", false, kMasked},
    {"head.dense", "pooler.dense", true, kSequence},
    {"head.out", "classifier", false, kSequence},
    {"head.out", "classifier", false, kToken},
}};

constexpr std::array<std::string_view, 5> kOwn = {"type_vocab_size", "layer_norm_eps",
                                                  "position_embedding_type", "classifier_dropout",
                                                  "cross_attention_hidden_size"};
constexpr std::array<KeyAlias, 0> kAliases = {};

constexpr std::array<EncoderShape, 8> kShapes = {{{"bert-base", 12, 12, 768, 30522},
                                                  {"bert-base-uncased", 12, 12, 768, 30522},
                                                  {"bert-base-cased", 12, 12, 768, 28996},
                                                  {"bert-base-multilingual", 12, 12, 768, 119547},
                                                  {"bert-large", 24, 16, 1024, 30522},
                                                  {"bert-large-cased", 24, 16, 1024, 28996},
                                                  {"bert-mini", 4, 4, 256, 30522},
                                                  {"bert-tiny", 2, 2, 128, 30522}}};

void read(const json& c, const std::string& origin, bool, ModelSpec& s) {
  read_bert_keys(c, origin, s);
}

void write(const ModelSpec& s, json& c) {
  write_bert_keys(s, c);
  c["pad_token_id"] = 0;
}

void set_head(ModelSpec& s, HeadKind head) {
  s.head = head;
  s.head_activation = head == HeadKind::masked_lm ? s.activation : Activation::tanh;
}

constexpr EncoderKeys kKeys = {.model_type = "bert",
                               .prefix = "bert.",
                               .architecture = "Bert",
                               .title = "BERT",
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
                               .shape_keys = R"({})",
                               .read = read,
                               .write = write,
                               .set_head = set_head};

}  // namespace bert_keys

const Family kBertFamily = encoder_family<bert_keys::kKeys>();

}  // namespace snug
