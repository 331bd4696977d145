// IA3: a vector of what a layer makes, or of what a feed-forward layer reads; scaled_linear.h.
#include "layers/adapters/rows.h"
#include "layers/adapters/scaled_linear.h"

namespace snug {
namespace {

class Ia3 : public AdapterKind {
 public:
  std::vector<AdapterParam> params(const AdaptedLayer& layer) const override {
    const LinearAdapter& adapter = *layer.adapter;
    std::vector<AdapterParam> list;
    for (size_t k = 0; k < adapter.pieces.size(); ++k) {
      AdapterParam l{.name = layer.name + ".ia3_l",
                     .end = ".ia3_l",
                     .shape = {adapter.pieces[k].rows, 1},
                     .init = Init::ones,
                     .piece = static_cast<int>(k),
                     .by_rows = !adapter.input,
                     .matrix = false};
      if (adapter.pieces.size() > 1) l.name += "." + adapter.pieces[k].name;
      if (adapter.input) l.shape = {1, layer.in};
      list.push_back(std::move(l));
    }
    return list;
  }
  int input(Wiring& w, const AdaptedLayer& layer, int x) const override {
    if (!layer.adapter->input) return x;
    return scaled_input(w, layer, add_adapter_param(w, params(layer).front()), x);
  }
  int in_place_of(Wiring& w, const AdaptedLayer& layer, const LinearParams& params_of_layer,
                  const char* slot, int x, const BehindProduct& behind) const override {
    if (layer.adapter->input) return -1;
    std::vector<ScaledRows> scales;
    for (const AdapterParam& param : params(layer)) {
      const AdapterPiece& piece = layer.adapter->pieces[static_cast<size_t>(param.piece)];
      scales.push_back({add_adapter_param(w, param), piece.row, piece.rows});
    }
    return scaled_linear(w, layer, slot, params_of_layer, nullptr, std::move(scales), x, behind);
  }
  MergedModule merged(const AdaptedLayer& layer, size_t,
                      const TensorValues& values) const override {
    MergedModule m;
    (layer.adapter->input ? m.columns : m.rows) = values(".ia3_l");
    m.bias = !layer.adapter->input;
    return m;
  }
};

const Ia3 kIa3;

}  // namespace

const AdapterMethod& ia3_method() {
  static const AdapterMethod row{
      .name = "ia3",
      .words = "ia3",
      .type = "IA3",
      .title = "IA3",
      .doc = "ia3, vectors that scale keys, values and what the MLP's last layer reads",
      .fields = {},
      .shared = "target_modules exclude_modules modules_to_save feedforward_modules fan_in_fan_out",
      .indifferent = "init_ia3_weights",
      .constants = {{"init_ia3_weights", "true"}},
      .markers = {".ia3_l"},
      .targets = keys_values_and_mlp,
      .inputs = behind_mlp,
      .ranked = false,
      .kind = [](const PeftConfig&) -> const AdapterKind& { return kIa3; },
      .settle = [](const PeftConfig&, double, AdapterPiece&, LinearAdapter&) {},
      .text = [](const PeftConfig&) { return std::string("ia3"); }};
  return row;
}

}  // namespace snug
