#include "layers/parts/runtime.h"

#include "engine/blas/matmul.h"
#include "engine/kernels/kernels.h"
#include "layers/ops/layernorm.h"

namespace snug {

void linear_forward(Context& ctx, Runtime& rt, const LinearParams& p, const View& y,
                    const View& x) {
  MatmulOptions options{.transpose_b = true};
  options.b_packed = rt.packed_weight(p.weight).forward;
  if (p.bias >= 0) options.bias = rt.params.acquire(ctx, p.bias);
  matmul(ctx, y, x, rt.params.acquire(ctx, p.weight), options);
  rt.params.release(ctx, p.weight);
  if (p.bias >= 0) rt.params.release(ctx, p.bias);
}

void linear_backward_params(Context& ctx, Runtime& rt, const LinearParams& p, const View& dy,
                            const View& x) {
  if (rt.grads->wants(p.weight)) {
    const GradView dw = rt.grads->open(ctx, p.weight);
    matmul(ctx, dw.view, dy, x, {.transpose_a = true, .add = dw.add});
    rt.grads->close(ctx, p.weight);
  }
  if (p.bias >= 0 && rt.grads->wants(p.bias)) {
    column_sum(ctx, rt.grads->open(ctx, p.bias), dy);
    rt.grads->close(ctx, p.bias);
  }
}

void linear_backward_input(Context& ctx, Runtime& rt, const LinearParams& p, const View& dx,
                           const View& dy) {
  MatmulOptions options;
  options.b_packed = rt.packed_weight(p.weight).backward;
  matmul(ctx, dx, dy, rt.params.acquire(ctx, p.weight), options);
  rt.params.release(ctx, p.weight);
}

void norm_forward(Context& ctx, Runtime& rt, const NormParams& p, const View& y, const View& mean,
                  const View& rstd, const View& x, float epsilon) {
  layernorm_forward(ctx, y, mean, rstd, x, rt.params.acquire(ctx, p.weight),
                    rt.params.acquire(ctx, p.bias), epsilon);
  rt.params.release(ctx, p.weight);
  rt.params.release(ctx, p.bias);
}

void norm_backward(Context& ctx, Runtime& rt, const NormParams& p, const View& dx, bool add_dx,
                   const View& dy, const View& x, const View& mean, const View& rstd) {
  GradView dweight, dbias;
  if (rt.grads->wants(p.weight)) dweight = rt.grads->open(ctx, p.weight);
  if (rt.grads->wants(p.bias)) dbias = rt.grads->open(ctx, p.bias);
  layernorm_backward(ctx, dx, add_dx, dweight, dbias, dy, x, rt.params.acquire(ctx, p.weight), mean,
                     rstd);
  rt.params.release(ctx, p.weight);
  if (rt.grads->wants(p.weight)) rt.grads->close(ctx, p.weight);
  if (rt.grads->wants(p.bias)) rt.grads->close(ctx, p.bias);
}

}  // namespace snug
