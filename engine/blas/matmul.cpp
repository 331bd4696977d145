#include "engine/blas/matmul.h"

#include <fmt/format.h>

#include "engine/blas/kernel_table.h"
#include "engine/blas/matmul_cuda.h"
#include "engine/blas/matmul_simt.h"
#include "engine/core/error.h"
#include "engine/kernels/kernel_queue.h"

namespace snug {
namespace {

// The matrix a view stands for: leading extents are rows. `transpose` swaps the strides.
struct Operand {
  MatrixView matrix;
  int64_t rows, cols;
};

Operand operand(const View& v, bool transpose, int64_t row_stride) {
  Operand o;
  o.rows = v.shape.rows();
  o.cols = v.shape.last();
  o.matrix = {v.data, v.dtype, row_stride > 0 ? row_stride : o.cols, 1};
  if (transpose) {
    std::swap(o.rows, o.cols);
    std::swap(o.matrix.row_stride, o.matrix.col_stride);
  }
  return o;
}

MatmulKernel choose(const KernelTable* kernels, const MatmulProblem& p) {
  return kernels != nullptr ? kernels->choose(p) : matmul_best(p);
}

// Enough for products with fewer rows too, which are the K of a product with A transposed. A shorter K
// may be of another class, whose kernel no plan names: so the largest demand of any, and always a
// tensor, for whether there is one may not depend on rows.
int64_t scratch_of(const Context& ctx, const MatmulProblem& p, bool packed, bool a_transposed) {
  if (p.M == 0 || p.N == 0 || p.K == 0) return 0;
  const auto bytes = [&](int64_t K, MatmulKernel kernel) {
    return matmul_scratch_bytes(p.M, p.N, K, p.a.dtype, p.b.dtype, p.c_dtype, kernel, ctx.threads(),
                                packed);
  };
  int64_t most = bytes(p.K, choose(ctx.settings().kernels, p));
  if (!a_transposed) return most;
  most = std::max<int64_t>(most, 1);
  if (p.K < kDeepProduct) return most;
  for (const MatmulKernel kernel : kMatmulKernels)
    if (kernel != MatmulKernel::amx_bf16_emulated && matmul_supports(p, kernel))
      most = std::max(most, bytes(kDeepProduct - 1, kernel));
  return most;
}

// The kernel of every product with this B and an A that is not transposed.
MatmulKernel packed_kernel(const KernelTable* kernels, const Operand& B, DType a_dtype) {
  MatmulProblem p;
  p.M = 1;
  p.N = B.cols;
  p.K = B.rows;
  p.a = {nullptr, a_dtype, B.rows, 1};
  p.b = B.matrix;
  return choose(kernels, p);
}

void check_packed(const View& packed, const View& b, bool transpose_b, DType a_dtype,
                  const KernelTable* kernels) {
  expect_dtype(packed, "packed B", {DType::u8});
  const int64_t bytes = matmul_packed_bytes(b, transpose_b, a_dtype, kernels);
  if (packed.elements() != bytes || bytes == 0)
    fail(ErrorCode::shape,
         fmt::format("{} bytes of packed {}{} for the kernel {}", bytes, describe(b),
                     transpose_b ? "^T" : "",
                     to_string(packed_kernel(kernels, operand(b, transpose_b, 0), a_dtype))),
         describe(packed), "plan the packed tensor with matmul_packed_bytes");
}

}  // namespace

int64_t matmul_packed_bytes(const View& b, bool transpose_b, DType a_dtype,
                            const KernelTable* kernels) {
  const Operand B = operand(b, transpose_b, 0);
  return matmul_packed_bytes(B.rows, B.cols, packed_kernel(kernels, B, a_dtype));
}

void matmul_pack(Context& ctx, const View& out, const View& b, bool transpose_b, DType a_dtype) {
  refuse_by_kernels(ctx, "matmul_pack");
  const KernelTable* kernels = ctx.settings().kernels;
  check_packed(out, b, transpose_b, a_dtype, kernels);
  const Operand B = operand(b, transpose_b, 0);
  Op op(ctx, "matmul_pack", {.flops = 0, .bytes = b.bytes() + out.bytes()});
  if (!op.run()) return;
  matmul_pack(out.data, B.matrix, B.rows, B.cols, packed_kernel(kernels, B, a_dtype),
              ctx.threads());
}

void matmul(Context& ctx, const View& c, const View& a, const View& b,
            const MatmulOptions& options) {
  static const Name kScratch("matmul.scratch");
  const Operand A = operand(a, options.transpose_a, options.lda);
  const Operand B = operand(b, options.transpose_b, 0);
  const int64_t M = c.shape.rows(), N = c.shape.last(), K = A.cols;
  if (A.rows != M || B.cols != N || B.rows != K)
    fail(ErrorCode::shape, "matmul operands that fit: C (M,N) = A (M,K) B (K,N)",
         fmt::format("{} = {}{} {}{}", describe(c), describe(a), options.transpose_a ? "^T" : "",
                     describe(b), options.transpose_b ? "^T" : ""),
         "check that the weights and the config belong together");
  if (options.bias.defined()) expect(options.bias, "bias", {{"N", N}});

  MatmulProblem p;
  p.M = M;
  p.N = N;
  p.K = K;
  p.a = A.matrix;
  p.b = B.matrix;
  p.c = c.data;
  p.c_dtype = c.dtype;
  p.ldc = N;
  p.accumulate = options.add;
  // On plan there are no addresses; that there is one still decides what applies.
  static const float kSomewhere = 0.0f;
  p.bias = options.bias.defined() && ctx.planning() ? &kSomewhere : options.bias.data;
  p.bias_dtype = options.bias.dtype;
  p.finish = options.finish;
  const bool packed = options.b_packed.defined();
  if (packed)
    check_packed(options.b_packed, b, options.transpose_b, a.dtype, ctx.settings().kernels);
  p.b_packed = packed && ctx.planning() ? &kSomewhere : options.b_packed.data;

  // The kernel of the places emu and cuda has the bits of the reference; the library on cuda has
  // not.
  const bool cublaslt = ctx.target() == Place::cuda && ctx.settings().cublaslt && cublaslt_takes(p);
  const MatmulKernel kernel = cublaslt           ? MatmulKernel::cublaslt
                              : ctx.by_kernels() ? MatmulKernel::reference
                                                 : choose(ctx.settings().kernels, p);
  const int64_t scratch_bytes = ctx.target() == Place::cuda ? kCudaMatmulScratch
                                : ctx.by_kernels()
                                    ? 0
                                    : scratch_of(ctx, p, packed, options.transpose_a);
  Tensor scratch;
  if (scratch_bytes > 0)
    scratch = ctx.tensor(kScratch, {scratch_bytes}, DType::u8, Category::workspace);
  // What a plan says about it beside its name.
  Name variant;
  if (ctx.planning())
    variant = kernel_choice_name({product_class(p), p.a.dtype, p.b.dtype, kernel}, packed);
  Op op(ctx, options.name,
        {.flops = 2 * M * N * K + options.also.flops,
         .bytes = a.bytes() + (packed ? options.b_packed : b).bytes() +
                  c.bytes() * (options.add ? 2 : 1) + options.also.bytes,
         .variant = variant});
  if (!op.run()) return;
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) {
      if constexpr (std::is_same_v<std::decay_t<decltype(queue)>, simt::cuda::Queue>)
        if (cublaslt) return matmul_by_cublaslt(queue, p, scratch.view().data, ctx.settings().tf32);
      matmul_on(queue, p);
    });
  matmul_cpu(p, kernel, scratch.defined() ? scratch.view().data : nullptr, ctx.threads());
}

}  // namespace snug
