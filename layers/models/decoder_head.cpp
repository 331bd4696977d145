// The head of sequences that every family of decoders has in transformers: a last norm and `score`.
#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/io/json.h"
#include "layers/models/decoder_family.h"

namespace snug {
namespace {

using nlohmann::json;

constexpr std::string_view kOfTokens = "ForCausalLM", kOfSequences = "ForSequenceClassification";

}  // namespace

void set_decoder_head(ModelSpec& spec, HeadKind head, const char* classifier) {
  require(head == HeadKind::sequence_classification && spec.head == HeadKind::causal_lm,
          "the other head of a decoder");
  if (classifier) {
    spec.architecture = classifier;
  } else {
    require(spec.architecture.ends_with(kOfTokens), "the class of a causal LM");
    spec.architecture.resize(spec.architecture.size() - kOfTokens.size());
    spec.architecture += kOfSequences;
  }
  spec.head = head;
  if (spec.labels.empty()) spec.labels = {"LABEL_0", "LABEL_1"};
  if (spec.pad_token < 0) spec.pad_token = spec.eos_token;
}

void read_decoder_head(const json& c, const std::string& origin, const char* classifier,
                       ModelSpec& spec) {
  const bool named = c.contains("architectures") && c["architectures"].is_array() &&
                     !c["architectures"].empty() && c["architectures"][0].is_string();
  const bool of_sequences =
      named && c["architectures"][0].get<std::string>().ends_with(kOfSequences);
  if (c.contains("pad_token_id") && c["pad_token_id"].is_number_integer())
    spec.pad_token = get_int(c, "pad_token_id", origin);
  if (!of_sequences) return;
  read_labels(c, origin, spec);
  // Files without one take the last token whatever it is.
  const int64_t pad = spec.pad_token;
  set_decoder_head(spec, HeadKind::sequence_classification, classifier);
  spec.pad_token = pad;
}

void write_decoder_head(const ModelSpec& spec, json& c) {
  if (spec.head != HeadKind::sequence_classification) return;
  write_labels(spec, c);
  c["pad_token_id"] = spec.pad_token < 0 ? json(nullptr) : json(spec.pad_token);
}

std::string decoder_tensor_name(const ParamInfo& param) {
  constexpr std::string_view kNorm = "head.norm.";
  const std::string_view name = param.name.view();
  return name.starts_with(kNorm) ? fmt::format("ln_f.{}", name.substr(kNorm.size()))
                                 : std::string(name);
}

}  // namespace snug
