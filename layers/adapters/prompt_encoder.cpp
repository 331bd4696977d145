#include "layers/adapters/prompt_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/blas/matmul.h"
#include "engine/core/error.h"
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
    : s_(shape),
      lstm_{shape.n, shape.in, shape.lstm_hidden, shape.lstm_layers},
      owner_(std::move(owner)) {}

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
  lstm_.add_params(list, owner_);
  for (int l = 0; l < s_.layers; ++l) {
    const int64_t in = read_width(l), out = l + 1 == s_.layers ? s_.out : s_.inner;
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

View PromptEncoder::read(Context& ctx, ParamStore& params, const Run& run, int layer) const {
  if (layer > 0) return run.inner[static_cast<size_t>(layer - 1)].behind.view();
  return lstm_.any() ? run.lstm.back().made.view() : params.acquire(ctx, indices_[0]);
}

void PromptEncoder::release(Context& ctx, ParamStore& params, int layer) const {
  if (layer == 0 && !lstm_.any()) params.release(ctx, indices_[0]);
}

PromptEncoder::Run PromptEncoder::run(Context& ctx, ParamStore& params) const {
  static const Name kBefore("prompt_encoder.before"), kBehind("prompt_encoder.behind");
  Run made;
  if (lstm_.any()) {
    made.lstm = lstm_.run(ctx, params, &indices_[1], params.acquire(ctx, indices_[0]));
    params.release(ctx, indices_[0]);
  }
  for (int l = 0; l + 1 < s_.layers; ++l) {
    const View x = read(ctx, params, made, l);
    const View w = params.acquire(ctx, weight(l)), b = params.acquire(ctx, bias(l));
    Inner own{ctx.tensor(kBefore, {s_.n, s_.inner}, w.dtype, Category::workspace),
              ctx.tensor(kBehind, {s_.n, s_.inner}, w.dtype, Category::workspace)};
    matmul(ctx, own.before, x, w, {.transpose_b = true, .bias = b});
    activation_forward(ctx, own.behind, own.before, s_.activation);
    params.release(ctx, weight(l));
    params.release(ctx, bias(l));
    release(ctx, params, l);
    made.inner.push_back(std::move(own));
  }
  return made;
}

void PromptEncoder::forward(Context& ctx, ParamStore& params, const View& rows,
                            int64_t first) const {
  const Run made = run(ctx, params);
  const int last = s_.layers - 1;
  const int64_t count = rows.shape[1];
  matmul(ctx, rows, made.inner.back().behind, params.acquire(ctx, weight(last)).rows(first, count),
         {.transpose_b = true, .bias = params.acquire(ctx, bias(last)).rows(first, count)});
  params.release(ctx, weight(last));
  params.release(ctx, bias(last));
}

void PromptEncoder::backward(Context& ctx, ParamStore& params, GradSink& grads, const View& drows,
                             int64_t first, bool close) const {
  static const Name kGradient("prompt_encoder.dbehind"), kLstm("prompt_encoder.dlstm");
  Run made = run(ctx, params);
  std::vector<Inner>& inner = made.inner;
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
    const View x = read(ctx, params, made, l);
    const GradView dw = open(weight(l), at, out);
    matmul(ctx, dw.view, dy, x, {.transpose_a = true, .add = dw.add});
    done(weight(l));
    column_sum(ctx, open(bias(l), at, out), dy);
    done(bias(l));
    const View w = params.acquire(ctx, weight(l)).rows(at, out);
    if (l == 0 && lstm_.any()) {
      require(close, "one reader of what an LSTM makes");
      Tensor dx = ctx.tensor(kLstm, x.shape, dy.dtype, Category::workspace);
      matmul(ctx, dx, dy, w, {});
      lstm_.backward(ctx, params, grads, &indices_[1], made.lstm, params.acquire(ctx, indices_[0]),
                     std::move(dx), grads.open(ctx, indices_[0]));
      params.release(ctx, indices_[0]);
      done(indices_[0]);
    } else if (l == 0) {
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
  const std::vector<AdapterParam> list = params();
  std::vector<float> x(static_cast<size_t>(s_.n * s_.in));
  of(list[0].name, 0, x);
  if (lstm_.any()) x = lstm_.values(of, &list[1], std::move(x), threads);
  for (int l = 0; l < s_.layers; ++l) {
    const AdapterParam* const weight = &list[first_linear() + 2 * static_cast<size_t>(l)];
    const AdapterParam& bias = weight[1];
    const int64_t out = weight->shape[0], in = weight->shape[1];
    std::vector<float> y(static_cast<size_t>(s_.n * out)), b(static_cast<size_t>(out));
    of(bias.name, 0, b);
    each_row(of, *weight, threads, [&](int64_t j, const float* own) {
      for (int64_t row = 0; row < s_.n; ++row) {
        const float* const from = x.data() + row * in;
        double sum = static_cast<double>(b[static_cast<size_t>(j)]);
        for (int64_t c = 0; c < in; ++c)
          sum += static_cast<double>(own[c]) * static_cast<double>(from[c]);
        if (l + 1 < s_.layers)
          sum = s_.activation == Activation::tanh ? std::tanh(sum) : std::max(sum, 0.0);
        y[static_cast<size_t>(row * out + j)] = static_cast<float>(sum);
      }
    });
    x = std::move(y);
  }
  return x;
}

}  // namespace snug
