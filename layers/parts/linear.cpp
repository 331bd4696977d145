#include "layers/parts/linear.h"

#include "engine/blas/matmul.h"
#include "engine/kernels/kernels.h"

namespace snug {

namespace {

LinearParams add_params(Wiring& w, const LinearShape& s, int64_t in) {
  LinearParams p;
  p.weight = w.param({.name = w.param_name(s.name, ".weight"),
                      .shape = {s.out, in},
                      .group = kGroupDecay,
                      .init = Init::normal,
                      .init_std = s.init_std,
                      .linear = true,
                      .transposed_in_file = s.transposed_in_file});
  if (s.bias)
    p.bias = w.param({.name = w.param_name(s.name, ".bias"),
                      .shape = {s.out},
                      .group = kGroupNoDecay,
                      .init = Init::zeros});
  return p;
}

std::vector<int> list(const LinearParams& p) {
  return p.bias < 0 ? std::vector<int>{p.weight} : std::vector<int>{p.weight, p.bias};
}

// dW, then dx: what dW reads ends before dx is made.
void both_backward(Context& ctx, Pass& p, const LinearParams& params, const View& dy, int x) {
  Runtime& rt = p.environment<Runtime>();
  linear_backward_params(ctx, rt, params, dy,
                         rt.grads->wants(params.weight) ? p.need(ctx, x) : View());
  p.done(x);
  if (p.wants_gradient(x)) linear_backward_input(ctx, rt, params, p.open_gradient(ctx, x), dy);
}

}  // namespace

int linear(Wiring& w, const char* stage, const char* slot, const LinearShape& shape, int x,
           const InPlace& behind) {
  const LinearParams params = add_params(w, shape, w.width(x));
  const int y = w.rows(slot, shape.out);
  if (!behind.forward)
    w.linear = Wiring::Linear{static_cast<int>(w.body.stages().size()), x, y, params};
  w.body.add_stage({.name = Name(stage),
                    .inputs = {x},
                    .outputs = {y},
                    .run =
                        [=](Context& ctx, Pass& p) {
                          linear_forward(ctx, p.environment<Runtime>(), params, p.view(y),
                                         p.view(x));
                          if (behind.forward) behind.forward(ctx, p, p.view(y));
                        },
                    .backward =
                        [=](Context& ctx, Pass& p) {
                          if (behind.backward) behind.backward(ctx, p, p.gradient(y));
                          both_backward(ctx, p, params, p.gradient(y), x);
                        },
                    .params = list(params),
                    .for_params = {x},
                    .gradients = {x}});
  return y;
}

int linear_residual(Wiring& w, const char* stage, const char* slot, const LinearShape& shape, int x,
                    int residual, BranchDropout dropout) {
  const LinearParams params = add_params(w, shape, w.width(x));
  const int y = w.rows(slot, shape.out);
  const Wiring::Linear l{static_cast<int>(w.body.stages().size()), x, y, params, residual, dropout};
  w.linear = l;
  const Name branch = join(w.name, "dbranch");
  w.body.add_stage(
      {.name = Name(stage),
       .inputs = {x, residual},
       .outputs = {y},
       .run =
           [l](Context& ctx, Pass& p) {
             with_weights(ctx, p.environment<Runtime>(), l.params, [&](const LinearWeights& lw) {
               linear_residual_forward(ctx, p.view(l.y), residual_input(p, l), p.view(l.x), lw);
             });
           },
       .backward =
           [l, branch](Context& ctx, Pass& p) {
             Tensor dbranch;
             if (l.dropout.p > 0.0f) {
               const View& dy = p.gradient(l.y);
               dbranch = ctx.tensor(branch, dy.shape, dy.dtype, Category::workspace);
               dropout_backward(ctx, dbranch, dy, p.dims().B, p.dims().T,
                                {l.dropout.p, l.dropout.site}, p.environment<Runtime>().state);
             }
             linear_residual_backward(ctx, p, l, std::move(dbranch));
           },
       .params = list(params),
       .for_params = {x},
       .gradients = {x, residual}});
  return y;
}

ResidualInput residual_input(const Pass& p, const Wiring::Linear& l) {
  const float dropout = p.mode() == PassMode::train ? l.dropout.p : 0.0f;
  return {p.view(l.residual),
          p.dims().B,
          p.dims().T,
          {dropout, l.dropout.site},
          p.environment<Runtime>().state};
}

void linear_residual_backward(Context& ctx, Pass& p, const Wiring::Linear& l, Tensor branch) {
  const View dy = branch.defined() ? branch.view() : p.gradient(l.y);
  both_backward(ctx, p, l.params, dy, l.x);
  branch.reset();
  if (p.wants_gradient(l.residual)) hand_gradient(ctx, p, l.y, l.residual);
}

void linear_forward(Context& ctx, Runtime& rt, const LinearParams& p, const View& y,
                    const View& x) {
  with_weights(ctx, rt, p, [&](const LinearWeights& w) {
    matmul(ctx, y, x, w.weight, {.transpose_b = true, .bias = w.bias, .b_packed = w.packed});
  });
}

void linear_backward_params(Context& ctx, Runtime& rt, const LinearParams& p, const View& dy,
                            const View& x) {
  if (rt.grads->wants(p.weight)) {
    const GradView dw = rt.grads->open(ctx, p.weight);
    matmul(ctx, dw.view, dy, x, {.transpose_a = true, .add = dw.add});
    rt.grads->close(ctx, p.weight);
  }
  if (p.bias >= 0 && rt.grads->wants(p.bias)) {
    column_sum(ctx, rt.grads->open(ctx, p.bias), dy);
    rt.grads->close(ctx, p.bias);
  }
}

void linear_backward_input(Context& ctx, Runtime& rt, const LinearParams& p, const GradView& dx,
                           const View& dy) {
  MatmulOptions options;
  options.b_packed = rt.packed_weight(p.weight).backward;
  options.add = dx.add;
  matmul(ctx, dx.view, dy, rt.params.acquire(ctx, p.weight), options);
  rt.params.release(ctx, p.weight);
}

}  // namespace snug
