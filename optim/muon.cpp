#include "optim/muon.h"

#include <algorithm>
#include <cmath>

#include "engine/blas/matmul.h"
#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/kernels/loops.h"
#include "optim/muon_simt.h"
#include "optim/rules/muon.h"

namespace snug {
namespace {

constexpr int64_t kMuonGrain = 16 * 1024;  // elements a task

MuonNumbers muon_numbers(const OptimizerConfig& c) {
  const std::vector<OptimSetting> settings = Muon::settings();
  const auto number = [&](const char* name) { return optim_arg(c, settings, name); };
  return {static_cast<float>(number("momentum")), static_cast<float>(1.0 - number("momentum")),
          static_cast<float>(number("eps")),      number("nesterov") != 0,
          static_cast<int>(number("ns_steps")),   static_cast<float>(number("ns_a")),
          static_cast<float>(number("ns_b")),     static_cast<float>(number("ns_c")),
          number("match_rms_adamw") != 0,         number("ns_bf16") != 0};
}

// to = factor x.
void muon_scaled(Context& ctx, const View& to, const View& x, float factor) {
  Op op(ctx, "muon_scaled", {.flops = x.elements(), .bytes = x.bytes() + to.bytes()});
  if (!op.run()) return;
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) { muon_scaled_on(queue, to, x, factor); });
  dispatch_float(x, "x", [&](auto from) {
    dispatch_float(to, "to", [&](auto tag) {
      using To = decltype(tag);
      const auto* in = x.as<const decltype(from)>();
      auto* out = to.as<To>();
      parallel_chunks(ctx.threads(), x.elements(), kMuonGrain, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) out[i] = from_f32<To>(to_f32(in[i]) * factor);
      });
    });
  });
}

// to = x / max(|x|, epsilon), its sums in the order of whole.h.
void muon_normalize(Context& ctx, const View& to, const View& x, float epsilon) {
  static const Name sums_name("muon.sums");
  const int64_t n = x.elements(), chunks = ceil_div(n, kChunkElements);
  const Tensor sums = ctx.tensor(sums_name, {chunks + 1}, DType::f64, Category::workspace);
  Op op(ctx, "muon_normalize", {.flops = 3 * n, .bytes = 2 * x.bytes() + to.bytes()});
  if (!op.run()) return;
  if (ctx.by_kernels())
    return on_queue(ctx,
                    [&](auto& queue) { muon_normalize_on(queue, epsilon, to, x, sums.view()); });
  auto* const all = sums.view().as<double>();
  const auto* in = x.as<const float>();
  parallel_for(ctx.threads(), chunks, [=](int64_t c) {
    double lanes[kNormLanes] = {};
    const int64_t begin = c * kChunkElements, end = std::min(n, begin + kChunkElements);
    for (int64_t i = begin; i < end; i += kNormLanes)
      for (int64_t j = 0; j < std::min<int64_t>(kNormLanes, end - i); ++j)
        lanes[j] += double{in[i + j]} * double{in[i + j]};
    for (int half = kNormLanes / 2; half > 0; half /= 2)
      for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
    all[c] = lanes[0];
  });
  double sum = 0;
  for (int64_t c = 0; c < chunks; ++c) sum += all[c];
  const auto norm = static_cast<float>(std::max(std::sqrt(sum), double{epsilon}));
  dispatch_float(to, "to", [&](auto tag) {
    using To = decltype(tag);
    auto* out = to.as<To>();
    parallel_chunks(ctx.threads(), n, kMuonGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = from_f32<To>(in[i] / norm);
    });
  });
}

template <class Gradient>
void move_momentum(const MuonNumbers& m, float factor, bool first,
                   const Gradient* __restrict gradient, float* __restrict momentum,
                   float* __restrict to, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const float g = to_f32(gradient[i]) * factor, before = first ? 0.0f : momentum[i];
    const float b = before + m.take * (g - before);
    momentum[i] = b;
    to[i] = m.nesterov ? g + m.momentum * (b - g) : b;
  }
}

}  // namespace

MuonOptimizer::MuonOptimizer(OptimizerConfig config, const std::vector<OptimState>& states,
                             const char* op_name, int64_t flops, OptimReach reach)
    : DirectedOptimizer(std::move(config), states, op_name, flops, reach),
      numbers_(muon_numbers(this->config())) {}

