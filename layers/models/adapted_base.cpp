#include "layers/models/adapted_base.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/error.h"
#include "layers/adapters/kinds.h"
#include "layers/adapters/low_rank.h"
#include "layers/adapters/transpose.h"
#include "layers/models/absent_biases.h"
#include "layers/models/coded_weights.h"
#include "layers/models/peft.h"
#include "layers/models/weights.h"
#include "quant/weight_codes.h"

namespace snug {
namespace {

// The module of a layer's adapter that a tensor of its weight is; -1: none.
int module_of_piece(const LinearAdapter& adapter, size_t piece) {
  for (size_t k = 0; k < adapter.pieces.size(); ++k)
    if (adapter.pieces[k].piece == piece) return static_cast<int>(k);
  return -1;
}

std::string layer_of(const Model& model, int param) {
  const std::string_view name = model.params()[param].name.view();
  return name.ends_with(".weight") ? std::string(name.substr(0, name.size() - 7)) : "";
}

}  // namespace

std::vector<float> weight_of(const SafeTensor& plain, bool transposed) {
  std::vector<float> w(static_cast<size_t>(plain.elements()));
  convert(plain.dtype, plain.data, plain.elements(), w.data());
  return transposed ? transpose(w, plain.shape[1]) : w;
}

namespace {

// The base under A and B, of which w becomes what is left. `made`: they are there.
FirstFactors factors_of(const LinearAdapter& adapter, size_t k, std::vector<float>& w, int64_t in,
                        const WeightCodes* codes, int threads, const FirstFactors* made,
                        bool leave) {
  const FirstWay& way = *adapter.first_way;
  const AdapterPiece& piece = adapter.pieces[k];
  const int64_t out = static_cast<int64_t>(w.size()) / in;
  const auto* const blocks = dynamic_cast<const BlockCodes*>(codes);
  if (blocks && way.of_decoded) blocks->round_trip(w, in, threads);
  FirstFactors f;
  if (made) {
    f = *made;
  } else if (blocks && way.of_error) {
    std::vector<float> lost = w;
    blocks->round_trip(lost, in, threads);
    for (size_t i = 0; i < lost.size(); ++i) lost[i] = w[i] - lost[i];
    f = way.make(lost, out, in, piece.rank, piece.scale, adapter.rounds, threads);
  } else {
    f = way.make(w, out, in, piece.rank, piece.scale, adapter.rounds, threads);
  }
  if (leave && way.residual) subtract_factors(w, out, in, f, piece.scale, threads);
  return f;
}

const WeightCodes* codes_of(const Model& model, int param) {
  return model.params()[param].coded() ? model.params().codes() : nullptr;
}

}  // namespace

FirstFactors first_factors(const LinearAdapter& adapter, size_t k, std::vector<float>& w,
                           int64_t in, const WeightCodes* codes, int threads) {
  return factors_of(adapter, k, w, in, codes, threads, nullptr, true);
}

FactorsOfBase::FactorsOfBase(const Model& model, const std::string& folder, int threads) {
  const bool any = std::any_of(model.adapters().begin(), model.adapters().end(),
                               [](const auto& a) { return a.second.first_way != nullptr; });
  if (!any || folder.empty()) return;
  const SafetensorsFolder files = open_weights(model, folder);
  for (int i = 0; i < model.params().size(); ++i) {
    const auto adapter = model.adapters().find(layer_of(model, i));
    if (adapter == model.adapters().end() || !adapter->second.first_way) continue;
    const ParamInfo& p = model.params()[i];
    const std::vector<const SafeTensor*> tensors = find_weight(files, model, i, folder, true);
    for (size_t k = 0; k < tensors.size(); ++k) {
      const int own = module_of_piece(adapter->second, k);
      if (own < 0) continue;
      DecodedTensors decoded(files, threads, folder);
      std::vector<float> w = weight_of(decoded.plain(tensors[k]), p.transposed_in_file);
      made_[{i, k}] = factors_of(adapter->second, static_cast<size_t>(own), w, p.shape[1],
                                 codes_of(model, i), threads, nullptr, false);
    }
  }
  for (const SafetensorsReader& file : files.files()) file.drop_pages();
}

const FirstFactors* FactorsOfBase::find(int param, size_t piece) const {
  const auto found = made_.find({param, piece});
  return found == made_.end() ? nullptr : &found->second;
}

int64_t FactorsOfBase::bytes() const {
  size_t numbers = 0;
  for (const auto& [of, f] : made_) numbers += f.a.size() + f.b.size();
  return static_cast<int64_t>(numbers * sizeof(float));
}

bool AdaptedBase::takes(int param, size_t piece) const {
  const auto adapter = model_.adapters().find(layer_of(model_, param));
  return adapter != model_.adapters().end() && adapter->second.first_way &&
         module_of_piece(adapter->second, piece) >= 0;
}

const SafeTensor& AdaptedBase::base(int param, size_t piece, const FilePiece& of_file,
                                    const SafeTensor& plain) {
  const ParamInfo& p = model_.params()[param];
  const std::string layer = layer_of(model_, param);
  const LinearAdapter& adapter = model_.adapters().at(layer);
  const auto k = static_cast<size_t>(module_of_piece(adapter, piece));
  std::vector<float> w = weight_of(plain, p.transposed_in_file);
  const int64_t in = p.shape[1];
  const FirstFactors f = factors_of(adapter, k, w, in, codes_of(model_, param), threads_,
                                    factors_ ? factors_->find(param, piece) : nullptr, true);
  // A of the modules side by side; B in our order of the rows.
  const AdaptedLayer place = adapted_layer_of(model_, layer);
  const int a = model_.params().find(low_rank_a(place)),
            b = model_.params().find(low_rank_b(place, k));
  std::vector<float>& all = first_[a];
  all.resize(static_cast<size_t>(model_.params()[a].elements()));
  int64_t row = 0;
  for (size_t before = 0; before < k; ++before) row += adapter.pieces[before].rank;
  std::copy(f.a.begin(), f.a.end(), all.begin() + row * in);
  std::vector<float>& own = first_[b];
  own.resize(f.b.size());
  const int64_t rank = adapter.pieces[k].rank;
  for (int64_t i = 0; i < of_file.rows; ++i)
    std::copy_n(f.b.begin() + i * rank, rank,
                own.begin() + (of_file.groups.any() ? of_file.groups.ours(i) : i) * rank);
  Made& made = made_.emplace_back();
  made.values = p.transposed_in_file ? transpose(w, plain.shape[0]) : std::move(w);
  made.tensor = {plain.name, SafeDType::F32, plain.shape,
                 reinterpret_cast<const uint8_t*>(made.values.data()),
                 static_cast<int64_t>(made.values.size()) * 4};
  return made.tensor;
}

void AdaptedBase::look(int param, const SafeTensor& plain) {
  const auto adapter = model_.adapters().find(layer_of(model_, param));
  if (adapter == model_.adapters().end() || adapter->second.first_tokens.empty()) return;
  const AdaptedLayer place = adapted_layer_of(model_, adapter->first);
  const std::string name = adapter->second.kind->params(place).front().name;
  std::vector<float>& values = first_[model_.params().find(name)];
  values.resize(static_cast<size_t>(adapter->second.front * place.in));
  const std::vector<int32_t>& tokens = adapter->second.first_tokens;
  const int64_t bytes = plain.bytes / plain.shape[0];
  for (int64_t k = 0; k < adapter->second.front; ++k) {
    const int64_t token = tokens[static_cast<size_t>(k) % tokens.size()];
    convert(plain.dtype, plain.data + token * bytes, place.in, values.data() + k * place.in);
  }
  // Rows in front are read as they are, where a family scales those of its table.
  for (float& v : values) v *= model_.spec().embedding_scale;
}

void AdaptedBase::add_shared() {
  for (const AdapterKind* kind : kinds_of(model_.adapters())) {
    const std::vector<AdaptedLayer> layers = layers_of(model_.adapters(), *kind);
    std::vector<std::vector<float>> values = kind->shared_values(layers);
    const std::vector<AdapterParam> params = kind->shared(layers);
    for (size_t i = 0; i < params.size(); ++i)
      first_[model_.params().find(params[i].name)] = std::move(values[i]);
  }
}

const std::vector<float>* AdaptedBase::first(int param) {
  const std::string name = model_.params()[param].name.str();
  if (is_adapter_name(name) && !is_shared_adapter_name(name) && !first_.contains(param)) {
    const PlacedParam placed = adapter_param_of(model_, name);
    std::vector<float> values =
        placed.layer.adapter->kind->first_values(placed.layer, placed.param);
    if (!values.empty()) first_[param] = std::move(values);
  }
  const auto found = first_.find(param);
  return found == first_.end() ? nullptr : &found->second;
}

}  // namespace snug
