#include "layers/adapters/prompt_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "engine/blas/matmul.h"
#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/kernels.h"
#include "engine/seams/grad_sink.h"
#include "engine/seams/param_store.h"
#include "layers/parts/wiring.h"

namespace snug {
namespace {

const char* file_name(const std::string& head, int layer, bool bias) {
  if (head == "transform")
    return layer == 0
               ? (bias ? "prompt_encoder.transform.0.bias" : "prompt_encoder.transform.0.weight")
               : (bias ? "prompt_encoder.transform.2.bias" : "prompt_encoder.transform.2.weight");
  constexpr const char* kNames[3][2] = {
      {"prompt_encoder.mlp_head.0.weight", "prompt_encoder.mlp_head.0.bias"},
      {"prompt_encoder.mlp_head.2.weight", "prompt_encoder.mlp_head.2.bias"},
      {"prompt_encoder.mlp_head.4.weight", "prompt_encoder.mlp_head.4.bias"}};
  return kNames[layer][bias ? 1 : 0];
}

}  // namespace

PromptEncoder::PromptEncoder(PromptEncoderShape shape, std::string owner)
    : s_(shape), owner_(std::move(owner)) {}

std::vector<AdapterParam> PromptEncoder::params() const {
  std::vector<AdapterParam> list;
  const auto add = [&](const char* end, Shape shape, Init init, float std, bool matrix) {
    list.push_back({.name = owner_ + "." + end,
                    .end = end,
                    .shape = shape,
                    .group = matrix ? kGroupDecay : kGroupNoDecay,
                    .init = init,
                    .init_std = std,
                    .piece = 0,
                    .matrix = matrix,
                    .whole_name = true});
  };
  add("prompt_encoder.embedding.weight", {s_.n, s_.in}, Init::normal, 1, true);
  for (int l = 0; l < s_.layers; ++l) {
    const int64_t in = l == 0 ? s_.in : s_.inner, out = l + 1 == s_.layers ? s_.out : s_.inner;
    const float most = 1.0f / std::sqrt(static_cast<float>(in));
    add(file_name(s_.head, l, false), {out, in}, Init::uniform, most, true);
    add(file_name(s_.head, l, true), {out}, Init::uniform, most, false);
  }
  return list;
}

void PromptEncoder::find(const ParamTable& table) {
  for (const AdapterParam& p : params()) indices_.push_back(table.find(p.name));
}

void PromptEncoder::add_to(Wiring& w) {
  for (const AdapterParam& p : params()) indices_.push_back(add_adapter_param(w, p));
}

std::vector<PromptEncoder::Inner> PromptEncoder::run(Context& ctx, ParamStore& params) const {
  static const Name kBefore("prompt_encoder.before"), kBehind("prompt_encoder.behind");
  std::vector<Inner> inner;
  for (int l = 0; l + 1 < s_.layers; ++l) {
    const View x = l == 0 ? params.acquire(ctx, indices_[0]) : inner.back().behind.view();
    const View w = params.acquire(ctx, weight(l)), b = params.acquire(ctx, bias(l));
    Inner made{ctx.tensor(kBefore, {s_.n, s_.inner}, w.dtype, Category::workspace),
               ctx.tensor(kBehind, {s_.n, s_.inner}, w.dtype, Category::workspace)};
    matmul(ctx, made.before, x, w, {.transpose_b = true, .bias = b});
    activation_forward(ctx, made.behind, made.before, s_.activation);
    params.release(ctx, weight(l));
    params.release(ctx, bias(l));
    if (l == 0) params.release(ctx, indices_[0]);
    inner.push_back(std::move(made));
  }
  return inner;
}

void PromptEncoder::forward(Context& ctx, ParamStore& params, const View& rows,
                            int64_t first) const {
  const std::vector<Inner> inner = run(ctx, params);
  const int last = s_.layers - 1;
  const int64_t count = rows.shape[1];
  matmul(ctx, rows, inner.back().behind, params.acquire(ctx, weight(last)).rows(first, count),
         {.transpose_b = true, .bias = params.acquire(ctx, bias(last)).rows(first, count)});
  params.release(ctx, weight(last));
  params.release(ctx, bias(last));
}

void PromptEncoder::backward(Context& ctx, ParamStore& params, GradSink& grads, const View& drows,
                             int64_t first, bool close) const {
  static const Name kGradient("prompt_encoder.dbehind");
  std::vector<Inner> inner = run(ctx, params);
  const int64_t count = drows.shape[1];
  // The part of a gradient that belongs to the columns; the first contribution clears the others.
  const auto open = [&](int param, int64_t at, int64_t rows) {
    GradView g = grads.open(ctx, param);
    if (rows == g.view.shape[0]) return g;
    if (!g.add) fill_zero(ctx, g.view);
    return GradView{g.view.rows(at, rows), true};
  };
  const auto done = [&](int param) {
    if (close) grads.close(ctx, param);
  };
  View dy = drows;
  Tensor holds;
  for (int l = s_.layers - 1; l >= 0; --l) {
    const bool last = l + 1 == s_.layers;
    const int64_t at = last ? first : 0, out = last ? count : s_.inner;
    const View x =
        l == 0 ? params.acquire(ctx, indices_[0]) : inner[static_cast<size_t>(l - 1)].behind.view();
    const GradView dw = open(weight(l), at, out);
    matmul(ctx, dw.view, dy, x, {.transpose_a = true, .add = dw.add});
    done(weight(l));
    column_sum(ctx, open(bias(l), at, out), dy);
    done(bias(l));
    const View w = params.acquire(ctx, weight(l)).rows(at, out);
    if (l == 0) {
      const GradView dx = grads.open(ctx, indices_[0]);
      matmul(ctx, dx.view, dy, w, {.add = dx.add});
      done(indices_[0]);
      params.release(ctx, indices_[0]);
    } else {
      Tensor dx = ctx.tensor(kGradient, {s_.n, s_.inner}, dy.dtype, Category::workspace);
      matmul(ctx, dx, dy, w, {});
      activation_backward(ctx, dx, dx, inner[static_cast<size_t>(l - 1)].before, s_.activation);
      holds = std::move(dx);
      dy = holds.view();
    }
    params.release(ctx, weight(l));
    if (l > 0) inner.pop_back();
  }
}

std::vector<float> PromptEncoder::values(const ParamValues& of, int threads) const {
  constexpr int64_t kBlock = 64 << 10;  // elements of a weight that are held at a time
  const std::vector<AdapterParam> list = params();
  std::vector<float> x(static_cast<size_t>(s_.n * s_.in));
  of(list[0].name, 0, x);
  for (int l = 0; l < s_.layers; ++l) {
    const AdapterParam &weight = list[static_cast<size_t>(1 + 2 * l)],
                       &bias = list[static_cast<size_t>(2 + 2 * l)];
    const int64_t out = weight.shape[0], in = weight.shape[1];
    const int64_t block = std::clamp<int64_t>(kBlock / in, 1, out);
    std::vector<float> y(static_cast<size_t>(s_.n * out)), w(static_cast<size_t>(block * in)),
        b(static_cast<size_t>(out));
    of(bias.name, 0, b);
    for (int64_t first = 0; first < out; first += block) {
      const int64_t count = std::min(block, out - first);
      of(weight.name, first * in, std::span(w).first(static_cast<size_t>(count * in)));
      parallel_for(threads, count, [&](int64_t k) {
        const float* const own = w.data() + k * in;
        for (int64_t row = 0; row < s_.n; ++row) {
          const float* const from = x.data() + row * in;
          double sum = static_cast<double>(b[static_cast<size_t>(first + k)]);
          for (int64_t c = 0; c < in; ++c)
            sum += static_cast<double>(own[c]) * static_cast<double>(from[c]);
          if (l + 1 < s_.layers)
            sum = s_.activation == Activation::tanh ? std::tanh(sum) : std::max(sum, 0.0);
          y[static_cast<size_t>(row * out + first + k)] = static_cast<float>(sum);
        }
      });
    }
    x = std::move(y);
  }
  return x;
}

}  // namespace snug
