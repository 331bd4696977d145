#include "layers/ops/head_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "engine/blas/matmul.h"
#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/units.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/kernels/kernels.h"
#include "engine/memory/step_state.h"
#include "layers/ops/head_loss_simt.h"
#include "layers/ops/row_loops.h"
#include "layers/ops/softcap.h"

namespace snug {
namespace {

MatmulOptions product(bool transpose_a, bool transpose_b, bool add) {
  MatmulOptions options;
  options.transpose_a = transpose_a;
  options.transpose_b = transpose_b;
  options.add = add;
  return options;
}

struct Sizes {
  int64_t N, C, V, Vp, rows;
  float softcap = 0;
};

[[noreturn]] void wrong_dtype(const View& x) {
  fail(ErrorCode::unsupported, "a head over f32, bf16 or f16", describe(x),
       "use precision: fp32, bf16 or fp16");
}

void check_activation(const View& x) {
  if (x.dtype != DType::f32 && x.dtype != DType::bf16 && x.dtype != DType::f16) wrong_dtype(x);
}

void check_bias(const View& bias, const View& x, int64_t Vp) {
  if (!bias.defined()) return;
  expect(bias, "bias", {{"Vp", Vp}});
  expect_dtype(bias, "bias", {x.dtype, DType::f32});
}

Sizes check(const View& x, const View& weight, const View& bias, const View& targets, int64_t V,
            int64_t rows_per_chunk, float softcap) {
  const int64_t N = x.shape.rows(), C = x.shape.last();
  const int64_t Vp = weight.shape.rank() > 0 ? weight.shape[0] : 0;
  expect(x, "x", {{"N", N}, {"C", C}});
  expect(weight, "weight", {{"Vp", Vp}, {"C", C}});
  expect(targets, "targets", {{"N", N}});
  expect_dtype(targets, "targets", {DType::i32});
  check_activation(x);
  expect_dtype(weight, "weight", {x.dtype, DType::f32});
  check_bias(bias, x, Vp);
  if (N < 1 || C < 1 || V < 1 || V > Vp)
    fail(ErrorCode::shape, "a vocabulary V of 1 .. Vp and at least one row",
         fmt::format("N={} C={} V={} Vp={}", N, C, V, Vp),
         "check vocab_size in the model's config");
  if (rows_per_chunk < 1)
    fail(ErrorCode::usage, "at least one row in a chunk of the head",
         fmt::format("rows_per_chunk={}", rows_per_chunk), "use 128 or more");
  return {N, C, V, Vp, std::min(rows_per_chunk, N), softcap};
}

void check_state(const View& state) {
  expect(state, "state", {{"bytes", step_state_shape()[0]}});
}

// What a backward writes.
struct Gradients {
  const View& dx;
  const GradView &dweight, &dbias;
};

void check_gradients(const Context& ctx, const Gradients& g, const View& x, const View& bias,
                     const Sizes& s) {
  const auto& [dx, dweight, dbias] = g;
  expect(dx, "dx", {{"N", s.N}, {"C", s.C}});
  expect_dtype(dx, "dx", {x.dtype});
  if (dbias.view.defined()) {
    if (!bias.defined())
      fail(ErrorCode::usage, "a bias where its gradient is wanted",
           describe(dbias.view) + " and no bias", "give the bias, or leave dbias undefined");
    expect(dbias.view, "dbias", {{"Vp", s.Vp}});
    expect_gradient_dtype(ctx, dbias.view, "dbias");
  }
  if (!dweight.view.defined()) return;
  expect(dweight.view, "dweight", {{"Vp", s.Vp}, {"C", s.C}});
  expect_dtype(dweight.view, "dweight", {DType::f32, DType::bf16});
}

// Reads every target before anything is computed, and counts the trained ones.
void check_targets(Context& ctx, const View& targets, const Sizes& s, const View& state) {
  Op op(ctx, "head_loss_targets", {.flops = 0, .bytes = targets.bytes()});
  if (!op.run() || !ctx.host_reads()) return;
  const int32_t* t = targets.as<int32_t>();
  int64_t trained = 0;
  for (int64_t n = 0; n < s.N; ++n) {
    if (t[n] == kIgnoredTarget) continue;
    if (t[n] < 0 || t[n] >= s.V)
      fail(ErrorCode::data, fmt::format("targets of 0 .. {}, or -100 for none", s.V - 1),
           fmt::format("{} in row {} of {}", t[n], n, targets.name.view()),
           "check that the data was made with the tokenizer of this model");
    ++trained;
  }
  // Where kernels add the losses, they count them.
  if (state.defined() && !ctx.by_kernels()) step_state(state)->loss_tokens += trained;
}

// One chunk: which rows, and where its logits are.
struct Chunk {
  int64_t first, rows;
  View logits;   // (rows,Vp) f32
  View dlogits;  // (rows,Vp) in x's dtype; the same bytes as logits for f32
  View x;        // (rows,C)
};

// The bias as a product into f32 takes it on every place: cuBLASLt adds one of its result's type.
class Bias {
 public:
  Bias(Context& ctx, const View& bias) : view_(bias) {
    static const Name kBias("head.bias");
    if (!bias.defined() || bias.dtype == DType::f32) return;
    wide_ = ctx.tensor(kBias, bias.shape, DType::f32, Category::workspace);
    view_ = wide_.view();
    cast(ctx, view_, bias);
  }
  const View& view() const { return view_; }

