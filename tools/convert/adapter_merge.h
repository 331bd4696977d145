// An adapter as what it makes of the tensors of its base's files, in f32: the MergedModule of its kind
// (layers/parts/adapter.h), such as
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
  // Begins a piece, whose rows in its file are `width` long; false: it stays as it is. `plain`: the
  // base's, of which an adapter that was made of it took something away.
  bool begin(const std::string& param, size_t piece, bool transposed, int64_t width,
             const SafeTensor& plain);
  // Whether the base under the adapter is less than its files: W - s B A of the first A and B.
  bool took_away() const { return took_away_; }
  // Whether it is of the table of tokens.
  bool of_table() const { return of_table_; }
  // Whether all of it is to pass measure() before the first of it passes apply().
  bool measures() const { return !module_.magnitude.empty(); }
  void measure(int64_t first, int64_t count, float* values);  // which it changes
  // Of elements [first, first + count).
  void apply(int64_t first, int64_t count, float* values);
  int64_t merged() const { return static_cast<int64_t>(modules_); }

 private:
  struct Source {
    std::string layer;
    size_t k;  // of its adapter's modules
  };
  const SafeTensor& tensor(const AdaptedLayer& layer, size_t k, const char* end) const;
  void give_back(const AdaptedLayer& layer, size_t k, std::vector<float> weight);
  void add(int64_t first, int64_t count, float* values);
  // Calls f(row of the weight (out,in), or its column, element) of those elements.
  template <class F>
  void each(int64_t first, int64_t count, bool columns, F&& f) const;
  using Key = std::pair<std::string, size_t>;

  std::unique_ptr<SafetensorsReader> file_;
  std::unique_ptr<Model> model_;
  std::shared_ptr<const WeightCodes> codes_;  // that the base rested in; null: in none
  std::map<Key, Source> sources_;
  std::map<Key, const SafeTensor*> whole_;
  std::map<std::string, std::vector<float>> shared_;  // of all layers
  // Of the piece that was begun; transposed, `left` is (in,rank) and `right` (rank,out), so that a row
  // of the file is scale * sum over k of left[row][k] right[k].
  size_t modules_ = 0;
  bool took_away_ = false, of_table_ = false;
  MergedModule module_;
  std::vector<float> row_;
  int64_t width_ = 0;
  bool transposed_ = false, scaled_ = false;
  std::vector<double> squares_;  // of the rows of what was measured
};

}  // namespace snug
