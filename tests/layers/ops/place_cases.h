// The ops of a training step with small sizes that fit nothing, as bodies for every place: what the
// places emu and cuda give is held to the CPU's.
#pragma once

#include <cmath>

#include "engine/blas/matmul.h"
#include "layers/ops/attention.h"
#include "layers/ops/class_loss.h"
#include "layers/ops/document_start.h"
#include "layers/ops/embedding.h"
#include "layers/ops/gated_activation.h"
#include "layers/ops/head_loss.h"
#include "layers/ops/layernorm.h"
#include "layers/ops/linear.h"
#include "layers/ops/residual.h"
#include "layers/ops/rmsnorm.h"
#include "layers/ops/rope.h"
#include "layers/ops/rows.h"
#include "tests/support/case.h"

namespace snug::test {

struct PlaceCase {
  std::string name;
  Body body;
  DType dtype;
  int64_t length;  // of the longest sum in it
};

// Outputs of a place with kernels against those of the CPU, within the errors of both.
inline void expect_near(const Outputs& place, const Outputs& cpu, const PlaceCase& p) {
  ASSERT_EQ(place.all.size(), cpu.all.size());
  for (const Output& o : cpu.all) {
    if (o.dtype == DType::u8) {
      const StepState a = place.state(), b = cpu.state();
      EXPECT_NEAR(a.loss_sum, b.loss_sum, 1e-5 * std::fabs(b.loss_sum));
      EXPECT_EQ(a.loss_tokens, b.loss_tokens);
      continue;
    }
    // In 16 bits a step may round the other way, and later ones start from there.
    const double allowed = 2 * tolerance(DType::f32, p.length) + 3 * tolerance(p.dtype, 1);
    EXPECT_TRUE(close(place[o.name], o.values(), allowed)) << p.name << " " << o.name;
  }
}

// Tensors of normal numbers by name and shape, each with numbers of its own.
struct Maker {
  Case& c;
  DType dtype;
  uint32_t seed = 1;
  View in(const char* name, Shape shape) {
    return c.input(name, shape, dtype, normal_values(shape.elements(), seed++, dtype));
  }
  View out(const char* name, Shape shape) { return c.output(name, shape, dtype); }
  View f32(const char* name, Shape shape) { return c.output(name, shape, DType::f32); }
};

inline std::vector<PlaceCase> place_cases() {
  constexpr int64_t B = 2, T = 19, N = B * T, C = 24, F = 40;
  StepState some_state{};
  some_state.seed = 5;
  some_state.step = 3;
  some_state.inverse_tokens = 1.0f / 30;
  some_state.loss_scale = 4;
  std::vector<PlaceCase> cases;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const auto add = [&](const char* what, Body body) {
      cases.push_back({std::string(what) + " " + to_string(dtype), std::move(body), dtype, N + C});
    };
    for (const DropoutSpec& spec : {DropoutSpec{0.25f, 7}, DropoutSpec{}}) {
      add("rows", [=](Case& c) {
        Maker m{c, dtype};
        const View state = c.step_state(some_state), x = m.in("x", {N, C});
        const View branch = m.in("branch", {N, C}), weight = m.in("weight", {C});
        const View y = m.out("y", {N, C}), mean = m.f32("mean", {N}), rstd = m.f32("rstd", {N});
        residual_forward(c.ctx(), m.out("sum", {N, C}), x, branch, B, T, spec, state);
        if (spec.p > 0) {
          dropout_forward(c.ctx(), m.out("dropped", {N, C}), x, B, T, spec, state);
          dropout_backward(c.ctx(), m.out("back", {N, C}), x, B, T, spec, state);
        }
        layernorm_forward(c.ctx(), y, mean, rstd, x, weight, m.in("bias", {C}), 1e-5f);
        layernorm_backward(c.ctx(), m.out("dx", {N, C}), false, {m.f32("dweight", {C}), false},
                           {m.f32("dbias", {C}), false}, branch, x, weight, mean, rstd,
                           {m.out("copy", {N, C}), B, T, spec, state});
        activation_forward(c.ctx(), m.out("act", {N, C}), x, Activation::gelu_tanh);
        activation_backward(c.ctx(), m.out("dpre", {N, C}), branch, x, Activation::gelu_tanh);
      });
      add("products", [=](Case& c) {
        Maker m{c, dtype};
        const View state = c.step_state(some_state), x = m.in("x", {N, C});
        const LinearWeights up{m.in("up", {F, C}), m.in("up_bias", {F}), {}};
        const LinearWeights same{m.in("same", {C, C}), m.in("same_bias", {C}), {}};
        linear_activation_forward(c.ctx(), m.out("act", {N, F}), m.out("pre", {N, F}), x, up,
                                  Activation::silu);
        linear_activation_forward(c.ctx(), m.out("act_only", {N, F}), {}, x, up, Activation::silu);
        const ResidualInput in{m.in("residual", {N, C}), B, T, spec, state};
        linear_residual_forward(c.ctx(), m.out("sum", {N, C}), in, x, same);
        const NormOutput norm{m.out("y", {N, C}),
                              m.f32("mean", {N}),
                              m.f32("rstd", {N}),
                              m.in("weight", {C}),
                              {},
                              1e-5f};
        linear_residual_norm_forward(c.ctx(), norm, m.out("sum2", {N, C}), in, x, same);
        MatmulOptions options;
        options.transpose_a = true;
        matmul(c.ctx(), m.f32("product", {C, C}), x, x, options);
      });
    }
    add("what BERT and Llama have besides", [=](Case& c) {
      Maker m{c, dtype};
      const View x = m.in("x", {N, C});
      const View index = c.input("index", {5}, DType::i32, {3, 0, -1, 37, 19});
      rows_gather_forward(c.ctx(), m.out("some", {5, C}), x, index);
      rows_gather_backward(c.ctx(), m.out("dsome", {N, C}), m.in("dy", {5, C}), index);
      const View gate_up = m.in("gate_up", {N, 2 * F});
      gated_activation_forward(c.ctx(), m.out("gated", {N, F}), gate_up, Activation::silu);
      gated_activation_backward(c.ctx(), m.out("dgate_up", {N, 2 * F}), m.in("dgated", {N, F}),
                                gate_up, Activation::silu);
      const View weight = m.in("weight", {C}), rstd = m.f32("rstd", {N});
      rmsnorm_forward(c.ctx(), m.out("y", {N, C}), rstd, x, weight, 1e-5f);
      rmsnorm_backward(c.ctx(), m.out("dx", {N, C}), false, {m.f32("dweight", {C}), false},
                       m.in("dnorm", {N, C}), x, weight, rstd);
      const RopeSpec rope{2, 1, 8, {1, 0.5f, 0.25f}, 1.5f};
      rope_forward(c.ctx(), m.out("turned", {N, 32}), m.in("qkv", {N, 32}), B, T, rope, {});
      rope_backward(c.ctx(), m.out("dqkv", {N, 32}), m.in("dturned", {N, 32}), B, T, rope, {});
      const View state = c.step_state(some_state);
      const View logits = c.input("logits", {N, 3}, DType::f32, normal_values(3 * N, 90));
      const View classes = c.input("classes", {N}, DType::i32, index_values(N, 3, 3));
      class_loss_forward(c.ctx(), m.f32("loss", {N}), logits, classes, ClassLoss::cross_entropy,
                         state);
      class_loss_backward(c.ctx(), m.out("dlogits", {N, 3}), logits, classes,
                          ClassLoss::cross_entropy, state);
    });
    add("embedding, attention and head", [=](Case& c) {
      constexpr int64_t V = 21, Vp = 32, H = 3, D = 8;
      Maker m{c, dtype};
      const View state = c.step_state(some_state);
      const View tokens = c.input("tokens", {B, T}, DType::i32, index_values(N, V, 1));
      Values wanted = index_values(N, V, 2);
      wanted[3] = kIgnoredTarget;
      Values documents(N, 0);  // of 5 and 14 tokens, of 19
      std::fill(documents.begin() + 5, documents.begin() + T, 5);
      const View targets = c.input("targets", {N}, DType::i32, wanted);
      const View dy = m.in("dy", {N, C}), x = m.in("x", {N, C}), weight = m.in("weight", {Vp, C});
      embedding_forward(c.ctx(), m.out("y", {N, C}), tokens, m.in("wte", {V, C}),
                        m.in("wpe", {T, C}), state);
      embedding_backward(c.ctx(), {m.f32("dwte", {V, C}), false}, {m.f32("dwpe", {T, C}), false},
                         dy, tokens, state);
      const View types = c.input("types", {B, T}, DType::i32, index_values(N, 2, 4));
      embedding_forward(c.ctx(), m.out("y3", {N, C}), tokens, m.in("wte3", {V, C}),
                        m.in("wpe3", {T, C}), state, {}, types, m.in("wtt", {2, C}));
      embedding_backward(c.ctx(), {m.f32("dwte3", {V, C}), false}, {}, dy, tokens, state, {}, types,
                         {m.f32("dwtt", {2, C}), false});
      AttentionSpec spec;
      spec.H = spec.G = H;
      spec.D = D;
      spec.scale = 0.35f;
      spec.dropout = 0.2f;
      const View qkv = m.in("qkv", {N, 3 * C}), out = m.out("out", {N, C});
      const View lse = m.f32("lse", {B, H, T});
      attention_forward(c.ctx(), out, lse, qkv, B, T, spec, state);
      attention_backward(c.ctx(), m.out("dqkv", {N, 3 * C}), dy, qkv, out, lse, B, T, spec, state);
      AttentionSpec both_ways = spec;
      both_ways.causal = false;
      both_ways.document_start = c.input("document_start", {B, T}, DType::i32, documents);
      both_ways.document_end = c.output("document_end", {B, T}, DType::i32);
      document_end(c.ctx(), both_ways.document_end, both_ways.document_start, B, T);
      const View out2 = m.out("out2", {N, C}), lse2 = m.f32("lse2", {B, H, T});
      attention_forward(c.ctx(), out2, lse2, qkv, B, T, both_ways, state);
      attention_backward(c.ctx(), m.out("dqkv2", {N, 3 * C}), dy, qkv, out2, lse2, B, T, both_ways,
                         state);
      const View nll = m.f32("nll", {N}), row_lse = m.f32("row_lse", {N});
      head_loss_forward(c.ctx(), nll, row_lse, x, weight, targets, V, 8, state);
      head_loss_backward(c.ctx(), m.out("dx", {N, C}), {m.f32("dweight", {Vp, C}), false}, nll,
                         row_lse, x, weight, targets, V, 8);
      head_loss_train(c.ctx(), m.out("dx2", {N, C}), {m.f32("dweight2", {Vp, C}), false}, x, weight,
                      targets, V, 8, state);
      const View bias = m.in("bias", {Vp}), nll3 = m.f32("nll3", {N}), lse3 = m.f32("lse3", {N});
      head_loss_forward(c.ctx(), nll3, lse3, x, weight, targets, V, 8, {}, {}, bias);
      head_loss_backward(c.ctx(), m.out("dx3", {N, C}), {m.f32("dweight3", {Vp, C}), false}, nll,
                         lse3, x, weight, targets, V, 8, {}, bias, {m.f32("dbias3", {Vp}), false});
      head_loss_train(c.ctx(), m.out("dx4", {N, C}), {}, x, weight, targets, V, 8, state, {}, bias,
                      {m.f32("dbias4", {Vp}), false});
      head_logits(c.ctx(), m.f32("logits", {N, Vp}), x, weight, {}, bias);
    });
  }
  return cases;
}

}  // namespace snug::test
