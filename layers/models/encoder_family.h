// What the families of encoders share: BERT, RoBERTa and DistilBERT differ in the names of keys and
// tensors, in numbers, and in their heads.
#pragma once

#include <nlohmann/json.hpp>
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

// What differs in a family's config.json.
struct EncoderKeys {
  const char* model_type;
  const char* prefix;        // of the base model's tensors, with its dot
  const char* architecture;  // "Bert", before ForMaskedLM
  std::span<const TensorName> tensors;
  // Keys of extents and numbers, under the family's own names.
  const char *width, *layers, *heads, *hidden, *activation, *dropout, *attention_dropout;
};

// The architectures of the heads: "BertForMaskedLM".
std::string encoder_architecture(const EncoderKeys& keys, HeadKind head);
// The head that a config names, masked_lm where it names the base model or none.
HeadKind encoder_head(const EncoderKeys& keys, const nlohmann::json& config,
                      const std::string& origin);

// Labels and problem of a config: id2label, or num_labels names LABEL_0, ..., 2 without either.
void read_labels(const nlohmann::json& config, const std::string& origin, ModelSpec& spec);
void write_labels(const ModelSpec& spec, nlohmann::json& config);

// Extents, dropouts, activation, initialisation, tying and tokens; everything that the families
// have alike. `config` has own names.
ModelSpec parse_encoder(const EncoderKeys& keys, const nlohmann::json& config,
                        const std::string& origin);
nlohmann::json write_encoder(const EncoderKeys& keys, const ModelSpec& spec,
                             const char* torch_dtype);

// The tensors that a table names for a parameter, in the order of its rows, which they share evenly.
std::vector<FilePiece> named_pieces(std::span<const TensorName> tensors, const ParamInfo& param,
                                    const ModelSpec& spec);
std::vector<FilePiece> encoder_pieces(const EncoderKeys& keys, const ParamInfo& param,
                                      const ModelSpec& spec);

// Throws usage unless every key of a user's map is among `known`, is one of transformers' that says
// nothing about the mathematics, or an alias.
void check_encoder_keys(const nlohmann::json& keys, const std::string& origin, const char* family,
                        std::span<const std::string_view> known, std::span<const KeyAlias> aliases);

Activation read_activation(const nlohmann::json& config, const char* key, const std::string& origin,
                           const char* unset = "gelu");
const char* activation_key(Activation kind);

}  // namespace snug
