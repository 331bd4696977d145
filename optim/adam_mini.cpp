#include "optim/adam_mini.h"

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/units.h"
#include "engine/kernels/kernel_queue.h"
#include "optim/adam_mini_simt.h"

namespace snug {
namespace {

constexpr int64_t kMiniGrain = 16 * 1024;  // elements a task

template <class Gradient>
double sum_of_squares(const Gradient* gradient, float factor, int64_t n) {
  double lanes[kNormLanes] = {};
  for (int64_t i = 0; i < n; i += kNormLanes)
    for (int64_t j = 0; j < std::min<int64_t>(kNormLanes, n - i); ++j) {
      const float g = to_f32(gradient[i + j]) * factor;
      lanes[j] += double{g} * double{g};
    }
  for (int half = kNormLanes / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  return lanes[0];
}

template <class Gradient>
void move_squares(int threads, const AdamMiniNumbers& numbers, float factor, bool first,
                  const Gradient* gradient, int64_t length, int64_t blocks, float* squares) {
  const int64_t each = std::max<int64_t>(1, kMiniGrain / length);
  parallel_chunks(threads, blocks, each, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const double sum = sum_of_squares(gradient + b * length, factor, length);
      const float mean = static_cast<float>(sum / static_cast<double>(length));
      squares[b] = numbers.beta2 * (first ? 0.0f : squares[b]) + numbers.one_minus_beta2 * mean;
    }
  });
}

template <class Gradient>
void find_direction(int threads, const AdamMiniNumbers& numbers, const StepState& s,
                    const Gradient* __restrict gradient, int64_t length, int64_t from, int64_t n,
                    const float* __restrict squares, float* __restrict momentum,
                    float* __restrict to) {
  const auto factor = static_cast<float>(double{s.clip_factor} / double{s.loss_scale});
  const auto scale = static_cast<float>(1.0 / std::sqrt(double{s.bias_correction2}));
  const bool first = s.updates == 0;
  parallel_chunks(threads, n, kMiniGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const int64_t block = (from + i) / length, last = std::min(end, (block + 1) * length - from);
      const float below = std::sqrt(squares[block]) * scale + numbers.epsilon;
      for (; i < last; ++i) {
        const float g = to_f32(gradient[i]) * factor, before = first ? 0.0f : momentum[i];
        const float m = before + numbers.one_minus_beta1 * (g - before);
        momentum[i] = m;
        to[i] = m / below;
      }
    }
  });
}

}  // namespace

int64_t blocks_of(const ParamInfo& param, std::span<const OptimPiece> pieces) {
  if (!pieces.empty()) {
    int64_t blocks = 0;
    for (const OptimPiece& p : pieces) blocks += p.head > 0 ? p.rows / p.head : p.rows;
    return blocks;
  }
  // One row or one column is a vector of scales, whose elements are, like a bias's, their own blocks.
  if (param.shape.rank() == 2)
    return std::min(param.shape[0], param.shape[1]) > 1 ? param.rows : -1;
  return param.name.view().ends_with("bias") ? -1 : 1;
}

AdamMiniOptimizer::AdamMiniOptimizer(OptimizerConfig config, const std::vector<OptimState>& states,
                                     const char* op_name, int64_t flops, OptimReach reach)
    : DirectedOptimizer(std::move(config), states, op_name, flops, reach) {
  const OptimizerConfig& c = this->config();
  numbers_ = {static_cast<float>(1.0 - c.adam_beta1), static_cast<float>(c.adam_beta2),
              static_cast<float>(1.0 - c.adam_beta2), static_cast<float>(c.adam_epsilon)};
}

// A block of one element is Adam's.
bool AdamMiniOptimizer::directs(const StateStore& store, const StateSpan& span) const {
  return store.numbers(1, span) != span.elements;
}

template <class F>
void AdamMiniOptimizer::each_run(const StateSpan& span, int64_t blocks, F&& f) const {
  const std::span<const OptimPiece> pieces = pieces_of(config(), span.param);
  if (pieces.empty()) return f(BlockRun{span.elements, span.elements / blocks}, 0, 0);
  int64_t rows = 0, first = 0, block = 0;
  for (const OptimPiece& p : pieces) rows += p.rows;
  const int64_t columns = span.elements / rows;
  for (const OptimPiece& p : pieces) {
    const BlockRun run{p.rows * columns, std::max<int64_t>(1, p.head) * columns};
    f(run, first, block);
    first += run.elements;
    block += run.elements / run.block;
  }
}

void AdamMiniOptimizer::direct(Context& ctx, const UpdateTargets& t, StateStore& store,
                               const StateSpan& span, const View& state) const {
  static const Name name("adam_mini.direction");
  const View momentum = store.acquire(ctx, 0, span), squares = store.acquire(ctx, 1, span);
  const View gradient = t.gradients.rows(span.offset - t.first, span.elements);
  const int64_t blocks = squares.elements();
  const bool wide = gradient.dtype == DType::f32;
  {
    Op op(ctx, "adam_mini_squares",
          {.flops = 3 * span.elements, .bytes = gradient.bytes() + 2 * squares.bytes()});
    if (op.run()) {
      if (t.gate) t.gate->pass(span.param);
      each_run(span, blocks, [&](const BlockRun& run, int64_t first, int64_t block) {
        const View g = gradient.rows(first, run.elements),
                   v = squares.rows(block, run.elements / run.block);
        if (ctx.by_kernels())
          return on_queue(ctx, [&](auto& queue) {
            adam_mini_squares_on(queue, numbers_, run.block, v, g, state);
          });
        const StepState& s = *step_state(state);
        if (s.found_inf) return;
        const auto factor = static_cast<float>(double{s.clip_factor} / double{s.loss_scale});
        const auto move = [&](const auto* from) {
          move_squares(ctx.threads(), numbers_, factor, s.updates == 0, from, run.block,
                       v.elements(), v.as<float>());
        };
        wide ? move(g.as<const float>()) : move(g.as<const bf16>());
      });
    }
  }
  for (int64_t from = 0; from < span.elements; from += kMiniDirection) {
    const int64_t n = std::min(kMiniDirection, span.elements - from);
    const Tensor direction = ctx.tensor(name, {n}, DType::f32, Category::workspace);
    {
      Op op(ctx, "adam_mini_direction",
            {.flops = 8 * n,
             .bytes = size_of(gradient.dtype) * n + 8 * n + direction.view().bytes()});
      if (op.run()) {
        each_run(span, blocks, [&](const BlockRun& run, int64_t first, int64_t block) {
          const int64_t begin = std::max(from, first),
                        end = std::min(from + n, first + run.elements);
          if (begin >= end) return;
          const View g = gradient.rows(begin, end - begin), m = momentum.rows(begin, end - begin),
                     to = direction.view().rows(begin - from, end - begin),
                     v = squares.rows(block, run.elements / run.block);
          if (ctx.by_kernels())
            return on_queue(ctx, [&](auto& queue) {
              adam_mini_direction_on(queue, numbers_, run.block, begin - first, to, m, v, g, state);
            });
          const StepState& s = *step_state(state);
          if (s.found_inf) return;
          const auto find = [&](const auto* at) {
            find_direction(ctx.threads(), numbers_, s, at, run.block, begin - first, end - begin,
                           v.as<const float>(), m.as<float>(), to.as<float>());
          };
          wide ? find(g.as<const float>()) : find(g.as<const bf16>());
        });
      }
    }
    follow(ctx, t, store, span, from, direction, state);
  }
  store.release(ctx, 0, span);
  store.release(ctx, 1, span);
}

}  // namespace snug
