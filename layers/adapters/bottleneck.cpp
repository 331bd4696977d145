// Adapters of Houlsby et al. (arXiv:1902.00751) and Pfeiffer et al. (arXiv:2005.00247), as the library `adapters`
// has them (double_seq_bn, seq_bn): down to m numbers, an activation, up again and added.
//
//   houlsby   behind attention and the MLP: h = drop(x W^T + b);  out = residual + h + up(silu(down(h)))
//   pfeiffer  behind the MLP alone:         s = residual + drop(x W^T + b);  out = s + up(relu(down(s)))
//
// Both stand in the place of the block's last linear layer of the branch; `s` below is what they read.
//
//   stage      reads        writes            backward
//   *          x            s (N,C)           dx = ds W
//   *_down     s            u, a (N,m)        dD (+)= du^T s;  ds += du D
//   *_up       a, s         y or t (N,C)      dU (+)= dy^T a;  da = dy U;  ds = dy
//   *_sum      t, residual  y                 houlsby alone, where there is a residual stream
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/core/error.h"
#include "engine/kernels/kernels.h"
#include "layers/adapters/rows.h"
#include "layers/ops/activation.h"
#include "layers/parts/linear.h"

namespace snug {
namespace {

class Bottleneck : public AdapterKind {
 public:
  Bottleneck(bool reads_sum, Activation activation)
      : reads_sum_(reads_sum), activation_(activation) {}

  std::vector<AdapterParam> params(const AdaptedLayer& layer) const override {
    const AdapterPiece& piece = layer.adapter->pieces.front();
    std::vector<AdapterParam> list;
    const auto add = [&](const char* end, Shape shape) {
      const bool matrix = shape.rank() == 2;
      list.push_back({.name = layer.name + end,
                      .end = end,
                      .shape = shape,
                      .group = matrix ? kGroupDecay : kGroupNoDecay,
                      .init = matrix ? Init::normal : Init::zeros,
                      .init_std = matrix ? 0.02f : 0.0f,
                      .piece = 0,
                      .matrix = matrix});
    };
    add(".adapter_down.weight", {piece.rank, piece.rows});
    add(".adapter_down.bias", {piece.rank});
    add(".adapter_up.weight", {piece.rows, piece.rank});
    add(".adapter_up.bias", {piece.rows});
    return list;
  }

  int in_place_of(Wiring& w, const AdaptedLayer& layer, const LinearParams& of_layer,
                  const char* slot, int x, const BehindProduct& behind) const override {
    const std::string& own = layer.stage;
    require(!reads_sum_ || behind.residual >= 0, "a residual stream");
    std::vector<int> indices;
    for (const AdapterParam& p : params(layer)) indices.push_back(add_adapter_param(w, p));
    const LinearParams down{indices[0], indices[1]}, up{indices[2], indices[3]};
    const int s = w.rows(own + "_before", layer.out);
    if (reads_sum_)
      sum_stage(w, own, {-1, x, s, of_layer, behind.residual, behind.dropout});
    else
      branch_stage(w, own, {-1, x, s, of_layer, -1, behind.dropout});
    const int64_t m = layer.adapter->pieces.front().rank;
    const int u = w.rows(own + "_down", m), a = w.rows(own + "_act", m);
    down_stage(w, own + "_down", down, s, u, a);
    const bool apart = !reads_sum_ && behind.residual >= 0;
    const std::string last = own + "_whole";
    const int y = w.rows(apart ? std::string_view(last) : std::string_view(slot), layer.out);
    up_stage(w, own + "_up", {-1, a, y, up, s, {}});
    if (!apart) return y;
    const int out = w.rows(slot, layer.out);
    add_stage(w, own + "_sum", y, behind.residual, out);
    return out;
  }

  MergedModule merged(const AdaptedLayer&, size_t, const TensorValues&) const override {
    fail(ErrorCode::internal, "an adapter that comes to a weight", "a bottleneck", "report this");
  }

