#include "layers/adapters/prompt_lstm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "engine/blas/matmul.h"
#include "engine/core/parallel.h"
#include "engine/kernels/kernels.h"
#include "layers/ops/column_fold.h"
#include "layers/ops/lstm_cell.h"

namespace snug {
namespace {

enum Of { kInput, kHidden, kInputBias, kHiddenBias };

// Of a layer's direction, in the order of torch's state.
int index_of(int layer, int direction, Of what) {
  return 8 * layer + 4 * direction + what;
}

// The k-th token that a direction reads.
int64_t token(int64_t n, int direction, int64_t k) {
  return direction == 0 ? k : n - 1 - k;
}

FoldedColumns half(int direction, int64_t H) {
  return {direction * H, H, false};
}

}  // namespace

void PromptLstm::add_params(std::vector<AdapterParam>& list, const std::string& owner) const {
  constexpr const char* kNames[] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"};
  for (int l = 0; l < layers; ++l)
    for (int d = 0; d < 2; ++d)
      for (int k = 0; k < 4; ++k) {
        const bool matrix = k < 2;
        const int64_t width = k == kHidden ? hidden : l == 0 ? in : 2 * hidden;
        const Name end(fmt::format("prompt_encoder.lstm_head.{}_l{}{}", kNames[k], l,
                                   d == 0 ? "" : "_reverse"));
        list.push_back({.name = owner + "." + end.str(),
                        .end = end.c_str(),
                        .shape = matrix ? Shape{4 * hidden, width} : Shape{4 * hidden},
                        .group = matrix ? kGroupDecay : kGroupNoDecay,
                        .init = Init::uniform,
                        .init_std = 1.0f / std::sqrt(static_cast<float>(hidden)),
                        .piece = 0,
                        .matrix = matrix,
                        .whole_name = true});
      }
}

std::vector<PromptLstm::Layer> PromptLstm::run(Context& ctx, ParamStore& params, const int* indices,
                                               const View& x) const {
  static const Name kGates("prompt_encoder.gates"), kH("prompt_encoder.h"), kC("prompt_encoder.c"),
      kMade("prompt_encoder.lstm"), kZero("prompt_encoder.zero");
  std::vector<Layer> all;
  const DType dtype = x.dtype;
  const Tensor zero = ctx.tensor(kZero, {1, hidden}, dtype, Category::workspace);
  fill_zero(ctx, zero);
  for (int l = 0; l < layers; ++l) {
    const View read = l == 0 ? x : all.back().made.view();
    Layer layer;
    layer.made = ctx.tensor(kMade, {n, 2 * hidden}, dtype, Category::workspace);
    for (int d = 0; d < 2; ++d) {
      const auto param = [&](Of what) { return indices[index_of(l, d, what)]; };
      Direction& own = layer.directions[d];
      own = {ctx.tensor(kGates, {n, 4 * hidden}, dtype, Category::workspace),
             ctx.tensor(kH, {n, hidden}, dtype, Category::workspace),
             ctx.tensor(kC, {n, hidden}, dtype, Category::workspace)};
      matmul(ctx, own.gates, read, params.acquire(ctx, param(kInput)),
             {.transpose_b = true, .bias = params.acquire(ctx, param(kInputBias))});
      params.release(ctx, param(kInput));
      params.release(ctx, param(kInputBias));
      const View w = params.acquire(ctx, param(kHidden)),
                 b = params.acquire(ctx, param(kHiddenBias));
      for (int64_t k = 0; k < n; ++k) {
        const int64_t t = token(n, d, k), before = token(n, d, k - 1);
        const View gates = own.gates.view().rows(t, 1);
        matmul(ctx, gates, k == 0 ? zero.view() : own.h.view().rows(before, 1), w,
               {.transpose_b = true, .add = true, .bias = b});
        lstm_cell_forward(ctx, own.h.view().rows(t, 1), own.c.view().rows(t, 1), gates,
                          k == 0 ? View() : own.c.view().rows(before, 1));
      }
      params.release(ctx, param(kHidden));
      params.release(ctx, param(kHiddenBias));
      column_lay(ctx, {layer.made.view(), false}, own.h, half(d, hidden));
    }
    all.push_back(std::move(layer));
  }
  return all;
}

void PromptLstm::backward(Context& ctx, ParamStore& params, GradSink& grads, const int* indices,
                          std::vector<Layer>& made, const View& x, Tensor dmade,
                          const GradView& dx) const {
  static const Name kDh("prompt_encoder.dh"), kDc("prompt_encoder.dc"),
      kDmade("prompt_encoder.dlstm");
  for (int l = layers - 1; l >= 0; --l) {
    const View read = l == 0 ? x : made[static_cast<size_t>(l - 1)].made.view();
    Tensor dread;
    if (l > 0) dread = ctx.tensor(kDmade, {n, 2 * hidden}, read.dtype, Category::workspace);
    for (int d = 0; d < 2; ++d) {
      const auto param = [&](Of what) { return indices[index_of(l, d, what)]; };
      Direction& own = made[static_cast<size_t>(l)].directions[d];
      const View gates = own.gates.view(), h = own.h.view(), c = own.c.view();
      const Tensor dh = ctx.tensor(kDh, {n, hidden}, read.dtype, Category::workspace),
                   dc = ctx.tensor(kDc, {1, hidden}, read.dtype, Category::workspace);
      column_fold(ctx, dh, dmade, half(d, hidden));
      fill_zero(ctx, dc);
      const View w = params.acquire(ctx, param(kHidden));
      for (int64_t k = n - 1; k >= 0; --k) {
        const int64_t t = token(n, d, k), before = token(n, d, k - 1);
        lstm_cell_backward(ctx, gates.rows(t, 1), dc, dh.view().rows(t, 1), gates.rows(t, 1),
                           c.rows(t, 1), k == 0 ? View() : c.rows(before, 1));
        if (k > 0) matmul(ctx, dh.view().rows(before, 1), gates.rows(t, 1), w, {.add = true});
      }
      params.release(ctx, param(kHidden));
      // Gates are their gradients from here on.
      const GradView dw = grads.open(ctx, param(kInput));
      matmul(ctx, dw.view, gates, read, {.transpose_a = true, .add = dw.add});
      grads.close(ctx, param(kInput));
      const GradView drecurrent = grads.open(ctx, param(kHidden));
      if (n > 1)
        matmul(ctx, drecurrent.view, gates.rows(d == 0 ? 1 : 0, n - 1),
               h.rows(d == 0 ? 0 : 1, n - 1), {.transpose_a = true, .add = drecurrent.add});
      else if (!drecurrent.add)
        fill_zero(ctx, drecurrent.view);
      grads.close(ctx, param(kHidden));
      for (const Of bias : {kInputBias, kHiddenBias}) {
        column_sum(ctx, grads.open(ctx, param(bias)), gates);
        grads.close(ctx, param(bias));
      }
      const View to = l == 0 ? dx.view : dread.view();
      matmul(ctx, to, gates, params.acquire(ctx, param(kInput)),
             {.add = d > 0 || (l == 0 && dx.add)});
      params.release(ctx, param(kInput));
    }
    dmade = std::move(dread);
    made.pop_back();
  }
}

void each_row(const ParamValues& of, const AdapterParam& weight, int threads,
              const std::function<void(int64_t row, const float* values)>& f) {
  constexpr int64_t kBlock = 64 << 10;  // elements of a weight that are held at a time
  const int64_t out = weight.shape[0], in = weight.shape[1];
  const int64_t block = std::clamp<int64_t>(kBlock / in, 1, out);
  std::vector<float> w(static_cast<size_t>(block * in));
  for (int64_t first = 0; first < out; first += block) {
    const int64_t count = std::min(block, out - first);
    of(weight.name, first * in, std::span(w).first(static_cast<size_t>(count * in)));
    parallel_for(threads, count, [&](int64_t k) { f(first + k, w.data() + k * in); });
  }
}

std::vector<float> PromptLstm::values(const ParamValues& of, const AdapterParam* params,
                                      std::vector<float> x, int threads) const {
  const auto dot = [](const float* a, const float* b, int64_t size) {
    double sum = 0;
    for (int64_t i = 0; i < size; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    return sum;
  };
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  const int64_t H = hidden;
  for (int l = 0; l < layers; ++l) {
    const int64_t width = l == 0 ? in : 2 * H;
    std::vector<float> made(static_cast<size_t>(n * 2 * H));
    for (int d = 0; d < 2; ++d) {
      const auto param = [&](Of what) -> const AdapterParam& {
        return params[index_of(l, d, what)];
      };
      std::vector<float> b(static_cast<size_t>(4 * H)), recurrent(b.size());
      of(param(kInputBias).name, 0, b);
      of(param(kHiddenBias).name, 0, recurrent);
      std::vector<double> gates(static_cast<size_t>(n * 4 * H)), c(static_cast<size_t>(H));
      each_row(of, param(kInput), threads, [&](int64_t j, const float* w) {
        for (int64_t t = 0; t < n; ++t)
          gates[static_cast<size_t>(t * 4 * H + j)] =
              static_cast<double>(b[static_cast<size_t>(j)]) +
              static_cast<double>(recurrent[static_cast<size_t>(j)]) +
              dot(w, x.data() + t * width, width);
      });
      std::vector<float> h(static_cast<size_t>(H), 0.0f);
      for (int64_t k = 0; k < n; ++k) {
        const int64_t t = token(n, d, k);
        double* const own = gates.data() + t * 4 * H;
        if (k > 0)
          each_row(of, param(kHidden), threads,
                   [&](int64_t j, const float* w) { own[j] += dot(w, h.data(), H); });
        for (int64_t j = 0; j < H; ++j) {
          double& state = c[static_cast<size_t>(j)];
          state = sigmoid(own[H + j]) * state + sigmoid(own[j]) * std::tanh(own[2 * H + j]);
          h[static_cast<size_t>(j)] =
              static_cast<float>(sigmoid(own[3 * H + j]) * std::tanh(state));
        }
        std::copy(h.begin(), h.end(), made.begin() + t * 2 * H + d * H);
      }
    }
    x = std::move(made);
  }
  return x;
}

}  // namespace snug
