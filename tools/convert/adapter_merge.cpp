#include "tools/convert/adapter_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/openmp.h"
#include "engine/io/files.h"
#include "engine/io/safetensors_pieces.h"
#include "layers/adapters/kinds.h"
#include "layers/adapters/transpose.h"
#include "layers/models/adapted_base.h"
#include "layers/models/adapter_files.h"
#include "layers/models/weights.h"

namespace snug {
AdapterMerge::AdapterMerge(const std::string& folder, const ModelSpec& spec,
                           const std::string& base, std::vector<std::string>* notes) {
  PeftConfig config = read_adapter_config(folder, notes);
  if (const AdapterMethod& method = adapter_method(config.method); !method.apart.empty())
    fail(ErrorCode::unsupported, "an adapter that weights can take up, of modules of the model",
         fmt::format("{}, {} ({})", method.title, method.apart, folder),
         "snug generate or eval --adapter, which use it beside the model");
  const PeftModel peft = resolve_peft(spec, config);
  model_ = std::make_unique<Model>(spec, parse_precision("fp32"), peft.frozen, peft.adapters);
  const Model& model = *model_;
  const std::string path = folder + "/" + kAdapterWeights;
  if (!safetensors_there(path))
    fail(ErrorCode::usage, fmt::format("an adapter with {}", kAdapterWeights), folder,
         "--adapter run1/final of a run with peft");
  file_ = std::make_unique<SafetensorsReader>(path);
  check_adapter_base(*file_, base);
  set_base_form(config, trained_base_form(folder), path);
  if (!config.codec.empty()) codes_ = block_codes(spec, config);
  std::set<std::string> used;
  for (int i = 0; i < model.params().size(); ++i) {
    if (!is_saved(model, i)) continue;
    const ParamInfo& p = model.params()[i];
    const std::vector<FilePiece> pieces = saved_pieces(model, i);
    for (size_t k = 0; k < pieces.size(); ++k) {
      const SafeTensor& tensor = adapter_tensor(*file_, p, pieces[k]);
      use_adapter_tensor(*file_, pieces[k], tensor, used);
      if (!is_adapter_name(p.name.view())) whole_[{p.name.str(), k}] = &tensor;
    }
  }
  for (const AdapterKind* kind : kinds_of(model.adapters())) {
    const std::vector<AdaptedLayer> layers = layers_of(model.adapters(), *kind);
    const std::vector<std::vector<float>> values = kind->shared_values(layers);
    const std::vector<AdapterParam> params = kind->shared(layers);
    for (size_t i = 0; i < params.size(); ++i) {
      shared_[params[i].name] = values[i];
      used.insert("base_model." + params[i].name.substr(params[i].name.find('.') + 1));
    }
  }
  for (std::string& warning : unused_adapter_tensors(*file_, used))
    if (notes) notes->push_back(std::move(warning));
  for (const auto& [layer, adapter] : model.adapters())
    for (size_t k = 0; k < adapter.pieces.size(); ++k) {
      const size_t piece = adapter.pieces[k].piece;
      of_table_ = of_table_ || adapter.table;
      took_away_ = took_away_ || (adapter.first_way && adapter.first_way->residual);
      sources_[{layer + ".weight", piece}] = {layer, k};
      sources_[{layer + ".bias", piece}] = {layer, k};
      ++modules_;
    }
}

// Of module k of a layer's adapter, by the end of its name.
const SafeTensor& AdapterMerge::tensor(const AdaptedLayer& layer, size_t k, const char* end) const {
  for (const AdapterParam& param : layer.adapter->kind->params(layer)) {
    if (std::string_view(param.end) != end ||
        (param.piece >= 0 && param.piece != static_cast<int>(k)))
      continue;
    const int index = model_->params().find(param.name);
    return adapter_tensor(*file_, model_->params()[index],
                          saved_pieces(*model_, index)[param.piece < 0 ? k : 0]);
  }
  fail(ErrorCode::internal, "a tensor of an adapter", end, "report this");
}

const SafeTensor* AdapterMerge::whole(const std::string& param, size_t piece) const {
  const auto found = whole_.find({param, piece});
  return found == whole_.end() ? nullptr : found->second;
}

bool AdapterMerge::begin(const std::string& param, size_t piece, bool transposed, int64_t width,
                         const SafeTensor& plain) {
  const auto found = sources_.find({param, piece});
  if (found == sources_.end()) return false;
  const auto& [layer_name, k] = found->second;
  const AdaptedLayer layer = adapted_layer_of(*model_, layer_name);
  module_ = layer.adapter->kind->merged(layer, k, [&](const char* end) {
    if (is_shared_adapter_name(end)) return shared_.at(end);
    return weight_of(tensor(layer, k, end), false);
  });
  width_ = width;
  transposed_ = transposed;
  scaled_ = !measures();
  if (param.ends_with(".bias")) {
    if (!module_.bias) return false;
    width_ = 1;
    module_.left.clear();
    module_.added.clear();
    return true;
  }
  if (layer.adapter->first_way && layer.adapter->first_way->residual)
    give_back(layer, k, weight_of(plain, transposed));
  squares_.assign(module_.magnitude.size(), 0.0);
  // (out,in) in the file: rows of B times A. (in,out): columns of A times those of B.
  if (transposed && !module_.left.empty()) {
    std::vector<float> left = transpose(module_.right, layer.in);
    module_.right = transpose(module_.left, module_.rank);
    module_.left = std::move(left);
  }
  if (transposed && !module_.added.empty()) module_.added = transpose(module_.added, layer.in);
  row_.assign(static_cast<size_t>(width), 0.0f);
  return true;
}

// W + s B A less what was taken away of it: s B0 A0, which are more ranks.
void AdapterMerge::give_back(const AdaptedLayer& layer, size_t k, std::vector<float> weight) {
  const ParamInfo& param = model_->params()[model_->params().find(layer.name + ".weight")];
  const bool coded = codes_ && !codes_->rows(param).empty();
  const FirstFactors f = first_factors(*layer.adapter, k, weight, layer.in,
                                       coded ? codes_.get() : nullptr, omp_get_max_threads());
  const int64_t r = module_.rank, out = static_cast<int64_t>(f.b.size()) / r;
  std::vector<float> left(f.b.size() * 2);
  for (int64_t i = 0; i < out; ++i)
    for (int64_t j = 0; j < r; ++j) {
      left[static_cast<size_t>(i * 2 * r + j)] = module_.left[static_cast<size_t>(i * r + j)];
      left[static_cast<size_t>((i * 2 + 1) * r + j)] = -f.b[static_cast<size_t>(i * r + j)];
    }
  module_.left = std::move(left);
  module_.right.insert(module_.right.end(), f.a.begin(), f.a.end());
  module_.rank = 2 * r;
}

template <class F>
void AdapterMerge::each(int64_t first, int64_t count, bool columns, F&& f) const {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = first + i;
    f(static_cast<size_t>(columns != transposed_ ? at % width_ : at / width_), i);
  }
}

