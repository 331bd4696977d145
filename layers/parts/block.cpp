#include "layers/parts/block.h"

#include <cmath>
#include <string>

namespace snug {
namespace {

// Dropout sites of a block; site 0 is the embedding's.
uint32_t site(int64_t layer, uint32_t k) {
  return static_cast<uint32_t>(layer) * 4 + k;
}

}  // namespace

Block::Block(const ModelSpec& spec, const Precision& precision, int64_t layer, ParamTable& table)
    : name_("h." + std::to_string(layer)),
      C_(spec.C),
      F_(spec.F),
      layer_(layer),
      dtype_(precision.compute),
      epsilon_(spec.norm_epsilon),
      residual_dropout_(spec.residual_dropout),
      activation_(spec.activation) {
  attention_.H = spec.H;
  attention_.G = spec.G;
  attention_.D = spec.D;
  attention_.scale = spec.attention_scale(layer);
  attention_.causal = spec.causal;
  attention_.dropout = spec.attention_dropout;
  attention_.site = site(layer, 1);

  // Parameters, in the order of the published file. Projections that end in the residual stream
  // start smaller, so that its variance does not grow with depth (GPT-2).
  const float small = spec.init_std / std::sqrt(2.0f * static_cast<float>(spec.L));
  const int part = static_cast<int>(layer);
  const auto linear = [&](const char* name, int64_t out, int64_t in, float std) {
    LinearParams p;
    p.weight = table.add({.name = join(name_, std::string(name) + ".weight"),
                          .shape = {out, in},
                          .group = kGroupDecay,
                          .init = Init::normal,
                          .init_std = std,
                          .linear = true,
                          .transposed_in_file = true,
                          .part = part});
    p.bias = table.add({.name = join(name_, std::string(name) + ".bias"),
                        .shape = {out},
                        .group = kGroupNoDecay,
                        .init = Init::zeros,
                        .part = part});
    return p;
  };
  const auto norm = [&](const char* name) {
    NormParams p;
    p.weight = table.add({.name = join(name_, std::string(name) + ".weight"),
                          .shape = {C_},
                          .group = kGroupNoDecay,
                          .init = Init::ones,
                          .part = part});
    p.bias = table.add({.name = join(name_, std::string(name) + ".bias"),
                        .shape = {C_},
                        .group = kGroupNoDecay,
                        .init = Init::zeros,
                        .part = part});
    return p;
  };
  const int64_t heads = (spec.H + 2 * spec.G) * spec.D;
  norm1_ = norm("ln_1");
  qkv_ = linear("attn.c_attn", heads, C_, spec.init_std);
  attention_proj_ = linear("attn.c_proj", C_, spec.H * spec.D, small);
  norm2_ = norm("ln_2");
  fc_ = linear("mlp.c_fc", F_, C_, spec.init_std);
  mlp_proj_ = linear("mlp.c_proj", C_, F_, small);

  // Slots.
  const auto slot = [&](const char* name, DType dtype, std::function<Shape(Dims)> shape) {
    return body_.add_slot({join(name_, name), dtype, Category::activations, std::move(shape)});
  };
  const auto rows = [](int64_t width) {
    return [width](Dims d) -> Shape { return {d.N(), width}; };
  };
  const auto statistic = [](Dims d) -> Shape { return {d.N()}; };
  const int64_t H = spec.H;
  s_x_ = slot("x", dtype_, rows(C_));
  s_norm1_ = slot("norm1", dtype_, rows(C_));
  s_mean1_ = slot("mean1", DType::f32, statistic);
  s_rstd1_ = slot("rstd1", DType::f32, statistic);
  s_qkv_ = slot("qkv", dtype_, rows(heads));
  s_att_ = slot("att", dtype_, rows(spec.H * spec.D));
  s_lse_ = slot("lse", DType::f32, [H](Dims d) -> Shape { return {d.B, H, d.T}; });
  s_mid_ = slot("mid", dtype_, rows(C_));
  s_norm2_ = slot("norm2", dtype_, rows(C_));
  s_mean2_ = slot("mean2", DType::f32, statistic);
  s_rstd2_ = slot("rstd2", DType::f32, statistic);
  s_fc_ = slot("fc", dtype_, rows(F_));
  s_act_ = slot("act", dtype_, rows(F_));
  s_out_ = slot("out", dtype_, rows(C_));

  n_dbranch_ = join(name_, "dbranch");
  n_dact_ = join(name_, "dact");
  n_dnorm_ = join(name_, "dnorm");
  n_datt_ = join(name_, "datt");
  n_dqkv_ = join(name_, "dqkv");

  // Stages.
  body_.add_stage(
      {Name("norm1"), {s_x_}, {s_norm1_, s_mean1_, s_rstd1_}, [this](Context& ctx, Pass& p) {
         norm_forward(ctx, p.environment<Runtime>(), norm1_, p.view(s_norm1_), p.view(s_mean1_),
                      p.view(s_rstd1_), p.view(s_x_), epsilon_);
       }});
  body_.add_stage({Name("qkv"), {s_norm1_}, {s_qkv_}, [this](Context& ctx, Pass& p) {
                     linear_forward(ctx, p.environment<Runtime>(), qkv_, p.view(s_qkv_),
                                    p.view(s_norm1_));
                   }});
  body_.add_stage({Name("attention"), {s_qkv_}, {s_att_, s_lse_}, [this](Context& ctx, Pass& p) {
                     Runtime& rt = p.environment<Runtime>();
                     const Dims d = p.dims();
                     if (rt.cache) {
                       const auto l = static_cast<size_t>(layer_);
                       attention_cached_forward(ctx, p.view(s_att_), rt.cache->keys(l, d.B),
                                                rt.cache->values(l, d.B), p.view(s_qkv_), d.B, d.T,
                                                attention_spec(rt, p.mode()), rt.state);
                     } else {
                       attention_forward(ctx, p.view(s_att_), p.view(s_lse_), p.view(s_qkv_), d.B,
                                         d.T, attention_spec(rt, p.mode()), rt.state);
                     }
                   }});
  const int attention_proj = static_cast<int>(body_.stages().size());
  body_.add_stage({Name("attention_proj"), {s_att_, s_x_}, {s_mid_}, [this](Context& ctx, Pass& p) {
                     linear_residual_forward(ctx, p.environment<Runtime>(), attention_proj_,
                                             p.view(s_mid_), residual(p, s_x_, 2), p.view(s_att_));
                   }});
  body_.add_stage(
      {Name("norm2"), {s_mid_}, {s_norm2_, s_mean2_, s_rstd2_}, [this](Context& ctx, Pass& p) {
         norm_forward(ctx, p.environment<Runtime>(), norm2_, p.view(s_norm2_), p.view(s_mean2_),
                      p.view(s_rstd2_), p.view(s_mid_), epsilon_);
       }});
  body_.fuse(attention_proj, [this](Context& ctx, Pass& p) {
    linear_residual_norm_forward(ctx, p.environment<Runtime>(), attention_proj_, norm2_,
                                 p.view(s_norm2_), p.view(s_mean2_), p.view(s_rstd2_), epsilon_,
                                 p.view(s_mid_), residual(p, s_x_, 2), p.view(s_att_));
  });
  const int fc = static_cast<int>(body_.stages().size());
  body_.add_stage({Name("fc"), {s_norm2_}, {s_fc_}, [this](Context& ctx, Pass& p) {
                     linear_forward(ctx, p.environment<Runtime>(), fc_, p.view(s_fc_),
                                    p.view(s_norm2_));
                   }});
  // The activation reads the stored, rounded value: recomputing it alone gives the same bits.
  body_.add_stage({Name("act"), {s_fc_}, {s_act_}, [this](Context& ctx, Pass& p) {
                     activation_forward(ctx, p.view(s_act_), p.view(s_fc_), activation_);
                   }});
  body_.fuse(fc, [this](Context& ctx, Pass& p) {
    linear_activation_forward(ctx, p.environment<Runtime>(), fc_, p.view(s_act_),
                              p.present(s_fc_) ? p.view(s_fc_) : View(), p.view(s_norm2_),
                              activation_);
  });
  // The norm that follows is the next block's, of another pass with policies of its own.
  body_.add_stage({Name("mlp_proj"), {s_act_, s_mid_}, {s_out_}, [this](Context& ctx, Pass& p) {
                     linear_residual_forward(ctx, p.environment<Runtime>(), mlp_proj_,
                                             p.view(s_out_), residual(p, s_mid_, 3),
                                             p.view(s_act_));
                   }});
}

ResidualInput Block::residual(const Pass& pass, int slot, uint32_t k) const {
  const float dropout = pass.mode() == PassMode::train ? residual_dropout_ : 0.0f;
  return {pass.view(slot),
          pass.dims().B,
          pass.dims().T,
          {dropout, site(layer_, k)},
          pass.environment<Runtime>().state};
}

AttentionSpec Block::attention_spec(const Runtime& rt, PassMode mode) const {
  AttentionSpec spec = attention_;
  spec.document_start = rt.document_start;
  if (mode == PassMode::inference) spec.dropout = 0.0f;
  return spec;
}

Tensor Block::forward(Context& ctx, Runtime& rt, Pass& pass, Dims dims, PassMode mode,
                      Tensor x) const {
  const Context::Scope scope(ctx, name_);
  pass.begin(dims, mode, rt);
  pass.give(s_x_, std::move(x));
  pass.forward(ctx);
  rt.params.drop_part(ctx, static_cast<int>(layer_));
  return pass.take(s_out_);
}

Tensor Block::backward(Context& ctx, Runtime& rt, Pass& pass, Tensor dout) const {
  const Context::Scope scope(ctx, name_);
  // The residual stream's gradient is one tensor that both halves add to in place.
  backward_attention(ctx, rt, pass, dout, backward_mlp(ctx, rt, pass, dout));
  pass.drop(s_x_);
  rt.params.drop_part(ctx, static_cast<int>(layer_));
  rt.grads->part_done(ctx, static_cast<int>(layer_));
  return dout;
}

Tensor Block::backward_mlp(Context& ctx, Runtime& rt, Pass& pass, const View& dout) const {
  const Dims d = pass.dims();
  Tensor dbranch;
  if (residual_dropout_ > 0.0f) {
    dbranch = ctx.tensor(n_dbranch_, {d.N(), C_}, dtype_, Category::workspace);
    dropout_backward(ctx, dbranch, dout, d.B, d.T, {residual_dropout_, site(layer_, 3)}, rt.state);
  }
  const View& dy = dbranch.defined() ? dbranch.view() : dout;
  linear_backward_params(ctx, rt, mlp_proj_, dy, pass.need(ctx, s_act_));
  pass.drop(s_act_);
  Tensor dact = ctx.tensor(n_dact_, {d.N(), F_}, dtype_, Category::workspace);
  linear_backward_input(ctx, rt, mlp_proj_, dact, dy);
  dbranch.reset();
  activation_backward(ctx, dact, dact, pass.need(ctx, s_fc_), activation_);
  pass.drop(s_fc_);
  linear_backward_params(ctx, rt, fc_, dact, pass.need(ctx, s_norm2_));
  pass.drop(s_norm2_);
  Tensor dnorm = ctx.tensor(n_dnorm_, {d.N(), C_}, dtype_, Category::workspace);
  linear_backward_input(ctx, rt, fc_, dnorm, dact);
  dact.reset();
  const View& mid = pass.need(ctx, s_mid_);
  const View& mean = pass.need(ctx, s_mean2_);
  // The branch's gradient is a dropped copy of dmid; it takes the place of dnorm, read by then.
  DroppedCopy dropped;
  if (residual_dropout_ > 0.0f)
    dropped = {dnorm.view(), d.B, d.T, {residual_dropout_, site(layer_, 2)}, rt.state};
  norm_backward(ctx, rt, norm2_, dout, true, dnorm, mid, mean, pass.need(ctx, s_rstd2_), dropped);
  pass.drop(s_mean2_);
  pass.drop(s_rstd2_);
  pass.drop(s_mid_);
  return residual_dropout_ > 0.0f ? std::move(dnorm) : Tensor();
}

void Block::backward_attention(Context& ctx, Runtime& rt, Pass& pass, const View& dmid,
                               Tensor dbranch) const {
  const Dims d = pass.dims();
  const View& dy = dbranch.defined() ? dbranch.view() : dmid;
  linear_backward_params(ctx, rt, attention_proj_, dy, pass.need(ctx, s_att_));
  Tensor datt =
      ctx.tensor(n_datt_, {d.N(), attention_.H * attention_.D}, dtype_, Category::workspace);
  linear_backward_input(ctx, rt, attention_proj_, datt, dy);
  dbranch.reset();
  const View& qkv = pass.need(ctx, s_qkv_);
  const View& lse = pass.need(ctx, s_lse_);
  Tensor dqkv = ctx.tensor(n_dqkv_, qkv.shape, dtype_, Category::workspace);
  attention_backward(ctx, dqkv, datt, qkv, pass.need(ctx, s_att_), lse, d.B, d.T,
                     attention_spec(rt, PassMode::train), rt.state);
  datt.reset();
  pass.drop(s_att_);
  pass.drop(s_lse_);
  pass.drop(s_qkv_);
  linear_backward_params(ctx, rt, qkv_, dqkv, pass.need(ctx, s_norm1_));
  pass.drop(s_norm1_);
  Tensor dnorm = ctx.tensor(n_dnorm_, {d.N(), C_}, dtype_, Category::workspace);
  linear_backward_input(ctx, rt, qkv_, dnorm, dqkv);
  dqkv.reset();
  const View& mean = pass.need(ctx, s_mean1_);
  const View& rstd = pass.need(ctx, s_rstd1_);
  norm_backward(ctx, rt, norm1_, dmid, true, dnorm, pass.need(ctx, s_x_), mean, rstd);
  pass.drop(s_mean1_);
  pass.drop(s_rstd1_);
}

}  // namespace snug
