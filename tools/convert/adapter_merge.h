// An adapter as what it adds to the tensors of its base's files: W + s B A, in f32.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/io/safetensors.h"
#include "layers/models/model.h"

namespace snug {

class AdapterMerge {
 public:
  // The adapter of a PEFT folder for a model of this spec. `base`: the fingerprint of its weights.
  // Throws as read_adapter_config, resolve_peft and load_adapter do; `notes` as the first of them.
  AdapterMerge(const std::string& folder, const ModelSpec& spec, const std::string& base,
               std::vector<std::string>* notes);

  // The tensor that takes the place of a piece of a parameter; null: none does.
  const SafeTensor* whole(const std::string& param, size_t piece) const;
  // Begins a piece, whose rows in its file are `width` long; false: nothing is added to it.
  bool begin(const std::string& param, size_t piece, bool transposed, int64_t width);
  // Adds to elements [first, first + count) of it.
  void add(int64_t first, int64_t count, float* values);
  int64_t merged() const { return static_cast<int64_t>(deltas_.size()); }

 private:
  struct Delta {
    const SafeTensor *a, *b;
    float scale;
  };
  using Key = std::pair<std::string, size_t>;

  std::unique_ptr<SafetensorsReader> file_;
  std::map<Key, Delta> deltas_;
  std::map<Key, const SafeTensor*> whole_;
  // Of the piece that was begun: a row of the file is scale * sum over k of left[row][k] right[k].
  std::vector<float> left_, right_, row_;
  int64_t rank_ = 0, width_ = 0;
  float scale_ = 1;
};

}  // namespace snug