 private:
  Tensor wide_;
  View view_;
};

// Makes the chunk tensors, then computes the logits of each chunk and calls f(chunk).
template <class F>
void for_each_chunk(Context& ctx, const View& x, const View& weight, const View& bias,
                    const PackedWeight& packed, const Sizes& s, bool gradient, F&& f) {
  const Bias wide(ctx, bias);
  MatmulOptions options = product(false, true, false);
  options.bias = wide.view();
  options.b_packed = packed.forward;
  static const Name kLogits("head.logits"), kDlogits("head.dlogits");
  const Tensor logits = ctx.tensor(kLogits, {s.rows, s.Vp}, DType::f32, Category::logits);
  Tensor dlogits;
  if (gradient && (x.dtype != DType::f32 || s.softcap != 0))
    dlogits = ctx.tensor(kDlogits, {s.rows, s.Vp}, x.dtype, Category::logits);
  for (int64_t first = 0; first < s.N; first += s.rows) {
    Chunk c;
    c.first = first;
    c.rows = std::min(s.rows, s.N - first);
    c.x = x.rows(first, c.rows);
    c.logits = logits.view().rows(0, c.rows);
    c.dlogits = dlogits.defined() ? dlogits.view().rows(0, c.rows) : c.logits;
    matmul(ctx, c.logits, c.x, weight, options);
    if (s.softcap != 0) softcap_forward(ctx, c.logits, c.logits, s.softcap);
    f(c);
  }
}

void chunk_products(Context& ctx, const Chunk& c, const Gradients& g, const View& weight,
                    const PackedWeight& packed, float softcap) {
  const auto& [dx, dweight, dbias] = g;
  if (softcap != 0) softcap_backward(ctx, c.dlogits, c.dlogits, c.logits, softcap);
  MatmulOptions options;
  options.b_packed = packed.backward;
  matmul(ctx, dx.rows(c.first, c.rows), c.dlogits, weight, options);
  if (dweight.view.defined())
    matmul(ctx, dweight.view, c.dlogits, c.x, product(true, false, dweight.add || c.first > 0));
  if (dbias.view.defined()) column_sum(ctx, {dbias.view, dbias.add || c.first > 0}, c.dlogits);
}

// A row without a gradient.
template <class T>
void zero_row(T* dz, const Sizes& s) {
  std::fill_n(dz, s.Vp, from_f32<T>(0.0f));
}

struct RowLoss {
  float top;
  double sum;  // of e^(z - top)
  double lse() const { return top + std::log(sum); }
  float nll(const float* z, int32_t target) const {
    return target == kIgnoredTarget ? 0.0f : static_cast<float>(lse() - z[target]);
  }
};

// Of row n of a chunk; the row after it is called near meanwhile.
RowLoss row_loss(const SoftmaxLoops& loops, const Chunk& c, const Sizes& s, int64_t n) {
  const float* z = c.logits.as<float>() + n * s.Vp;
  RowLoss r;
  r.top = loops.max(z, s.V);
  r.sum = loops.exp_sum(z, s.V, r.top, n + 1 < c.rows ? z + s.Vp : nullptr);
  return r;
}

void forward_rows(Context& ctx, const Chunk& c, const Sizes& s, const View& targets,
                  const View& nll, const View& lse, const View& state) {
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) {
      const View losses = nll.rows(c.first, c.rows), chunk = targets.rows(c.first, c.rows);
      head_loss_forward_rows_on(queue, losses, lse.rows(c.first, c.rows), c.logits, chunk, s.V);
      if (state.defined()) head_loss_collect_on(queue, state, losses, chunk);
    });
  const int32_t* target = targets.as<int32_t>() + c.first;
  float* loss = nll.as<float>() + c.first;
  const SoftmaxLoops loops = softmax_loops();
  parallel_for(ctx.threads(), c.rows, [&](int64_t n) {
    const RowLoss r = row_loss(loops, c, s, n);
    loss[n] = r.nll(c.logits.as<float>() + n * s.Vp, target[n]);
    lse.as<float>()[c.first + n] = static_cast<float>(r.lse());
  });
  if (!state.defined()) return;
  for (int64_t n = 0; n < c.rows; ++n) step_state(state)->loss_sum += loss[n];
}

