#include "layers/parts/attention.h"

#include "engine/kernels/kernels.h"
#include "layers/ops/attention.h"
#include "layers/ops/rmsnorm.h"
#include "layers/ops/rope.h"

namespace snug {

namespace {

AttentionSpec with_batch(AttentionSpec spec, const Runtime& rt, PassMode mode) {
  spec.document_start = rt.document_start;
  spec.document_end = rt.document_end;
  if (mode == PassMode::inference) spec.dropout = 0.0f;
  return spec;
}

}  // namespace

int attention(Wiring& w, int qkv, uint32_t dropout_site) {
  AttentionSpec spec;
  spec.H = w.spec.H;
  spec.G = w.spec.G;
  spec.D = w.spec.D;
  spec.scale = w.spec.attention_scale(w.layer);
  spec.causal = w.spec.causal;
  spec.window = w.spec.kind(w.layer).window;
  spec.softcap = w.spec.attention_softcap;
  spec.dropout = w.spec.attention_dropout;
  spec.site = dropout_site;
  const int att = w.rows("att", spec.H * spec.D);
  const int lse = w.body.add_slot(
      {join(w.name, "lse"), DType::f32, Category::activations, [H = spec.H](Dims d) -> Shape {
         return {d.B, H, d.T};
       }});
  w.in(kAttention, att);
  w.in(kAttention, lse);
  const auto layer = static_cast<size_t>(w.layer);
  w.body.add_stage(
      {.name = Name("attention"),
       .inputs = {qkv},
       .outputs = {att, lse},
       .run =
           [=](Context& ctx, Pass& p) {
             Runtime& rt = p.environment<Runtime>();
             const Dims d = p.dims();
             const AttentionSpec s = with_batch(spec, rt, p.mode());
             if (rt.cache)
               attention_cached_forward(ctx, p.view(att), rt.cache->keys(layer, d.B),
                                        rt.cache->values(layer, d.B), p.view(qkv), d.B, d.T, s,
                                        rt.state);
             else
               attention_forward(ctx, p.view(att), p.view(lse), p.view(qkv), d.B, d.T, s, rt.state);
           },
       .backward =
           [=](Context& ctx, Pass& p) {
             Runtime& rt = p.environment<Runtime>();
             const View& x = p.need(ctx, qkv);
             const View& l = p.need(ctx, lse);
             const GradView dqkv = p.open_gradient(ctx, qkv);
             attention_backward(ctx, dqkv.view, p.gradient(att), x, p.need(ctx, att), l, p.dims().B,
                                p.dims().T, with_batch(spec, rt, PassMode::train), rt.state);
             p.end_gradient(att);
             p.done(att);
             p.done(lse);
             p.done(qkv);
           },
       .for_inputs = {qkv, att, lse},
       .gradients = {qkv}});
  return att;
}

namespace {

// Of rotations by one set of frequencies, or by one of two that the length of a run's sequences chooses.
struct Rotation {
  RopeSpec usual, beyond;
  int64_t original = 0;  // positions up to which the usual ones hold; 0: all

  const RopeSpec& of(const Runtime& rt, Dims dims) const {
    return original > 0 && (rt.cache ? rt.cache->P : dims.T) > original ? beyond : usual;
  }
};

}  // namespace

InPlace rotary(const ModelSpec& spec, int64_t layer) {
  const LayerRope which = spec.kind(layer).rope;
  if (spec.positions != Positions::rope || which == LayerRope::none) return {};
  const RopeParameters& r = which == LayerRope::local ? spec.local_rope : spec.rope;
  Rotation rotation;
  rotation.usual = {spec.H, spec.G, spec.D, r.inverse_frequencies(spec.D), r.attention_scale()};
  if (r.type == "longrope") {
    rotation.original = r.original_positions;
    rotation.beyond = rotation.usual;
    rotation.beyond.inverse_frequencies = r.inverse_frequencies(spec.D, true);
  }
  return {[rotation](Context& ctx, Pass& p, const View& qkv) {
            const Runtime& rt = p.environment<Runtime>();
            rope_forward(ctx, qkv, qkv, p.dims().B, p.dims().T, rotation.of(rt, p.dims()), rt.state,
                         rt.document_start);
          },
          [rotation](Context& ctx, Pass& p, const View& dqkv) {
            const Runtime& rt = p.environment<Runtime>();
            rope_backward(ctx, dqkv, dqkv, p.dims().B, p.dims().T, rotation.of(rt, p.dims()),
                          rt.state, rt.document_start);
          }};
}

namespace {

struct QkNormStage {
  int heads = -1, qkv = -1, rstdq = -1, rstdk = -1;  // slots
  int weight = -1;
  int64_t H = 0, G = 0, D = 0;
  float epsilon = 0;
  bool unit_offset = false;
  bool full = false;  // all heads of the queries as one row, and those of the keys

