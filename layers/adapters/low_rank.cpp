#include "layers/adapters/low_rank.h"

#include <cmath>

#include "engine/blas/matmul.h"
#include "engine/core/error.h"
#include "engine/kernels/kernels.h"
#include "layers/ops/matrix_block.h"

namespace snug {
namespace {

struct Down {
  int x = -1, u = -1;  // slots
  float scale = 1;
};

void scale_by(Context& ctx, const View& x, float factor) {
  if (factor != 1.0f) scale(ctx, x, factor);
}

void down_forward(Context& ctx, Pass& p, const Down& d, const LowRank& up) {
  Runtime& rt = p.environment<Runtime>();
  if (!rt.adapters) return;
  Tensor made;
  const View x = up.dropout.forward(ctx, p, p.view(d.x), made);
  matmul(ctx, p.view(d.u), x, rt.params.acquire(ctx, up.a), {.transpose_b = true});
  rt.params.release(ctx, up.a);
  scale_by(ctx, p.view(d.u), d.scale);
}

void down_backward(Context& ctx, Pass& p, const Down& d, const LowRank& up) {
  Runtime& rt = p.environment<Runtime>();
  const View du = p.gradient(d.u);
  scale_by(ctx, du, d.scale);
  if (rt.grads->wants(up.a)) {
    Tensor made;
    const View x = up.dropout.forward(ctx, p, p.need(ctx, d.x), made);
    const GradView da = rt.grads->open(ctx, up.a);
    matmul(ctx, da.view, du, x, {.transpose_a = true, .add = da.add});
    rt.grads->close(ctx, up.a);
  }
  p.done(d.x);
  if (!p.wants_gradient(d.x)) return;
  const GradView dx = p.open_gradient(ctx, d.x);
  const View a = rt.params.acquire(ctx, up.a);
  Tensor made;
  const GradView to = up.dropout.open(ctx, dx, made);
  matmul(ctx, to.view, du, a, {.add = to.add});
  up.dropout.close(ctx, p, dx, to);
  rt.params.release(ctx, up.a);
}

std::string of_piece(const AdaptedLayer& layer, size_t piece) {
  const std::vector<AdapterPiece>& pieces = layer.adapter->pieces;
  return pieces.size() > 1 ? "." + pieces[piece].name : "";
}

}  // namespace

std::string low_rank_a(const AdaptedLayer& layer) {
  return layer.name + ".lora_A.weight";
}

std::string low_rank_b(const AdaptedLayer& layer, size_t piece) {
  return layer.name + ".lora_B" + of_piece(layer, piece) + ".weight";
}

std::string magnitude_name(const AdaptedLayer& layer, size_t piece) {
  return layer.name + ".lora_magnitude_vector" + of_piece(layer, piece);
}

std::vector<AdapterParam> low_rank_params(const AdaptedLayer& layer, bool magnitudes) {
  const LinearAdapter& adapter = *layer.adapter;
  std::vector<AdapterParam> list;
  AdapterParam a{.name = low_rank_a(layer),
                 .end = ".lora_A.weight",
                 .shape = {adapter.rank(), layer.in},
                 .init = adapter.init};
  // PEFT's "true" is the uniform distribution of torch.nn.Linear, its "gaussian" N(0, 1/r).
  const int64_t r = adapter.pieces.front().rank;
  a.trained = adapter.first_trained;
  a.init_std = adapter.init == Init::normal ? 1.0f / static_cast<float>(r)
                                            : 1.0f / std::sqrt(static_cast<float>(layer.in));
  list.push_back(std::move(a));
  for (size_t k = 0; k < adapter.pieces.size(); ++k) {
    const AdapterPiece& piece = adapter.pieces[k];
    list.push_back({.name = low_rank_b(layer, k),
                    .end = ".lora_B.weight",
                    .shape = {piece.rows, piece.rank},
                    .piece = static_cast<int>(k),
                    .by_rows = true});
    if (magnitudes)
      list.push_back({.name = magnitude_name(layer, k),
                      .end = ".lora_magnitude_vector",
                      .shape = {piece.rows},
                      .group = kGroupNoDecay,
                      .init = Init::ones,
                      .piece = static_cast<int>(k),
                      .by_rows = true});
  }
  return list;
}

bool LowRank::whole() const {
  return pieces.size() == 1 && pieces.front().row == 0 && rows == out;
}

// Calls f(B) with the whole matrix (out,R).
template <class F>
void LowRank::with_b(Context& ctx, Runtime& rt, F&& f) const {
  if (whole()) {
    f(rt.params.acquire(ctx, pieces.front().b));
    rt.params.release(ctx, pieces.front().b);
    return;
  }
  Tensor b;
  for (const Piece& piece : pieces) {
    const View part = rt.params.acquire(ctx, piece.b);
    if (!b.defined()) {
      b = ctx.tensor(scratch, {out, rank}, part.dtype, Category::workspace);
      fill_zero(ctx, b);
    }
    block_put(ctx, b, part, {piece.row, piece.col, piece.factor});
    rt.params.release(ctx, piece.b);
  }
  f(b.view());
}

std::shared_ptr<LowRank> add_low_rank(Wiring& w, const AdaptedLayer& layer, int x,
                                      bool magnitudes) {
  const LinearAdapter& adapter = *layer.adapter;
  auto up = std::make_shared<LowRank>();
  up->rank = adapter.rank();
  up->out = layer.out;
  const Down d_of{x, -1, adapter.pieces.front().scale};
  const std::string own = layer.stage + "_lora";
  up->dropout = InputDropout(w, adapter.dropout, own);
  int64_t col = 0;
  for (const AdapterParam& param : low_rank_params(layer, magnitudes)) {
    const int index = add_adapter_param(w, param);
    if (param.piece < 0) {
      up->a = index;
      continue;
    }
    const AdapterPiece& piece = adapter.pieces[static_cast<size_t>(param.piece)];
    if (param.shape.rank() == 1) {
      up->pieces.back().magnitude = index;
      continue;
    }
    require(piece.rank > 0, "a rank");
    up->pieces.push_back(
        {index, piece.row, col, piece.scale / d_of.scale, -1, piece.rows, piece.rank, piece.scale});
    up->params.push_back(index);
    col += piece.rank;
    up->rows += piece.rows;
  }
  Down d = d_of;
  d.u = up->u = w.rows(own, up->rank);
  up->slots = {up->u};
  up->scratch = join(w.name, own + "_b");
  up->dscratch = join(w.name, own + "_db");
  const std::shared_ptr<const LowRank> made = up;
  w.body.add_stage(
      {.name = Name(own),
       .inputs = {x},
       .outputs = {d.u},
       .run = [d, made](Context& ctx, Pass& p) { down_forward(ctx, p, d, *made); },
       .backward = [d, made](Context& ctx, Pass& p) { down_backward(ctx, p, d, *made); },
       .params = {up->a},
       .for_params = {x},
       .gradients = {x}});
  return up;
}

void LowRank::forward(Context& ctx, Pass& p, const View& y) const {
  if (!p.environment<Runtime>().adapters) return;
  with_b(ctx, p.environment<Runtime>(),
         [&](const View& b) { matmul(ctx, y, p.view(u), b, {.transpose_b = true, .add = true}); });
}

void LowRank::backward(Context& ctx, Pass& p, const View& dy) const {
  Runtime& rt = p.environment<Runtime>();
  bool wanted = false;
  for (const Piece& piece : pieces) wanted = wanted || rt.grads->wants(piece.b);
  if (wanted && whole()) {
    const int b = pieces.front().b;
    const View& x = p.need(ctx, u);
    const GradView db = rt.grads->open(ctx, b);
    matmul(ctx, db.view, dy, x, {.transpose_a = true, .add = db.add});
    rt.grads->close(ctx, b);
  } else if (wanted) {
    const View& x = p.need(ctx, u);
    const Tensor all = ctx.tensor(dscratch, {out, rank}, DType::f32, Category::workspace);
    matmul(ctx, all, dy, x, {.transpose_a = true});
    for (const Piece& piece : pieces) {
      if (!rt.grads->wants(piece.b)) continue;
      block_take(ctx, rt.grads->open(ctx, piece.b), all, {piece.row, piece.col, piece.factor});
      rt.grads->close(ctx, piece.b);
    }
  }
  p.done(u);
  if (!p.wants_gradient(u)) return;
  with_b(ctx, rt, [&](const View& b) {
    const GradView du = p.open_gradient(ctx, u);
    matmul(ctx, du.view, dy, b, {.add = du.add});
  });
}

}  // namespace snug
