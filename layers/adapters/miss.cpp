// MiSS: y = x W^T + b + fold(x') M, with x' = drop(x), whose columns are folded onto r (layers/ops/column_fold.h),
// and M (r,out), which is 0 at first. Kang and Yin, "MiSS", arXiv:2409.15371, in the form of PEFT.
//
//   stage    reads  writes         backward
//   *_miss   x      u (N,r)        dx += drop(du laid out), which reads no input
//   *        x, u   y (N,out)      dM (+)= u^T dy;  du = dy M^T;  dx += dy W
//
// The modules of a layer read one u. M is held as (out,r), with the rows of all modules below each other
// while it is used.
#include <fmt/format.h>

#include "engine/blas/matmul.h"
#include "engine/core/error.h"
#include "engine/kernels/kernels.h"
#include "layers/adapters/input_dropout.h"
#include "layers/adapters/rows.h"
#include "layers/ops/column_fold.h"
#include "layers/ops/matrix_block.h"

namespace snug {
namespace {

class MissSum : public AdapterSum {
 public:
  struct Piece {
    int m = -1;  // parameter (rows,r)
    int64_t row = 0, rows = 0;
  };
  int x = -1, u = -1;  // slots
  std::vector<Piece> pieces;
  int64_t r = 0, in = 0, out = 0;
  InputDropout dropout;
  Name scratch, dscratch, du_laid;

  void fold(Context& ctx, Pass& p) const {
    if (!p.environment<Runtime>().adapters) return;
    Tensor made;
    const View read = dropout.forward(ctx, p, p.view(x), made);
    column_fold(ctx, p.view(u), read, {0, in});
  }
  void fold_backward(Context& ctx, Pass& p) const {
    p.done(x);
    if (!p.wants_gradient(x)) return;
    const GradView dx = p.open_gradient(ctx, x);
    Tensor made;
    const GradView to = dropout.open(ctx, dx, made);
    column_lay(ctx, to, p.gradient(u), {0, in});
    dropout.close(ctx, p, dx, to);
  }
  void forward(Context& ctx, Pass& p, const View& y) const override {
    if (!p.environment<Runtime>().adapters) return;
    with_all(ctx, p.environment<Runtime>(), [&](const View& m) {
      matmul(ctx, y, p.view(u), m, {.transpose_b = true, .add = true});
    });
  }
  void backward(Context& ctx, Pass& p, const View& dy) const override {
    Runtime& rt = p.environment<Runtime>();
    const View& read = p.need(ctx, u);
    if (whole()) {
      const GradView dm = rt.grads->open(ctx, pieces[0].m);
      matmul(ctx, dm.view, dy, read, {.transpose_a = true, .add = dm.add});
      rt.grads->close(ctx, pieces[0].m);
    } else {
      const Tensor all = ctx.tensor(dscratch, {out, r}, DType::f32, Category::workspace);
      matmul(ctx, all, dy, read, {.transpose_a = true});
      for (const Piece& piece : pieces) {
        block_take(ctx, rt.grads->open(ctx, piece.m), all, {piece.row, 0, 1});
        rt.grads->close(ctx, piece.m);
      }
    }
    p.done(u);
    if (!p.wants_gradient(u)) return;
    with_all(ctx, rt, [&](const View& m) {
      const GradView du = p.open_gradient(ctx, u);
      matmul(ctx, du.view, dy, m, {.add = du.add});
    });
  }

