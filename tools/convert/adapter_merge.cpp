#include "tools/convert/adapter_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/safetensors_pieces.h"
#include "layers/models/adapter_files.h"
#include "layers/models/weights.h"

namespace snug {
namespace {

// Rows and columns exchanged, or not.
std::vector<float> values_of(const SafeTensor& t, bool exchange) {
  std::vector<float> values(static_cast<size_t>(t.elements())), out;
  convert(t.dtype, t.data, t.elements(), values.data());
  if (!exchange) return values;
  const int64_t rows = t.shape[0], columns = t.shape[1];
  out.resize(values.size());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      out[static_cast<size_t>(j * rows + i)] = values[static_cast<size_t>(i * columns + j)];
  return out;
}

}  // namespace

AdapterMerge::AdapterMerge(const std::string& folder, const ModelSpec& spec,
                           const std::string& base, std::vector<std::string>* notes) {
  const PeftModel peft = resolve_peft(spec, read_adapter_config(folder, notes));
  const Model model(spec, parse_precision("fp32"), peft.frozen, peft.adapters);
  const std::string path = folder + "/" + kAdapterWeights;
  if (!safetensors_there(path))
    fail(ErrorCode::usage, fmt::format("an adapter with {}", kAdapterWeights), folder,
         "--adapter run1/final of a run with peft");
  file_ = std::make_unique<SafetensorsReader>(path);
  check_adapter_base(*file_, base);
  for (int i = 0; i < model.params().size(); ++i) {
    if (!is_saved(model, i)) continue;
    const ParamInfo& p = model.params()[i];
    const std::vector<FilePiece> pieces = saved_pieces(model, i);
    for (size_t k = 0; k < pieces.size(); ++k) {
      const SafeTensor& tensor = adapter_tensor(*file_, p, pieces[k]);
      if (!is_adapter_name(p.name.view())) whole_[{p.name.str(), k}] = &tensor;
    }
  }
  const auto tensor_of = [&](const std::string& name, size_t piece) {
    const int param = model.params().find(name);
    return &adapter_tensor(*file_, model.params()[param], saved_pieces(model, param)[piece]);
  };
  for (const auto& [layer, adapter] : model.adapters())
    for (size_t k = 0; k < adapter.pieces.size(); ++k) {
      Delta d{nullptr, nullptr, adapter.pieces[k].scale, nullptr, adapter.of_input()};
      if (adapter.kind != AdapterKind::lora)
        d.magnitude = tensor_of(adapter_scale_name(layer, adapter, k), 0);
      if (adapter.kind != AdapterKind::ia3) {
        d.a = tensor_of(adapter_a_name(layer), k);
        d.b = tensor_of(adapter_b_name(layer, adapter, k), 0);
      }
      const size_t piece = adapter.pieces[k].piece;
      deltas_[{layer + ".weight", piece}] = d;
      if (adapter.kind == AdapterKind::ia3 && !d.by_columns) deltas_[{layer + ".bias", piece}] = d;
      ++merged_;
    }
}

const SafeTensor* AdapterMerge::whole(const std::string& param, size_t piece) const {
  const auto found = whole_.find({param, piece});
  return found == whole_.end() ? nullptr : found->second;
}

bool AdapterMerge::begin(const std::string& param, size_t piece, bool transposed, int64_t width) {
  const auto found = deltas_.find({param, piece});
  if (found == deltas_.end()) return false;
  const Delta& d = found->second;
  width_ = width;
  transposed_ = transposed;
  by_columns_ = d.by_columns;
  magnitude_ = d.b ? d.magnitude : nullptr;
  left_.clear();
  factors_.clear();
  if (!d.b) {
    if (param.ends_with(".bias")) width_ = 1;
    factors_ = values_of(*d.magnitude, false);
    return true;
  }
  // (out,in) in the file: rows of B times A. (in,out): columns of A times those of B.
  left_ = values_of(transposed ? *d.a : *d.b, transposed);
  right_ = values_of(transposed ? *d.b : *d.a, transposed);
  rank_ = d.a->shape[0];
  scale_ = d.scale;
  row_.assign(static_cast<size_t>(width), 0.0f);
  squares_.assign(static_cast<size_t>(d.b->shape[0]), 0.0);
  return true;
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
  each(first, count, false, [&](size_t row, int64_t i) {
    squares_[row] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  });
}

void AdapterMerge::apply(int64_t first, int64_t count, float* values) {
  if (!left_.empty()) add(first, count, values);
  if (measures() && factors_.empty()) {
    factors_ = values_of(*magnitude_, false);
    for (size_t j = 0; j < factors_.size(); ++j)
      factors_[j] =
          squares_[j] > 0
              ? static_cast<float>(static_cast<double>(factors_[j]) / std::sqrt(squares_[j]))
              : 1.0f;
  }
  if (factors_.empty()) return;
  each(first, count, by_columns_, [&](size_t k, int64_t i) { values[i] *= factors_[k]; });
}

void AdapterMerge::add(int64_t first, int64_t count, float* values) {
  for (int64_t at = first; at < first + count;) {
    const int64_t row = at / width_, from = at % width_;
    const int64_t n = std::min(width_ - from, first + count - at);
    std::fill_n(row_.begin(), n, 0.0f);
    for (int64_t k = 0; k < rank_; ++k) {
      const float factor = left_[static_cast<size_t>(row * rank_ + k)];
      const float* const right = right_.data() + k * width_ + from;
      for (int64_t j = 0; j < n; ++j) row_[static_cast<size_t>(j)] += factor * right[j];
    }
    for (int64_t j = 0; j < n; ++j) values[at - first + j] += scale_ * row_[static_cast<size_t>(j)];
    at += n;
  }
}

}  // namespace snug