 private:
  // s = residual + drop(x W^T + b).
  static void sum_stage(Wiring& w, const std::string& stage, const Wiring::Linear& l) {
    const Name dbranch = join(w.name, stage + "_dbranch");
    w.body.add_stage(
        {.name = Name(stage),
         .inputs = {l.x, l.residual},
         .outputs = {l.y},
         .run =
             [=](Context& ctx, Pass& p) {
               with_weights(ctx, p.environment<Runtime>(), l.params, [&](const LinearWeights& lw) {
                 linear_residual_forward(ctx, p.view(l.y), residual_input(p, l), p.view(l.x), lw);
               });
             },
         .backward =
             [=](Context& ctx, Pass& p) {
               Tensor branch;
               if (l.dropout.p > 0.0f) {
                 const View& dy = p.gradient(l.y);
                 branch = ctx.tensor(dbranch, dy.shape, dy.dtype, Category::workspace);
                 const Dims d = p.dims().of(dy.shape[0]);
                 dropout_backward(ctx, branch, dy, d.B, d.T, {l.dropout.p, l.dropout.site},
                                  p.environment<Runtime>().state);
               }
               linear_residual_backward(ctx, p, l, std::move(branch));
             },
         .params = of(l.params),
         .for_params = {l.x},
         .gradients = {l.x, l.residual}});
  }
  // s = drop(x W^T + b).
  static void branch_stage(Wiring& w, const std::string& stage, const Wiring::Linear& l) {
    w.body.add_stage(
        {.name = Name(stage),
         .inputs = {l.x},
         .outputs = {l.y},
         .run =
             [=](Context& ctx, Pass& p) {
               Runtime& rt = p.environment<Runtime>();
               const View y = p.view(l.y);
               linear_forward(ctx, rt, l.params, y, p.view(l.x));
               const Dims d = p.dims().of(y.shape[0]);
               if (p.mode() == PassMode::train && l.dropout.p > 0.0f)
                 dropout_forward(ctx, y, y, d.B, d.T, {l.dropout.p, l.dropout.site}, rt.state);
             },
         .backward =
             [=](Context& ctx, Pass& p) {
               Runtime& rt = p.environment<Runtime>();
               const View dy = p.gradient(l.y);
               const Dims d = p.dims().of(dy.shape[0]);
               if (l.dropout.p > 0.0f)
                 dropout_backward(ctx, dy, dy, d.B, d.T, {l.dropout.p, l.dropout.site}, rt.state);
               linear_backward_params(ctx, rt, l.params, dy,
                                      rt.grads->wants(l.params.weight) ? p.need(ctx, l.x) : View());
               p.done(l.x);
               if (p.wants_gradient(l.x))
                 linear_backward_input(ctx, rt, l.params, p.open_gradient(ctx, l.x), dy);
             },
         .params = of(l.params),
         .for_params = {l.x},
         .gradients = {l.x}});
  }
  void down_stage(Wiring& w, const std::string& stage, const LinearParams& down, int s, int u,
                  int a) const {
    const Activation f = activation_;
    w.body.add_stage({.name = Name(stage),
                      .inputs = {s},
                      .outputs = {u, a},
                      .run =
                          [=](Context& ctx, Pass& p) {
                            Runtime& rt = p.environment<Runtime>();
                            if (!rt.adapters) return;
                            linear_forward(ctx, rt, down, p.view(u), p.view(s));
                            activation_forward(ctx, p.view(a), p.view(u), f);
                          },
                      .backward =
                          [=](Context& ctx, Pass& p) {
                            Runtime& rt = p.environment<Runtime>();
                            const View du = p.gradient(a);
                            activation_backward(ctx, du, du, p.need(ctx, u), f);
                            p.done(u);
                            linear_backward_params(ctx, rt, down, du, p.need(ctx, s));
                            p.done(s);
                            if (p.wants_gradient(s))
                              linear_backward_input(ctx, rt, down, p.open_gradient(ctx, s), du);
                          },
                      .params = of(down),
                      .for_params = {s, u},
                      .reading_params = 2,
                      .for_inputs = {u},
                      .gradients = {s}});
  }
  static void up_stage(Wiring& w, const std::string& stage, const Wiring::Linear& l) {
    w.body.add_stage(
        {.name = Name(stage),
         .inputs = {l.x, l.residual},
         .outputs = {l.y},
         .run =
             [=](Context& ctx, Pass& p) {
               Runtime& rt = p.environment<Runtime>();
               if (!rt.adapters) return copy(ctx, p.view(l.y), p.view(l.residual));
               with_weights(ctx, rt, l.params, [&](const LinearWeights& lw) {
                 linear_residual_forward(ctx, p.view(l.y), residual_input(p, l), p.view(l.x), lw);
               });
             },
         .backward = [=](Context& ctx, Pass& p) { linear_residual_backward(ctx, p, l, {}); },
         .params = of(l.params),
         .for_params = {l.x},
         .gradients = {l.x, l.residual}});
  }
  static void add_stage(Wiring& w, const std::string& stage, int t, int residual, int y) {
    w.body.add_stage({.name = Name(stage),
                      .inputs = {t, residual},
                      .outputs = {y},
                      .run =
                          [=](Context& ctx, Pass& p) {
                            copy(ctx, p.view(y), p.view(residual));
                            add(ctx, p.view(y), p.view(t));
                          },
                      .backward =
                          [=](Context& ctx, Pass& p) {
                            if (p.wants_gradient(residual)) {
                              const GradView d = p.open_gradient(ctx, residual);
                              if (d.add)
                                add(ctx, d.view, p.gradient(y));
                              else
                                copy(ctx, d.view, p.gradient(y));
                            }
                            hand_gradient(ctx, p, y, t);
                          },
                      .gradients = {t, residual}});
  }
  static std::vector<int> of(const LinearParams& p) {
    return p.bias >= 0 ? std::vector<int>{p.weight, p.bias} : std::vector<int>{p.weight};
  }

