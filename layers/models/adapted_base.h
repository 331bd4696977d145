// The weights of a base as an adapter has them that is made of them (layers/adapters/first_weights.h):
// while they are read from its files, what is left of each, and the first A and B. These are found before the
// memory of a run is reserved, as a decomposition takes many times what is left of it of the heap.
#pragma once

#include <list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/io/safetensors.h"
#include "layers/adapters/first_weights.h"
#include "layers/models/family.h"
#include "layers/models/model.h"

namespace snug {

// The weight of a plain tensor, (out,in), of the rows in its order.
std::vector<float> weight_of(const SafeTensor& plain, bool transposed);
// What a module's A and B begin as, of the weight of its tensor; `w` becomes what the base is then.
// `codes`: of a base that rests in them; null: in full.
FirstFactors first_factors(const LinearAdapter& adapter, size_t k, std::vector<float>& w,
                           int64_t in, const WeightCodes* codes, int threads);

// A and B of all modules whose adapters are made of their weights.
class FactorsOfBase {
 public:
  // Of the weights in a folder. None without one, and for a model without such adapters, whose folder is not read.
  FactorsOfBase(const Model& model, const std::string& folder, int threads);
  // By parameter and tensor of the files; null: none.
  const FirstFactors* find(int param, size_t piece) const;
  int64_t count() const { return static_cast<int64_t>(made_.size()); }
  int64_t bytes() const;  // that they take

 private:
  std::map<std::pair<int, size_t>, FirstFactors> made_;
};

class AdaptedBase {
 public:
  // Without `factors` A and B are found as the weights are read.
  AdaptedBase(const Model& model, const FactorsOfBase* factors, int threads)
      : model_(model), factors_(factors), threads_(threads) {
    add_shared();
  }

  // Whether the base's tensor `piece` of a parameter is one that an adapter is made of.
  bool takes(int param, size_t piece) const;
  // That tensor, plain, as the base has it beside the adapter: valid until clear().
  const SafeTensor& base(int param, size_t piece, const FilePiece& of_file,
                         const SafeTensor& plain);
  void clear() { made_.clear(); }
  // Of a table that tokens in front begin as rows of: reads these.
  void look(int param, const SafeTensor& plain);
  // What a parameter of the adapter begins as, once the weight before it was read; null: drawn.
  const std::vector<float>* first(int param);

 private:
  const Model& model_;
  const FactorsOfBase* factors_;
  int threads_;
  void add_shared();
  std::map<int, std::vector<float>> first_;
  struct Made {
    std::vector<float> values;
    SafeTensor tensor;
  };
  std::list<Made> made_;
};

}  // namespace snug
