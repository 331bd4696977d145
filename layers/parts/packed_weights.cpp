#include "layers/parts/packed_weights.h"

#include "engine/core/units.h"
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

std::vector<PackedCopy> packed_copies(const ParamTable& table, DType dtype, WeightPacking packing,
                                      const KernelTable* kernels) {
  std::vector<PackedCopy> copies;
  const auto add = [&](int param, bool forward) {
    View weight;
    weight.shape = table[param].shape;
    weight.dtype = dtype;
    const int64_t bytes = matmul_packed_bytes(weight, forward, dtype, kernels);
    if (bytes > 0) copies.push_back({param, forward, weight.bytes(), bytes});
  };
  for (int i = 0; i < table.size(); ++i) {
    if (!table[i].linear || table[i].coded()) continue;  // codes are decoded for each product
    if (packing != WeightPacking::none) add(i, true);
    if (packing == WeightPacking::both) add(i, false);
  }
  return copies;
}

int64_t placed_bytes(const std::vector<PackedCopy>& copies) {
  int64_t bytes = 0;
  for (const PackedCopy& copy : copies) bytes += round_up(copy.bytes, kTensorAlignment);
  return bytes;
}

PackedWeights::PackedWeights(Context& ctx, const ParamTable& table, DType dtype,
                             WeightPacking packing)
    : table_(table), dtype_(dtype), views_(static_cast<size_t>(table.size())) {
  if (ctx.by_kernels()) return;  // kernels read the weights themselves
  const std::vector<PackedCopy> copies =
      packed_copies(table, dtype, packing, ctx.settings().kernels);
  bytes_ = placed_bytes(copies);
  if (bytes_ == 0) return;
  storage_ = ctx.tensor(Name("weights.packed"), {bytes_}, DType::u8, Category::packed_weights);
  int64_t offset = 0;
  for (const PackedCopy& copy : copies) {
    PackedWeight& weight = views_[static_cast<size_t>(copy.param)];
    View& view = copy.forward ? weight.forward : weight.backward;
    view = storage_.view().rows(offset, copy.bytes);
    view.name = table[copy.param].name;
    offset += round_up(copy.bytes, kTensorAlignment);
  }
}

void PackedWeights::pack(Context& ctx, const View& flat, bool frozen) const {
  for (int i = 0; i < table_.size(); ++i) {
    const PackedWeight& weight = views_[static_cast<size_t>(i)];
    if (!weight.forward.defined() || (!frozen && !table_[i].trainable)) continue;
    const View plain = parameter_view(flat, table_[i]);
    matmul_pack(ctx, weight.forward, plain, true, dtype_);
    if (weight.backward.defined()) matmul_pack(ctx, weight.backward, plain, false, dtype_);
  }
}

}  // namespace snug
