// Matrix products of GPT-2 124M by this program's kernel and by oneDNN, in turn in one process.
// Usage: bench_onednn [ROUNDS [THREADS]], 5 and 2 unless given. A line for each product: the best
// rate of ours with B as it is, with B packed beforehand, and of oneDNN, in GFLOP/s.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "engine/blas/matmul_cpu.h"
#include "engine/core/openmp.h"

namespace snug {
namespace {

using dnnl::memory;

struct Product {
  const char* what;
  int64_t M, N, K;
  bool ta, tb;
};

// 1024 tokens: forward, for the input and for the weight.
constexpr Product kProducts[] = {
    {"qkv x W^T", 1024, 2304, 768, false, true},   {"qkv dy W", 1024, 768, 2304, false, false},
    {"qkv dy^T x", 2304, 768, 1024, true, false},  {"mlp x W^T", 1024, 3072, 768, false, true},
    {"mlp dy W", 1024, 768, 3072, false, false},   {"mlp dy^T x", 3072, 768, 1024, true, false},
    {"head x W^T", 1024, 50257, 768, false, true},
};

double seconds_of(const auto& f) {
  const auto began = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

memory::desc matrix(int64_t rows, int64_t cols, DType t, const MatrixView& v) {
  return {{rows, cols},
          t == DType::f32 ? memory::data_type::f32 : memory::data_type::bf16,
          memory::dims{v.row_stride, v.col_stride}};
}

// oneDNN's primitive for a product, made once.
class Library {
 public:
  explicit Library(const MatmulProblem& p) {
    const memory::desc a = matrix(p.M, p.K, p.a.dtype, p.a), b = matrix(p.K, p.N, p.b.dtype, p.b),
                       c = matrix(p.M, p.N, p.c_dtype, {p.c, p.c_dtype, p.ldc, 1});
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc desc(engine_, a, b, c);
#else
    const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(a, b, c), engine_);
#endif
    primitive_ = dnnl::matmul(desc);
    const auto at = [](const void* data) { return const_cast<void*>(data); };
    arguments_ = {{DNNL_ARG_SRC, memory(a, engine_, at(p.a.data))},
                  {DNNL_ARG_WEIGHTS, memory(b, engine_, at(p.b.data))},
                  {DNNL_ARG_DST, memory(c, engine_, p.c)}};
  }
  void run() {
    primitive_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul primitive_;
  std::unordered_map<int, memory> arguments_;
};

void compare(const Product& s, DType t, int rounds, int threads) {
  const auto bytes = static_cast<size_t>(size_of(t));
  std::vector<std::byte> a(static_cast<size_t>(s.M * s.K) * bytes),
      b(static_cast<size_t>(s.K * s.N) * bytes), c(static_cast<size_t>(s.M * s.N) * 4);
  for (std::vector<std::byte>* v : {&a, &b})
    for (size_t i = 0; i < v->size() / bytes; ++i) {
      const float x = 0.25f + static_cast<float>(i % 17) / 32;
      if (t == DType::f32)
        reinterpret_cast<float*>(v->data())[i] = x;
      else
        reinterpret_cast<bf16*>(v->data())[i] = from_f32<bf16>(x);
    }
  MatmulProblem p;
  p.M = s.M;
  p.N = s.N;
  p.K = s.K;
  p.a = {a.data(), t, s.ta ? 1 : s.K, s.ta ? s.M : 1};
  p.b = {b.data(), t, s.tb ? 1 : s.N, s.tb ? s.K : 1};
  p.c = c.data();
  p.c_dtype = t;
  p.ldc = s.N;
  const MatmulKernel kernel = matmul_best(p);
  std::vector<std::byte> packed(static_cast<size_t>(matmul_packed_bytes(s.K, s.N, kernel))),
      scratch(static_cast<size_t>(
          matmul_scratch_bytes(s.M, s.N, s.K, t, t, t, kernel, threads, false)));
  matmul_pack(packed.data(), p.b, s.K, s.N, kernel, threads);
  MatmulProblem with = p;
  with.b_packed = packed.data();
  Library library(p);
  double as_is = 1e30, ready = 1e30, other = 1e30;
  for (int i = 0; i < rounds; ++i) {
    as_is = std::min(as_is, seconds_of([&] { matmul_cpu(p, kernel, scratch.data(), threads); }));
    ready = std::min(ready, seconds_of([&] { matmul_cpu(with, kernel, scratch.data(), threads); }));
    other = std::min(other, seconds_of([&] { library.run(); }));
  }
  const double flops = 2e-9 * static_cast<double>(s.M * s.N * s.K);
  fmt::print("{:10} {:5} {:6} {:5}  {:4} {:12} {:7.0f} {:7.0f} {:7.0f}  {:.2f}\n", s.what, s.M, s.N,
             s.K, to_string(t), to_string(kernel), flops / as_is, flops / ready, flops / other,
             other / std::min(as_is, ready));
}

int run(int rounds, int threads) {
  omp_set_num_threads(threads);  // oneDNN's too
  fmt::print("product        M      N     K  in   kernel         as is  packed  oneDNN  ratio\n");
  for (const DType t : {DType::f32, DType::bf16})
    for (const Product& s : kProducts) compare(s, t, rounds, threads);
  return 0;
}

}  // namespace
}  // namespace snug

int main(int argc, char** argv) {
  return snug::run(argc > 1 ? std::max(1, std::atoi(argv[1])) : 5,
                   argc > 2 ? std::max(1, std::atoi(argv[2])) : 2);
}