  // The queries or the keys in rows of heads.
  HeadRows of(bool keys) const {
    if (full) return {.column = keys ? H * D : 0, .columns = width(keys)};
    return {H + 2 * G, keys ? H : 0, keys ? G : H};
  }
  int64_t width(bool keys) const { return full ? (keys ? G : H) * D : D; }
  // Rows of numbers of a token that are normed.
  int64_t count(bool keys) const { return full ? 1 : keys ? G : H; }
  // Their part of the weight and of its gradient.
  View part(const View& both, bool keys) const {
    return both.rows(keys ? width(false) : 0, width(keys));
  }
  View in_heads(const View& rows) const {
    return full ? rows : rows.reshaped({rows.shape[0] * (H + 2 * G), D});
  }
};

void qk_norm_forward(Context& ctx, Pass& p, const QkNormStage& n) {
  Runtime& rt = p.environment<Runtime>();
  const View y = p.view(n.qkv), x = p.view(n.heads);
  copy(ctx, y, x);  // the values
  const View weight = rt.params.acquire(ctx, n.weight);
  for (const bool keys : {false, true})
    rmsnorm_forward(ctx, n.in_heads(y), p.view(keys ? n.rstdk : n.rstdq), n.in_heads(x),
                    n.part(weight, keys), n.epsilon, n.unit_offset, n.of(keys));
  rt.params.release(ctx, n.weight);
}

// In place: the gradient of the values is as it was.
void qk_norm_backward(Context& ctx, Pass& p, const QkNormStage& n) {
  Runtime& rt = p.environment<Runtime>();
  const View dy = n.in_heads(p.gradient(n.qkv)), x = n.in_heads(p.need(ctx, n.heads));
  GradView dweight;
  if (rt.grads->wants(n.weight)) dweight = rt.grads->open(ctx, n.weight);
  const View weight = rt.params.acquire(ctx, n.weight);
  for (const bool keys : {false, true}) {
    GradView dpart = dweight;
    if (dweight.view.defined()) dpart.view = n.part(dweight.view, keys);
    rmsnorm_backward(ctx, dy, false, dpart, dy, x, n.part(weight, keys),
                     p.need(ctx, keys ? n.rstdk : n.rstdq), n.unit_offset, n.of(keys));
  }
  rt.params.release(ctx, n.weight);
  if (dweight.view.defined()) rt.grads->close(ctx, n.weight);
  for (const int slot : {n.rstdq, n.rstdk, n.heads}) p.done(slot);
  if (p.wants_gradient(n.heads)) p.hand_gradient(n.qkv, n.heads);
}

}  // namespace

int qk_norm(Wiring& w, int heads, const InPlace& behind) {
  QkNormStage n;
  n.heads = heads;
  n.H = w.spec.H;
  n.G = w.spec.G;
  n.D = w.spec.D;
  n.epsilon = w.spec.norm_epsilon;
  n.unit_offset = w.spec.unit_offset;
  n.full = w.spec.qk_norm == QkNorm::full;
  n.weight = w.param({.name = w.param_name("attn.qk_norm", ".weight"),
                      .shape = {n.width(false) + n.width(true)},
                      .group = kGroupNoDecay,
                      .init = n.unit_offset ? Init::zeros : Init::ones});
  n.qkv = w.rows("qkv", w.width(heads));
  const auto statistic = [&](const char* slot, int64_t count) {
    return w.body.add_slot({join(w.name, slot), DType::f32, Category::activations,
                            [count](Dims d) -> Shape { return {d.N() * count}; }});
  };
  n.rstdq = statistic("rstdq", n.count(false));
  n.rstdk = statistic("rstdk", n.count(true));
  const std::vector<int> read = {heads, n.rstdq, n.rstdk};
  std::vector<int> params = {n.weight};
  params.insert(params.end(), behind.params.begin(), behind.params.end());
  w.body.add_stage({.name = Name("qk_norm"),
                    .inputs = {heads},
                    .outputs = {n.qkv, n.rstdq, n.rstdk},
                    .run =
                        [=](Context& ctx, Pass& p) {
                          qk_norm_forward(ctx, p, n);
                          if (behind.forward) behind.forward(ctx, p, p.view(n.qkv));
                        },
                    .backward =
                        [=](Context& ctx, Pass& p) {
                          if (behind.backward) behind.backward(ctx, p, p.gradient(n.qkv));
                          qk_norm_backward(ctx, p, n);
                        },
                    .params = params,
                    .for_params = read,
                    .for_inputs = read,
                    .gradients = {heads}});
  return n.qkv;
}

}  // namespace snug
