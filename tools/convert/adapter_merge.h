// An adapter as what it makes of the tensors of its base's files, in f32:
//   LoRA   W + s B A
//   DoRA   (m / ||W + s B A||) (W + s B A), by rows; a row of zeros stays
//   IA3    l W and l b, by rows; of a feed-forward layer W l, by columns
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
  // Begins a piece, whose rows in its file are `width` long; false: it stays as it is.
  bool begin(const std::string& param, size_t piece, bool transposed, int64_t width);
  // Whether all of it is to pass measure() before the first of it passes apply().
  bool measures() const { return magnitude_ != nullptr; }
  void measure(int64_t first, int64_t count, float* values);  // which it changes
  // Of elements [first, first + count).
  void apply(int64_t first, int64_t count, float* values);
  int64_t merged() const { return merged_; }

 private:
  struct Delta {
    const SafeTensor *a, *b;  // of LoRA and DoRA
    float scale;
    const SafeTensor* magnitude;  // of DoRA, or the vector of IA3
    bool by_columns;              // of IA3: it scales what is read
  };
  void add(int64_t first, int64_t count, float* values);
  // Calls f(row of the weight (out,in), or its column, element) of those elements.
  template <class F>
  void each(int64_t first, int64_t count, bool columns, F&& f) const;
  using Key = std::pair<std::string, size_t>;

  std::unique_ptr<SafetensorsReader> file_;
  std::map<Key, Delta> deltas_;
  int64_t merged_ = 0;  // modules
  std::map<Key, const SafeTensor*> whole_;
  // Of the piece that was begun: a row of the file is scale * sum over k of left[row][k] right[k].
  std::vector<float> left_, right_, row_;
  int64_t rank_ = 0, width_ = 0;
  float scale_ = 1;
  bool transposed_ = false, by_columns_ = false;
  const SafeTensor* magnitude_ = nullptr;
  std::vector<double> squares_;  // of the rows of what was measured
  std::vector<float> factors_;   // of rows, or of columns; empty: none
};

}  // namespace snug
