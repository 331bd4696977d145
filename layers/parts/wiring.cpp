#include "layers/parts/wiring.h"

namespace snug {

int Wiring::rows(std::string_view slot, int64_t width) {
  return body.add_slot({join(name, slot), dtype, Category::activations, [width](Dims d) -> Shape {
                          return {d.N(), width};
                        }});
}

int Wiring::statistic(std::string_view slot) {
  return body.add_slot({join(name, slot), DType::f32, Category::activations,
                        [](Dims d) -> Shape { return {d.N()}; }});
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
