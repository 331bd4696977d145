// What the families of encoders share: BERT, RoBERTa and DistilBERT differ in the names of keys and
// tensors, in numbers, and in their heads.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "layers/models/families.h"

namespace snug {

// A row of a family's table of tensors. `ours` and `file` without .weight and .bias; # stands for
// the layer. A parameter that is several tensors names them in the order of its rows, with |.
struct TensorName {
  std::string_view ours, file;
  bool base = true;  // of the base model: files may put its prefix before the name
  HeadKind head = HeadKind::causal_lm;  // of a head: which one has it
};

// A published shape; hidden width 4 times the width.
struct EncoderShape {
  const char* name;
  int64_t layers, heads, width, vocabulary;
};

// What differs between the families.
struct EncoderKeys {
  const char* model_type;
  const char* prefix;        // of the base model's tensors, with its dot
  const char* architecture;  // "Bert", before ForMaskedLM
  const char* title;         // in messages
  std::span<const TensorName> tensors;
  // Keys of extents and numbers, under the family's own names, and those beside them and those that
  // all have.
  const char *width, *layers, *heads, *hidden, *activation, *dropout, *attention_dropout;
  std::span<const std::string_view> own;
  std::span<const KeyAlias> aliases;
  std::span<const EncoderShape> shapes;
  const char* shape_keys;  // of every published shape, as JSON
  // What only this family's config says, read and written.
  void (*read)(const nlohmann::json& config, const std::string& origin, bool strict,
               ModelSpec& spec);
  void (*write)(const ModelSpec& spec, nlohmann::json& config);
  void (*set_head)(ModelSpec& spec, HeadKind head);
};

inline constexpr std::array<HeadKind, 3> kEncoderHeads = {
    HeadKind::masked_lm, HeadKind::sequence_classification, HeadKind::token_classification};

// The architectures of the heads: "BertForMaskedLM".
std::string encoder_architecture(const EncoderKeys& keys, HeadKind head);
// The head that a config names, masked_lm where it names the base model or none.
HeadKind encoder_head(const EncoderKeys& keys, const nlohmann::json& config,
                      const std::string& origin);

// Labels and problem of a config: id2label, or num_labels names LABEL_0, ..., 2 without either.
void read_labels(const nlohmann::json& config, const std::string& origin, ModelSpec& spec);
void write_labels(const ModelSpec& spec, nlohmann::json& config);

// Extents, dropouts, activation, initialisation, tying, tokens and head.
ModelSpec parse_encoder(const EncoderKeys& keys, const nlohmann::json& config,
                        const std::string& origin, bool strict);
nlohmann::json write_encoder(const EncoderKeys& keys, const ModelSpec& spec,
                             const char* torch_dtype);
std::optional<nlohmann::json> named_encoder(const EncoderKeys& keys, std::string_view name);
std::vector<std::string> encoder_names(const EncoderKeys& keys);
// Throws usage as check_config_keys() does, for keys that the family does not have.
void check_encoder_keys(const EncoderKeys& keys, const nlohmann::json& config,
                        const std::string& origin);
// Buffers of old files.
bool encoder_buffer(std::string_view tensor);

// What BERT and RoBERTa read alike: token types, the classifier's dropout.
void read_bert_keys(const nlohmann::json& config, const std::string& origin, ModelSpec& spec);
void write_bert_keys(const ModelSpec& spec, nlohmann::json& config);

// The tensors that a table names for a parameter, in the order of its rows, which they share evenly.
std::vector<FilePiece> named_pieces(std::span<const TensorName> tensors, const ParamInfo& param,
                                    const ModelSpec& spec);
std::vector<FilePiece> encoder_pieces(const EncoderKeys& keys, const ParamInfo& param,
                                      const ModelSpec& spec);

// Throws usage unless every key of a user's map is among `known`, is one of transformers' that says
// nothing about the mathematics, or an alias.
void check_config_keys(const nlohmann::json& keys, const std::string& origin, const char* family,
                       std::span<const std::string_view> known, std::span<const KeyAlias> aliases);

Activation read_activation(const nlohmann::json& config, const char* key, const std::string& origin,
                           const char* unset = "gelu");
const char* activation_key(Activation kind);

template <const EncoderKeys& kKeys>
Family encoder_family() {
  return {
      .model_type = kKeys.model_type,
      .parse = [](const nlohmann::json& config, const std::string& origin,
                  bool strict) { return parse_encoder(kKeys, config, origin, strict); },
      .write = [](const ModelSpec& spec,
                  const char* torch_dtype) { return write_encoder(kKeys, spec, torch_dtype); },
      .named = [](std::string_view name) { return named_encoder(kKeys, name); },
      .names = [] { return encoder_names(kKeys); },
      .pieces = [](const ParamInfo& param,
                   const ModelSpec& spec) { return encoder_pieces(kKeys, param, spec); },
      .ignorable = encoder_buffer,
      .embedding = "wte.weight",
      .head = "lm_head.weight",
      .gguf = nullptr,
      .check_keys = [](const nlohmann::json& config,
                       const std::string& origin) { check_encoder_keys(kKeys, config, origin); },
      .aliases = kKeys.aliases,
      .set_head = kKeys.set_head,
      .heads = kEncoderHeads};
}

}  // namespace snug
