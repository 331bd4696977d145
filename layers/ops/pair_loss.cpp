#include "layers/ops/pair_loss.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/error.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/memory/step_state.h"
#include "layers/ops/pair_loss_simt.h"

namespace snug {
namespace {

void expect_floats(const View& v, const char* name, const Shape& shape) {
  if (v.shape != shape)
    fail(ErrorCode::shape, fmt::format("{} of shape {}", name, to_string(shape)), describe(v),
         "check the pairs of the batch");
  expect_dtype(v, name, {DType::f32});
}

// Returns P.
int64_t check(const View& pairs, const View& logps, int64_t columns) {
  const int64_t P = pairs.shape.rank() > 0 ? pairs.shape[0] : 0;
  expect(pairs, "pairs", {{"P", P}, {"columns", kPairColumns}});
  expect_dtype(pairs, "pairs", {DType::i32});
  expect_floats(logps, "logps", {P, columns});
  return P;
}

// Returns P.
int64_t check(const PairLoss& kind, const View& pairs, const View& logps, const View& reference,
              const View& state) {
  if (static_cast<size_t>(kind.kind) >= std::size(kPairLosses))
    fail(ErrorCode::unsupported, "a loss of layers/ops/pair_losses.h",
         fmt::format("number {}", static_cast<int>(kind.kind)), "choose one of these");
  const int64_t P = check(pairs, logps, logp_columns(kind.kind));
  if (reference.defined() != facts_of(kind.kind).reference)
    fail(ErrorCode::usage,
         fmt::format("{} for the loss {}",
                     reference.defined() ? "no reference" : "log probabilities of a reference",
                     facts_of(kind.kind).name),
         reference.defined() ? describe(reference) : std::string("none"), "give what the loss has");
  if (reference.defined()) expect_floats(reference, "reference", {P, 2});
  expect(state, "state", {{"bytes", step_state_shape()[0]}});
  return P;
}

const int32_t* pair_of(const View& pairs, int64_t p) {
  return pairs.as<int32_t>() + p * kPairColumns;
}

// `single`: one of the two may be empty.
void check_places(Context& ctx, const View& pairs, int64_t N, bool single) {
  if (!ctx.host_reads()) return;
  for (int64_t p = 0; p < pairs.shape[0]; ++p) {
    const int32_t* at = pair_of(pairs, p);
    if (at[0] < 0) continue;
    const bool chosen = at[1] > at[0] && at[3] >= 1 && at[5] >= at[0] && at[5] < at[1];
    const bool rejected = at[2] > at[1] && at[4] >= 1;
    const bool no_chosen = at[1] == at[0] && at[3] == 0 && at[5] == at[0];
    const bool no_rejected = at[2] == at[1] && at[4] == 0;
    const bool one = single && ((chosen && no_rejected) || (no_chosen && rejected));
    if (!((chosen && rejected) || one) || at[2] > N)
      fail(ErrorCode::data,
           fmt::format("{} of [0,N)=[0,{}) with tokens that count",
                       single ? "a sequence or two" : "two sequences", N),
           fmt::format("rows {} to {} and {}, {} and {} tokens, the answer from {}, pair {} of {}",
                       at[0], at[1], at[2], at[3], at[4], at[5], p, pairs.name.view()),
           "check the pairs of the data");
  }
}

int64_t bytes_of(const View& v) {
  return v.defined() ? v.bytes() : 0;
}

const float* logps_of(const View& logps, int64_t p) {
  return logps.as<float>() + p * logps.shape[1];
}

PairValue value_of(const View& logps, const View& reference, const int32_t* pair, int64_t p,
                   const PairLoss& kind) {
  const float* l = logps_of(logps, p);
  const double k = compared_with(kind, pair);
  double c = double{l[0]} - k, r = double{l[1]} - k;
  if (reference.defined()) {
    c -= double{reference.as<float>()[2 * p]};
    r -= double{reference.as<float>()[2 * p + 1]};
  }
  return pair_loss_value(kind, c, r, pair[3], pair[4]);
}

float log_probability(const float* nll, int64_t begin, int64_t end) {
  double sum = 0;
  for (int64_t n = begin; n < end; ++n) sum += double{nll[n]};
  return static_cast<float>(0.0 - sum);
}

}  // namespace

void sequence_logps(Context& ctx, const View& logps, const View& nll, const View& pairs) {
  const bool whole = logps.shape.rank() == 2 && logps.shape[1] == 3;
  const int64_t P = check(pairs, logps, whole ? 3 : 2), N = nll.elements();
  expect_floats(nll, "nll", {N});
  Op op(ctx, "sequence_logps", {.flops = N, .bytes = nll.bytes() + pairs.bytes() + logps.bytes()});
  if (!op.run()) return;
  check_places(ctx, pairs, N, !whole);
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) { sequence_logps_on(queue, logps, nll, pairs); });
  const float* loss = nll.as<float>();
  for (int64_t p = 0; p < P; ++p) {
    const int32_t* at = pair_of(pairs, p);
    const bool none = at[0] < 0;
    float* to = logps.as<float>() + p * logps.shape[1];
    to[0] = none ? 0.0f : log_probability(loss, at[5], at[1]);
    to[1] = none ? 0.0f : log_probability(loss, at[1], at[2]);
    if (whole) to[2] = none ? 0.0f : log_probability(loss, at[0], at[1]);
  }
}

