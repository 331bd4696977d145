#include "engine/stores/plain_gradients.h"

#include <algorithm>

#include "engine/core/error.h"

namespace snug {

PlainGradSink::PlainGradSink(Context& ctx, const ParamTable& table, DType dtype)
    : table_(table),
      flat_(ctx.tensor(Name("gradients"), {table.trained_elements()}, dtype, Category::gradients)),
      written_(static_cast<size_t>(table.size()), 0) {
  require(dtype == DType::f32 || dtype == DType::bf16, "gradients in f32 or bf16");
  expect_gradients_here(ctx, dtype);
}

void PlainGradSink::begin(bool first_of_window) {
  if (first_of_window) std::fill(written_.begin(), written_.end(), char{0});
}

GradView PlainGradSink::open(Context&, int param) {
  require(wants(param), "gradients of trainable parameters only");
  char& written = written_[static_cast<size_t>(param)];
  const bool add = written != 0;
  written = 1;
  return {parameter_view(flat_, table_[param]), add};
}

}  // namespace snug