template <class T>
void train_rows(Context& ctx, const Chunk& c, const Sizes& s, const View& targets, const View& nll,
                const View& state) {
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) {
      const View losses = nll.rows(0, c.rows), chunk = targets.rows(c.first, c.rows);
      head_loss_train_rows_on(queue, c.dlogits, losses, c.logits, chunk, s.V, state);
      head_loss_collect_on(queue, state, losses, chunk);
    });
  StepState* step = step_state(state);
  const float gradient = step->inverse_tokens * step->loss_scale;
  const int32_t* target = targets.as<int32_t>() + c.first;
  float* loss = nll.as<float>();
  const SoftmaxLoops loops = softmax_loops();
  const SoftmaxGradient<T> gradient_row = softmax_gradient<T>();
  parallel_for(ctx.threads(), c.rows, [&](int64_t n) {
    T* dz = c.dlogits.as<T>() + n * s.Vp;
    const float* z = c.logits.as<float>() + n * s.Vp;
    loss[n] = 0;
    if (target[n] == kIgnoredTarget) return zero_row(dz, s);
    const RowLoss r = row_loss(loops, c, s, n);
    loss[n] = r.nll(z, target[n]);
    gradient_row(dz, z, s.V, s.Vp, r.top, static_cast<float>(gradient / r.sum), target[n],
                 gradient);
  });
  for (int64_t n = 0; n < c.rows; ++n) step->loss_sum += loss[n];
}

template <class T>
void backward_rows(Context& ctx, const Chunk& c, const Sizes& s, const View& targets,
                   const View& dnll, const View& lse) {
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) {
      head_loss_backward_rows_on(queue, c.dlogits, dnll.rows(c.first, c.rows),
                                 lse.rows(c.first, c.rows), c.logits, targets.rows(c.first, c.rows),
                                 s.V);
    });
  const int32_t* target = targets.as<int32_t>() + c.first;
  const float* gradient = dnll.as<float>() + c.first;
  const float* shift = lse.as<float>() + c.first;
  const SoftmaxGradient<T> gradient_row = softmax_gradient<T>();
  parallel_for(ctx.threads(), c.rows, [&](int64_t n) {
    T* dz = c.dlogits.as<T>() + n * s.Vp;
    if (target[n] == kIgnoredTarget) return zero_row(dz, s);
    gradient_row(dz, c.logits.as<float>() + n * s.Vp, s.V, s.Vp, shift[n], gradient[n], target[n],
                 gradient[n]);
  });
}

// The work between the products of a chunk, as one op: f(a value of x's type).
// About 20 operations for the exponential, its sum and the gradient of a logit. A row of logits is
// read once from memory, then from the second-level cache.
template <class F>
void rows_op(Context& ctx, const char* name, const Chunk& c, const Sizes& s, bool gradient, F&& f) {
  Op op(
      ctx, name,
      {.flops = 20 * c.rows * s.V, .bytes = c.logits.bytes() + (gradient ? c.dlogits.bytes() : 0)});
  if (!op.run()) return;
  if (c.x.dtype == DType::f32)
    f(float{});
  else if (c.x.dtype == DType::bf16)
    f(bf16{});
  else if (c.x.dtype == DType::f16)
    f(f16{});
  else
    wrong_dtype(c.x);
}

}  // namespace

