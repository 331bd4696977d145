#include "layers/adapters/scaled_linear.h"

#include "engine/blas/matmul.h"
#include "engine/kernels/kernels.h"
#include "layers/ops/column_scale.h"
#include "layers/ops/magnitude.h"
#include "layers/ops/residual.h"

namespace snug {
namespace {

struct Scaled {
  LinearParams params;
  std::shared_ptr<const LowRank> up;
  std::vector<ScaledRows> scales;
  BehindProduct behind;
  int x = -1, v = -1, norms = -1, y = -1;  // slots
  int64_t out = 0;
  Name g, dg, branch, dbranch, rest;

  bool dora() const { return up != nullptr; }
  // Added behind the scale.
  int bias() const { return dora() ? params.bias : -1; }
};

// m or l of a module, as a vector.
View magnitude(Context& ctx, Runtime& rt, const ScaledRows& piece) {
  return rt.params.acquire(ctx, piece.param).reshaped({piece.rows});
}

GradView flat(const GradView& d) {
  return {d.view.reshaped({d.view.elements()}), d.add};
}

// Whether x differs from what the adapter reads of it.
bool drops(const Scaled& d, const Pass& p) {
  return d.up && !d.up->dropout.none() && p.mode() == PassMode::train;
}

void product_forward(Context& ctx, Pass& p, const Scaled& d) {
  Runtime& rt = p.environment<Runtime>();
  if (!d.dora()) return linear_forward(ctx, rt, d.params, p.view(d.v), p.view(d.x));
  const Context::Scope scope = scope_of(ctx, d.params);
  Tensor made;
  const View x = rt.adapters ? d.up->dropout.forward(ctx, p, p.view(d.x), made) : p.view(d.x);
  const Int8Weight int8 = rt.params.acquire_int8(ctx, d.params.weight);
  View weight;
  if (!int8.any() || (rt.adapters && !rt.norms)) weight = rt.params.acquire(ctx, d.params.weight);
  linear_product(ctx, p.view(d.v), x,
                 {weight, View(), rt.packed_weight(d.params.weight).forward, int8});
  if (rt.adapters) {
    if (rt.norms)
      copy(ctx, p.view(d.norms), rt.norms->at(d.params.weight));
    else
      weight_norms(ctx, rt.params, *d.up, weight, p.view(d.norms));
  }
  rt.params.release(ctx, d.params.weight);
  d.up->forward(ctx, p, p.view(d.v));
}

void product_backward(Context& ctx, Pass& p, const Scaled& d) {
  const View dv = p.gradient(d.v);
  if (d.dora())
    d.up->backward(ctx, p, dv);
  else
    linear_backward_params(ctx, p.environment<Runtime>(), d.params, dv, {});
  p.done(d.x);
  if (!p.wants_gradient(d.x)) return;
  const GradView dx = p.open_gradient(ctx, d.x);
  Runtime& rt = p.environment<Runtime>();
  if (!d.up) return linear_backward_input(ctx, rt, d.params, dx, dv);
  Tensor made;
  const GradView to = d.up->dropout.open(ctx, dx, made);
  linear_backward_input(ctx, rt, d.params, to, dv);
  d.up->dropout.close(ctx, p, dx, to);
}

Tensor factors(Context& ctx, Pass& p, const Scaled& d, const View& norms) {
  Runtime& rt = p.environment<Runtime>();
  Tensor g = ctx.tensor(d.g, {d.out}, DType::f32, Category::workspace);
  int64_t rows = 0;
  for (const ScaledRows& piece : d.scales) rows += piece.rows;
  if (rows < d.out || !rt.adapters) magnitude_factor_forward(ctx, g, {}, {});
  if (!rt.adapters) return g;
  for (const ScaledRows& piece : d.scales) {
    magnitude_factor_forward(ctx, g.view().rows(piece.row, piece.rows), magnitude(ctx, rt, piece),
                             norms.defined() ? norms.rows(piece.row, piece.rows) : View());
    rt.params.release(ctx, piece.param);
  }
  return g;
}

// y += (x - x') W^T.
void add_dropped(Context& ctx, Pass& p, const Scaled& d, const View& y) {
  Runtime& rt = p.environment<Runtime>();
  if (!drops(d, p) || !rt.adapters) return;
  const Context::Scope scope = scope_of(ctx, d.params);
  Tensor made;
  const View rest = d.up->dropout.forward(ctx, p, p.view(d.x), made);
  scale(ctx, rest, -1.0f);
  add(ctx, rest, p.view(d.x));
  matmul(ctx, y, rest, rt.params.acquire(ctx, d.params.weight),
         {.transpose_b = true, .add = true, .b_packed = rt.packed_weight(d.params.weight).forward});
  rt.params.release(ctx, d.params.weight);
}

void scale_forward(Context& ctx, Pass& p, const Scaled& d) {
  Runtime& rt = p.environment<Runtime>();
  const View y = p.view(d.y);
  Tensor branch;
  if (d.behind.residual >= 0) branch = ctx.tensor(d.branch, y.shape, y.dtype, Category::workspace);
  const View to = branch.defined() ? branch.view() : y;
  {
    const Tensor g = factors(ctx, p, d, d.dora() ? p.view(d.norms) : View());
    const int bias = d.bias();
    column_scale_forward(ctx, to, p.view(d.v), g,
                         bias >= 0 ? rt.params.acquire(ctx, bias) : View());
    if (bias >= 0) rt.params.release(ctx, bias);
  }
  add_dropped(ctx, p, d, to);
  if (d.behind.in_place.forward) d.behind.in_place.forward(ctx, p, y);
  if (!branch.defined()) return;
  const float dropout = p.mode() == PassMode::train ? d.behind.dropout.p : 0.0f;
  const Dims n = p.dims().of(y.shape[0]);
  residual_forward(ctx, y, p.view(d.behind.residual), branch, n.B, n.T,
                   {dropout, d.behind.dropout.site}, rt.state);
}

// dx += dy W - drop(dy W).
void add_dropped_backward(Context& ctx, Pass& p, const Scaled& d, const View& dy) {
  if (!drops(d, p) || !p.wants_gradient(d.x)) return;
  Runtime& rt = p.environment<Runtime>();
  const GradView dx = p.open_gradient(ctx, d.x);
  const Tensor rest = ctx.tensor(d.rest, dx.view.shape, dx.view.dtype, Category::workspace);
  linear_backward_input(ctx, rt, d.params, {rest.view(), false}, dy);
  if (dx.add)
    add(ctx, dx.view, rest);
  else
    copy(ctx, dx.view, rest);
  const Dims n = p.dims().of(dy.shape[0]);
  dropout_backward(ctx, rest, rest, n.B, n.T, d.up->dropout.spec(), rt.state);
  scale(ctx, rest, -1.0f);
  add(ctx, dx.view, rest);
}

void scale_backward(Context& ctx, Pass& p, const Scaled& d) {
  Runtime& rt = p.environment<Runtime>();
  const bool added = d.behind.residual >= 0;
  if (d.behind.in_place.backward) d.behind.in_place.backward(ctx, p, p.gradient(d.y));
  Tensor dbranch;
  if (added && d.behind.dropout.p > 0.0f) {
    const View& dy = p.gradient(d.y);
    dbranch = ctx.tensor(d.dbranch, dy.shape, dy.dtype, Category::workspace);
    const Dims n = p.dims().of(dy.shape[0]);
    dropout_backward(ctx, dbranch, dy, n.B, n.T, {d.behind.dropout.p, d.behind.dropout.site},
                     rt.state);
  }
  const View dy = dbranch.defined() ? dbranch.view() : p.gradient(d.y);
  if (const int bias = d.bias(); bias >= 0 && rt.grads->wants(bias)) {
    column_sum(ctx, rt.grads->open(ctx, bias), dy);
    rt.grads->close(ctx, bias);
  }
  add_dropped_backward(ctx, p, d, dy);
  const View v = p.need(ctx, d.v), norms = d.dora() ? p.need(ctx, d.norms) : View();
  {
    const Tensor g = factors(ctx, p, d, norms);
    const Tensor dg = ctx.tensor(d.dg, {d.out}, DType::f32, Category::workspace);
    const View dv = added ? p.open_gradient(ctx, d.v).view : dy;
    column_scale_backward(ctx, dv, dg, dy, v, g);
    for (const ScaledRows& piece : d.scales) {
      if (!rt.grads->wants(piece.param)) continue;
      magnitude_factor_backward(ctx, flat(rt.grads->open(ctx, piece.param)),
                                dg.view().rows(piece.row, piece.rows),
                                norms.defined() ? norms.rows(piece.row, piece.rows) : View());
      rt.grads->close(ctx, piece.param);
    }
  }
  p.done(d.v);
  if (!added) return p.hand_gradient(d.y, d.v);
  dbranch.reset();
  if (p.wants_gradient(d.behind.residual)) hand_gradient(ctx, p, d.y, d.behind.residual);
}

}  // namespace

void weight_norms(Context& ctx, ParamStore& store, const LowRank& up, const View& weight,
                  const View& norms) {
  const View a = store.acquire(ctx, up.a);
  for (const LowRank::Piece& piece : up.pieces) {
    adapted_row_norms(ctx, norms.rows(piece.row, piece.rows), weight.rows(piece.row, piece.rows),
                      a.rows(piece.col, piece.rank), store.acquire(ctx, piece.b), piece.scale);
    store.release(ctx, piece.b);
  }
  store.release(ctx, up.a);
}

int scaled_linear(Wiring& w, const AdaptedLayer& layer, const char* slot,
                  const LinearParams& params, const std::shared_ptr<const LowRank>& up,
                  std::vector<ScaledRows> scales, int x, const BehindProduct& behind) {
  const std::string& stage = layer.stage;
  const std::string own = stage + "_scale";
  Scaled d;
  d.params = params;
  d.up = up;
  d.scales = std::move(scales);
  d.behind = behind;
  d.x = x;
  d.out = layer.out;
  d.v = w.rows(stage + "_unscaled", layer.out);
  if (d.dora())
    d.norms = w.body.add_slot({join(w.name, stage + "_norms"), w.dtype, Category::activations,
                               [out = layer.out](Dims) { return Shape{out}; }});
  d.y = w.rows(slot, layer.out);
  d.g = join(w.name, own + "_g");
  d.dg = join(w.name, own + "_dg");
  d.branch = join(w.name, "branch");
  d.dbranch = join(w.name, "dbranch");
  d.rest = join(w.name, own + "_dx");
  const auto pieces = static_cast<int>(d.scales.size());
  Stage product{.name = Name(stage),
                .inputs = {x},
                .outputs = {d.v},
                .run = [d](Context& ctx, Pass& p) { product_forward(ctx, p, d); },
                .backward = [d](Context& ctx, Pass& p) { product_backward(ctx, p, d); },
                .reading_params = 0,
                .gradients = {x}};
  Stage scaled{.name = Name(own),
               .inputs = {d.v},
               .outputs = {d.y},
               .run = [d](Context& ctx, Pass& p) { scale_forward(ctx, p, d); },
               .backward = [d](Context& ctx, Pass& p) { scale_backward(ctx, p, d); },
               .for_params = {d.v},
               .reading_params = pieces,
               .gradients = {d.v}};
  for (const ScaledRows& piece : d.scales) scaled.params.push_back(piece.param);
  if (d.dora()) {
    product.params = up->params;
    product.reading_params = pieces;
    product.inputs.push_back(up->u);
    product.outputs.push_back(d.norms);
    product.for_params = {up->u};
    product.gradients.push_back(up->u);
    scaled.inputs.push_back(d.norms);
    scaled.for_params.push_back(d.norms);
    scaled.for_inputs = {d.norms};
  }
  if (params.bias >= 0) (d.dora() ? scaled : product).params.push_back(params.bias);
  if (up && !up->dropout.none()) {
    scaled.inputs.push_back(x);
    scaled.gradients.push_back(x);
  }
  if (behind.residual >= 0) {
    scaled.inputs.push_back(behind.residual);
    scaled.gradients.push_back(behind.residual);
  }
  w.body.add_stage(std::move(product));
  w.body.add_stage(std::move(scaled));
  return d.y;
}

int scaled_input(Wiring& w, const AdaptedLayer& layer, int l, int x) {
  const int64_t in = layer.in;
  const std::string own = layer.stage + "_input";
  const int y = w.rows(own, in);
  const Name of_g = join(w.name, own + "_g"), of_dg = join(w.name, own + "_dg");
  const auto factors_of = [=](Context& ctx, Runtime& rt) {
    Tensor g = ctx.tensor(of_g, {in}, DType::f32, Category::workspace);
    magnitude_factor_forward(ctx, g,
                             rt.adapters ? rt.params.acquire(ctx, l).reshaped({in}) : View(), {});
    if (rt.adapters) rt.params.release(ctx, l);
    return g;
  };
  w.body.add_stage(
      {.name = Name(own),
       .inputs = {x},
       .outputs = {y},
       .run =
           [=](Context& ctx, Pass& p) {
             const Tensor g = factors_of(ctx, p.environment<Runtime>());
             column_scale_forward(ctx, p.view(y), p.view(x), g, {});
           },
       .backward =
           [=](Context& ctx, Pass& p) {
             Runtime& rt = p.environment<Runtime>();
             const View dy = p.gradient(y);
             const View read = p.need(ctx, x);
             {
               const Tensor g = factors_of(ctx, rt);
               const Tensor dg = ctx.tensor(of_dg, {in}, DType::f32, Category::workspace);
               column_scale_backward(ctx, p.wants_gradient(x) ? dy : View(), dg, dy, read, g);
               magnitude_factor_backward(ctx, flat(rt.grads->open(ctx, l)), dg, {});
               rt.grads->close(ctx, l);
             }
             p.done(x);
             if (p.wants_gradient(x)) hand_gradient(ctx, p, y, x);
           },
       .params = {l},
       .for_params = {x},
       .gradients = {x}});
  return y;
}

}  // namespace snug
