#include "engine/stores/plain_params.h"

namespace snug {

PlainParamStore::PlainParamStore(Context& ctx, const ParamTable& table, DType dtype,
                                 bool tables_with_host)
    : table_(table) {
  const int64_t all = table.flat_elements(), first = tables_with_host ? table.tables_first() : all;
  flat_ = ctx.tensor(Name("weights"), {first}, dtype, Category::weights);
  if (first < all) tables_ = ctx.host_tensor(Name("weights.tables"), {all - first}, dtype);
}

View PlainParamStore::acquire(Context&, int param) {
  const ParamInfo& p = table_[param];
  if (!tables_.defined() || !p.frozen_table()) return parameter_view(flat_, p);
  View v = tables_.view().rows(p.offset - flat_.view().elements(), p.elements()).reshaped(p.shape);
  v.name = p.name;
  return v;
}

std::vector<RestingWeights::Piece> PlainParamStore::frozen() const {
  const int64_t trained = table_.trained_elements(), all = flat_.view().elements();
  std::vector<RestingWeights::Piece> pieces;
  if (trained < all) pieces.push_back({trained, flat_.view().rows(trained, all - trained)});
  if (tables_.defined()) pieces.push_back({all, tables_.view()});
  return pieces;
}

}  // namespace snug
