#include "layers/adapters/embedding_lora.h"

#include "engine/blas/matmul.h"
#include "engine/kernels/kernels.h"
#include "layers/adapters/transpose.h"
#include "layers/ops/embedding.h"
#include "layers/parts/wiring.h"

namespace snug {
namespace {

class EmbeddingLora : public AdapterSum {
 public:
  int a = -1, b = -1;  // parameters (V,r), (C,r)
  int u = -1;          // slot (N,r)
  int64_t rows = 0;    // V
  float scale = 1;
  Name scaled;

  void gather(Context& ctx, Pass& p) const {
    Runtime& rt = p.environment<Runtime>();
    if (!rt.adapters) return;
    embedding_forward(ctx, p.view(u), rt.tokens, rt.params.acquire(ctx, a).rows(0, rows), {},
                      rt.state, rt.document_start);
    rt.params.release(ctx, a);
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
    matmul(ctx, y, su, rt.params.acquire(ctx, b), {.transpose_b = true, .add = true});
    rt.params.release(ctx, b);
  }
  void backward(Context& ctx, Pass& p, const View& dy) const override {
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

 private:
  Tensor times_scale(Context& ctx, const View& x) const {
    Tensor made = ctx.tensor(scaled, x.shape, x.dtype, Category::workspace);
    copy(ctx, made, x);
    if (scale != 1.0f) snug::scale(ctx, made, scale);
    return made;
  }
};

}  // namespace

std::vector<AdapterParam> embedding_lora_params(const AdaptedLayer& layer) {
  const AdapterPiece& piece = layer.adapter->pieces.front();
  return {{.name = layer.name + ".lora_embedding_A",
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
}

std::shared_ptr<const AdapterSum> embedding_lora(Wiring& w, const AdaptedLayer& layer) {
  const AdapterPiece& piece = layer.adapter->pieces.front();
  auto made = std::make_shared<EmbeddingLora>();
  const std::vector<AdapterParam> list = embedding_lora_params(layer);
  made->a = add_adapter_param(w, list[0]);
  made->b = add_adapter_param(w, list[1]);
  made->rows = piece.rows;
  made->scale = piece.scale;
  made->u = w.rows(layer.stage + "_lora", piece.rank);
  made->scaled = join(w.name, layer.stage + "_lora_su");
  made->params = {made->b};
  made->slots = {made->u};
  const std::shared_ptr<const EmbeddingLora> all = made;
  w.body.add_stage({.name = Name(layer.stage + "_lora"),
                    .inputs = {},
                    .outputs = {made->u},
                    .run = [all](Context& ctx, Pass& p) { all->gather(ctx, p); },
                    .backward = [all](Context& ctx, Pass& p) { all->gather_backward(ctx, p); },
                    .params = {made->a}});
  return made;
}

MergedModule merged_embedding_lora(const AdaptedLayer& layer, const TensorValues& values) {
  const AdapterPiece& piece = layer.adapter->pieces.front();
  // (V,C): s A^T B^T.
  MergedModule m;
  m.left = transpose(values(".lora_embedding_A"), piece.rows);
  m.right = transpose(values(".lora_embedding_B"), piece.rank);
  m.rank = piece.rank;
  m.scale = piece.scale;
  return m;
}

}  // namespace snug