void head_loss_forward(Context& ctx, const View& nll, const View& lse, const View& x,
                       const View& weight, const View& targets, int64_t V, int64_t rows_per_chunk,
                       const View& state, const PackedWeight& packed, const View& bias,
                       float softcap) {
  const Sizes s = check(x, weight, bias, targets, V, rows_per_chunk, softcap);
  expect(nll, "nll", {{"N", s.N}});
  expect(lse, "lse", {{"N", s.N}});
  expect_dtype(nll, "nll", {DType::f32});
  expect_dtype(lse, "lse", {DType::f32});
  if (state.defined()) check_state(state);
  check_targets(ctx, targets, s, state);
  for_each_chunk(ctx, x, weight, bias, packed, s, false, [&](const Chunk& c) {
    rows_op(ctx, "head_loss_forward", c, s, false,
            [&](auto) { forward_rows(ctx, c, s, targets, nll, lse, state); });
  });
}

void head_loss_backward(Context& ctx, const View& dx, const GradView& dweight, const View& dnll,
                        const View& lse, const View& x, const View& weight, const View& targets,
                        int64_t V, int64_t rows_per_chunk, const PackedWeight& packed,
                        const View& bias, const GradView& dbias, float softcap) {
  const Sizes s = check(x, weight, bias, targets, V, rows_per_chunk, softcap);
  const Gradients gradients{dx, dweight, dbias};
  check_gradients(ctx, gradients, x, bias, s);
  expect(dnll, "dnll", {{"N", s.N}});
  expect(lse, "lse", {{"N", s.N}});
  expect_dtype(dnll, "dnll", {DType::f32});
  expect_dtype(lse, "lse", {DType::f32});
  check_targets(ctx, targets, s, {});
  for_each_chunk(ctx, x, weight, bias, packed, s, true, [&](const Chunk& c) {
    rows_op(ctx, "head_loss_backward", c, s, true,
            [&](auto value) { backward_rows<decltype(value)>(ctx, c, s, targets, dnll, lse); });
    chunk_products(ctx, c, gradients, weight, packed, softcap);
  });
}

void head_loss_train(Context& ctx, const View& dx, const GradView& dweight, const View& x,
                     const View& weight, const View& targets, int64_t V, int64_t rows_per_chunk,
                     const View& state, const PackedWeight& packed, const View& bias,
                     const GradView& dbias, float softcap) {
  static const Name kNll("head.nll");
  const Sizes s = check(x, weight, bias, targets, V, rows_per_chunk, softcap);
  const Gradients gradients{dx, dweight, dbias};
  check_gradients(ctx, gradients, x, bias, s);
  check_state(state);
  const Tensor nll = ctx.tensor(kNll, {s.rows}, DType::f32, Category::workspace);
  check_targets(ctx, targets, s, state);
  for_each_chunk(ctx, x, weight, bias, packed, s, true, [&](const Chunk& c) {
    rows_op(ctx, "head_loss_train", c, s, true,
            [&](auto value) { train_rows<decltype(value)>(ctx, c, s, targets, nll, state); });
    chunk_products(ctx, c, gradients, weight, packed, softcap);
  });
}

void head_logits(Context& ctx, const View& logits, const View& x, const View& weight,
                 const PackedWeight& packed, const View& bias, float softcap) {
  const int64_t N = x.shape.rows(), C = x.shape.last();
  const int64_t Vp = weight.shape.rank() > 0 ? weight.shape[0] : 0;
  expect(x, "x", {{"N", N}, {"C", C}});
  expect(weight, "weight", {{"Vp", Vp}, {"C", C}});
  expect(logits, "logits", {{"N", N}, {"Vp", Vp}});
  expect_dtype(logits, "logits", {DType::f32});
  check_activation(x);
  expect_dtype(weight, "weight", {x.dtype, DType::f32});
  check_bias(bias, x, Vp);
  const Bias wide(ctx, bias);
  MatmulOptions options = product(false, true, false);
  options.bias = wide.view();
  options.b_packed = packed.forward;
  matmul(ctx, logits, x, weight, options);
  if (softcap != 0) softcap_forward(ctx, logits, logits, softcap);
}

}  // namespace snug
