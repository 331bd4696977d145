// bench_gpu: the ops of a training step, its products and whole steps of GPT-2 on the place cuda,
// as rows of a Markdown table. `bench_gpu facts` names the GPU; `bench_gpu cpu` runs everything
// there, small, to show that it runs. Exit code 2 with the reason where there is no GPU to use.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iostream>

#include "engine/blas/matmul.h"
#include "engine/blas/matmul_cuda.h"
#include "engine/core/error.h"
#include "engine/device/cuda.h"
#include "layers/ops/attention.h"
#include "tests/gpu/gpt2_steps.h"

namespace snug::test {
namespace {

struct Work {
  std::string name;
  std::function<void(Context&)> body;  // makes its tensors and calls one op
  const char* op;                      // the name that op is recorded by
};

// Hears the times of the ops; the context waits for the GPU before and after each.
class Times final : public OpListener {
 public:
  explicit Times(std::string op) : op_(std::move(op)) {}
  void op_done(const Program& program, int32_t op, double seconds) override {
    const OpRecord& r = program.ops[static_cast<size_t>(op)];
    if (op_ != r.name) return;
    seconds_.push_back(seconds);
    flops = r.flops;
    bytes = r.bytes;
  }
  double median() {
    require(!seconds_.empty(), "a benchmark to run its op");
    std::sort(seconds_.begin(), seconds_.end());
    return seconds_[seconds_.size() / 2];
  }
  double least() const { return *std::min_element(seconds_.begin(), seconds_.end()); }
  int64_t flops = 0, bytes = 0;

 private:
  std::string op_;
  std::vector<double> seconds_;
};

void print_row(Place place, const Work& work, int repeats) {
  Settings settings;
  settings.target = place;
  Schedule schedule;
  const int program = schedule.add(Name("bench"), -1, false);
  {
    Context plan(Place::plan, settings);
    plan.program(schedule, program, [&] { work.body(plan); });
  }
  schedule.pack();
  Context ctx(place, settings);
  ctx.reserve(schedule);
  Times times(work.op);
  for (int i = 0; i < repeats + 2; ++i) {
    if (i == 2) ctx.set_listener(&times);  // the first runs load code and choose algorithms
    ctx.program(schedule, program, [&] { work.body(ctx); });
  }
  const double t = times.median();
  fmt::print("| {} | {:.1f} | {:.1f} | {:.2f} | {:.1f} |\n", work.name, t * 1e6,
             times.least() * 1e6, static_cast<double>(times.flops) / t * 1e-12,
             static_cast<double>(times.bytes) / t * 1e-9);
}

// Zeros: the time of these kernels does not depend on values, but the power of a GPU does a little.
View zeros(Context& ctx, std::vector<Tensor>& keep, const char* name, Shape shape, DType t) {
  keep.push_back(ctx.tensor(Name(name), shape, t, Category::workspace));
  fill_zero(ctx, keep.back());
  return keep.back();
}

std::vector<Work> works(int64_t B, int64_t T, int64_t C, int64_t H) {
  const int64_t N = B * T;
  std::vector<Work> list;
  for (const DType t : {DType::f32, DType::bf16}) {
    const auto add = [&](const std::string& name, const char* op, auto body) {
      list.push_back({fmt::format("{} {}", name, to_string(t)),
                      [body](Context& ctx) {
                        std::vector<Tensor> keep;
                        body(ctx, keep);
                        while (!keep.empty()) keep.pop_back();
                      },
                      op});
    };
    const auto product = [&](const char* what, int64_t m, int64_t n, int64_t k, bool ta, bool tb) {
      add(fmt::format("{} {}x{}x{}", what, m, n, k), "matmul",
          [=](Context& ctx, std::vector<Tensor>& keep) {
            const View a = zeros(ctx, keep, "a", ta ? Shape{k, m} : Shape{m, k}, t);
            const View b = zeros(ctx, keep, "b", tb ? Shape{n, k} : Shape{k, n}, t);
            MatmulOptions options;
            options.transpose_a = ta;
            options.transpose_b = tb;
            matmul(ctx, zeros(ctx, keep, "c", {m, n}, ta ? DType::f32 : t), a, b, options);
          });
    };
    product("x W^T", N, 4 * C, C, false, true);
    product("dy W", N, C, 4 * C, false, false);
    product("dy^T x", 4 * C, C, N, true, false);
    add(fmt::format("layer norm {}x{}", N, C), "layernorm_forward",
        [=](Context& ctx, std::vector<Tensor>& keep) {
          const View x = zeros(ctx, keep, "x", {N, C}, t), y = zeros(ctx, keep, "y", {N, C}, t);
          const View w = zeros(ctx, keep, "weight", {C}, t);
          const View mean = zeros(ctx, keep, "mean", {N}, DType::f32);
          layernorm_forward(ctx, y, mean, zeros(ctx, keep, "rstd", {N}, DType::f32), x, w, w,
                            1e-5f);
        });
    AttentionSpec spec;
    spec.H = spec.G = H;
    spec.D = C / H;
    spec.scale = 0.125f;
    add(fmt::format("attention B={} T={} H={} D={}", B, T, H, C / H), "attention_forward",
        [=](Context& ctx, std::vector<Tensor>& keep) {
          const View qkv = zeros(ctx, keep, "qkv", {N, 3 * C}, t);
          const View out = zeros(ctx, keep, "out", {N, C}, t);
          attention_forward(ctx, out, zeros(ctx, keep, "lse", {B, H, T}, DType::f32), qkv, B, T,
                            spec, {});
        });
  }
  return list;
}

void print_steps(Place place, const char* precision, const ModelSpec& spec,
                 const Gpt2Steps::Options& o, int steps) {
  Gpt2Steps run(place, spec, o);
  run.step();
  std::vector<double> seconds;
  for (int i = 0; i < steps; ++i) {
    const double begin = monotonic_seconds();
    run.step();
    seconds.push_back(monotonic_seconds() - begin);
  }
  std::sort(seconds.begin(), seconds.end());
  const double t = seconds[seconds.size() / 2];
  const auto tokens = static_cast<double>(o.B * o.T * o.micro_steps);
  fmt::print(
      "| {} B={} T={} | {:.2f} | {:.0f} | {:.2f} | {} |\n", precision, o.B, o.T, t * 1e3,
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
  fmt::print("| op | median us | least us | TFLOP/s | GB/s |\n|---|---|---|---|---|\n");
  for (const Work& w : small ? works(1, 32, 64, 2) : works(8, 1024, 768, 12))
    print_row(place, w, small ? 3 : 11);
  fmt::print(
      "\n| GPT-2 step | median ms | tokens/s | model TFLOP/s | memory |\n|---|---|---|---|---|\n");
  const ModelSpec spec =
      small ? gpt2_spec(2, 64, 2, 32, 257, 0) : gpt2_spec(12, 768, 12, 1024, 50257, 0);
  for (const char* precision : {"fp32", "bf16"}) {
    Gpt2Steps::Options o;
    o.precision = precision;
    o.B = small ? 1 : 8;
    o.T = small ? 32 : 1024;
    o.head_rows = small ? 16 : 2048;
    o.micro_steps = 1;
    print_steps(place, precision, spec, o, small ? 2 : 5);
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