  bool reads_sum_;
  Activation activation_;
};

const Bottleneck kHoulsby(false, Activation::silu), kPfeiffer(true, Activation::relu);

void settle_bottleneck(const PeftConfig& config, double, AdapterPiece& piece, LinearAdapter&) {
  if (config.reduction_factor > piece.rows)
    fail(ErrorCode::usage,
         fmt::format("reduction_factor of at most {}, the model's width", piece.rows),
         std::to_string(config.reduction_factor),
         fmt::format("reduction_factor={}", std::min<int64_t>(16, piece.rows)));
  piece.rank = piece.rows / config.reduction_factor;
}

// Pfeiffer's read the residual sum, which a block with norms before its branches has.
std::vector<std::string> before_norms(const ModelSpec& spec,
                                      std::span<const AdaptableModule> modules) {
  if (spec.placement != NormPlacement::pre && spec.placement != NormPlacement::parallel)
    fail(ErrorCode::unsupported, "a model with norms before its branches for peft: pfeiffer",
         fmt::format("{}, which has norms behind them", spec.family), "peft=houlsby");
  return placed("mlp.c_proj", modules);
}

// Of either: what it has that the other has not.
AdapterMethod bottleneck_method(const char* name, const char* type, const char* title,
                                const char* doc, const char* activation, TargetChoice targets,
                                const AdapterKind& (*kind)(const PeftConfig&)) {
  using C = PeftConfig;
  return {.name = name,
          .words = name,
          .type = type,
          .title = title,
          .doc = doc,
          .fields = {{.key = "reduction_factor",
                      .run_key = "reduction_factor",
                      .value = &C::reduction_factor,
                      .least = 1,
                      .below = 1 << 20,
                      .said = {.doc = "the model's width over that of the bottlenecks",
                               .example = "8",
                               .least = 1,
                               .most = (1 << 20) - 1}}},
          .shared = "layers_to_transform modules_to_save",
          .indifferent = "non_linearity",
          .constants = {{"non_linearity", activation}},
          .markers = {".adapter_down.", ".adapter_up."},
          .targets = std::move(targets),
          .ranked = false,
          .of_peft = false,
          .apart = "whose bottlenecks act between layers",
          .kind = kind,
          .settle = settle_bottleneck,
          .text = [](const C& c) { return fmt::format("{} by {}", c.method, c.reduction_factor); }};
}

}  // namespace

const AdapterMethod& houlsby_method() {
  static const AdapterMethod row = bottleneck_method(
      "houlsby", "HOULSBY", "Houlsby",
      "houlsby, a bottleneck behind attention and behind the MLP of every layer", "\"swish\"",
      [](const ModelSpec&, std::span<const AdaptableModule> modules) {
        return placed("attn.c_proj mlp.c_proj", modules);
      },
      [](const PeftConfig&) -> const AdapterKind& { return kHoulsby; });
  return row;
}

const AdapterMethod& pfeiffer_method() {
  static const AdapterMethod row = bottleneck_method(
      "pfeiffer", "PFEIFFER", "Pfeiffer",
      "pfeiffer, a bottleneck behind the MLP of every layer, where norms are before it", "\"relu\"",
      before_norms, [](const PeftConfig&) -> const AdapterKind& { return kPfeiffer; });
  return row;
}

}  // namespace snug
