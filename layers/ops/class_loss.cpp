#include "layers/ops/class_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/memory/step_state.h"
#include "layers/ops/class_loss_simt.h"
#include "layers/ops/ignored_target.h"
#include "layers/ops/row_tasks.h"

namespace snug {
namespace {

void check(const View& logits, const View& targets, ClassLoss kind) {
  if (kind != ClassLoss::cross_entropy && kind != ClassLoss::binary_cross_entropy &&
      kind != ClassLoss::squared_error)
    fail(ErrorCode::unsupported, "a loss cross_entropy, binary_cross_entropy or squared_error",
         fmt::format("number {}", static_cast<int>(kind)), "choose one of these");
  if (logits.shape.rank() != 2 || logits.shape[1] < 1)
    fail(ErrorCode::shape, "logits of shape (M,K), K of 1 or more", describe(logits),
         "check num_labels in the model's config");
  expect_dtype(logits, "logits", {DType::f32});
  const int64_t M = logits.shape[0], K = logits.shape[1];
  if (kind == ClassLoss::cross_entropy) {
    expect(targets, "targets", {{"M", M}});
    expect_dtype(targets, "targets", {DType::i32});
  } else {
    expect(targets, "targets", {{"M", M}, {"K", K}});
    expect_dtype(targets, "targets", {DType::f32});
  }
}

void check_state(const View& state) {
  expect(state, "state", {{"bytes", step_state_shape()[0]}});
}

// The targets of a row, of either kind.
struct Row {
  const int32_t* label;  // of cross_entropy
  const float* values;   // of the others
  bool ignored() const { return label ? *label == kIgnoredTarget : std::isnan(values[0]); }
};
Row row_of(const View& targets, int64_t m, int64_t K) {
  if (targets.dtype == DType::i32) return {targets.as<int32_t>() + m, nullptr};
  return {nullptr, targets.as<float>() + m * K};
}

[[noreturn]] void wrong_target(const View& targets, int64_t m, const std::string& expected,
                               const std::string& found) {
  fail(ErrorCode::data, expected, fmt::format("{} in row {} of {}", found, m, targets.name.view()),
       "check the labels of the data, and num_labels");
}

// Threads cannot throw, so all targets are looked at before the work is shared. Returns how many
// rows are trained.
int64_t check_targets(const View& targets, int64_t M, int64_t K, ClassLoss kind) {
  int64_t trained = 0;
  for (int64_t m = 0; m < M; ++m) {
    const Row row = row_of(targets, m, K);
    if (row.ignored()) continue;
    ++trained;
    if (row.label && (*row.label < 0 || *row.label >= K))
      wrong_target(targets, m, fmt::format("targets of 0 .. {}, or -100 for none", K - 1),
                   fmt::format("{}", *row.label));
    for (int64_t k = 0; !row.label && k < K; ++k) {
      const float t = row.values[k];
      if (kind == ClassLoss::binary_cross_entropy ? !(t >= 0.0f && t <= 1.0f) : !std::isfinite(t))
        wrong_target(targets, m,
                     kind == ClassLoss::binary_cross_entropy ? "targets of 0 to 1"
                                                             : "targets that are numbers",
                     fmt::format("{}", t));
    }
  }
  return trained;
}

struct RowSoftmax {
  double top, sum;  // of e^(z - top)
};
RowSoftmax softmax_of(const float* z, int64_t K) {
  RowSoftmax s{*std::max_element(z, z + K), 0};
  for (int64_t k = 0; k < K; ++k) s.sum += std::exp(z[k] - s.top);
  return s;
}

double row_loss(const float* z, const Row& row, int64_t K, ClassLoss kind) {
  if (row.ignored()) return 0;
  if (kind == ClassLoss::cross_entropy) {
    const RowSoftmax s = softmax_of(z, K);
    return s.top + std::log(s.sum) - z[*row.label];
  }
  double sum = 0;
  for (int64_t k = 0; k < K; ++k) {
    const double x = z[k], t = row.values[k];
    sum += kind == ClassLoss::binary_cross_entropy
               ? std::max(x, 0.0) - x * t + std::log1p(std::exp(-std::fabs(x)))
               : (x - t) * (x - t);
  }
  return sum / static_cast<double>(K);
}

// dz may be z.
template <class D>
void row_gradient(D* dz, const float* z, const Row& row, int64_t K, ClassLoss kind, double factor) {
  const auto put = [=](int64_t k, double value) { dz[k] = from_f32<D>(static_cast<float>(value)); };
  if (row.ignored()) {
    for (int64_t k = 0; k < K; ++k) put(k, 0);
  } else if (kind == ClassLoss::cross_entropy) {
    const RowSoftmax s = softmax_of(z, K);
    for (int64_t k = 0; k < K; ++k)
      put(k, factor * (std::exp(z[k] - s.top) / s.sum - (k == *row.label ? 1.0 : 0.0)));
  } else {
    const double share = factor / static_cast<double>(K);
    for (int64_t k = 0; k < K; ++k) {
      const double x = z[k], t = row.values[k];
      put(k, kind == ClassLoss::binary_cross_entropy ? share * (1 / (1 + std::exp(-x)) - t)
                                                     : share * 2 * (x - t));
    }
  }
}

}  // namespace

const char* to_string(ClassLoss kind) {
  switch (kind) {
    case ClassLoss::cross_entropy:
      return "cross_entropy";
    case ClassLoss::binary_cross_entropy:
      return "binary_cross_entropy";
    case ClassLoss::squared_error:
      return "squared_error";
  }
  return "?";
}

void class_loss_forward(Context& ctx, const View& loss, const View& logits, const View& targets,
                        ClassLoss kind, const View& state) {
  check(logits, targets, kind);
  const int64_t M = logits.shape[0], K = logits.shape[1];
  expect(loss, "loss", {{"M", M}});
  expect_dtype(loss, "loss", {DType::f32});
  if (state.defined()) check_state(state);
  Op op(ctx, "class_loss_forward",
        {.flops = 20 * M * K, .bytes = logits.bytes() + targets.bytes() + loss.bytes()});
  if (!op.run()) return;
  const int64_t trained = ctx.host_reads() ? check_targets(targets, M, K, kind) : 0;
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) {
      class_loss_forward_on(queue, loss, logits, targets, kind, state);
    });
  float* to = loss.as<float>();
  const float* z = logits.as<float>();
  parallel_chunks(ctx.threads(), M, row_grain(32 * K), [=, &targets](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m)
      to[m] = static_cast<float>(row_loss(z + m * K, row_of(targets, m, K), K, kind));
  });
  if (!state.defined()) return;
  StepState* step = step_state(state);
  for (int64_t m = 0; m < M; ++m) step->loss_sum += to[m];
  step->loss_tokens += trained;
}

void class_loss_backward(Context& ctx, const View& dlogits, const View& logits, const View& targets,
                         ClassLoss kind, const View& state) {
  check(logits, targets, kind);
  check_state(state);
  const int64_t M = logits.shape[0], K = logits.shape[1];
  expect(dlogits, "dlogits", {{"M", M}, {"K", K}});
  dispatch_float(dlogits, "dlogits", [&](auto tag) {
    using D = decltype(tag);
    Op op(ctx, "class_loss_backward",
          {.flops = 20 * M * K, .bytes = logits.bytes() + targets.bytes() + dlogits.bytes()});
    if (!op.run()) return;
    if (ctx.host_reads()) check_targets(targets, M, K, kind);
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) {
        class_loss_backward_on(queue, dlogits, logits, targets, kind, state);
      });
    const StepState* step = step_state(state);
    const double factor = double{step->inverse_tokens} * double{step->loss_scale};
    D* to = dlogits.as<D>();
    const float* z = logits.as<float>();
    parallel_chunks(ctx.threads(), M, row_grain(32 * K), [=, &targets](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; ++m)
        row_gradient(to + m * K, z + m * K, row_of(targets, m, K), K, kind, factor);
    });
  });
}

}  // namespace snug
