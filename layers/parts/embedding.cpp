#include "layers/parts/embedding.h"

#include "engine/core/error.h"
#include "engine/kernels/kernels.h"
#include "layers/ops/dropout.h"
#include "layers/ops/embedding.h"
#include "layers/parts/norm.h"

namespace snug {

namespace {

struct Tables {
  int wte = -1, wpe = -1, wtt = -1;
  int64_t V = 0, P = 0, first = 0;  // rows that tokens and positions name
  float scale = 1.0f;
  float dropout = 0.0f;  // in place, of the sum; a norm behind it has its own
  int y = -1;
  std::shared_ptr<const AdapterSum> sum = nullptr;  // of the token table
  TokensInFront front = {};                         // beside it
  Name dfront = {};
};

void forward(Context& ctx, Pass& p, const Tables& t) {
  Runtime& rt = p.environment<Runtime>();
  const View y = p.view(t.y);
  // The padded rows are not tokens: an id of V or above is refused.
  const View wte = rt.params.acquire(ctx, t.wte).rows(0, t.V);
  const View wpe = t.wpe >= 0 ? rt.params.acquire(ctx, t.wpe).rows(t.first, t.P) : View();
  const View wtt = t.wtt >= 0 ? rt.params.acquire(ctx, t.wtt) : View();
  const View front = t.front.param >= 0  ? rt.params.acquire(ctx, t.front.param)
                     : t.front.slot >= 0 ? p.view(t.front.slot)
                     : t.front.count > 0 ? wte.rows(0, t.front.count)
                                         : View();
  embedding_forward(ctx, y, rt.tokens, wte, wpe, rt.state, rt.document_start,
                    wtt.defined() ? rt.token_types : View(), wtt,
                    t.front.count > 0 ? FrontRows{front, t.scale} : FrontRows{});
  for (const int table : {t.wte, t.wpe, t.wtt, t.front.param})
    if (table >= 0) rt.params.release(ctx, table);
  if (t.sum) t.sum->forward(ctx, p, y);
  if (t.scale != 1.0f && t.front.count == 0) scale(ctx, y, t.scale);
  if (p.mode() == PassMode::train && t.dropout > 0.0f)
    dropout_forward(ctx, y, y, p.dims().B, p.dims().T, {t.dropout, 0}, rt.state);
}

void backward(Context& ctx, Pass& p, const Tables& t) {
  Runtime& rt = p.environment<Runtime>();
  const View dy = p.gradient(t.y);
  if (t.dropout > 0.0f)
    dropout_backward(ctx, dy, dy, p.dims().B, p.dims().T, {t.dropout, 0}, rt.state);
  if (t.scale != 1.0f && t.front.count == 0) scale(ctx, dy, t.scale);
  if (t.sum) t.sum->backward(ctx, p, dy);
  if (const int front = t.front.param; front >= 0 && rt.grads->wants(front)) {
    embedding_front_backward(ctx, rt.grads->open(ctx, front), dy, rt.tokens, t.V);
    rt.grads->close(ctx, front);
  }
  if (t.front.slot >= 0 && p.wants_gradient(t.front.slot)) {
    // Summed in f32 and rounded once.
    const GradView drows = p.open_gradient(ctx, t.front.slot);
    const Tensor sums = ctx.tensor(t.dfront, drows.view.shape, DType::f32, Category::workspace);
    embedding_front_backward(ctx, {sums, false}, dy, rt.tokens, t.V);
    require(!drows.add, "one reader of rows in front");
    cast(ctx, drows.view, sums);
  }
  for (const int param : t.front.shared)
    if (rt.grads->wants(param)) rt.grads->close(ctx, param);
  const auto open = [&](int table) {
    return table >= 0 && rt.grads->wants(table) ? rt.grads->open(ctx, table) : GradView{};
  };
  const GradView dwte = open(t.wte), dwtt = open(t.wtt);
  GradView dwpe = open(t.wpe);
  if (dwpe.view.defined() && t.first > 0) {
    if (!dwpe.add) fill_zero(ctx, dwpe.view.rows(0, t.first));
    dwpe.view = dwpe.view.rows(t.first, t.P);
  }
  embedding_backward(ctx, dwte, dwpe, dy, rt.tokens, rt.state, rt.document_start,
                     t.wtt >= 0 ? rt.token_types : View(), dwtt);
  for (const int table : {t.wte, t.wpe, t.wtt})
    if (table >= 0 && rt.grads->wants(table)) rt.grads->close(ctx, table);
}

}  // namespace

Embedding::Embedding(const ModelSpec& spec, const Precision& precision, ParamTable& table,
                     const Adapters& adapters) {
  Tables t;
  t.V = spec.V;
  t.P = spec.P;
  t.first = spec.first_position;
  t.scale = spec.embedding_scale;
  t.dropout = spec.embedding_norm ? 0.0f : spec.embedding_dropout;
  const auto add = [&](const char* name, int64_t rows, int64_t real, bool linear,
                       bool gathered = false) {
    return table.add({.name = Name(name),
                      .shape = {rows, spec.C},
                      .rows = real,
                      .group = kGroupDecay,
                      .init = Init::normal,
                      .init_std = spec.init_std,
                      .linear = linear,
                      .gathered = gathered});
  };
  // Token rows beyond V are padding: zero, outside the softmax, never updated or saved.
  const bool head_reads =
      spec.tied && (spec.head == HeadKind::causal_lm || spec.head == HeadKind::masked_lm);
  wte_ = t.wte = add("wte.weight", spec.Vp(), spec.V, head_reads,
                     !head_reads && !adapter_reads_whole(adapters, "wte"));
  const int64_t positions = spec.first_position + spec.P;
  if (spec.positions == Positions::learned) t.wpe = add("wpe.weight", positions, positions, false);
  if (spec.types > 0) t.wtt = add("wtt.weight", spec.types, spec.types, false);
  Wiring w{body_, table, spec, precision.compute, Name("embedding"), -1, 0, &adapters};
  t.dfront = join(w.name, "dfront");
  out_ = t.y = w.rows(spec.embedding_norm ? "sum" : "out", spec.C);
  std::vector<int> params = {t.wte};
  for (const int other : {t.wpe, t.wtt})
    if (other >= 0) params.push_back(other);
  std::vector<int> made, constants;  // slots of stages before
  // Not what the adapters of blocks are named by: wte, and no name of this part before it.
  if (const auto found = adapters.find("wte"); found != adapters.end()) {
    const AdaptedLayer layer{"wte", "embedding", &found->second, spec.C, spec.Vp()};
    t.front = found->second.kind->in_front(w, layer);
    if (t.front.count == 0) t.sum = found->second.kind->table_sum(w, layer);
    if (t.front.param >= 0) params.push_back(t.front.param);
    params.insert(params.end(), t.front.shared.begin(), t.front.shared.end());
    if (t.front.slot >= 0) made.push_back(t.front.slot);
    if (t.sum) {
      params.insert(params.begin(), t.sum->params.begin(), t.sum->params.end());
      made = t.sum->slots;
      constants = t.sum->constants;
    }
  }
  const auto with_constants = [&](std::vector<int> slots) {
    slots.insert(slots.end(), constants.begin(), constants.end());
    return slots;
  };
  w.body.add_stage({.name = Name("embedding"),
                    .inputs = with_constants(made),
                    .outputs = {t.y},
                    .run = [t](Context& ctx, Pass& p) { snug::forward(ctx, p, t); },
                    .backward = [t](Context& ctx, Pass& p) { snug::backward(ctx, p, t); },
                    .params = params,
                    .for_params = t.sum ? with_constants(t.sum->slots) : std::vector<int>{},
                    .reading_params = t.sum ? static_cast<int>(t.sum->params.size()) : 1,
                    .for_inputs = constants,
                    .gradients = made});
  if (spec.embedding_norm) out_ = norm(w, "norm", "", t.y, nullptr, {spec.embedding_dropout, 0});
}

void Embedding::derive(const ParamTable& table) {
  body_.derive([&](int param) { return table[param].trainable; }, false);
}

Tensor Embedding::forward(Context& ctx, Runtime& rt, Pass& pass, PassMode mode) const {
  pass.begin({rt.tokens.shape[0], rt.tokens.shape[1]}, mode, rt);
  pass.forward(ctx);
  return pass.take(out_);
}

void Embedding::backward(Context& ctx, Pass& pass, Tensor dx) const {
  pass.backward(ctx, out_, std::move(dx), -1);
}

}  // namespace snug
