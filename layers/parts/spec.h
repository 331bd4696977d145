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
// Where the norms of a block stand: before its branches; behind their sums; before branches that lie
// beside each other (GPT-NeoX); before a branch and behind it (Gemma 2); behind a branch alone (OLMo 2).
enum class NormPlacement : uint8_t { pre, post, parallel, sandwich, sublayer };
// Norms of queries and keys before they turn: none; of each head (Qwen3); of all heads as one row (OLMo 2).
enum class QkNorm : uint8_t { none, head, full };
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
  // "default"
  // "linear"    divided by factor
  // "dynamic"   as default up to the model's positions, which no run goes beyond
  // "llama3"    the low ones divided by factor, the high ones kept, those between in proportion
  // "yarn"      the same by the number of turns within original_positions, from beta_slow to beta_fast
  //             (Peng et al., "YaRN", arXiv:2309.00071); sine and cosine times attention_scale()
  // "longrope"  divided by short_factors, or by long_factors where a run's sequences are longer than
  //             original_positions (Ding et al., "LongRoPE", arXiv:2402.13753); and that scale
  std::string type = "default";
  double factor = 1, low_frequency_factor = 1, high_frequency_factor = 4;
  int64_t original_positions = 8192;
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;               // the pairs between which yarn mixes are whole numbers
  double attention_factor = 0;        // 0: as the type has it
  double mscale = 0, mscale_all = 0;  // of that; 0: none
  std::vector<double> short_factors, long_factors;
  // Whether a run with windows of T tokens has the long factors, so that its numbers depend on T.
  bool by_length(int64_t T) const { return type == "longrope" && T > original_positions; }
  std::vector<float> inverse_frequencies(int64_t D, bool beyond_original = false) const;
  float attention_scale() const;
};

// Which rotary positions the queries and keys of a layer have.
enum class LayerRope : uint8_t { none, main, local };

// What tells one layer of a model from another.
struct LayerKind {
  int64_t window = 0;  // keys a query sees at most; 0: all
  LayerRope rope = LayerRope::main;
  bool operator==(const LayerKind&) const = default;
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
  RopeParameters rope;        // with Positions::rope
  RopeParameters local_rope;  // of the layers whose kind says so (Gemma 3)
  bool unit_offset = false;   // norms multiply by 1 + weight (Gemma)
  float embedding_scale = 1.0f;
  int64_t window = 0;  // keys a query sees at most; 0: all
  // One a layer, where they are not all {window, main}; else empty.
  std::vector<LayerKind> layer_kinds;
  QkNorm qk_norm = QkNorm::none;
  bool own_head_width = false;  // H D need not be C
  NormPlacement placement = NormPlacement::pre;
  Positions positions = Positions::learned;
  Activation activation = Activation::gelu_tanh;
  bool gated_mlp = false;
  bool qkv_bias = true, projection_bias = true, mlp_bias = true;
  bool zero_biases = false;  // all biases are zero and stay so; files need not have them (nanoGPT)
  bool qkv_by_head = false;  // files hold the rows of qkv head by head (GPT-NeoX)
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
  double attention_scalar = 0;          // by the root of it instead, where it is not 0 (Gemma 2)
  float attention_softcap = 0;          // scores s as softcap tanh(s / softcap); 0: as they are
  float head_softcap = 0;               // logits too
  bool scale_by_inverse_layer = false;  // and by layer + 1
  float norm_epsilon = 1e-5f;
  float init_std = 0.02f;
  float embedding_dropout = 0.0f, attention_dropout = 0.0f, residual_dropout = 0.0f;
  int64_t bos_token = -1, eos_token = -1, pad_token = -1;  // -1: none

  int64_t Vp() const { return (V + 127) / 128 * 128; }
  bool encoder() const { return !causal; }
  int64_t label_count() const { return static_cast<int64_t>(labels.size()); }
  float attention_scale(int64_t layer) const;
  LayerKind kind(int64_t layer) const;
  // Whether the layer computes its MLP for the rows that the head reads alone: the last one, where the
  // head reads a few. Classification of tokens reads all.
  bool chooses_rows(int64_t layer) const {
    return layer == L - 1 && placement == NormPlacement::post &&
           (head == HeadKind::masked_lm || head == HeadKind::sequence_classification);
  }
  // The first layer of each kind, in their order: 0 alone where all are alike.
  std::vector<int64_t> distinct_layers() const;
};

// Throws usage or unsupported, naming the extent and where it came from, unless the spec can be
// built.
void validate(const ModelSpec& spec, const std::string& origin);

}  // namespace snug
