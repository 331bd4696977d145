// ModelSpec: what a transformer is, as independent axes. A family is one file that fills a spec
// from the published config.json and maps weight names; nothing outside that file asks which family
// it is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layers/ops/activation.h"

namespace snug {

enum class NormKind : uint8_t { layernorm, rmsnorm };
enum class NormPlacement : uint8_t { pre, post, parallel };
enum class Positions : uint8_t { learned, rope, none };
enum class HeadKind : uint8_t {
  causal_lm,
  masked_lm,
  sequence_classification,
  token_classification
};
// What the labels of a sequence are: `problem_type` of transformers.
enum class Problem : uint8_t { single_label, multi_label, regression };

// Inverse frequencies of rotary positions: theta^(-2i/R), changed as rope_type says. R = D times
// partial, rounded to an even number.
struct RopeParameters {
  double theta = 10000;
  double partial = 1;
  // "default"; "linear": divided by factor; "llama3": the low ones divided by factor, the high ones
  // kept, those between in proportion (Llama 3.1).
  std::string type = "default";
  double factor = 1, low_frequency_factor = 1, high_frequency_factor = 4;
  int64_t original_positions = 8192;
  std::vector<float> inverse_frequencies(int64_t D) const;
};

struct ModelSpec {
  std::string family;        // model_type of the config: which file reads and writes it
  std::string architecture;  // for example GPT2LMHeadModel
  int64_t V = 0;             // vocabulary
  int64_t P = 0;             // positions: the longest sequence
  int64_t C = 0;             // width
  int64_t F = 0;             // hidden width of the MLP
  int64_t L = 0;             // layers
  int64_t H = 0;             // query heads
  int64_t G = 0;             // key/value heads
  int64_t D = 0;             // head width
  int64_t types = 0;         // token types; 0: none
  // Rows of the position table before that of position 0, never read (RoBERTa: padding_idx + 1).
  int64_t first_position = 0;

  NormKind norm = NormKind::layernorm;
  RopeParameters rope;       // with Positions::rope
  bool unit_offset = false;  // norms multiply by 1 + weight (Gemma)
  float embedding_scale = 1.0f;
  int64_t window = 0;           // keys a query sees at most; 0: all
  bool own_head_width = false;  // H D need not be C
  NormPlacement placement = NormPlacement::pre;
  Positions positions = Positions::learned;
  Activation activation = Activation::gelu_tanh;
  bool gated_mlp = false;
  bool qkv_bias = true, projection_bias = true, mlp_bias = true;
  bool linear_in_out = false;  // files hold the weights of blocks as (in, out): GPT-2's Conv1D
  bool small_residual_init =
      false;  // projections into the residual stream start smaller by sqrt(2 L)
  bool causal = true;
  bool tied = true;
  bool embedding_norm = false;  // a norm, then the dropout, behind the embedding
  HeadKind head = HeadKind::causal_lm;
  // A head over rows of the hidden states: [dropout] dense, activation, [norm or dropout], output.
  Activation head_activation = Activation::gelu_erf;
  bool head_dropout_first = false;  // RoBERTa's classifier: before the dense layer too
  float head_dropout = 0.0f;
  Problem problem = Problem::single_label;
  std::vector<std::string> labels;      // names of the classes, or of what is predicted
  bool scale_attention = true;          // scores divided by sqrt(D)
  bool scale_by_inverse_layer = false;  // and by layer + 1
  float norm_epsilon = 1e-5f;
  float init_std = 0.02f;
  float embedding_dropout = 0.0f, attention_dropout = 0.0f, residual_dropout = 0.0f;
  int64_t bos_token = -1, eos_token = -1, pad_token = -1;  // -1: none

  int64_t Vp() const { return (V + 127) / 128 * 128; }
  bool encoder() const { return !causal; }
  int64_t label_count() const { return static_cast<int64_t>(labels.size()); }
  float attention_scale(int64_t layer) const;
};

// Throws usage or unsupported, naming the extent and where it came from, unless the spec can be
// built.
void validate(const ModelSpec& spec, const std::string& origin);

}  // namespace snug
