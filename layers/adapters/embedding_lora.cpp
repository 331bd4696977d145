#include "layers/adapters/embedding_lora.h"

#include "engine/blas/matmul.h"
#include "engine/kernels/kernels.h"
#include "layers/adapters/low_rank.h"
#include "layers/adapters/transpose.h"
#include "layers/ops/column_scale.h"
#include "layers/ops/embedding.h"
#include "layers/ops/magnitude.h"
#include "layers/parts/wiring.h"

namespace snug {
namespace {

// norms of the columns of E + s A B^T.
void find_norms(Context& ctx, ParamStore& store, int a, int b, int64_t rows, float s,
                const View& table, const View& norms) {
  adapted_column_norms(ctx, norms, table.rows(0, rows), store.acquire(ctx, a).rows(0, rows),
                       store.acquire(ctx, b), s);
  store.release(ctx, a);
  store.release(ctx, b);
}

class EmbeddingLora : public AdapterSum {
 public:
  int a = -1, b = -1;  // parameters (V,r), (C,r)
  int u = -1;          // slot (N,r)
  // Of DoRA: parameter (C), slot (C), and the table.
  int magnitude = -1, norms = -1, table = -1;
  int64_t rows = 0;  // V
  float scale = 1;
  Name scaled, whole, plain, g, dg, dwhole;

  bool dora() const { return magnitude >= 0; }

  void gather(Context& ctx, Pass& p) const {
    Runtime& rt = p.environment<Runtime>();
    if (!rt.adapters) return;
    embedding_forward(ctx, p.view(u), rt.tokens, rt.params.acquire(ctx, a).rows(0, rows), {},
                      rt.state, rt.document_start);
    rt.params.release(ctx, a);
    if (!dora()) return;
    if (rt.norms) return copy(ctx, p.view(norms), rt.norms->at(table));
    find_norms(ctx, rt.params, a, b, rows, scale, rt.params.acquire(ctx, table), p.view(norms));
    rt.params.release(ctx, table);
  }
  void gather_backward(Context& ctx, Pass& p) const {
    Runtime& rt = p.environment<Runtime>();
    if (!rt.grads->wants(a)) return;
    embedding_backward(ctx, rt.grads->open(ctx, a), {}, p.gradient(u), rt.tokens, rt.state,
                       rt.document_start);
    rt.grads->close(ctx, a);
  }
  void forward(Context& ctx, Pass& p, const View& y) const override {
    Runtime& rt = p.environment<Runtime>();
    if (!rt.adapters) return;
    const Tensor su = times_scale(ctx, p.view(u));
    if (!dora()) {
      matmul(ctx, y, su, rt.params.acquire(ctx, b), {.transpose_b = true, .add = true});
      rt.params.release(ctx, b);
      return;
    }
    const Tensor v = adapted_rows(ctx, rt, su, y);
    column_scale_forward(ctx, v, v, factors(ctx, rt, p.view(norms)), {});
    const Tensor e = ctx.tensor(plain, y.shape, y.dtype, Category::workspace);
    table_rows(ctx, rt, e);
    snug::scale(ctx, e, -1.0f);
    add(ctx, v, e);
    add(ctx, y, v);
  }
  void backward(Context& ctx, Pass& p, const View& dy) const override {
    Runtime& rt = p.environment<Runtime>();
    if (!dora()) return product_backward(ctx, p, dy);
    Tensor dv = ctx.tensor(dwhole, dy.shape, dy.dtype, Category::workspace);
    {
      const View of = p.need(ctx, norms);
      const Tensor v = adapted_rows(ctx, rt, times_scale(ctx, p.need(ctx, u)), dy);
      const Tensor by = factors(ctx, rt, of);
      const Tensor dby = ctx.tensor(dg, {dy.shape[1]}, DType::f32, Category::workspace);
      column_scale_backward(ctx, dv, dby, dy, v, by);
      if (rt.grads->wants(magnitude)) {
        magnitude_factor_backward(ctx, rt.grads->open(ctx, magnitude), dby, of);
        rt.grads->close(ctx, magnitude);
      }
    }
    product_backward(ctx, p, dv);
    p.done(norms);
  }

