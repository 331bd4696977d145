#include "layers/parts/adapter.h"

#include <cmath>

#include "engine/blas/matmul.h"
#include "engine/core/error.h"
#include "engine/kernels/kernels.h"
#include "layers/ops/dropout.h"
#include "layers/ops/matrix_block.h"
#include "layers/parts/wiring.h"

namespace snug {
namespace {

constexpr std::string_view kA = ".lora_A", kB = ".lora_B", kEnd = ".weight",
                           kMagnitude = ".lora_magnitude_vector", kScale = ".ia3_l";
// Dropout sites of adapters: apart from those of the blocks, which count from 0.
constexpr uint32_t kFirstSite = 0x6c000000u;

struct Down {
  int x = -1, u = -1;  // slots
  float scale = 1;
};

void scale_by(Context& ctx, const View& x, float factor) {
  if (factor != 1.0f) scale(ctx, x, factor);
}

void down_forward(Context& ctx, Pass& p, const Down& d, const AdapterUp& up) {
  Runtime& rt = p.environment<Runtime>();
  if (!rt.adapters) return;
  Tensor made;
  const View x = adapter_input(ctx, p, up, p.view(d.x), made);
  matmul(ctx, p.view(d.u), x, rt.params.acquire(ctx, up.a), {.transpose_b = true});
  rt.params.release(ctx, up.a);
  scale_by(ctx, p.view(d.u), d.scale);
}

void down_backward(Context& ctx, Pass& p, const Down& d, const AdapterUp& up) {
  Runtime& rt = p.environment<Runtime>();
  const View du = p.gradient(d.u);
  scale_by(ctx, du, d.scale);
  if (rt.grads->wants(up.a)) {
    Tensor made;
    const View x = adapter_input(ctx, p, up, p.need(ctx, d.x), made);
    const GradView da = rt.grads->open(ctx, up.a);
    matmul(ctx, da.view, du, x, {.transpose_a = true, .add = da.add});
    rt.grads->close(ctx, up.a);
  }
  p.done(d.x);
  if (!p.wants_gradient(d.x)) return;
  const GradView dx = p.open_gradient(ctx, d.x);
  const View a = rt.params.acquire(ctx, up.a);
  Tensor made;
  const GradView to = adapter_input_gradient(ctx, up, dx, made);
  matmul(ctx, to.view, du, a, {.add = to.add});
  adapter_input_backward(ctx, p, up, dx, to);
  rt.params.release(ctx, up.a);
}

// Calls f(B) with the whole matrix (out,R).
template <class F>
void with_b(Context& ctx, Runtime& rt, const AdapterUp& up, F&& f) {
  if (up.whole()) {
    f(rt.params.acquire(ctx, up.pieces.front().b));
    rt.params.release(ctx, up.pieces.front().b);
    return;
  }
  Tensor b;
  for (const AdapterUp::Piece& piece : up.pieces) {
    const View part = rt.params.acquire(ctx, piece.b);
    if (!b.defined()) {
      b = ctx.tensor(up.scratch, {up.out, up.rank}, part.dtype, Category::workspace);
      fill_zero(ctx, b);
    }
    block_put(ctx, b, part, {piece.row, piece.col, piece.factor});
    rt.params.release(ctx, piece.b);
  }
  f(b.view());
}

}  // namespace

int64_t LinearAdapter::rank() const {
  int64_t sum = 0;
  for (const AdapterPiece& piece : pieces) sum += piece.rank;
  return sum;
}

std::string adapter_a_name(const std::string& layer) {
  return layer + std::string(kA) + std::string(kEnd);
}

std::string adapter_b_name(const std::string& layer, const LinearAdapter& adapter, size_t piece) {
  std::string name = layer + std::string(kB);
  if (adapter.pieces.size() > 1) name += "." + adapter.pieces[piece].name;
  return name + std::string(kEnd);
}

std::string adapter_scale_name(const std::string& layer, const LinearAdapter& adapter,
                               size_t piece) {
  std::string name = layer + std::string(adapter.kind == AdapterKind::ia3 ? kScale : kMagnitude);
  if (adapter.pieces.size() > 1) name += "." + adapter.pieces[piece].name;
  return name;
}

bool is_adapter_name(std::string_view param) {
  return param.find(std::string(kA) + ".") != std::string_view::npos ||
         param.find(std::string(kB) + ".") != std::string_view::npos ||
         param.find(kMagnitude) != std::string_view::npos ||
         param.find(kScale) != std::string_view::npos;
}

View adapter_input(Context& ctx, Pass& p, const AdapterUp& up, const View& x, Tensor& made) {
  if (up.dropout.p == 0.0f || p.mode() == PassMode::inference) return x;
  made = ctx.tensor(up.dropped, x.shape, x.dtype, Category::workspace);
  const Dims n = p.dims().of(x.shape[0]);
  dropout_forward(ctx, made, x, n.B, n.T, up.dropout, p.environment<Runtime>().state);
  return made.view();
}

GradView adapter_input_gradient(Context& ctx, const AdapterUp& up, const GradView& dx,
                                Tensor& made) {
  if (up.dropout.p == 0.0f) return dx;
  if (dx.add) made = ctx.tensor(up.dx, dx.view.shape, dx.view.dtype, Category::workspace);
  return {dx.add ? made.view() : dx.view, false};
}

void adapter_input_backward(Context& ctx, Pass& p, const AdapterUp& up, const GradView& dx,
                            const GradView& written) {
  if (up.dropout.p == 0.0f) return;
  const Dims n = p.dims().of(written.view.shape[0]);
  dropout_backward(ctx, written.view, written.view, n.B, n.T, up.dropout,
                   p.environment<Runtime>().state);
  if (dx.add) add(ctx, dx.view, written.view);
}

bool AdapterUp::whole() const {
  return pieces.size() == 1 && pieces.front().row == 0 && rows == out;
}

namespace {

// Of IA3, which has no stage before the layer's.
AdapterUp scales_of(Wiring& w, const std::string& layer, const LinearAdapter& adapter,
                    int64_t out) {
  AdapterUp up;
  up.kind = adapter.kind;
  up.out = out;
  for (size_t k = 0; k < adapter.pieces.size(); ++k) {
    const AdapterPiece& piece = adapter.pieces[k];
    require(piece.row + piece.rows <= out, "rows of the layer");
    AdapterUp::Piece own;
    own.row = piece.row;
    own.rows = piece.rows;
    own.magnitude = w.param({.name = Name(adapter_scale_name(layer, adapter, k)),
                             .shape = {piece.rows, 1},
                             .group = kGroupDecay,
                             .init = Init::ones});
    up.rows += piece.rows;
    up.pieces.push_back(own);
  }
  return up;
}

}  // namespace

AdapterUp adapter_down(Wiring& w, const std::string& stage, const char* name, int64_t out, int x) {
  AdapterUp up;
  const std::string layer = w.param_name(name, "").str();
  const auto found = w.adapters ? w.adapters->find(layer) : Adapters::const_iterator();
  if (!w.adapters || found == w.adapters->end()) return up;
  const LinearAdapter& adapter = found->second;
  require(!adapter.pieces.empty(), "an adapter of at least one module");
  if (adapter.of_input()) return up;
  up.kind = adapter.kind;
  if (adapter.kind == AdapterKind::ia3) return scales_of(w, layer, adapter, out);
  const int64_t in = w.width(x);
  up.rank = adapter.rank();
  up.out = out;
  Down d;
  d.x = x;
  d.scale = adapter.pieces.front().scale;
  require(w.body.stages().size() < 16, "dropout sites of adapters that differ from layer to layer");
  up.dropout = {adapter.dropout, kFirstSite + static_cast<uint32_t>(w.part + 1) * 16u +
                                     static_cast<uint32_t>(w.body.stages().size())};
  ParamInfo a{.name = Name(adapter_a_name(layer)),
              .shape = {up.rank, in},
              .group = kGroupDecay,
              .init = adapter.init};
  // PEFT's "true" is the uniform distribution of torch.nn.Linear, its "gaussian" N(0, 1/r).
  const int64_t r = adapter.pieces.front().rank;
  a.init_std = adapter.init == Init::normal ? 1.0f / static_cast<float>(r)
                                            : 1.0f / std::sqrt(static_cast<float>(in));
  up.a = w.param(std::move(a));
  int64_t col = 0;
  for (size_t k = 0; k < adapter.pieces.size(); ++k) {
    const AdapterPiece& piece = adapter.pieces[k];
    require(piece.rank > 0 && piece.row + piece.rows <= out, "a rank and rows of the layer");
    up.pieces.push_back({w.param({.name = Name(adapter_b_name(layer, adapter, k)),
                                  .shape = {piece.rows, piece.rank},
                                  .group = kGroupDecay,
                                  .init = Init::zeros}),
                         piece.row, col, piece.scale / d.scale, -1, piece.rows, piece.rank,
                         piece.scale});
    if (adapter.kind == AdapterKind::dora)
      up.pieces.back().magnitude = w.param({.name = Name(adapter_scale_name(layer, adapter, k)),
                                            .shape = {piece.rows},
                                            .group = kGroupNoDecay,
                                            .init = Init::ones});
    col += piece.rank;
    up.rows += piece.rows;
  }
  const std::string own = stage + "_lora";
  d.u = up.u = w.rows(own, up.rank);
  up.dropped = join(w.name, own + "_x");
  up.dx = join(w.name, own + "_dx");
  up.scratch = join(w.name, own + "_b");
  up.dscratch = join(w.name, own + "_db");
  w.body.add_stage({.name = Name(own),
                    .inputs = {x},
                    .outputs = {d.u},
                    .run = [d, up](Context& ctx, Pass& p) { down_forward(ctx, p, d, up); },
                    .backward = [d, up](Context& ctx, Pass& p) { down_backward(ctx, p, d, up); },
                    .params = {up.a},
                    .for_params = {x},
                    .gradients = {x}});
  return up;
}

void adapter_up_forward(Context& ctx, Pass& p, const AdapterUp& up, const View& y) {
  if (!up.any() || !p.environment<Runtime>().adapters) return;
  with_b(ctx, p.environment<Runtime>(), up, [&](const View& b) {
    matmul(ctx, y, p.view(up.u), b, {.transpose_b = true, .add = true});
  });
}

void adapter_up_backward(Context& ctx, Pass& p, const AdapterUp& up, const View& dy) {
  if (!up.any()) return;
  Runtime& rt = p.environment<Runtime>();
  bool wanted = false;
  for (const AdapterUp::Piece& piece : up.pieces) wanted = wanted || rt.grads->wants(piece.b);
  if (wanted && up.whole()) {
    const int b = up.pieces.front().b;
    const View& u = p.need(ctx, up.u);
    const GradView db = rt.grads->open(ctx, b);
    matmul(ctx, db.view, dy, u, {.transpose_a = true, .add = db.add});
    rt.grads->close(ctx, b);
  } else if (wanted) {
    const View& u = p.need(ctx, up.u);
    const Tensor all = ctx.tensor(up.dscratch, {up.out, up.rank}, DType::f32, Category::workspace);
    matmul(ctx, all, dy, u, {.transpose_a = true});
    for (const AdapterUp::Piece& piece : up.pieces) {
      if (!rt.grads->wants(piece.b)) continue;
      block_take(ctx, rt.grads->open(ctx, piece.b), all, {piece.row, piece.col, piece.factor});
      rt.grads->close(ctx, piece.b);
    }
  }
  p.done(up.u);
  if (!p.wants_gradient(up.u)) return;
  with_b(ctx, rt, up, [&](const View& b) {
    const GradView du = p.open_gradient(ctx, up.u);
    matmul(ctx, du.view, dy, b, {.add = du.add});
  });
}

}  // namespace snug
