#include "layers/parts/attention.h"

#include "layers/ops/attention.h"
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
  spec.window = w.spec.window;
  spec.dropout = w.spec.attention_dropout;
  spec.site = dropout_site;
  const int att = w.rows("att", spec.H * spec.D);
  const int lse = w.body.add_slot(
      {join(w.name, "lse"), DType::f32, Category::activations, [H = spec.H](Dims d) -> Shape {
         return {d.B, H, d.T};
       }});
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

InPlace rotary(const ModelSpec& spec) {
  if (spec.positions != Positions::rope) return {};
  const RopeSpec rope{spec.H, spec.G, spec.D, spec.rope.inverse_frequencies(spec.D)};
  return {[rope](Context& ctx, Pass& p, const View& qkv) {
            const Runtime& rt = p.environment<Runtime>();
            rope_forward(ctx, qkv, qkv, p.dims().B, p.dims().T, rope, rt.state, rt.document_start);
          },
          [rope](Context& ctx, Pass& p, const View& dqkv) {
            const Runtime& rt = p.environment<Runtime>();
            rope_backward(ctx, dqkv, dqkv, p.dims().B, p.dims().T, rope, rt.state,
                          rt.document_start);
          }};
}

}  // namespace snug
