// Prefix tuning (Li and Liang, arXiv:2101.00190): keys and values of every layer in front of those of a sequence,
// as PEFT's PrefixEncoder has them, with and without prefix_projection. Sequences begin with as many virtual
// tokens, so that positions, windows and caches count them; what a layer makes of these is not read: its keys and
// values give way to the prefix, behind the rotation, and have no gradient. Nothing is asked of them.
#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/kernels/kernels.h"
#include "layers/adapters/prompt_encoder.h"
#include "layers/adapters/rows.h"
#include "layers/ops/front_keys.h"
#include "layers/parts/wiring.h"

namespace snug {
namespace {

// The parameter, or the encoder, is one of all layers: part l of its columns is layer l's, keys and then values.
PromptEncoder prefix_encoder_of(const AdaptedLayer& layer) {
  const LinearAdapter& a = *layer.adapter;
  return {{.n = a.front,
           .in = a.keys_width / 2,
           .inner = a.encoder,
           .out = a.layers * a.keys_width,
           .layers = 2,
           .head = "transform",
           .activation = Activation::tanh},
          layer.name};
}

// What stands in place of the rows of virtual tokens in qkv (N,(H+2G)D) of layer l.
struct Prefix {
  FrontKeys keys;
  int64_t n = 0;
  Name scratch, dscratch;
};

Prefix prefix_of(const Wiring& w, const LinearAdapter& a) {
  const ModelSpec& s = w.spec;
  return {{.first = s.V, .column = s.H * s.D, .at = w.layer * a.keys_width, .width = a.keys_width},
          a.front,
          join(w.name, "prefix"),
          join(w.name, "dprefix")};
}

class PrefixTuning : public AdapterKind {
 public:
  std::vector<AdapterParam> params(const AdaptedLayer& layer) const override {
    const LinearAdapter& a = *layer.adapter;
    return {{.name = layer.name + "." + kPromptEmbeddings,
             .end = kPromptEmbeddings,
             .shape = {a.front, a.layers * a.keys_width},
             .init = Init::normal,
             .init_std = 1,
             .piece = 0,
             .whole_name = true}};
  }
  TokensInFront in_front(Wiring& w, const AdaptedLayer& layer) const override {
    const int table = add_adapter_param(w, params(layer).front());
    return {.count = layer.adapter->front, .shared = {table}};
  }
  InPlace keys_in_front(Wiring& w, const AdaptedLayer& layer,
                        const InPlace& behind) const override {
    const int table = w.table.find(params(layer).front().name);
    const Prefix prefix = prefix_of(w, *layer.adapter);
    return {[=](Context& ctx, Pass& p, const View& qkv) {
              if (behind.forward) behind.forward(ctx, p, qkv);
              Runtime& rt = p.environment<Runtime>();
              front_keys_forward(ctx, qkv, rt.tokens, rt.params.acquire(ctx, table), prefix.keys);
              rt.params.release(ctx, table);
            },
            [=](Context& ctx, Pass& p, const View& dqkv) {
              Runtime& rt = p.environment<Runtime>();
              const bool wanted = rt.grads->wants(table);
              front_keys_backward(ctx, wanted ? rt.grads->open(ctx, table) : GradView{}, dqkv,
                                  rt.tokens, prefix.n, prefix.keys);
              if (behind.backward) behind.backward(ctx, p, dqkv);
            },
            {table}};
  }
  MergedModule merged(const AdaptedLayer&, size_t, const TensorValues&) const override {
    fail(ErrorCode::internal, "an adapter that comes to a weight", "a prefix", "report this");
  }
};

class EncodedPrefix final : public PrefixTuning {
 public:
  std::vector<AdapterParam> params(const AdaptedLayer& layer) const override {
    return prefix_encoder_of(layer).params();
  }
  TokensInFront in_front(Wiring& w, const AdaptedLayer& layer) const override {
    PromptEncoder encoder = prefix_encoder_of(layer);
    encoder.add_to(w);
    return {.count = layer.adapter->front, .shared = encoder.indices()};
  }
  InPlace keys_in_front(Wiring& w, const AdaptedLayer& layer,
                        const InPlace& behind) const override {
    PromptEncoder encoder = prefix_encoder_of(layer);
    encoder.find(w.table);
    const Prefix prefix = prefix_of(w, *layer.adapter);
    // The columns of this layer alone are made, in a table of theirs.
    FrontKeys keys = prefix.keys;
    keys.at = 0;
    return {[=](Context& ctx, Pass& p, const View& qkv) {
              if (behind.forward) behind.forward(ctx, p, qkv);
              Runtime& rt = p.environment<Runtime>();
              const Tensor rows = ctx.tensor(prefix.scratch, {prefix.n, keys.width}, qkv.dtype,
                                             Category::workspace);
              encoder.forward(ctx, rt.params, rows, prefix.keys.at);
              front_keys_forward(ctx, qkv, rt.tokens, rows, keys);
            },
            [=](Context& ctx, Pass& p, const View& dqkv) {
              Runtime& rt = p.environment<Runtime>();
              const Tensor drows = ctx.tensor(prefix.dscratch, {prefix.n, keys.width}, dqkv.dtype,
                                              Category::workspace);
              front_keys_backward(ctx, {drows, false}, dqkv, rt.tokens, prefix.n, keys);
              encoder.backward(ctx, rt.params, *rt.grads, drows, prefix.keys.at, false);
              if (behind.backward) behind.backward(ctx, p, dqkv);
            },
            encoder.indices()};
  }
  std::optional<AdapterResult> result(const AdaptedLayer& layer) const override {
    const LinearAdapter& a = *layer.adapter;
    return AdapterResult{kPromptEmbeddings, {a.front, a.layers * a.keys_width}};
  }
  std::vector<float> result_values(const AdaptedLayer& layer, const ParamValues& of,
                                   int threads) const override {
    return prefix_encoder_of(layer).values(of, threads);
  }
};

const PrefixTuning kPrefixTuning;
const EncodedPrefix kEncodedPrefix;

}  // namespace

const AdapterMethod& prefix_tuning_method() {
  using C = PeftConfig;
  static const AdapterMethod row{
      .name = "prefix_tuning",
      .words = "prefix_tuning",
      .type = "PREFIX_TUNING",
      .title = "prefix-tuning",
      .doc =
          "prefix_tuning, num_virtual_tokens keys and values of every layer in front of those of a "
          "sequence, of causal models",
      .fields = {{"num_virtual_tokens", "num_virtual_tokens", &C::num_virtual_tokens, 1, 1 << 20},
                 {"encoder_hidden_size", "encoder_hidden_size", &C::encoder_hidden_size, 0,
                  1 << 20},
                 {.key = "prefix_projection",
                  .run_key = "prefix_projection",
                  .value = &C::prefix_projection,
                  .said = {.doc = "its keys and values are made by two linear layers with tanh "
                                  "between, which are trained in their place",
                           .example = "true"}}},
      .shared = "",
      // Of the model, which says them too; and of what it began as.
      .indifferent =
          "token_dim num_transformer_submodules num_attention_heads num_layers init_weights",
      .refused = "modules_to_save",
      .constants = {{"init_weights", "null"}},
      .markers = {".prompt_embeddings", ".prompt_encoder."},
      .ranked = false,
      .apart = "whose virtual tokens lie in front of every sequence",
      .front = true,
      .front_keys = true,
      .encodes = [](const C& c) { return c.prefix_projection; },
      .kind = [](const C& c) -> const AdapterKind& {
        return c.encoded ? static_cast<const AdapterKind&>(kEncodedPrefix) : kPrefixTuning;
      },
      .settle = [](const C&, double, AdapterPiece&, LinearAdapter&) {},
      .text =
          [](const C& c) {
            return fmt::format("prefix_tuning of {} tokens{}", c.num_virtual_tokens,
                               c.encoded ? fmt::format(" encoder {}", c.encoder_hidden_size) : "");
          },
      .check =
          [](const AdapterFields& c) {
            std::vector<AdapterComplaint> list;
            if (c.encoder_hidden_size > 0 && !c.prefix_projection)
              list.push_back({"prefix_projection beside encoder_hidden_size of a prefix",
                              "encoder_hidden_size", "",
                              "prefix_projection=true, or leave encoder_hidden_size out"});
            return list;
          }};
  return row;
}

}  // namespace snug
