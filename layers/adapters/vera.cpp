// VeRA: y = x W^T + b + l_b * ((l_d * (x' A^T)) B^T), with x' = drop(x), A (r,in) and B (out,r) drawn once for
// all layers, never trained, and the vectors l_d (r) and l_b (out) of each module. Kopiczko, Blankevoort,
// Asano, arXiv:2310.11454, in the form of PEFT: A and B are of the largest layers, of which others read the
// first columns and rows, and follow from projection_prng_key alone (torch_uniform.h), so that no file
// needs them.
//
//   stage    reads  writes         backward
//   *_vera   x      h (N,r)        dx += drop(dh A), which reads no input
//   *        x, h   y (N,out)      dl_b (+)= sum over n of dy z;  dz = l_b dy;  dl_d (+)= sum over n of
//                                  (dz B) h;  dh = l_d (dz B), summed over the modules;  dx += dy W
//
// h = x' A^T is one for all modules of a layer. z = (l_d h) B^T is made again in backward, a module
// at a time.
#include <fmt/format.h>

#include <algorithm>

#include "engine/blas/matmul.h"
#include "engine/core/error.h"
#include "engine/kernels/kernels.h"
#include "layers/adapters/input_dropout.h"
#include "layers/adapters/rows.h"
#include "layers/adapters/torch_uniform.h"
#include "layers/ops/column_fold.h"
#include "layers/ops/column_scale.h"
#include "layers/ops/magnitude.h"

namespace snug {
namespace {

constexpr const char* kA = "adapter.vera_A";
constexpr const char* kB = "adapter.vera_B";

class VeraSum : public AdapterSum {
 public:
  struct Piece {
    int d = -1, b = -1;  // parameters (r) and (rows)
    int64_t row = 0, rows = 0;
  };
  int x = -1, h = -1;  // slots
  int a = -1, b = -1;  // parameters, of all layers
  std::vector<Piece> pieces;
  int64_t r = 0, in = 0, out = 0;
  InputDropout dropout;
  Name a_part, u, du, z, dz, g, dg;

  void down(Context& ctx, Pass& p) const {
    if (!p.environment<Runtime>().adapters) return;
    Tensor made;
    const View read = dropout.forward(ctx, p, p.view(x), made);
    with_a(ctx, p.environment<Runtime>(),
           [&](const View& m) { matmul(ctx, p.view(h), read, m, {.transpose_b = true}); });
  }
  void down_backward(Context& ctx, Pass& p) const {
    p.done(x);
    if (!p.wants_gradient(x)) return;
    const GradView dx = p.open_gradient(ctx, x);
    Tensor made;
    const GradView to = dropout.open(ctx, dx, made);
    with_a(ctx, p.environment<Runtime>(),
           [&](const View& m) { matmul(ctx, to.view, p.gradient(h), m, {.add = to.add}); });
    dropout.close(ctx, p, dx, to);
  }
  void forward(Context& ctx, Pass& p, const View& y) const override {
    Runtime& rt = p.environment<Runtime>();
    if (!rt.adapters) return;
    for (const Piece& piece : pieces) {
      const Tensor made = product(ctx, rt, p.view(h), piece);
      const Tensor factors = vector(ctx, rt, g, piece.b, piece.rows);
      column_scale_forward(ctx, made, made, factors, {});
      column_lay(ctx, {y, true}, made, {piece.row, piece.rows});
    }
  }
  void backward(Context& ctx, Pass& p, const View& dy) const override {
    Runtime& rt = p.environment<Runtime>();
    const View read = p.need(ctx, h);
    const int64_t N = dy.shape[0];
    const bool wanted = p.wants_gradient(h);
    for (const Piece& piece : pieces) {
      // dy of the module's columns, then dz.
      const Tensor own = ctx.tensor(dz, {N, piece.rows}, dy.dtype, Category::workspace);
      column_fold(ctx, own, dy, {piece.row, piece.rows});
      {
        const Tensor made = product(ctx, rt, read, piece);
        const Tensor factors = vector(ctx, rt, g, piece.b, piece.rows);
        const Tensor sums = ctx.tensor(dg, {piece.rows}, DType::f32, Category::workspace);
        column_scale_backward(ctx, own, sums, own, made, factors);
        give(ctx, rt, piece.b, sums);
      }
      const Tensor back = ctx.tensor(du, {N, r}, dy.dtype, Category::workspace);
      matmul(ctx, back, own, rt.params.acquire(ctx, b).rows(0, piece.rows), {});
      rt.params.release(ctx, b);
      const Tensor factors = vector(ctx, rt, g, piece.d, r);
      const Tensor sums = ctx.tensor(dg, {r}, DType::f32, Category::workspace);
      column_scale_backward(ctx, back, sums, back, read, factors);
      give(ctx, rt, piece.d, sums);
      if (!wanted) continue;
      const GradView to = p.open_gradient(ctx, h);
      if (to.add)
        add(ctx, to.view, back);
      else
        copy(ctx, to.view, back);
    }
    p.done(h);
  }

