// P-tuning (Liu et al., arXiv:2103.10385): the rows in front of every sequence are what an encoder makes of a table
// of its own, PEFT's PromptEncoder with an MLP, or with an LSTM and an MLP behind it. Its rows alone, as PEFT's
// folders have them, are those of prompt tuning.
#include <fmt/format.h>

#include "engine/core/error.h"
#include "layers/adapters/prompt_encoder.h"
#include "layers/adapters/rows.h"
#include "layers/parts/wiring.h"

namespace snug {
namespace {

PromptEncoder row_encoder_of(const AdaptedLayer& layer) {
  const LinearAdapter& a = *layer.adapter;
  if (a.encoder_layers > 0)
    return {{.n = a.front,
             .in = layer.in,
             .inner = 2 * a.encoder,
             .out = layer.in,
             .layers = 2,
             .head = "mlp_head",
             .activation = Activation::relu,
             .lstm_hidden = a.encoder,
             .lstm_layers = static_cast<int>(a.encoder_layers)},
            layer.name};
  return {{.n = a.front,
           .in = layer.in,
           .inner = a.encoder,
           .out = layer.in,
           .layers = 3,
           .head = "mlp_head",
           .activation = Activation::relu},
          layer.name};
}

class PTuning : public AdapterKind {
 public:
  std::vector<AdapterParam> params(const AdaptedLayer& layer) const override {
    return row_encoder_of(layer).params();
  }
  TokensInFront in_front(Wiring& w, const AdaptedLayer& layer) const override {
    PromptEncoder encoder = row_encoder_of(layer);
    encoder.add_to(w);
    const int64_t n = layer.adapter->front, C = layer.in;
    const int rows = w.body.add_slot(
        {join(w.name, "in_front"), w.dtype, Category::activations, [n, C](Dims) -> Shape {
           return {n, C};
         }});
    w.body.add_stage({.name = Name("prompt_encoder"),
                      .inputs = {},
                      .outputs = {rows},
                      .run =
                          [=](Context& ctx, Pass& p) {
                            encoder.forward(ctx, p.environment<Runtime>().params, p.view(rows), 0);
                          },
                      .backward =
                          [=](Context& ctx, Pass& p) {
                            Runtime& rt = p.environment<Runtime>();
                            encoder.backward(ctx, rt.params, *rt.grads, p.gradient(rows), 0, true);
                          },
                      .params = encoder.indices()});
    return {.count = n, .slot = rows};
  }
  std::optional<AdapterResult> result(const AdaptedLayer& layer) const override {
    return AdapterResult{kPromptEmbeddings, {layer.adapter->front, layer.in}};
  }
  std::vector<float> result_values(const AdaptedLayer& layer, const ParamValues& of,
                                   int threads) const override {
    return row_encoder_of(layer).values(of, threads);
  }
  MergedModule merged(const AdaptedLayer&, size_t, const TensorValues&) const override {
    fail(ErrorCode::internal, "an adapter that comes to a weight", "virtual tokens", "report this");
  }
};

const PTuning kPTuning;

}  // namespace

const AdapterMethod& p_tuning_method() {
  using C = PeftConfig;
  static const AdapterMethod row{
      .name = "p_tuning",
      .words = "p_tuning",
      .type = "P_TUNING",
      .title = "P-tuning",
      .doc = "p_tuning, the same rows, made by an MLP or an LSTM that is trained in their place",
      .fields =
          {{"num_virtual_tokens", "num_virtual_tokens", &C::num_virtual_tokens, 1, 1 << 20},
           {.key = "encoder_hidden_size",
            .run_key = "encoder_hidden_size",
            .value = &C::encoder_hidden_size,
            .below = 1 << 20,
            .said =
                {.doc =
                     "the width inside the MLP or LSTM that makes these tokens, of prefix_tuning "
                     "with prefix_projection; auto: that of what it makes of one, as "
                     "PEFT has it",
                 .example = "128",
                 .unset = "auto",
                 .least = 1,
                 .most = (1 << 20) - 1}},
           {.key = "encoder_reparameterization_type",
            .run_key = "encoder_reparameterization_type",
            .value = &C::encoder_type,
            .words = "MLP LSTM",
            .advice = "the config that PEFT wrote",
            .said = {.doc = "what makes these tokens: MLP, three linear layers with relu "
                            "between; LSTM, encoder_num_layers of it in both directions and "
                            "two linear layers behind them",
                     .example = "LSTM",
                     .choices = "MLP LSTM"}},
           {.key = "encoder_num_layers",
            .run_key = "encoder_num_layers",
            .value = &C::encoder_num_layers,
            .least = 1,
            .below = 1 << 10,
            .said = {.doc = "the layers of that LSTM",
                     .example = "1",
                     .least = 1,
                     .most = (1 << 10) - 1}}},
      .shared = "",
      // Of the model, which says them too; and of what is in no folder.
      .indifferent =
          "token_dim num_transformer_submodules num_attention_heads num_layers encoder_dropout",
      .refused = "modules_to_save",
      .constants = {{"encoder_dropout", "0.0"}},
      .markers = {".prompt_encoder."},
      .ranked = false,
      .apart = "whose virtual tokens lie in front of every sequence",
      .front = true,
      .encodes = [](const C&) { return true; },
      .kind = [](const C& c) -> const AdapterKind& {
        return c.encoded ? kPTuning : prompt_tuning_method().kind(c);
      },
      .settle =
          [](const C& c, double, AdapterPiece&, LinearAdapter& adapter) {
            if (c.encoded && c.encoder_type == "LSTM")
              adapter.encoder_layers = c.encoder_num_layers;
          },
      .text =
          [](const C& c) {
            std::string encoder;
            if (c.encoded) encoder = fmt::format(" encoder {}", c.encoder_hidden_size);
            if (c.encoded && c.encoder_type == "LSTM")
              encoder += fmt::format(" LSTM {}", c.encoder_num_layers);
            return fmt::format("p_tuning of {} tokens{}", c.num_virtual_tokens, encoder);
          },
      .check =
          [](const AdapterFields& c) {
            std::vector<AdapterComplaint> list;
            if (c.encoder_num_layers != AdapterFields().encoder_num_layers &&
                c.encoder_type != "LSTM")
              list.push_back({"encoder_reparameterization_type: LSTM beside encoder_num_layers",
                              "encoder_num_layers", ", and an MLP has three",
                              "encoder_reparameterization_type=LSTM, or leave encoder_num_layers "
                              "out"});
            return list;
          }};
  return row;
}

}  // namespace snug