 private:
  void product_backward(Context& ctx, Pass& p, const View& dy) const {
    Runtime& rt = p.environment<Runtime>();
    if (rt.grads->wants(b)) {
      const Tensor su = times_scale(ctx, p.need(ctx, u));
      const GradView db = rt.grads->open(ctx, b);
      matmul(ctx, db.view, dy, su, {.transpose_a = true, .add = db.add});
      rt.grads->close(ctx, b);
    }
    p.done(u);
    if (!p.wants_gradient(u)) return;
    const GradView du = p.open_gradient(ctx, u);
    matmul(ctx, du.view, dy, rt.params.acquire(ctx, b), {.add = du.add});
    rt.params.release(ctx, b);
    if (scale != 1.0f) snug::scale(ctx, du.view, scale);
  }
  // E[t] and E[t] + s u B^T, of the shape of `like`.
  void table_rows(Context& ctx, Runtime& rt, const View& to) const {
    embedding_forward(ctx, to, rt.tokens, rt.params.acquire(ctx, table).rows(0, rows), {}, rt.state,
                      rt.document_start);
    rt.params.release(ctx, table);
  }
  Tensor adapted_rows(Context& ctx, Runtime& rt, const View& su, const View& like) const {
    Tensor v = ctx.tensor(whole, like.shape, like.dtype, Category::workspace);
    table_rows(ctx, rt, v);
    matmul(ctx, v, su, rt.params.acquire(ctx, b), {.transpose_b = true, .add = true});
    rt.params.release(ctx, b);
    return v;
  }
  Tensor factors(Context& ctx, Runtime& rt, const View& of) const {
    Tensor by = ctx.tensor(g, of.shape, DType::f32, Category::workspace);
    magnitude_factor_forward(ctx, by, rt.params.acquire(ctx, magnitude), of);
    rt.params.release(ctx, magnitude);
    return by;
  }
  Tensor times_scale(Context& ctx, const View& x) const {
    Tensor made = ctx.tensor(scaled, x.shape, x.dtype, Category::workspace);
    copy(ctx, made, x);
    if (scale != 1.0f) snug::scale(ctx, made, scale);
    return made;
  }
};

}  // namespace

std::vector<AdapterParam> embedding_lora_params(const AdaptedLayer& layer, bool magnitudes) {
  const AdapterPiece& piece = layer.adapter->pieces.front();
  std::vector<AdapterParam> list = {{.name = layer.name + ".lora_embedding_A",
                                     .end = ".lora_embedding_A",
                                     .shape = {piece.rows, piece.rank},
                                     .piece = 0,
                                     .by_rows = true,
                                     .transposed = true},
                                    {.name = layer.name + ".lora_embedding_B",
                                     .end = ".lora_embedding_B",
                                     .shape = {layer.in, piece.rank},
                                     .init = Init::normal,
                                     .init_std = 1,
                                     .piece = 0}};
  if (magnitudes)
    list.push_back({.name = magnitude_name(layer, 0),
                    .end = ".lora_magnitude_vector",
                    .shape = {layer.in},
                    .group = kGroupNoDecay,
                    .init = Init::ones,
                    .piece = 0});
  return list;
}

std::shared_ptr<const AdapterSum> embedding_lora(Wiring& w, const AdaptedLayer& layer,
                                                 bool magnitudes) {
  const AdapterPiece& piece = layer.adapter->pieces.front();
  auto made = std::make_shared<EmbeddingLora>();
  const std::vector<AdapterParam> list = embedding_lora_params(layer, magnitudes);
  made->a = add_adapter_param(w, list[0]);
  made->b = add_adapter_param(w, list[1]);
  made->rows = piece.rows;
  made->scale = piece.scale;
  made->u = w.rows(layer.stage + "_lora", piece.rank);
  const std::string own = layer.stage + "_lora";
  made->scaled = join(w.name, own + "_su");
  made->params = {made->b};
  made->slots = {made->u};
  std::vector<int> outputs = {made->u};
  if (magnitudes) {
    made->magnitude = add_adapter_param(w, list[2]);
    made->table = w.table.find(layer.name + ".weight");
    made->norms = w.body.add_slot({join(w.name, own + "_norms"), w.dtype, Category::activations,
                                   [C = layer.in](Dims) { return Shape{C}; }});
    made->whole = join(w.name, own + "_v");
    made->plain = join(w.name, own + "_e");
    made->g = join(w.name, own + "_g");
    made->dg = join(w.name, own + "_dg");
    made->dwhole = join(w.name, own + "_dv");
    made->params.push_back(made->magnitude);
    made->constants = {made->norms};
    outputs.push_back(made->norms);
  }
  const std::shared_ptr<const EmbeddingLora> all = made;
  w.body.add_stage({.name = Name(layer.stage + "_lora"),
                    .inputs = {},
                    .outputs = outputs,
                    .run = [all](Context& ctx, Pass& p) { all->gather(ctx, p); },
                    .backward = [all](Context& ctx, Pass& p) { all->gather_backward(ctx, p); },
                    .params = {made->a}});
  return made;
}

void table_norms(Context& ctx, ParamStore& store, const AdaptedLayer& layer, const View& table,
                 const View& norms) {
  const std::vector<AdapterParam> list = embedding_lora_params(layer, true);
  const AdapterPiece& piece = layer.adapter->pieces.front();
  find_norms(ctx, store, store.table().find(list[0].name), store.table().find(list[1].name),
             piece.rows, piece.scale, table, norms);
}

MergedModule merged_embedding_lora(const AdaptedLayer& layer, const TensorValues& values,
                                   bool magnitudes) {
  const AdapterPiece& piece = layer.adapter->pieces.front();
  // (V,C): s A^T B^T.
  MergedModule m;
  m.left = transpose(values(".lora_embedding_A"), piece.rows);
  m.right = transpose(values(".lora_embedding_B"), piece.rank);
  m.rank = piece.rank;
  m.scale = piece.scale;
  if (magnitudes) m.magnitude = values(".lora_magnitude_vector");
  m.of_columns = magnitudes;
  return m;
}

}  // namespace snug
