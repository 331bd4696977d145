#include "layers/ops/linear.h"

#include <immintrin.h>

#include <cstring>

#include "engine/blas/matmul.h"
#include "engine/core/error.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "layers/ops/activation_dispatch.h"
#include "layers/ops/int8_linear.h"
#include "layers/ops/layernorm.h"
#include "layers/ops/layernorm_rows.h"
#include "layers/ops/residual.h"
#include "layers/ops/residual_rows.h"
#include "layers/ops/residual_simt.h"
#include "layers/ops/row_loops.h"

namespace snug {
namespace {

// What the tiles of a product become.
template <class T>
struct TileFinish {
  void (*loop)(T* act, T* pre, const float* v, int64_t n);
  T *act, *pre;  // pre may be null
  int64_t cols;  // of both
  bool stream;   // both are larger than the caches
};

// A row of a tile. Past the caches where that is wanted and it fills whole lines: a plain store
// would first fetch the line, and a tile's rows are too far apart for the processor to foresee
// them. No later plain store orders such stores, only fences and locked instructions: a thread's
// share of a product ends in a fence, and where its threads wait for each other they arrive by a
// locked instruction. A single thread sees its own stores in order.
inline void store_row(void* to, const void* from, size_t bytes, bool stream) {
  if (!stream || bytes % 64 != 0 || reinterpret_cast<uintptr_t>(to) % 64 != 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  const auto* source = static_cast<const __m256i*>(from);
  auto* line = static_cast<__m256i*>(to);
  for (size_t i = 0; i < bytes / 32; ++i)
    _mm256_stream_si256(line + i, _mm256_loadu_si256(source + i));
}

// A full tile goes through the loop in one piece: row by row, the constants of the loop would be
// loaded again for every two vectors.
template <class T>
void act_tile(const void* context, const float* v, int64_t ld, int64_t m0, int64_t n0, int64_t rows,
              int64_t cols) {
  const auto& f = *static_cast<const TileFinish<T>*>(context);
  alignas(64) T act[kMatmulTileValues], pre[kMatmulTileValues];
  const size_t bytes = static_cast<size_t>(cols) * sizeof(T);
  const int64_t at_once = cols == ld ? rows : 1;
  for (int64_t m = 0; m < rows; m += at_once) {
    f.loop(act, pre, v + m * ld, at_once * cols);
    for (int64_t i = 0; i < at_once; ++i) {
      const int64_t at = (m0 + m + i) * f.cols + n0;
      store_row(f.act + at, act + i * cols, bytes, f.stream);
      if (f.pre != nullptr) store_row(f.pre + at, pre + i * cols, bytes, f.stream);
    }
  }
}

// From here on a matrix is streamed: more than is worth keeping near for the product that reads it
// next.
constexpr int64_t kStreamBytes = 8 << 20;

// What the rows of a product become: the product was stored in `out`, and is still near.
struct RowFinish {
  View out;
  const ResidualInput* in = nullptr;
  const NormOutput* norm = nullptr;
};

template <class T>
void residual_rows(const void* context, int64_t m0, int64_t rows) {
  const auto& f = *static_cast<const RowFinish*>(context);
  const int64_t c = f.out.shape[1];
  T* out = f.out.as<T>();
  const T* residual = f.in->residual.as<T>();
  if (f.in->dropout.p == 0.0f) {
    add_row(out + m0 * c, residual + m0 * c, out + m0 * c, rows * c);
    return;
  }
  const DropoutMask mask(f.in->dropout, *step_state(f.in->state));
  for (int64_t row = m0; row < m0 + rows; ++row)
    add_dropped_row(out + row * c, residual + row * c, out + row * c, mask, row / f.in->T,
                    row % f.in->T, c);
}

template <class T, class W>
void residual_norm_rows(const void* context, int64_t m0, int64_t rows) {
  const auto& f = *static_cast<const RowFinish*>(context);
  const int64_t c = f.out.shape[1];
  const NormOutput& norm = *f.norm;
  const W* shift = norm.bias.defined() ? norm.bias.as<W>() : nullptr;
  for (int64_t row = m0; row < m0 + rows; ++row) {
    residual_rows<T>(context, row, 1);
    layernorm_row<T, W>(norm.y.as<T>() + row * c, norm.mean.as<float>() + row,
                        norm.rstd.as<float>() + row, f.out.as<T>() + row * c, norm.weight.as<W>(),
                        shift, c, norm.eps);
  }
}

void expect_like(const View& view, const char* name, const View& like, const char* like_name) {
  if (view.shape == like.shape && view.dtype == like.dtype) return;
  fail(ErrorCode::shape, std::string(name) + " of the shape and dtype of " + like_name,
       describe(view) + ", where " + like_name + " is " + describe(like),
       "check that the weights and the config belong together");
}

}  // namespace

void linear_product(Context& ctx, const View& y, const View& x, const LinearWeights& w) {
  if (w.int8.any()) return int8_linear_forward(ctx, y, x, w.int8, w.bias);
  matmul(ctx, y, x, w.weight, {.transpose_b = true, .bias = w.bias, .b_packed = w.packed});
}

void linear_activation_forward(Context& ctx, const View& act, const View& pre, const View& x,
                               const LinearWeights& w, Activation kind) {
  const View& product = pre.defined() ? pre : act;
  if (ctx.by_kernels() || w.int8.any()) {
    expect_like(product, "pre", act, "act");
    linear_product(ctx, product, x, w);
    return activation_forward(ctx, act, product, kind);
  }
  MatmulOptions options{.transpose_b = true, .bias = w.bias, .b_packed = w.packed};
  expect_like(product, "pre", act, "act");
  options.name = "linear_activation_forward";
  options.also = {.flops = flops_of(kind) * act.elements(),
                  .bytes = pre.defined() ? act.bytes() : 0};
  dispatch_float(act, "act", [&](auto tag) {
    using T = decltype(tag);
    const TileFinish<T> finish{activation_loops<T>(kind).rounded, act.as<T>(),
                               pre.defined() ? pre.as<T>() : nullptr, act.shape.last(),
                               act.bytes() >= kStreamBytes};
    options.finish = {.tile = act_tile<T>, .context = &finish};
    matmul(ctx, product, x, w.weight, options);
  });
}

namespace {

// The product, then one kernel for all that follows it.
void add_branch_by_kernels(Context& ctx, const NormOutput* norm, const View& out,
                           const ResidualInput& in, const View& x, const LinearWeights& w) {
  matmul(ctx, out, x, w.weight, {.transpose_b = true, .bias = w.bias});
  const bool drops = in.dropout.p > 0.0f;
  const int64_t drop = drops ? 2 : 1, n = out.elements();
  const int64_t norm_bytes = norm ? norm->y.bytes() + 8 * out.shape[0] : 0;
  const char* name = norm    ? drops ? "dropout_residual_norm_forward" : "residual_norm_forward"
                     : drops ? "dropout_residual_forward"
                             : "residual_forward";
  Op op(ctx, name, {.flops = (drop + (norm ? 8 : 0)) * n, .bytes = 3 * out.bytes() + norm_bytes});
  if (!op.run()) return;
  on_queue(ctx, [&](auto& queue) {
    if (norm)
      residual_norm_forward_on(queue, *norm, out, in, out);
    else
      residual_forward_on(queue, out, in, out);
  });
}

void add_branch(Context& ctx, const NormOutput* norm, const View& out, const ResidualInput& in,
                const View& x, const LinearWeights& w) {
  MatmulOptions options{.transpose_b = true, .bias = w.bias, .b_packed = w.packed};
  check_dropout(out, "out", in.residual, "residual", in.B, in.T, in.dropout, in.state);
  if (norm) check_layernorm(norm->y, norm->mean, norm->rstd, out, norm->weight, norm->bias);
  if (w.int8.any()) {
    linear_product(ctx, out, x, w);
    residual_forward(ctx, out, in.residual, out, in.B, in.T, in.dropout, in.state);
    if (norm)
      layernorm_forward(ctx, norm->y, norm->mean, norm->rstd, out, norm->weight, norm->bias,
                        norm->eps);
    return;
  }
  if (ctx.by_kernels()) return add_branch_by_kernels(ctx, norm, out, in, x, w);
  const RowFinish finish{out, &in, norm};
  options.finish.context = &finish;
  const bool drops = in.dropout.p > 0.0f;
  options.name =
      norm    ? drops ? "linear_dropout_residual_norm_forward" : "linear_residual_norm_forward"
      : drops ? "linear_dropout_residual_forward"
              : "linear_residual_forward";
  options.also = {.flops = (drops ? 2 : 1) * out.elements(), .bytes = in.residual.bytes()};
  if (norm) {
    options.also.flops += 8 * out.elements();
    options.also.bytes += norm->y.bytes() + 8 * out.shape[0];
    dispatch_norm(out, norm->weight, [&](auto tag, auto weight_tag) {
      options.finish.rows = residual_norm_rows<decltype(tag), decltype(weight_tag)>;
    });
  } else {
    dispatch_float(out, "out",
                   [&](auto tag) { options.finish.rows = residual_rows<decltype(tag)>; });
  }
  matmul(ctx, out, x, w.weight, options);
}

}  // namespace

void linear_residual_forward(Context& ctx, const View& out, const ResidualInput& in, const View& x,
                             const LinearWeights& w) {
  add_branch(ctx, nullptr, out, in, x, w);
}

void linear_residual_norm_forward(Context& ctx, const NormOutput& norm, const View& out,
                                  const ResidualInput& in, const View& x, const LinearWeights& w) {
  add_branch(ctx, &norm, out, in, x, w);
}

}  // namespace snug
