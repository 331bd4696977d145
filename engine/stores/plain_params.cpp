#include "engine/stores/plain_params.h"

namespace snug {

PlainParamStore::PlainParamStore(Context& ctx, const ParamTable& table, DType dtype)
    : table_(table),
      flat_(ctx.tensor(Name("weights"), {table.flat_elements()}, dtype, Category::weights)) {}

View PlainParamStore::acquire(Context&, int param) {
  return parameter_view(flat_, table_[param]);
}

}  // namespace snug
