#include "layers/parts/norm.h"

#include "engine/kernels/kernels.h"
#include "layers/ops/rmsnorm.h"

namespace snug {

namespace {

struct Norm {
  NormParams params;
  int x = -1, y = -1, mean = -1, rstd = -1;  // slots
  float epsilon = 0.0f;
  BranchDropout dropout = {};
};

// Calls f(scale, shift) while they are held.
template <class F>
void with_norm(Context& ctx, Runtime& rt, const NormParams& p, F&& f) {
  f(rt.params.acquire(ctx, p.weight), rt.params.acquire(ctx, p.bias));
  rt.params.release(ctx, p.weight);
  rt.params.release(ctx, p.bias);
}

void drop_forward(Context& ctx, Pass& p, const Norm& n) {
  if (n.dropout.p == 0.0f || p.mode() == PassMode::inference) return;
  const Dims d = p.dims().of(p.view(n.y).shape[0]);
  dropout_forward(ctx, p.view(n.y), p.view(n.y), d.B, d.T, {n.dropout.p, n.dropout.site},
                  p.environment<Runtime>().state);
}

void backward(Context& ctx, Pass& p, const Norm& n, const DroppedCopy& dropped) {
  Runtime& rt = p.environment<Runtime>();
  if (n.dropout.p > 0.0f) {
    const Dims d = p.dims().of(p.gradient(n.y).shape[0]);
    dropout_backward(ctx, p.gradient(n.y), p.gradient(n.y), d.B, d.T, {n.dropout.p, n.dropout.site},
                     rt.state);
  }
  const View& x = p.need(ctx, n.x);
  const View mean = n.mean < 0 ? View() : p.need(ctx, n.mean);
  const View& rstd = p.need(ctx, n.rstd);
  norm_backward(ctx, rt, n.params, p.open_gradient(ctx, n.x), p.gradient(n.y), x, mean, rstd,
                dropped);
  if (n.mean >= 0) p.done(n.mean);
  p.done(n.rstd);
  p.done(n.x);
}

}  // namespace

NormParams norm_params(Wiring& w, const char* name, int64_t width) {
  NormParams p;
  p.weight = w.param({.name = w.param_name(name, ".weight"),
                      .shape = {width},
                      .group = kGroupNoDecay,
                      .init = w.spec.unit_offset ? Init::zeros : Init::ones});
  p.unit_offset = w.spec.unit_offset;
  if (w.spec.norm == NormKind::layernorm)
    p.bias = w.param({.name = w.param_name(name, ".bias"),
                      .shape = {width},
                      .group = kGroupNoDecay,
                      .init = Init::zeros});
  return p;
}

int norm(Wiring& w, const char* name, const char* k, int x, const char* slot,
         BranchDropout dropout) {
  const std::string number = k;
  Norm n;
  n.params = norm_params(w, name, w.width(x));
  n.x = x;
  n.epsilon = w.spec.norm_epsilon;
  n.dropout = dropout;
  n.y = w.in(kNorms, w.rows(slot ? std::string(slot) : "norm" + number, w.width(x)));
  const bool mean = n.params.bias >= 0;
  if (mean) n.mean = w.statistic("mean" + number);
  n.rstd = w.statistic("rstd" + number);
  const Wiring::Linear* before = mean ? w.fusable(x) : nullptr;
  std::vector<int> params = {n.params.weight}, made = {n.y}, read = {x};
  if (mean) {
    params.push_back(n.params.bias);
    made.push_back(n.mean);
    read.push_back(n.mean);
  }
  made.push_back(n.rstd);
  read.push_back(n.rstd);
  w.body.add_stage({.name = Name("norm" + number),
                    .inputs = {x},
                    .outputs = made,
                    .run =
                        [n](Context& ctx, Pass& p) {
                          norm_forward(ctx, p.environment<Runtime>(), n.params, p.view(n.y),
                                       n.mean < 0 ? View() : p.view(n.mean), p.view(n.rstd),
                                       p.view(n.x), n.epsilon);
                          drop_forward(ctx, p, n);
                        },
                    .backward = [n](Context& ctx, Pass& p) { backward(ctx, p, n, {}); },
                    .params = params,
                    .for_params = read,
                    .reading_params = 2,
                    .for_inputs = read,
                    .gradients = {x}});
  if (!before || before->residual < 0) return n.y;
  const Wiring::Linear l = *before;
  const auto run = [n, l](Context& ctx, Pass& p) {
    Runtime& rt = p.environment<Runtime>();
    // Post-norm alone reads the sum, which is not there if it is dropped at once.
    Tensor sum;
    if (!p.present(l.y))
      sum = ctx.tensor(p.body().slot(l.y).name, p.view(n.y).shape, p.view(n.y).dtype,
                       Category::workspace);
    const View out = sum.defined() ? sum.view() : p.view(l.y);
    with_weights(ctx, rt, l.params, [&](const LinearWeights& lw) {
      with_norm(ctx, rt, n.params, [&](const View& scale, const View& shift) {
        linear_residual_norm_forward(
            ctx, {p.view(n.y), p.view(n.mean), p.view(n.rstd), scale, shift, n.epsilon}, out,
            residual_input(p, l), p.view(l.x), lw);
      });
    });
    drop_forward(ctx, p, n);
  };
  if (l.dropout.p == 0.0f) {
    w.body.fuse(l.stage, run);
    return n.y;
  }
  // The gradient of the branch is a dropped copy of that of the sum, written by the norm's backward
  // in the place of the gradient that it has read by then.
  w.body.fuse(l.stage, run, [n, l](Context& ctx, Pass& p) {
    const Dims d = p.dims().of(p.gradient(n.y).shape[0]);
    backward(
        ctx, p, n,
        {p.gradient(n.y), d.B, d.T, {l.dropout.p, l.dropout.site}, p.environment<Runtime>().state});
    linear_residual_backward(ctx, p, l, p.take_gradient(n.y));
  });
  return n.y;
}

int norm_residual(Wiring& w, const char* name, const char* k, int x, int residual,
                  const char* slot) {
  const std::string number = k;
  Norm n;
  n.params = norm_params(w, name, w.width(x));
  n.x = x;
  n.epsilon = w.spec.norm_epsilon;
  n.y = w.rows(slot, w.width(x));
  std::vector<int> params = {n.params.weight}, made = {n.y}, read = {x};
  if (n.params.bias >= 0) {
    params.push_back(n.params.bias);
    n.mean = w.statistic("mean" + number);
    made.push_back(n.mean);
    read.push_back(n.mean);
  }
  n.rstd = w.statistic("rstd" + number);
  made.push_back(n.rstd);
  read.push_back(n.rstd);
  w.body.add_stage({.name = Name("norm" + number),
                    .inputs = {x, residual},
                    .outputs = made,
                    .run =
                        [n, residual](Context& ctx, Pass& p) {
                          norm_forward(ctx, p.environment<Runtime>(), n.params, p.view(n.y),
                                       n.mean < 0 ? View() : p.view(n.mean), p.view(n.rstd),
                                       p.view(n.x), n.epsilon);
                          add(ctx, p.view(n.y), p.view(residual));
                        },
                    .backward =
                        [n, residual](Context& ctx, Pass& p) {
                          backward(ctx, p, n, {});
                          if (p.wants_gradient(residual)) hand_gradient(ctx, p, n.y, residual);
                        },
                    .params = params,
                    .for_params = read,
                    .reading_params = 2,
                    .for_inputs = read,
                    .gradients = {x, residual}});
  return n.y;
}

void norm_forward(Context& ctx, Runtime& rt, const NormParams& p, const View& y, const View& mean,
                  const View& rstd, const View& x, float epsilon) {
  if (p.bias < 0) {
    rmsnorm_forward(ctx, y, rstd, x, rt.params.acquire(ctx, p.weight), epsilon, p.unit_offset);
    rt.params.release(ctx, p.weight);
    return;
  }
  with_norm(ctx, rt, p, [&](const View& scale, const View& shift) {
    layernorm_forward(ctx, y, mean, rstd, x, scale, shift, epsilon);
  });
}

void norm_backward(Context& ctx, Runtime& rt, const NormParams& p, const GradView& dx,
                   const View& dy, const View& x, const View& mean, const View& rstd,
                   const DroppedCopy& dropped) {
  GradView dweight, dbias;
  if (rt.grads->wants(p.weight)) dweight = rt.grads->open(ctx, p.weight);
  if (p.bias < 0) {
    rmsnorm_backward(ctx, dx.view, dx.add, dweight, dy, x, rt.params.acquire(ctx, p.weight), rstd,
                     p.unit_offset);
    rt.params.release(ctx, p.weight);
    if (rt.grads->wants(p.weight)) rt.grads->close(ctx, p.weight);
    return;
  }
  if (rt.grads->wants(p.bias)) dbias = rt.grads->open(ctx, p.bias);
  layernorm_backward(ctx, dx.view, dx.add, dweight, dbias, dy, x, rt.params.acquire(ctx, p.weight),
                     mean, rstd, dropped);
  rt.params.release(ctx, p.weight);
  if (rt.grads->wants(p.weight)) rt.grads->close(ctx, p.weight);
  if (rt.grads->wants(p.bias)) rt.grads->close(ctx, p.bias);
}

}  // namespace snug
