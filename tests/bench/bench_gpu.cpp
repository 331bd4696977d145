// bench_gpu: the ops of a training step, its products and whole steps of GPT-2 on the place cuda,
// as rows of a Markdown table. `bench_gpu facts` names the GPU; `bench_gpu cpu` runs everything
// there, small, to show that it runs. Exit code 2 with the reason where there is no GPU to use.
#include <fmt/format.h>

#include <algorithm>
#include <iostream>

#include "engine/blas/matmul.h"
#include "engine/blas/matmul_cuda.h"
#include "engine/core/error.h"
#include "engine/device/cuda.h"
#include "layers/ops/attention.h"
#include "layers/ops/document_start.h"
#include "layers/ops/gated_activation.h"
#include "layers/ops/rmsnorm.h"
#include "layers/ops/rope.h"
#include "tests/gpu/gpt2_steps.h"
#include "tools/calibrate/device_calibration.h"
#include "tools/calibrate/op_bench.h"

namespace snug::test {
namespace {

struct Work {
  std::string name;
  OpBody body;
  const char* op;                 // the name that op is recorded by
  Settings settings = {};         // but for the place
  double Roofs::*peak = nullptr;  // of its arithmetic; null: its traffic alone counts
};

// % of the nearer roof: of arithmetic for products, of traffic for all.
void print_row(Place place, const Work& work, const Roofs& roofs, int repeats) {
  const OpBench b = bench_op(place, work.settings, work.op, repeats, work.body);
  const auto flops = static_cast<double>(b.flops) / b.median,
             bytes = static_cast<double>(b.bytes) / b.median;
  const double peak = work.peak == nullptr ? 0 : roofs.*work.peak;
  const double share = std::max(peak > 0 ? flops / peak : 0.0,
                                roofs.memory_bytes() > 0 ? bytes / roofs.memory_bytes() : 0.0);
  fmt::print("| {} | {:.1f} | {:.1f} | {:.2f} | {:.1f} | {} |\n", work.name, b.median * 1e6,
             b.least * 1e6, flops * 1e-12, bytes * 1e-9,
             share > 0 ? fmt::format("{:.0f} %", 100 * share) : std::string());
}

// With tf32 the products of f32 alone, with cudnn attention of bf16 alone.
std::vector<Work> works(int64_t B, int64_t T, int64_t C, int64_t H, bool tf32 = false,
                        bool cudnn = false) {
  const int64_t N = B * T;
  std::vector<Work> list;
  for (const DType t : {DType::f32, DType::bf16}) {
    if (t == DType::f32 ? cudnn : tf32) continue;
    const auto add = [&](const std::string& name, const char* op, auto body) {
      const bool product = op == std::string("matmul"),
                 attention = std::string(op).starts_with("attention");
      if ((tf32 && !product) || (cudnn && !attention)) return;
      list.push_back({fmt::format("{} {}{}", name, to_string(t),
                                  tf32    ? " by TF32"
                                  : cudnn ? " by cuDNN"
                                          : ""),
                      body,
                      op,
                      {.cudnn = cudnn, .tf32 = tf32, .cublaslt = cublaslt_is_there()},
                      !product && !attention ? nullptr
                      : t == DType::bf16     ? &Roofs::bf16_flops
                      : tf32                 ? &Roofs::tf32_flops
                                             : &Roofs::fp32_flops});
    };
    const auto product = [&](const char* what, int64_t m, int64_t n, int64_t k, bool ta, bool tb) {
      add(fmt::format("{} {}x{}x{}", what, m, n, k), "matmul",
          [=](Context& ctx, std::vector<Tensor>& keep) {
            const View a = noise(ctx, keep, "a", ta ? Shape{k, m} : Shape{m, k}, t);
            const View b = noise(ctx, keep, "b", tb ? Shape{n, k} : Shape{k, n}, t);
            MatmulOptions options;
            options.transpose_a = ta;
            options.transpose_b = tb;
            matmul(ctx, noise(ctx, keep, "c", {m, n}, ta ? DType::f32 : t), a, b, options);
          });
    };
    product("x W^T", N, 4 * C, C, false, true);
    product("dy W", N, C, 4 * C, false, false);
    product("dy^T x", 4 * C, C, N, true, false);
    add(fmt::format("layer norm {}x{}", N, C), "layernorm_forward",
        [=](Context& ctx, std::vector<Tensor>& keep) {
          const View x = noise(ctx, keep, "x", {N, C}, t), y = noise(ctx, keep, "y", {N, C}, t);
          const View w = noise(ctx, keep, "weight", {C}, t);
          const View mean = noise(ctx, keep, "mean", {N}, DType::f32);
          layernorm_forward(ctx, y, mean, noise(ctx, keep, "rstd", {N}, DType::f32), x, w, w,
                            1e-5f);
        });
    add(fmt::format("RMS norm {}x{}", N, C), "rmsnorm_forward",
        [=](Context& ctx, std::vector<Tensor>& keep) {
          const View x = noise(ctx, keep, "x", {N, C}, t), y = noise(ctx, keep, "y", {N, C}, t);
          rmsnorm_forward(ctx, y, noise(ctx, keep, "rstd", {N}, DType::f32), x,
                          noise(ctx, keep, "weight", {C}, t), 1e-6f);
        });
    add(fmt::format("gated SiLU {}x{}", N, 4 * C), "gated_activation_forward",
        [=](Context& ctx, std::vector<Tensor>& keep) {
          const View gate_up = noise(ctx, keep, "gate_up", {N, 8 * C}, t);
          gated_activation_forward(ctx, noise(ctx, keep, "y", {N, 4 * C}, t), gate_up,
                                   Activation::silu);
        });
    add(fmt::format("rope B={} T={} H={} D={}", B, T, H, C / H), "rope_forward",
        [=](Context& ctx, std::vector<Tensor>& keep) {
          const View qkv = noise(ctx, keep, "qkv", {N, 3 * C}, t);
          RopeSpec rope{H, H, C / H, {}};
          for (int64_t i = 0; i < C / H / 2; ++i)
            rope.inverse_frequencies.push_back(1.0f / static_cast<float>(1 + i * i));
          rope_forward(ctx, qkv, qkv, B, T, rope, {});
        });
    AttentionSpec spec;
    spec.H = spec.G = H;
    spec.D = C / H;
    spec.scale = 0.125f;
    add(fmt::format("attention B={} T={} H={} D={}", B, T, H, C / H), "attention_forward",
        [=](Context& ctx, std::vector<Tensor>& keep) {
          const View qkv = noise(ctx, keep, "qkv", {N, 3 * C}, t);
          const View out = noise(ctx, keep, "out", {N, C}, t);
          attention_forward(ctx, out, noise(ctx, keep, "lse", {B, H, T}, DType::f32), qkv, B, T,
                            spec, {});
        });
    add(fmt::format("attention backward B={} T={} H={} D={}", B, T, H, C / H), "attention_backward",
        [=](Context& ctx, std::vector<Tensor>& keep) {
          const View qkv = noise(ctx, keep, "qkv", {N, 3 * C}, t);
          const View dqkv = noise(ctx, keep, "dqkv", {N, 3 * C}, t);
          const View out = noise(ctx, keep, "out", {N, C}, t);
          const View dout = noise(ctx, keep, "dout", {N, C}, t);
          attention_backward(ctx, dqkv, dout, qkv, out,
                             noise(ctx, keep, "lse", {B, H, T}, DType::f32), B, T, spec, {});
        });
    if (cudnn) continue;  // documents are not its
    add(fmt::format("attention both ways, documents, B={} T={} H={} D={}", B, T, H, C / H),
        "attention_forward", [=](Context& ctx, std::vector<Tensor>& keep) {
          AttentionSpec both_ways = spec;
          both_ways.causal = false;
          // All begin at 0: one a sequence, as many pairs as are reported.
          both_ways.document_start = zeros(ctx, keep, "starts", {B, T}, DType::i32);
          both_ways.document_end = zeros(ctx, keep, "ends", {B, T}, DType::i32);
          document_end(ctx, both_ways.document_end, both_ways.document_start, B, T);
          const View qkv = noise(ctx, keep, "qkv", {N, 3 * C}, t);
          const View out = noise(ctx, keep, "out", {N, C}, t);
          attention_forward(ctx, out, noise(ctx, keep, "lse", {B, H, T}, DType::f32), qkv, B, T,
                            both_ways, {});
        });
  }
  return list;
}

void print_steps(Place place, const char* precision, const ModelSpec& spec,
                 const Gpt2Steps::Options& o, int steps) {
  Gpt2Steps run(place, spec, o);
  for (int i = 0; i < 2; ++i) run.step();  // what libraries choose; graphs
  std::vector<double> seconds;
  for (int i = 0; i < steps; ++i) {
    const double begin = monotonic_seconds();
    run.step();
    seconds.push_back(monotonic_seconds() - begin);
  }
  std::sort(seconds.begin(), seconds.end());
  const double t = seconds[seconds.size() / 2];
  const auto tokens = static_cast<double>(o.B * o.T * o.micro_steps);
  const std::string how = std::string(o.tf32 ? " by TF32" : "") + (o.graphs ? ", graphs" : "") +
                          (o.cudnn ? ", cuDNN" : "");
  fmt::print(
      "| {}{} B={} T={} | {:.2f} | {:.0f} | {:.2f} | {} |\n", precision, how, o.B, o.T, t * 1e3,
      tokens / t, tokens / t * run.model().flops_per_token(o.T) * 1e-12,
      run.context().resident_bytes() == run.planned_bytes() ? "as planned" : "NOT as planned");
}

int run(const std::string& mode) {
  if (mode == "facts") {
    if constexpr (kCudaBuilt)
      fmt::print("{}; products: {}\n", describe(cuda_facts(0)), describe_cublaslt());
    else
      refuse_no_cuda_build();
    return 0;
  }
  const bool small = mode == "cpu";
  if (!small && mode != "cuda")
    fail(ErrorCode::usage, "bench_gpu, or bench_gpu with facts, cuda or cpu", mode,
         "bench_gpu cuda");
  const Place place = small ? Place::cpu : Place::cuda;
  make_device(place);  // or the reason why not, before a table begins
  const Roofs roofs = small ? Roofs() : measure_device_roofs(place, 0);
  if (!small) fmt::print("Roofs, measured now: {}\n\n", to_string(roofs));
  fmt::print(
      "| op | median us | least us | TFLOP/s | GB/s | of the roof |\n|---|---|---|---|---|---|\n");
  for (const Work& w : small ? works(1, 32, 64, 2) : works(8, 1024, 768, 12))
    print_row(place, w, roofs, small ? 3 : 11);
  // Heads of 128 too.
  for (const Work& w : small ? works(1, 32, 128, 1) : works(8, 1024, 768, 6))
    if (std::string_view(w.op).starts_with("attention")) print_row(place, w, roofs, small ? 3 : 11);
  const auto if_it_is_there = [](const std::string& what, const auto& print) {
    try {
      print();
    } catch (const Error& e) {
      if (e.code() != ErrorCode::unsupported) throw;
      std::cerr << what << ": " << e.what() << "\n";
    }
  };
  for (const bool cudnn : {false, true})
    for (const Work& w :
         small ? works(1, 32, 64, 2, !cudnn, cudnn) : works(8, 1024, 768, 12, !cudnn, cudnn))
      if_it_is_there(w.name, [&] { print_row(place, w, roofs, small ? 3 : 11); });
  fmt::print(
      "\n| GPT-2 step | median ms | tokens/s | model TFLOP/s | memory |\n|---|---|---|---|---|\n");
  const ModelSpec spec =
      small ? gpt2_spec(2, 64, 2, 32, 257, 0) : gpt2_spec(12, 768, 12, 1024, 50257, 0);
  struct Way {
    const char* precision;
    bool tf32, graphs, cudnn;
  };
  for (const Way& way : {Way{"fp32", false, false, false},
                         {"fp32", true, true, false},
                         {"bf16", false, false, false},
                         {"bf16", false, true, false},
                         {"bf16", false, true, true}}) {
    Gpt2Steps::Options o;
    o.precision = way.precision;
    o.tf32 = way.tf32;
    o.graphs = way.graphs;
    o.cudnn = way.cudnn;
    o.B = small ? 1 : 8;
    o.T = small ? 32 : 1024;
    o.head_rows = small ? 16 : 2048;
    o.micro_steps = 1;
    if_it_is_there("GPT-2", [&] { print_steps(place, way.precision, spec, o, small ? 2 : 5); });
  }
  return 0;
}

}  // namespace
}  // namespace snug::test

int main(int argc, char** argv) {
  try {
    return snug::test::run(argc > 1 ? argv[1] : "cuda");
  } catch (const snug::Error& e) {
    std::cerr << e.what() << "\n";
    return 2;
  }
}
