// The table of a model's parameters: what every seam indexes by. Parameters lie in one flat range,
// each aligned to 256 elements, so that an optimizer, a quantiser or a shard works on flat spans.
#pragma once

#include <vector>

#include "engine/core/view.h"

namespace snug {

enum class Init : uint8_t { zeros, ones, normal };

// Optimizer groups. Decoupled decay applies to matrices and embeddings, not to biases and norms.
inline constexpr int kGroupDecay = 0;
inline constexpr int kGroupNoDecay = 1;

struct ParamInfo {
  Name name;    // Hugging Face name without the family's prefix, for example h.0.attn.c_attn.weight
  Shape shape;  // as held; the vocabulary is padded
  int64_t rows =
      0;  // rows of the first extent that are real; the rest is zero, never updated or saved
  int group = kGroupDecay;
  Init init = Init::zeros;
  float init_std = 0.0f;
  bool trainable = true;
  // The weight (out, in) of a linear layer: products read it, so it may be kept packed for them.
  bool linear = false;
  // Stored transposed in the family's files ((in, out), as GPT-2's Conv1D).
  bool transposed_in_file = false;
  // Neighbours in the table whose gradients are complete at the same time, as those of a block;
  // -1: of no part.
  int part = -1;
  int64_t offset = 0;  // element offset in the flat range, multiple of 256

  int64_t elements() const { return shape.elements(); }
  int64_t real_elements() const {
    return shape.rank() && shape[0] ? shape.elements() / shape[0] * rows : shape.elements();
  }
};

inline constexpr int64_t kSpanAlignment = 256;

class ParamTable {
 public:
  int add(ParamInfo info);  // returns its index; sets offset
  const ParamInfo& operator[](int i) const { return params_[static_cast<size_t>(i)]; }
  int size() const { return static_cast<int>(params_.size()); }
  int64_t flat_elements() const { return flat_; }  // alignment gaps included
  int64_t real_elements() const;                   // what "124M parameters" means
  int find(std::string_view name) const;           // -1 if absent
  // Whether `param` is the first of a run of neighbours of one part, or of none.
  bool begins_part(int param) const {
    return param == 0 || (*this)[param].part != (*this)[param - 1].part;
  }

 private:
  std::vector<ParamInfo> params_;
  int64_t flat_ = 0;
};

}  // namespace snug