bool MuonOptimizer::directs(const StateStore&, const StateSpan& span) const {
  return !pieces_of(config(), span.param).empty();
}

void MuonOptimizer::orthogonalize(Context& ctx, const View& y) const {
  static const Name x_name("muon.x"), square_name("muon.square"), sum_name("muon.polynomial");
  const int64_t rows = y.shape[0], columns = y.shape[1], m = std::min(rows, columns);
  const bool tall = rows > columns;
  const DType dtype = numbers_.bf16 ? DType::bf16 : DType::f32;
  const Tensor x = ctx.tensor(x_name, {rows, columns}, dtype, Category::workspace);
  const Tensor square = ctx.tensor(square_name, {m, m}, dtype, Category::workspace);
  const Tensor sum = ctx.tensor(sum_name, {m, m}, DType::f32, Category::workspace);
  muon_normalize(ctx, x, y, numbers_.epsilon);
  for (int step = 0; step < numbers_.steps; ++step) {
    if (step > 0) muon_scaled(ctx, x, y, 1.0f);
    matmul(ctx, square, x, x, {.transpose_a = tall, .transpose_b = !tall});
    // b s + c s s, as c (b / c s + s s).
    muon_scaled(ctx, sum, square, numbers_.b / numbers_.c);
    matmul(ctx, sum, square, square, {.add = true});
    muon_scaled(ctx, square, sum, numbers_.c);
    muon_scaled(ctx, y, x, numbers_.a);
    if (tall)
      matmul(ctx, y, x, square, {.add = true});
    else
      matmul(ctx, y, square, x, {.add = true});
  }
  const auto r = static_cast<double>(rows), k = static_cast<double>(columns);
  const double scale =
      numbers_.match_rms ? 0.2 * std::sqrt(std::max(r, k)) : std::sqrt(std::max(1.0, r / k));
  if (scale != 1) muon_scaled(ctx, y, y, static_cast<float>(scale));
}

void MuonOptimizer::direct(Context& ctx, const UpdateTargets& t, StateStore& store,
                           const StateSpan& span, const View& state) const {
  static const Name name("muon.direction");
  const std::span<const OptimPiece> pieces = pieces_of(config(), span.param);
  int64_t rows = 0;
  for (const OptimPiece& p : pieces) rows += p.rows;
  require(rows > 0 && span.elements % rows == 0, "pieces that are the rows of a matrix");
  const View momentum = store.acquire(ctx, 0, span);
  const View gradient = t.gradients.rows(span.offset - t.first, span.elements);
  const Tensor direction =
      ctx.tensor(name, {rows, span.elements / rows}, DType::f32, Category::workspace);
  {
    Op op(ctx, "muon_momentum",
          {.flops = 6 * span.elements,
           .bytes = gradient.bytes() + 2 * momentum.bytes() + direction.view().bytes()});
    if (op.run()) {
      if (t.gate) t.gate->pass(span.param);
      if (ctx.by_kernels()) {
        on_queue(ctx, [&](auto& queue) {
          muon_momentum_on(queue, numbers_, direction.view(), momentum, gradient, state);
        });
      } else {
        const StepState& s = *step_state(state);
        auto* const to = direction.view().as<float>();
        auto* const b = momentum.as<float>();
        const auto factor = static_cast<float>(double{s.clip_factor} / double{s.loss_scale});
        const bool skipped = s.found_inf != 0, first = s.updates == 0;
        const bool wide = gradient.dtype == DType::f32;
        parallel_chunks(ctx.threads(), span.elements, kMuonGrain, [&](int64_t begin, int64_t end) {
          if (skipped)
            std::fill(to + begin, to + end, 0.0f);
          else if (wide)
            move_momentum(numbers_, factor, first, gradient.as<const float>(), b, to, begin, end);
          else
            move_momentum(numbers_, factor, first, gradient.as<const bf16>(), b, to, begin, end);
        });
      }
    }
  }
  store.release(ctx, 0, span);
  int64_t row = 0;
  for (const OptimPiece& p : pieces) {
    orthogonalize(ctx, direction.view().rows(row, p.rows));
    row += p.rows;
  }
  follow(ctx, t, store, span, 0, direction.view().reshaped({span.elements}), state);
}

}  // namespace snug