 private:
  // The columns of A that a layer reads.
  template <class F>
  void with_a(Context& ctx, Runtime& rt, F&& f) const {
    const View all = rt.params.acquire(ctx, a);
    if (all.shape[1] == in) {
      f(all);
    } else {
      const Tensor part = ctx.tensor(a_part, {r, in}, all.dtype, Category::workspace);
      column_fold(ctx, part, all, {0, in});
      f(part.view());
    }
    rt.params.release(ctx, a);
  }
  Tensor vector(Context& ctx, Runtime& rt, Name name, int param, int64_t n) const {
    Tensor made = ctx.tensor(name, {n}, DType::f32, Category::workspace);
    magnitude_factor_forward(ctx, made, rt.params.acquire(ctx, param), {});
    rt.params.release(ctx, param);
    return made;
  }
  void give(Context& ctx, Runtime& rt, int param, const View& sums) const {
    if (!rt.grads->wants(param)) return;
    magnitude_factor_backward(ctx, rt.grads->open(ctx, param), sums, {});
    rt.grads->close(ctx, param);
  }
  // z (N,rows) of a module.
  Tensor product(Context& ctx, Runtime& rt, const View& read, const Piece& piece) const {
    Tensor made = ctx.tensor(z, {read.shape[0], piece.rows}, read.dtype, Category::workspace);
    const Tensor scaled = ctx.tensor(u, read.shape, read.dtype, Category::workspace);
    {
      const Tensor factors = vector(ctx, rt, g, piece.d, r);
      column_scale_forward(ctx, scaled, read, factors, {});
    }
    matmul(ctx, made, scaled, rt.params.acquire(ctx, b).rows(0, piece.rows), {.transpose_b = true});
    rt.params.release(ctx, b);
    return made;
  }
};

class Vera : public AdapterKind {
 public:
  std::vector<AdapterParam> params(const AdaptedLayer& layer) const override {
    std::vector<AdapterParam> list;
    const LinearAdapter& adapter = *layer.adapter;
    for (size_t k = 0; k < adapter.pieces.size(); ++k) {
      const std::string of = adapter.pieces.size() > 1 ? "." + adapter.pieces[k].name : "";
      const int piece = static_cast<int>(k);
      list.push_back({.name = layer.name + ".vera_lambda_b" + of,
                      .end = ".vera_lambda_b",
                      .shape = {adapter.pieces[k].rows},
                      .group = kGroupNoDecay,
                      .piece = piece,
                      .by_rows = true});
      list.push_back({.name = layer.name + ".vera_lambda_d" + of,
                      .end = ".vera_lambda_d",
                      .shape = {adapter.pieces[k].rank},
                      .group = kGroupNoDecay,
                      .init = Init::ones,
                      .piece = piece});
    }
    return list;
  }
  // A and B of the largest of all layers.
  std::vector<AdapterParam> shared(const std::vector<AdaptedLayer>& layers) const override {
    int64_t r = 0, in = 0, rows = 0;
    for (const AdaptedLayer& layer : layers)
      for (const AdapterPiece& piece : layer.adapter->pieces) {
        r = piece.rank;
        in = std::max(in, layer.in);
        rows = std::max(rows, piece.rows);
      }
    return {{.name = kA, .end = kA, .shape = {r, in}, .trained = false},
            {.name = kB, .end = kB, .shape = {rows, r}, .trained = false}};
  }
  std::vector<float> first_values(const AdaptedLayer& layer,
                                  const AdapterParam& param) const override {
    if (std::string_view(param.end) != ".vera_lambda_d") return {};
    return std::vector<float>(static_cast<size_t>(param.shape.elements()), layer.adapter->first);
  }
  std::vector<std::vector<float>> shared_values(
      const std::vector<AdaptedLayer>& layers) const override {
    TorchUniform draws(static_cast<uint64_t>(layers.front().adapter->seed));
    std::vector<std::vector<float>> values;
    for (const AdapterParam& p : shared(layers))
      values.push_back(draws.kaiming(p.shape[0], p.shape[1]));
    return values;
  }
  std::shared_ptr<const AdapterSum> sum(Wiring& w, const AdaptedLayer& layer,
                                        int x) const override {
    auto made = std::make_shared<VeraSum>();
    const std::string own = layer.stage + "_vera";
    made->x = x;
    made->r = layer.adapter->pieces.front().rank;
    made->in = layer.in;
    made->out = layer.out;
    made->a = w.table.find(kA);
    made->b = w.table.find(kB);
    require(made->a >= 0 && made->b >= 0, "the matrices of all layers");
    made->dropout = InputDropout(w, layer.adapter->dropout, own);
    const std::vector<AdapterParam> list = params(layer);
    for (size_t k = 0; k < layer.adapter->pieces.size(); ++k) {
      const AdapterPiece& piece = layer.adapter->pieces[k];
      require(piece.rank == made->r, "one rank for all modules");
      const int l_b = add_adapter_param(w, list[2 * k]),
                l_d = add_adapter_param(w, list[2 * k + 1]);
      made->pieces.push_back({l_d, l_b, piece.row, piece.rows});
      made->params.insert(made->params.end(), {l_b, l_d});
    }
    made->h = w.rows(own, made->r);
    made->slots = {made->h};
    made->a_part = join(w.name, own + "_a");
    made->u = join(w.name, own + "_u");
    made->du = join(w.name, own + "_du");
    made->z = join(w.name, own + "_z");
    made->dz = join(w.name, own + "_dz");
    made->g = join(w.name, own + "_g");
    made->dg = join(w.name, own + "_dg");
    const std::shared_ptr<const VeraSum> all = made;
    w.body.add_stage({.name = Name(own),
                      .inputs = {x},
                      .outputs = {made->h},
                      .run = [all](Context& ctx, Pass& p) { all->down(ctx, p); },
                      .backward = [all](Context& ctx, Pass& p) { all->down_backward(ctx, p); },
                      .gradients = {x}});
    return made;
  }
  MergedModule merged(const AdaptedLayer& layer, size_t k,
                      const TensorValues& values) const override {
    const AdapterPiece& piece = layer.adapter->pieces[k];
    const std::vector<float> d = values(".vera_lambda_d"), b = values(".vera_lambda_b"),
                             all_a = values(kA), all_b = values(kB);
    const int64_t r = piece.rank, most = static_cast<int64_t>(all_a.size()) / r;
    MergedModule m;
    m.rank = r;
    for (int64_t j = 0; j < r; ++j)
      for (int64_t c = 0; c < layer.in; ++c)
        m.right.push_back(d[static_cast<size_t>(j)] * all_a[static_cast<size_t>(j * most + c)]);
    for (int64_t i = 0; i < piece.rows; ++i)
      for (int64_t j = 0; j < r; ++j)
        m.left.push_back(b[static_cast<size_t>(i)] * all_b[static_cast<size_t>(i * r + j)]);
    return m;
  }
};

const Vera kVera;

}  // namespace

const AdapterMethod& vera_method() {
  using C = PeftConfig;
  static const AdapterMethod row{
      .name = "vera",
      .words = "vera",
      .type = "VERA",
      .title = "VeRA",
      .doc =
          "vera, vectors around two matrices of rank lora_r that are drawn once for all linear "
          "layers",
      .fields = {{"r", "lora_r", &C::lora_r, 1, 1 << 20},
                 {"vera_dropout", "lora_dropout", &C::lora_dropout, 0, 1},
                 {.key = "d_initial",
                  .run_key = "d_initial",
                  .value = &C::d_initial,
                  .least = -1e12,
                  .said = {.doc = "what the vectors between its matrices begin with",
                           .example = "0.2"}},
                 {.key = "projection_prng_key",
                  .run_key = "projection_prng_key",
                  .value = &C::projection_prng_key,
                  .below = 1e18,
                  .said = {.doc = "the seed that its matrices follow from, as PEFT draws them",
                           .example = "7",
                           .least = 0,
                           .most = 1e18}}},
      .shared = "target_modules modules_to_save layers_to_transform bias fan_in_fan_out",
      .bias_only = "vera_only",
      .indifferent = "save_projection init_weights",
      .constants = {{"save_projection", "false"},
                    {"init_weights", "true"},
                    {"layers_pattern", "null"}},
      .markers = {".vera_lambda_", "adapter.vera_"},
      .fresh =
          [] {
            C c;
            c.lora_r = 256;
            return c;
          }(),
      .bounded = false,
      .kind = [](const C&) -> const AdapterKind& { return kVera; },
      .settle =
          [](const C& c, double, AdapterPiece&, LinearAdapter& adapter) {
            adapter.first = static_cast<float>(c.d_initial);
            adapter.seed = c.projection_prng_key;
          },
      .text =
          [](const C& c) {
            return fmt::format("vera r {} dropout {} key {} first {}", c.lora_r, c.lora_dropout,
                               c.projection_prng_key, c.d_initial);
          },
      .check =
          [](const AdapterFields& c) {
            std::vector<AdapterComplaint> list;
            if (c.d_initial == 0)
              list.push_back({"d_initial other than 0, as the vector behind it begins with 0 too",
                              "d_initial", ", with which nothing is ever learned",
                              fmt::format("d_initial={}", AdapterFields().d_initial)});
            return list;
          }};
  return row;
}

}  // namespace snug