void pair_loss_forward(Context& ctx, const View& loss, const View& logps, const View& reference,
                       const View& pairs, const PairLoss& kind, const View& state) {
  const int64_t P = check(kind, pairs, logps, reference, state);
  expect_floats(loss, "loss", {P});
  Op op(ctx, "pair_loss_forward",
        {.flops = 40 * P,
         .bytes = pairs.bytes() + logps.bytes() + bytes_of(reference) + loss.bytes()});
  if (!op.run()) return;
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) {
      pair_loss_forward_on(queue, loss, logps, reference, pairs, kind, state);
    });
  StepState* step = step_state(state);
  for (int64_t p = 0; p < P; ++p) {
    const int32_t* at = pair_of(pairs, p);
    float& value = loss.as<float>()[p];
    value = 0;
    if (at[0] < 0) continue;
    value = static_cast<float>(value_of(logps, reference, at, p, kind).loss +
                               whole_loss(kind, at, logps_of(logps, p)));
    step->loss_sum += double{value};
    ++step->loss_tokens;
  }
}

void pair_loss_backward(Context& ctx, const View& dnll, const View& logps, const View& reference,
                        const View& pairs, const PairLoss& kind, const View& state) {
  const int64_t P = check(kind, pairs, logps, reference, state), N = dnll.elements();
  expect_floats(dnll, "dnll", {N});
  Op op(ctx, "pair_loss_backward",
        {.flops = 40 * P,
         .bytes = pairs.bytes() + logps.bytes() + bytes_of(reference) + dnll.bytes()});
  if (!op.run()) return;
  check_places(ctx, pairs, N, facts_of(kind.kind).single);
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) {
      pair_loss_backward_on(queue, dnll, logps, reference, pairs, kind, state);
    });
  const StepState* step = step_state(state);
  const double factor = double{step->inverse_tokens} * double{step->loss_scale};
  float* to = dnll.as<float>();
  std::fill_n(to, N, 0.0f);
  for (int64_t p = 0; p < P; ++p) {
    const int32_t* at = pair_of(pairs, p);
    if (at[0] < 0) continue;
    const PairValue value = value_of(logps, reference, at, p, kind);
    const double whole = whole_weight(kind, at);
    std::fill(to + at[0], to + at[5], static_cast<float>(whole * factor));
    std::fill(to + at[5], to + at[1], static_cast<float>((whole - value.chosen) * factor));
    std::fill(to + at[1], to + at[2], static_cast<float>((0.0 - value.rejected) * factor));
  }
}

}  // namespace snug