 private:
  bool whole() const { return pieces.size() == 1 && pieces[0].rows == out; }
  // Calls f(M) of all modules, (out,r).
  template <class F>
  void with_all(Context& ctx, Runtime& rt, F&& f) const {
    if (whole()) {
      f(rt.params.acquire(ctx, pieces[0].m));
      rt.params.release(ctx, pieces[0].m);
      return;
    }
    Tensor all;
    for (const Piece& piece : pieces) {
      const View part = rt.params.acquire(ctx, piece.m);
      if (!all.defined()) {
        all = ctx.tensor(scratch, {out, r}, part.dtype, Category::workspace);
        fill_zero(ctx, all);
      }
      block_put(ctx, all, part, {piece.row, 0, 1});
      rt.params.release(ctx, piece.m);
    }
    f(all.view());
  }
};

class Miss : public AdapterKind {
 public:
  std::vector<AdapterParam> params(const AdaptedLayer& layer) const override {
    std::vector<AdapterParam> list;
    const std::vector<AdapterPiece>& pieces = layer.adapter->pieces;
    for (size_t k = 0; k < pieces.size(); ++k) {
      AdapterParam m{.name = layer.name + ".miss_block",
                     .end = ".miss_block",
                     .shape = {pieces[k].rows, pieces[k].rank},
                     .piece = static_cast<int>(k),
                     .by_rows = true,
                     .transposed = true};
      if (pieces.size() > 1) m.name += "." + pieces[k].name;
      list.push_back(std::move(m));
    }
    return list;
  }
  std::shared_ptr<const AdapterSum> sum(Wiring& w, const AdaptedLayer& layer,
                                        int x) const override {
    auto made = std::make_shared<MissSum>();
    const std::string own = layer.stage + "_miss";
    made->x = x;
    made->r = layer.adapter->pieces.front().rank;
    made->in = layer.in;
    made->out = layer.out;
    made->dropout = InputDropout(w, layer.adapter->dropout, own);
    for (const AdapterParam& param : params(layer)) {
      const AdapterPiece& piece = layer.adapter->pieces[static_cast<size_t>(param.piece)];
      require(piece.rank == made->r, "one rank for all modules of a layer");
      made->params.push_back(add_adapter_param(w, param));
      made->pieces.push_back({made->params.back(), piece.row, piece.rows});
    }
    made->u = w.rows(own, made->r);
    made->slots = {made->u};
    made->scratch = join(w.name, own + "_m");
    made->dscratch = join(w.name, own + "_dm");
    const std::shared_ptr<const MissSum> all = made;
    w.body.add_stage({.name = Name(own),
                      .inputs = {x},
                      .outputs = {made->u},
                      .run = [all](Context& ctx, Pass& p) { all->fold(ctx, p); },
                      .backward = [all](Context& ctx, Pass& p) { all->fold_backward(ctx, p); },
                      .gradients = {x}});
    return made;
  }
  MergedModule merged(const AdaptedLayer& layer, size_t k,
                      const TensorValues& values) const override {
    const AdapterPiece& piece = layer.adapter->pieces[k];
    MergedModule m;
    m.rank = piece.rank;
    const std::vector<float> block = values(".miss_block");  // (r,rows)
    m.left.resize(block.size());
    for (int64_t i = 0; i < piece.rows; ++i)
      for (int64_t j = 0; j < m.rank; ++j)
        m.left[static_cast<size_t>(i * m.rank + j)] =
            block[static_cast<size_t>(j * piece.rows + i)];
    m.right.resize(static_cast<size_t>(m.rank * layer.in));
    for (int64_t c = 0; c < layer.in; ++c)
      m.right[static_cast<size_t>(c % m.rank * layer.in + c)] = 1;
    return m;
  }
};

const Miss kMiss;

}  // namespace

const AdapterMethod& miss_method() {
  using C = PeftConfig;
  static const AdapterMethod row{
      .name = "miss",
      .words = "miss",
      .type = "MISS",
      .title = "MiSS",
      .doc =
          "miss, a matrix beside each of its linear layers, of what they read folded onto lora_r "
          "columns",
      .fields = {{"r", "lora_r", &C::lora_r, 1, 1 << 20},
                 {"miss_dropout", "lora_dropout", &C::lora_dropout, 0, 1},
                 {"init_weights", "", &C::init_lora_weights, 0, 0, "true", "", nullptr,
                  "an adapter of MiSS as PEFT has it by default"}},
      .shared = "target_modules exclude_modules modules_to_save layers_to_transform bias",
      .bias_only = "MiSS_only",
      .indifferent = "mini_r",
      .constants = {{"mini_r", "1"}, {"layers_pattern", "null"}},
      .markers = {".miss_block"},
      .fresh =
          [] {
            C c;
            c.lora_r = 64;
            return c;
          }(),
      .square = false,
      .kind = [](const C&) -> const AdapterKind& { return kMiss; },
      .settle = [](const C&, double, AdapterPiece&, LinearAdapter&) {},
      .text =
          [](const C& c) { return fmt::format("miss r {} dropout {}", c.lora_r, c.lora_dropout); }};
  return row;
}

}  // namespace snug
