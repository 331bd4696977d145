#include "engine/seams/param_store.h"

namespace snug {

View parameter_view(const View& flat, const ParamInfo& info) {
  View v = flat.rows(info.offset, info.elements()).reshaped(info.shape);
  v.name = info.name;
  return v;
}

PlainParamStore::PlainParamStore(Context& ctx, const ParamTable& table, DType dtype)
    : table_(table),
      flat_(ctx.tensor(Name("weights"), {table.flat_elements()}, dtype, Category::weights)) {}

View PlainParamStore::acquire(Context&, int param) {
  return parameter_view(flat_, table_[param]);
}

}  // namespace snug