void AdapterMerge::measure(int64_t first, int64_t count, float* values) {
  add(first, count, values);
  each(first, count, module_.of_columns, [&](size_t row, int64_t i) {
    squares_[row] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  });
}

void AdapterMerge::apply(int64_t first, int64_t count, float* values) {
  add(first, count, values);
  if (!scaled_) {
    std::vector<float>& factors = module_.of_columns ? module_.columns : module_.rows;
    factors = module_.magnitude;
    for (size_t j = 0; j < factors.size(); ++j)
      factors[j] =
          squares_[j] > 0
              ? static_cast<float>(static_cast<double>(factors[j]) / std::sqrt(squares_[j]))
              : 1.0f;
    scaled_ = true;
  }
  if (!module_.rows.empty())
    each(first, count, false, [&](size_t k, int64_t i) { values[i] *= module_.rows[k]; });
  if (!module_.columns.empty())
    each(first, count, true, [&](size_t k, int64_t i) { values[i] *= module_.columns[k]; });
}

void AdapterMerge::add(int64_t first, int64_t count, float* values) {
  for (int64_t i = 0; i < count && !module_.added.empty(); ++i)
    values[i] += module_.added[static_cast<size_t>(first + i)];
  if (module_.left.empty()) return;
  for (int64_t at = first; at < first + count;) {
    const int64_t row = at / width_, from = at % width_;
    const int64_t n = std::min(width_ - from, first + count - at);
    std::fill_n(row_.begin(), n, 0.0f);
    for (int64_t k = 0; k < module_.rank; ++k) {
      const float factor = module_.left[static_cast<size_t>(row * module_.rank + k)];
      const float* const right = module_.right.data() + k * width_ + from;
      for (int64_t j = 0; j < n; ++j) row_[static_cast<size_t>(j)] += factor * right[j];
    }
    for (int64_t j = 0; j < n; ++j)
      values[at - first + j] += module_.scale * row_[static_cast<size_t>(j)];
    at += n;
  }
}

}  // namespace snug
