#include "layers/parts/block.h"

#include <cmath>
#include <string>

#include "engine/core/error.h"
#include "layers/parts/attention.h"
#include "layers/parts/linear.h"
#include "layers/parts/mlp.h"
#include "layers/parts/norm.h"

namespace snug {
namespace {

struct Ends {
  int x, out;
};

float residual_std(const ModelSpec& s) {
  return s.small_residual_init ? s.init_std / std::sqrt(2.0f * static_cast<float>(s.L))
                               : s.init_std;
}

LinearShape qkv_shape(const ModelSpec& s) {
  return {"attn.c_attn", (s.H + 2 * s.G) * s.D, s.init_std, s.qkv_bias, s.linear_in_out};
}
LinearShape projection_shape(const ModelSpec& s) {
  return {"attn.c_proj", s.C, residual_std(s), s.projection_bias, s.linear_in_out};
}
LinearShape down_shape(const ModelSpec& s) {
  return {"mlp.c_proj", s.C, residual_std(s), s.mlp_bias, s.linear_in_out};
}

// What attention makes of x, before the projection.
int attention_branch(Wiring& w, int x) {
  const ModelSpec& s = w.spec;
  const InPlace turn = keys_in_front(w, rotary(s, w.layer));
  const auto product = [&](const char* slot, const InPlace& behind) {
    return w.in(kAttention, linear(w, "qkv", slot, qkv_shape(s), x, behind));
  };
  const int qkv = s.qk_norm == QkNorm::none
                      ? product("qkv", turn)
                      : w.in(kAttention, qk_norm(w, product("heads", {}), turn));
  return attention(w, qkv, w.dropout_site());
}

// What the MLP makes of x, before the projection.
int mlp_branch(Wiring& w, int x) {
  const ModelSpec& s = w.spec;
  const int fc = w.in(kMlp, linear(w, "fc", "fc",
                                   {"mlp.c_fc", s.gated_mlp ? 2 * s.F : s.F, s.init_std, s.mlp_bias,
                                    s.linear_in_out},
                                   x));
  return s.gated_mlp ? gated_activation(w, fc, s.activation) : activation(w, fc, s.activation);
}

// Parameters are added in the order of the published files. With parallel branches both norms read x.
Ends pre_norm(Wiring& w) {
  const ModelSpec& s = w.spec;
  const int x = w.given("x", s.C);
  const int att = attention_branch(w, w.in(kAttention, norm(w, "ln_1", "1", x)));
  const int mid = linear_residual(w, "attention_proj", "mid", projection_shape(s), att, x,
                                  {s.residual_dropout, w.dropout_site()});
  const bool parallel = s.placement == NormPlacement::parallel;
  const int act = mlp_branch(w, w.in(kMlp, norm(w, "ln_2", "2", parallel ? x : mid)));
  // The norm that follows is the next block's, of another pass with policies of its own.
  const int out = linear_residual(w, "mlp_proj", "out", down_shape(s), act, mid,
                                  {s.residual_dropout, w.dropout_site()});
  return {x, out};
}

// Norms behind the branches, and with a sandwich before them too.
Ends branch_norm(Wiring& w) {
  const ModelSpec& s = w.spec;
  const bool before = s.placement == NormPlacement::sandwich;
  const int x = w.given("x", s.C);
  const int att = attention_branch(w, before ? w.in(kAttention, norm(w, "ln_1", "1", x)) : x);
  const int proj = linear(w, "attention_proj", "proj", projection_shape(s), att);
  const int mid = norm_residual(w, "ln_1_out", "3", proj, x, "mid");
  const int act = mlp_branch(w, before ? w.in(kMlp, norm(w, "ln_2", "2", mid)) : mid);
  const int down = linear(w, "mlp_proj", "down", down_shape(s), act);
  return {x, norm_residual(w, "ln_2_out", "4", down, mid, "out")};
}

Ends post_norm(Wiring& w) {
  const ModelSpec& s = w.spec;
  const float std = s.init_std;
  const int x = w.given("x", s.C);
  const int qkv =
      w.in(kAttention,
           linear(w, "qkv", "qkv",
                  {.name = "attn.c_attn", .out = (s.H + 2 * s.G) * s.D, .init_std = std}, x));
  const int att = attention(w, qkv, w.dropout_site());
  const int mid = linear_residual(w, "attention_proj", "mid",
                                  {.name = "attn.c_proj", .out = s.C, .init_std = std}, att, x,
                                  {s.residual_dropout, w.dropout_site()});
  const int all = w.in(kAttention, norm(w, "ln_1", "1", mid));
  const int norm1 = s.chooses_rows(w.layer) ? w.choose(all) : all;
  const int fc =
      w.in(kMlp, linear(w, "fc", "fc", {.name = "mlp.c_fc", .out = s.F, .init_std = std}, norm1));
  const int act = activation(w, fc, s.activation);
  const int sum =
      linear_residual(w, "mlp_proj", "sum", {.name = "mlp.c_proj", .out = s.C, .init_std = std},
                      act, norm1, {s.residual_dropout, w.dropout_site()});
  return {x, norm(w, "ln_2", "2", sum, "out")};
}

Ends wire(Wiring& w) {
  switch (w.spec.placement) {
    case NormPlacement::pre:
    case NormPlacement::parallel:
      return pre_norm(w);
    case NormPlacement::sandwich:
    case NormPlacement::sublayer:
      return branch_norm(w);
    case NormPlacement::post:
      return post_norm(w);
  }
  fail(ErrorCode::internal, "a known placement of norms", "another one", "report this");
}

}  // namespace

Block::Block(const ModelSpec& spec, const Precision& precision, int64_t layer, ParamTable& table,
             const Adapters& adapters)
    : name_("h." + std::to_string(layer)), part_(static_cast<int>(layer)) {
  Wiring w{body_, table, spec, precision.compute, name_, part_, layer, &adapters};
  const Ends ends = wire(w);
  x_ = ends.x;
  out_ = ends.out;
}

void Block::derive(const ParamTable& table, bool below_wanted) {
  body_.derive([&](int param) { return table[param].trainable; }, below_wanted);
}

Tensor Block::forward(Context& ctx, Runtime& rt, Pass& pass, Dims dims, PassMode mode,
                      Tensor x) const {
  const Context::Scope scope(ctx, name_);
  pass.begin(dims, mode, rt);
  pass.give(x_, std::move(x));
  pass.forward(ctx);
  rt.params.drop_part(ctx, part_);
  return pass.take(out_);
}

Tensor Block::backward(Context& ctx, Runtime& rt, Pass& pass, Tensor dout) const {
  const Context::Scope scope(ctx, name_);
  Tensor dx = pass.backward(ctx, out_, std::move(dout), x_);
  rt.params.drop_part(ctx, part_);
  rt.grads->part_done(ctx, part_);
  return dx;
}

}  // namespace snug
