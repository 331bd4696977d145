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

// Dropout sites of a block; site 0 is the embedding's.
uint32_t site(const Wiring& w, uint32_t k) {
  return static_cast<uint32_t>(w.layer) * 4 + k;
}

// Parameters are added in the order of the published files.
Ends pre_norm(Wiring& w) {
  const ModelSpec& s = w.spec;
  const float std = s.init_std;
  const float residual_std =
      s.small_residual_init ? std / std::sqrt(2.0f * static_cast<float>(s.L)) : std;
  const auto shape = [&](const char* name, int64_t out, float init, bool bias) {
    return LinearShape{name, out, init, bias, s.linear_in_out};
  };
  const int x = w.given("x", s.C);
  const int norm1 = norm(w, "ln_1", "1", x);
  const int qkv =
      linear(w, "qkv", "qkv", shape("attn.c_attn", (s.H + 2 * s.G) * s.D, std, s.qkv_bias), norm1,
             rotary(s));
  const int att = attention(w, qkv, site(w, 1));
  const int mid = linear_residual(w, "attention_proj", "mid",
                                  shape("attn.c_proj", s.C, residual_std, s.projection_bias), att,
                                  x, {s.residual_dropout, site(w, 2)});
  const int norm2 = norm(w, "ln_2", "2", mid);
  const int fc =
      linear(w, "fc", "fc", shape("mlp.c_fc", s.gated_mlp ? 2 * s.F : s.F, std, s.mlp_bias), norm2);
  const int act =
      s.gated_mlp ? gated_activation(w, fc, s.activation) : activation(w, fc, s.activation);
  // The norm that follows is the next block's, of another pass with policies of its own.
  const int out =
      linear_residual(w, "mlp_proj", "out", shape("mlp.c_proj", s.C, residual_std, s.mlp_bias), act,
                      mid, {s.residual_dropout, site(w, 3)});
  return {x, out};
}

Ends post_norm(Wiring& w) {
  const ModelSpec& s = w.spec;
  const float std = s.init_std;
  const int x = w.given("x", s.C);
  const int qkv = linear(w, "qkv", "qkv",
                         {.name = "attn.c_attn", .out = (s.H + 2 * s.G) * s.D, .init_std = std}, x);
  const int att = attention(w, qkv, site(w, 1));
  const int mid = linear_residual(w, "attention_proj", "mid",
                                  {.name = "attn.c_proj", .out = s.C, .init_std = std}, att, x,
                                  {s.residual_dropout, site(w, 2)});
  const int norm1 = norm(w, "ln_1", "1", mid);
  const int fc = linear(w, "fc", "fc", {.name = "mlp.c_fc", .out = s.F, .init_std = std}, norm1);
  const int act = activation(w, fc, s.activation);
  const int sum =
      linear_residual(w, "mlp_proj", "sum", {.name = "mlp.c_proj", .out = s.C, .init_std = std},
                      act, norm1, {s.residual_dropout, site(w, 3)});
  return {x, norm(w, "ln_2", "2", sum, "out")};
}

}  // namespace

Block::Block(const ModelSpec& spec, const Precision& precision, int64_t layer, ParamTable& table)
    : name_("h." + std::to_string(layer)), part_(static_cast<int>(layer)) {
  Wiring w{body_, table, spec, precision.compute, name_, part_, layer};
  const bool pre = spec.placement == NormPlacement::pre;
  require(pre || spec.placement == NormPlacement::post, "a placement that validate() lets through");
  const Ends ends = pre ? pre_norm(w) : post_norm(w);
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
