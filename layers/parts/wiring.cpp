#include "layers/parts/wiring.h"

#include "engine/core/error.h"
#include "layers/ops/rows.h"

namespace snug {

int Wiring::rows(std::string_view slot, int64_t width) {
  return body.add_slot(
      {join(name, slot), dtype, Category::activations, [width, some = chosen](Dims d) -> Shape {
         return {some ? d.chosen() : d.N(), width};
       }});
}

int Wiring::statistic(std::string_view slot) {
  return body.add_slot({join(name, slot), DType::f32, Category::activations,
                        [some = chosen](Dims d) -> Shape { return {some ? d.chosen() : d.N()}; }});
}

int Wiring::choose(int x) {
  chosen = true;
  const int y = rows("rows", width(x));
  body.add_stage({.name = Name("rows"),
                  .inputs = {x},
                  .outputs = {y},
                  .run =
                      [=](Context& ctx, Pass& p) {
                        rows_gather_forward(ctx, p.view(y), p.view(x),
                                            p.environment<Runtime>().head_rows);
                      },
                  .backward =
                      [=](Context& ctx, Pass& p) {
                        const GradView dx = p.open_gradient(ctx, x);
                        rows_gather_backward(ctx, dx.view, p.gradient(y),
                                             p.environment<Runtime>().head_rows, dx.add);
                      },
                  .gradients = {x}});
  return y;
}

Name Wiring::param_name(std::string_view layer_name, std::string_view suffix) const {
  return join(name, std::string(layer_name) + std::string(suffix));
}

int Wiring::param(ParamInfo info) {
  info.part = part;
  return table.add(std::move(info));
}

uint32_t Wiring::dropout_site() {
  ++dropouts;
  require(dropouts < 4, "a layer has at most three dropouts");
  return static_cast<uint32_t>(layer) * 4 + dropouts;
}

}  // namespace snug
