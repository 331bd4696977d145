#include "layers/parts/linear.h"

#include "engine/blas/matmul.h"
#include "engine/kernels/kernels.h"
#include "layers/ops/residual.h"

namespace snug {

namespace {

LinearParams add_params(Wiring& w, const LinearShape& s, int64_t in) {
  LinearParams p;
  p.of = w.param_name(s.name, "");
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

// What an adapter makes of a layer: the slot that it reads, and what is added to it; or the slot of
// stages in its place.
struct Adapted {
  int x, y = -1;
  std::shared_ptr<const AdapterSum> sum = nullptr;
};

Adapted adapt(Wiring& w, const char* stage, const char* slot, const LinearShape& shape,
              const LinearParams& params, int x, const BehindProduct& behind) {
  const AdaptedLayer layer = adapted_layer(w, stage, shape.name, w.width(x), shape.out);
  if (!layer.any()) return {x};
  const AdapterKind& kind = *layer.adapter->kind;
  x = kind.input(w, layer, x);
  if (const int y = kind.in_place_of(w, layer, params, slot, x, behind); y >= 0) return {x, y};
  return {x, -1, kind.sum(w, layer, x)};
}

// What a stage says of its parameters. Beside an adapter the weight is frozen, and it is the
// gradients of what it adds that read slots.
void declare(Stage& stage, const LinearParams& p, const AdapterSum* sum, int x) {
  if (sum) {
    stage.params = sum->params;
    stage.reading_params = static_cast<int>(sum->params.size());
    stage.for_params = sum->slots;
    for (const int slot : sum->slots) {
      stage.inputs.push_back(slot);
      stage.gradients.push_back(slot);
    }
  } else {
    stage.params = {p.weight};
    stage.for_params = {x};
  }
  if (p.bias >= 0) stage.params.push_back(p.bias);
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
  const Adapted of = adapt(w, stage, slot, shape, params, x, {.in_place = behind});
  if (of.y >= 0) return of.y;
  x = of.x;
  const auto sum = of.sum;
  const int y = w.rows(slot, shape.out);
  if (!behind.forward && !sum)
    w.linear = Wiring::Linear{static_cast<int>(w.body.stages().size()), x, y, params};
  Stage s{.name = Name(stage),
          .inputs = {x},
          .outputs = {y},
          .run =
              [=](Context& ctx, Pass& p) {
                linear_forward(ctx, p.environment<Runtime>(), params, p.view(y), p.view(x));
                if (sum) sum->forward(ctx, p, p.view(y));
                if (behind.forward) behind.forward(ctx, p, p.view(y));
              },
          .backward =
              [=](Context& ctx, Pass& p) {
                if (behind.backward) behind.backward(ctx, p, p.gradient(y));
                if (sum) sum->backward(ctx, p, p.gradient(y));
                both_backward(ctx, p, params, p.gradient(y), x);
              },
          .gradients = {x}};
  declare(s, params, sum.get(), x);
  s.params.insert(s.params.end(), behind.params.begin(), behind.params.end());
  w.body.add_stage(std::move(s));
  return y;
}

namespace {

// With an adapter: the branch apart where it is dropped out before it is added, else all of it onto
// the sum.
void adapted_residual_forward(Context& ctx, Pass& p, const Wiring::Linear& l, const AdapterSum& sum,
                              Name branch) {
  const ResidualInput in = residual_input(p, l);
  const View out = p.view(l.y);
  Runtime& rt = p.environment<Runtime>();
  if (in.dropout.p == 0.0f) {
    with_weights(ctx, rt, l.params, [&](const LinearWeights& lw) {
      linear_residual_forward(ctx, out, in, p.view(l.x), lw);
    });
    sum.forward(ctx, p, out);
    return;
  }
  const Tensor made = ctx.tensor(branch, out.shape, out.dtype, Category::workspace);
  linear_forward(ctx, rt, l.params, made, p.view(l.x));
  sum.forward(ctx, p, made);
  residual_forward(ctx, out, in.residual, made, in.B, in.T, in.dropout, in.state);
}

}  // namespace

int linear_residual(Wiring& w, const char* stage, const char* slot, const LinearShape& shape, int x,
                    int residual, BranchDropout dropout) {
  const LinearParams params = add_params(w, shape, w.width(x));
  const Adapted of =
      adapt(w, stage, slot, shape, params, x, {.residual = residual, .dropout = dropout});
  if (of.y >= 0) return of.y;
  x = of.x;
  const auto sum = of.sum;
  const int y = w.rows(slot, shape.out);
  const Wiring::Linear l{static_cast<int>(w.body.stages().size()), x, y, params, residual, dropout};
  if (!sum) w.linear = l;
  const Name branch = join(w.name, "dbranch"), made = join(w.name, "branch");
  Stage s{.name = Name(stage),
          .inputs = {x, residual},
          .outputs = {y},
          .run =
              [=](Context& ctx, Pass& p) {
                if (sum) return adapted_residual_forward(ctx, p, l, *sum, made);
                with_weights(ctx, p.environment<Runtime>(), l.params, [&](const LinearWeights& lw) {
                  linear_residual_forward(ctx, p.view(l.y), residual_input(p, l), p.view(l.x), lw);
                });
              },
          .backward =
              [=](Context& ctx, Pass& p) {
                Tensor dbranch;
                if (l.dropout.p > 0.0f) {
                  const View& dy = p.gradient(l.y);
                  dbranch = ctx.tensor(branch, dy.shape, dy.dtype, Category::workspace);
                  const Dims d = p.dims().of(dy.shape[0]);
                  dropout_backward(ctx, dbranch, dy, d.B, d.T, {l.dropout.p, l.dropout.site},
                                   p.environment<Runtime>().state);
                }
                if (sum)
                  sum->backward(ctx, p, dbranch.defined() ? dbranch.view() : p.gradient(l.y));
                linear_residual_backward(ctx, p, l, std::move(dbranch));
              },
          .gradients = {x, residual}};
  declare(s, params, sum.get(), x);
  w.body.add_stage(std::move(s));
  return y;
}

ResidualInput residual_input(const Pass& p, const Wiring::Linear& l) {
  const float dropout = p.mode() == PassMode::train ? l.dropout.p : 0.0f;
  const Dims d = p.dims().of(p.view(l.residual).shape[0]);
  return {p.view(l.residual), d.B, d.T, {dropout, l.dropout.site}, p.environment<Runtime>().state};
}

void linear_residual_backward(Context& ctx, Pass& p, const Wiring::Linear& l, Tensor branch) {
  const View dy = branch.defined() ? branch.view() : p.gradient(l.y);
  both_backward(ctx, p, l.params, dy, l.x);
  branch.reset();
  if (p.wants_gradient(l.residual)) hand_gradient(ctx, p, l.y, l.residual);
}

void linear_forward(Context& ctx, Runtime& rt, const LinearParams& p, const View& y,
                    const View& x) {
  with_weights(ctx, rt, p, [&](const LinearWeights& w) { linear_product(ctx, y, x, w); });
}

void linear_backward_params(Context& ctx, Runtime& rt, const LinearParams& p, const View& dy,
                            const View& x) {
  const Context::Scope scope = scope_of(ctx, p);
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
  const Context::Scope scope = scope_of(ctx, p);
  MatmulOptions options;
  options.b_packed = rt.packed_weight(p.weight).backward;
  options.add = dx.add;
  matmul(ctx, dx.view, dy, rt.params.acquire(ctx, p.weight), options);
  rt.params.release(ctx, p.weight);
}

}  // namespace snug
