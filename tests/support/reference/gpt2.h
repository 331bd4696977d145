// The loss of GPT-2 on a scalar S, from the formulas alone, with the masks of dropout drawn from
// their keys: what a training step computes the gradient of.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/support/reference/activation.h"
#include "tests/support/reference/attention.h"
#include "tests/support/reference/dropout.h"
#include "tests/support/reference/embedding.h"
#include "tests/support/reference/head_loss.h"
#include "tests/support/reference/layernorm.h"

namespace snug::test {

struct Gpt2Case {
  int64_t L = 1, C = 1, F = 1, H = 1, V = 1, B = 1, T = 1;
  double epsilon = 1e-5;
  bool tied = true, erf = false;        // erf: the exact GELU, otherwise by tanh
  std::vector<double> tokens, targets;  // (B,T); a target of -100 is ignored
  std::vector<double> document_start;   // (B,T), empty: zeros
  float embedding_dropout = 0, attention_dropout = 0, residual_dropout = 0;
  uint64_t seed = 0, step = 0, first_sample = 0;
};

// By the names of the published file without "transformer."; linear weights are (in,out).
template <class S>
using Gpt2Weights = std::map<std::string, std::vector<S>>;

// x (n,in) times weight (in,out) plus bias (out).
template <class S>
std::vector<S> conv1d_reference(const std::vector<S>& x, const std::vector<S>& weight,
                                const std::vector<S>& bias) {
  const size_t out = bias.size(), in = weight.size() / out, n = x.size() / in;
  std::vector<S> y;
  y.reserve(n * out);
  for (size_t i = 0; i < n; ++i) {
    y.insert(y.end(), bias.begin(), bias.end());
    for (size_t k = 0; k < in; ++k)
      for (size_t j = 0; j < out; ++j) y[i * out + j] += x[i * in + k] * weight[k * out + j];
  }
  return y;
}

// Sites of dropout: 0 the embedding's; of layer l 4 l + 1 attention, 4 l + 2 the attention's
// branch, 4 l + 3 the MLP's.
template <class S>
void drop_reference(const Gpt2Case& c, float p, int64_t site, std::vector<S>* x) {
  if (p == 0) return;
  const std::vector<double> factors = dropout_factors_reference(
      c.B, c.T, c.C, p, c.seed, c.step, static_cast<uint32_t>(site), c.first_sample);
  for (size_t i = 0; i < x->size(); ++i) (*x)[i] *= factors[i];
}

// The mean over trained targets.
template <class S>
S gpt2_loss_reference(const Gpt2Case& c, const Gpt2Weights<S>& w) {
  const auto norm = [&](const std::vector<S>& x, const std::string& name) {
    return layernorm_reference(x, w.at(name + ".weight"), w.at(name + ".bias"), c.epsilon).y;
  };
  const auto linear = [&](const std::vector<S>& x, const std::string& name) {
    return conv1d_reference(x, w.at(name + ".weight"), w.at(name + ".bias"));
  };
  std::vector<S> x =
      embedding_reference(w.at("wte.weight"), w.at("wpe.weight"), c.tokens,
                          static_cast<size_t>(c.T), static_cast<size_t>(c.C), 0, c.document_start);
  drop_reference(c, c.embedding_dropout, 0, &x);
  AttentionCase attention;
  attention.B = c.B;
  attention.T = c.T;
  attention.H = attention.G = c.H;
  attention.D = c.C / c.H;
  attention.scale = 1 / std::sqrt(static_cast<double>(attention.D));
  attention.document_start = c.document_start;
  for (int64_t l = 0; l < c.L; ++l) {
    const std::string h = "h." + std::to_string(l);
    if (c.attention_dropout > 0)
      attention.mask =
          attention_factors_reference(c.B, c.H, c.T, c.attention_dropout, c.seed, c.step,
                                      static_cast<uint32_t>(4 * l + 1), c.first_sample);
    std::vector<S> branch =
        linear(attention_reference(attention, linear(norm(x, h + ".ln_1"), h + ".attn.c_attn")),
               h + ".attn.c_proj");
    drop_reference(c, c.residual_dropout, 4 * l + 2, &branch);
    for (size_t i = 0; i < x.size(); ++i) x[i] += branch[i];
    branch = linear(norm(x, h + ".ln_2"), h + ".mlp.c_fc");
    for (S& y : branch) y = c.erf ? gelu_erf_reference(y) : gelu_tanh_reference(y);
    branch = linear(branch, h + ".mlp.c_proj");
    drop_reference(c, c.residual_dropout, 4 * l + 3, &branch);
    for (size_t i = 0; i < x.size(); ++i) x[i] += branch[i];
  }
  HeadCase head{c.B * c.T, c.C, c.V, c.V, c.targets};
  S sum = 0;
  double trained = 0;
  for (const S& nll : head_loss_reference(
           head, norm(x, "ln_f"), w.at(c.tied ? "wte.weight" : "lm_head.weight"), std::vector<S>()))
    sum += nll;
  for (const double target : c.targets) trained += target != -100;
  return sum / trained;
}

}  // namespace snug::test
