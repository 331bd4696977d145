#include "layers/parts/head.h"

#include "engine/core/error.h"
#include "engine/kernels/kernels.h"
#include "layers/ops/class_loss.h"
#include "layers/ops/head_loss.h"
#include "layers/ops/rows.h"
#include "layers/parts/mlp.h"
#include "layers/parts/norm.h"

namespace snug {

namespace {

ClassLoss loss_of(Problem problem) {
  switch (problem) {
    case Problem::single_label:
      return ClassLoss::cross_entropy;
    case Problem::multi_label:
      return ClassLoss::binary_cross_entropy;
    case Problem::regression:
      return ClassLoss::squared_error;
  }
  fail(ErrorCode::internal, "a known problem", "another one", "report this");
}

}  // namespace

RowsHead::RowsHead(const ModelSpec& spec, const Precision& precision, int tied, ParamTable& table,
                   const Adapters& adapters)
    : kind_(spec.head),
      problem_(spec.problem),
      V_(spec.V),
      C_(spec.C),
      K_(spec.label_count()),
      chosen_(spec.chooses_rows(spec.L - 1)),
      dtype_(precision.compute),
      scope_("head"),
      n_rows_("head.rows"),
      n_dh_("head.dhidden"),
      n_dx_("dresidual"),
      n_logits_("head.logits"),
      n_dlogits_("head.dlogits"),
      n_loss_("head.loss"),
      n_nll_("head.nll"),
      n_lse_("head.lse") {
  Wiring w{body_, table, spec, precision.compute, Name("head"), -1, spec.L, &adapters};
  const uint32_t first = w.dropout_site(), last = w.dropout_site();
  const LinearShape dense{.name = "dense", .out = C_, .init_std = spec.init_std};
  out_ = x_ = w.given("x", C_);
  if (kind_ == HeadKind::masked_lm) {
    out_ = activation(w, linear(w, "dense", "dense", dense, x_), spec.head_activation);
    out_ = norm(w, "norm", "", out_);
    output_.weight = spec.tied ? tied
                               : table.add({.name = Name("lm_head.weight"),
                                            .shape = {spec.Vp(), C_},
                                            .rows = V_,
                                            .group = kGroupDecay,
                                            .init = Init::normal,
                                            .init_std = spec.init_std,
                                            .linear = true});
    output_.bias = table.add({.name = Name("lm_head.bias"),
                              .shape = {spec.Vp()},
                              .rows = V_,
                              .group = kGroupNoDecay,
                              .init = Init::zeros});
    return;
  }
  if (spec.causal) {
    out_ = norm(w, "norm", "", out_);
    output_.weight = table.add({.name = Name("head.out.weight"),
                                .shape = {K_, C_},
                                .group = kGroupDecay,
                                .init = Init::normal,
                                .init_std = spec.init_std});
    return;
  }
  if (kind_ == HeadKind::sequence_classification) {
    if (spec.head_dropout_first) out_ = dropout(w, "drop1", out_, {spec.head_dropout, first});
    out_ = activation(w, linear(w, "dense", "dense", dense, out_), spec.head_activation);
  }
  out_ = dropout(w, "drop2", out_, {spec.head_dropout, last});
  output_.weight = table.add({.name = Name("head.out.weight"),
                              .shape = {K_, C_},
                              .group = kGroupDecay,
                              .init = Init::normal,
                              .init_std = spec.init_std});
  output_.bias = table.add(
      {.name = Name("head.out.bias"), .shape = {K_}, .group = kGroupNoDecay, .init = Init::zeros});
}

void RowsHead::derive(const ParamTable& table, bool below_wanted) {
  body_.derive([&](int param) { return table[param].trainable; }, below_wanted);
}

Tensor RowsHead::body_forward(Context& ctx, Runtime& rt, Pass& pass, const HeadBatch& batch,
                              PassMode mode, Tensor x) const {
  const int64_t M = batch.index.shape[0];
  if (!chosen_) {
    Tensor rows = ctx.tensor(n_rows_, {M, C_}, dtype_, Category::activations);
    rows_gather_forward(ctx, rows, x, batch.index);
    x = std::move(rows);
  }
  pass.begin({M / batch.rows_per_window, batch.rows_per_window}, mode, rt);
  pass.give(x_, std::move(x));
  pass.forward(ctx);
  return pass.take(out_);
}

void RowsHead::logits(Context& ctx, Runtime& rt, const View& logits, const View& h) const {
  linear_forward(ctx, rt, output_, logits, h);
}

Tensor RowsHead::train(Context& ctx, Runtime& rt, Pass& pass, const HeadBatch& batch, int64_t chunk,
                       Tensor x) const {
  const Context::Scope scope(ctx, scope_);
  const int64_t M = batch.index.shape[0];
  const Shape shape = x.view().shape;
  Tensor h = body_forward(ctx, rt, pass, batch, PassMode::train, std::move(x));
  Tensor dh = ctx.tensor(n_dh_, {M, C_}, dtype_, Category::activations);
  if (kind_ == HeadKind::masked_lm) {
    GradView dweight, dbias;
    if (rt.grads->wants(output_.weight)) dweight = rt.grads->open(ctx, output_.weight);
    if (rt.grads->wants(output_.bias)) dbias = rt.grads->open(ctx, output_.bias);
    head_loss_train(ctx, dh, dweight, h, rt.params.acquire(ctx, output_.weight), batch.targets, V_,
                    chunk, rt.state, rt.packed_weight(output_.weight),
                    rt.params.acquire(ctx, output_.bias), dbias);
    rt.params.release(ctx, output_.weight);
    rt.params.release(ctx, output_.bias);
    if (rt.grads->wants(output_.bias)) rt.grads->close(ctx, output_.bias);
  } else {
    Tensor own;
    if (!batch.reward) own = ctx.tensor(n_logits_, {M, K_}, DType::f32, Category::logits);
    const View z = own.defined() ? own.view() : batch.logits;
    const Tensor dz = ctx.tensor(n_dlogits_, {M, K_}, dtype_, Category::logits);
    logits(ctx, rt, z, h);
    class_losses(ctx, rt, batch, z);
    if (batch.reward)
      reward_loss_backward(ctx, dz, z, batch.targets, *batch.reward, rt.state);
    else
      class_loss_backward(ctx, dz, z, batch.targets, loss_of(problem_), rt.state);
    linear_backward_params(ctx, rt, output_, dz, h);
    linear_backward_input(ctx, rt, output_, {dh.view(), false}, dz);
  }
  h.reset();
  Tensor drows = pass.backward(ctx, out_, std::move(dh), x_);
  if (!drows.defined() || chosen_) return drows;
  Tensor dx = ctx.tensor(n_dx_, shape, dtype_, Category::activations);
  rows_gather_backward(ctx, dx, drows, batch.index);
  return dx;
}

void RowsHead::evaluate(Context& ctx, Runtime& rt, Pass& pass, const HeadBatch& batch,
                        int64_t chunk, Tensor x) const {
  const Context::Scope scope(ctx, scope_);
  const int64_t M = batch.index.shape[0];
  const Tensor h = body_forward(ctx, rt, pass, batch, PassMode::inference, std::move(x));
  if (kind_ == HeadKind::masked_lm) {
    const Tensor nll = ctx.tensor(n_nll_, {M}, DType::f32, Category::workspace);
    const Tensor lse = ctx.tensor(n_lse_, {M}, DType::f32, Category::workspace);
    const View weight = rt.params.acquire(ctx, output_.weight);
    const View bias = rt.params.acquire(ctx, output_.bias);
    head_loss_forward(ctx, nll, lse, h, weight, batch.targets, V_, chunk, rt.state,
                      rt.packed_weight(output_.weight), bias);
    if (batch.logits.defined())
      head_logits(ctx, batch.logits, h, weight, rt.packed_weight(output_.weight), bias);
    rt.params.release(ctx, output_.weight);
    rt.params.release(ctx, output_.bias);
    return;
  }
  logits(ctx, rt, batch.logits, h);
  class_losses(ctx, rt, batch, batch.logits);
}

void RowsHead::class_losses(Context& ctx, Runtime& rt, const HeadBatch& batch,
                            const View& z) const {
  const int64_t M = z.shape[0];
  const Tensor loss =
      ctx.tensor(n_loss_, {batch.reward ? M / 2 : M}, DType::f32, Category::workspace);
  if (batch.reward)
    reward_loss_forward(ctx, loss, z, batch.targets, *batch.reward, rt.state);
  else
    class_loss_forward(ctx, loss, z, batch.targets, loss_of(problem_), rt.state);
}

}  // namespace snug
