#include "layers/parts/packed_weights.h"

#include "engine/seams/param_store.h"

namespace snug {

const char* to_string(WeightPacking packing) {
  switch (packing) {
    case WeightPacking::none:
      return "none";
    case WeightPacking::forward:
      return "forward";
    case WeightPacking::both:
      return "both";
  }
  return "?";
}

std::optional<WeightPacking> parse_weight_packing(std::string_view text) {
  for (const WeightPacking p : {WeightPacking::none, WeightPacking::forward, WeightPacking::both})
    if (text == to_string(p)) return p;
  return std::nullopt;
}

PackedWeights::PackedWeights(Context& ctx, const ParamTable& table, DType dtype,
                             WeightPacking packing)
    : table_(table), dtype_(dtype), views_(static_cast<size_t>(table.size())) {
  struct Copy {
    View* view;
    int64_t offset, bytes;
    Name name;
  };
  std::vector<Copy> copies;
  const auto add = [&](View& view, int param, bool transpose_b) {
    View weight;
    weight.shape = table[param].shape;
    weight.dtype = dtype;
    const int64_t bytes = matmul_packed_bytes(weight, transpose_b, dtype, ctx.settings().kernels);
    if (bytes == 0 || ctx.by_kernels()) return;  // kernels read the weights themselves
    copies.push_back({&view, bytes_, bytes, table[param].name});
    bytes_ += (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
  };
  for (int i = 0; i < table.size(); ++i) {
    if (!table[i].linear) continue;
    PackedWeight& weight = views_[static_cast<size_t>(i)];
    if (packing != WeightPacking::none) add(weight.forward, i, true);
    if (packing == WeightPacking::both) add(weight.backward, i, false);
  }
  if (bytes_ == 0) return;
  storage_ = ctx.tensor(Name("weights.packed"), {bytes_}, DType::u8, Category::packed_weights);
  for (const Copy& copy : copies) {
    *copy.view = storage_.view().rows(copy.offset, copy.bytes);
    copy.view->name = copy.name;
  }
}

void PackedWeights::pack(Context& ctx, const View& flat) const {
  for (int i = 0; i < table_.size(); ++i) {
    const PackedWeight& weight = views_[static_cast<size_t>(i)];
    if (!weight.forward.defined()) continue;
    const View plain = parameter_view(flat, table_[i]);
    matmul_pack(ctx, weight.forward, plain, true, dtype_);
    if (weight.backward.defined()) matmul_pack(ctx, weight.backward, plain, false, dtype_);
  }
}

}  // namespace snug
