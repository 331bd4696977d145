// The ops on the place cuda against the CPU, by the case tables of the other places. Guard bytes
// and poison are on, and the driver must report exactly the planned bytes (tests/support/case.h).
#include <cmath>

#include "engine/blas/matmul_cuda.h"
#include "engine/kernels/kernels.h"
#include "layers/ops/attention_cudnn.h"
#include "tests/gpu/gpu.h"
#include "tests/layers/ops/place_cases.h"
#include "tests/optim/optim_case.h"
#include "tests/support/errors.h"

namespace snug::test {
namespace {

class GpuOps : public Gpu {};

Settings on_gpu() {
  Settings settings;
  settings.target = Place::cuda;
  settings.cublaslt = cublaslt_is_there();
  settings.guard_bytes = 64;
  settings.poison = true;
  return settings;
}

// The same body twice on the GPU, which must agree, and on the CPU.
std::pair<Outputs, Outputs> on_both(const Body& body) {
  const Outputs cpu = run_on_plan_and_cpu({}, body);
  const Outputs gpu = run_on_plan_and_cpu(on_gpu(), body);
  EXPECT_TRUE(run_on_plan_and_cpu(on_gpu(), body, {.repeats = 3, .shuffle = 99}) == gpu)
      << "a run differs from the one before";
  return {gpu, cpu};
}

TEST_F(GpuOps, GiveWhatTheCpuGives) {
  for (const PlaceCase& p : place_cases()) {
    const auto [gpu, cpu] = on_both(p.body);
    expect_near(gpu, cpu, p);
  }
}

TEST_F(GpuOps, ElementwiseKernelsHaveTheBitsOfTheCpu) {
  const DType types[] = {DType::f32, DType::bf16, DType::f16};
  for (const int64_t n : {1, 255, 100003})
    for (const DType from : types)
      for (const DType to : types) {
        const auto [gpu, cpu] = on_both([&](Case& c) {
          const View x = c.input("x", {n}, from, normal_values(n, 1));
          const View y = c.inout("y", {n}, to, normal_values(n, 2));
          cast(c.ctx(), c.output("cast", {n}, to), x);
          add(c.ctx(), y, x);
          scale(c.ctx(), y, 0.3f);
          copy(c.ctx(), c.output("copy", {n}, to), y);
          fill_zero(c.ctx(), c.output("zero", {n}, to));
        });
        EXPECT_TRUE(gpu == cpu) << n << " " << to_string(from) << " " << to_string(to);
      }
}

TEST_F(GpuOps, SumsAreThoseOfTheCpuToTheirRounding) {
  const Values x = normal_values(600 * 300, 1);
  const auto [gpu, cpu] = on_both([&](Case& c) {
    const View from = c.input("x", {600, 300}, DType::f32, x);
    column_sum(c.ctx(), {c.output("sum", {300}, DType::f32), false}, from);
    sum_of_squares_and_finite(c.ctx(), from.reshaped({600 * 300}), c.step_state(plain_state()));
  });
  EXPECT_TRUE(close(gpu["sum"], cpu["sum"], 2 * tolerance(DType::f32, 600)));
  const double total = cpu.state().grad_square_sum;
  EXPECT_GT(total, 0);
  EXPECT_NEAR(gpu.state().grad_square_sum, total, 2 * 180000 * 0x1p-53 * total);
}

// No exp, log or tanh is in an update: the bits are those of the CPU.
TEST_F(GpuOps, UpdatesHaveTheBitsOfTheCpu) {
  const ParamTable table = table_of({300, 2051, 5, 1});
  const int64_t n = table.flat_elements();
  for (const std::string& name : optimizer_names())
    for (const DType weights : {DType::f32, DType::bf16, DType::f16})
      for (const int64_t updates : {0, 7}) {
        UpdateCase u;
        u.config.name = name;
        u.config.weight_decay = 0.1;
        u.spans = whole_parameter_spans(table);
        u.master = normal_values(n, 1);
        u.gradients = normal_values(n, 2);
        uint32_t seed = 3;
        for (const Name& state : std::vector<Name>(make_optimizer(u.config)->state_names())) {
          u.states.push_back(normal_values(n, seed++));
          if (!holds_squares(state)) continue;
          for (double& v : u.states.back()) v *= v;
          u.states.back() = as_f32(u.states.back());
        }
        u.weights = weights;
        u.state = plain_state(0.01);
        u.state.updates = updates;
        const auto [gpu, cpu] = on_both(u.body());
        EXPECT_TRUE(gpu == cpu) << name << " " << to_string(weights) << " " << updates;
      }
}

// Without a GPU: what a plan for one says.
TEST(PlanForAGpu, HasTheScratchOfItsProductsAndRefusesWhatHasNoKernel) {
  for (const Place place : {Place::cuda, Place::emu}) {
    Context plan(Place::plan, {.target = place});
    Schedule schedule;
    const int program = schedule.add(Name("product"), -1, false);
    plan.program(schedule, program, [&] {
      const Tensor a = plan.tensor(Name("a"), {8, 8}, DType::f32, Category::workspace);
      const Tensor c = plan.tensor(Name("c"), {8, 8}, DType::f32, Category::workspace);
      matmul(plan, c, a, a);
      expect_error(ErrorCode::unsupported, {"an op with a kernel on the place", to_string(place)},
                   [&] { matmul_pack(plan, {}, a, true, DType::f32); });
    });
    int64_t scratch = 0;
    for (const TensorRecord& t : schedule.at(program).tensors)
      if (t.name == Name("matmul.scratch")) scratch += t.bytes;
    EXPECT_EQ(scratch, place == Place::cuda ? kCudaMatmulScratch : 0);
  }
}

// Sizes past one block's and one grid row's, in every layout of training: against double.
TEST_F(GpuOps, ProductsAreWithinTheErrorOfTheirSums) {
  struct Shape3 {
    int64_t m, n, k;
  };
  for (const Shape3 s : {Shape3{1, 1, 1}, {70, 33, 129}, {256, 512, 768}, {1000, 130, 64}})
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      for (const int layout : {0, 1, 2}) {
        const bool ta = layout == 2, tb = layout == 0;
        const Values a = normal_values(s.m * s.k, 1, t), b = normal_values(s.n * s.k, 2, t);
        const auto [gpu, cpu] = on_both([&](Case& c) {
          const View va = c.input("a", ta ? Shape{s.k, s.m} : Shape{s.m, s.k}, t, a);
          const View vb = c.input("b", tb ? Shape{s.n, s.k} : Shape{s.k, s.n}, t, b);
          // Two dtypes: not for the library, so the kernel of the place.
          if (t != DType::f32) {
            const View wide = c.input("a_f32", va.shape, DType::f32, a);
            MatmulOptions mixed;
            mixed.transpose_a = ta;
            mixed.transpose_b = tb;
            matmul(c.ctx(), c.output("mixed", {s.m, s.n}, DType::f32), wide, vb, mixed);
          }
          const View bias = c.input("bias", {s.n}, t, normal_values(s.n, 3, t));
          MatmulOptions options;
          options.transpose_a = ta;
          options.transpose_b = tb;
          matmul(c.ctx(), c.output("plain", {s.m, s.n}, DType::f32), va, vb, options);
          options.add = true;
          matmul(c.ctx(), c.inout("added", {s.m, s.n}, t, normal_values(s.m * s.n, 4, t)), va, vb,
                 options);
          options.add = false;
          options.bias = bias;
          matmul(c.ctx(), c.output("bias_added", {s.m, s.n}, t), va, vb, options);
        });
        Values exact(static_cast<size_t>(s.m * s.n));
        for (int64_t i = 0; i < s.m; ++i)
          for (int64_t j = 0; j < s.n; ++j)
            for (int64_t k = 0; k < s.k; ++k)
              exact[static_cast<size_t>(i * s.n + j)] +=
                  a[static_cast<size_t>(ta ? k * s.m + i : i * s.k + k)] *
                  b[static_cast<size_t>(tb ? j * s.k + k : k * s.n + j)];
        SCOPED_TRACE(to_string(t) + std::to_string(layout) + " " + std::to_string(s.k));
        EXPECT_TRUE(close(gpu["plain"], exact, tolerance(DType::f32, s.k)));
        if (t != DType::f32) {
          EXPECT_TRUE(close(gpu["mixed"], exact, tolerance(DType::f32, s.k)));
        }
        for (const char* name : {"added", "bias_added"})
          EXPECT_TRUE(
              close(gpu[name], cpu[name], 2 * tolerance(DType::f32, s.k) + 2 * tolerance(t, 1)))
              << name;
      }
}

// The operands are rounded to 11 significant bits: an error of 2^-11 for each of the two factors.
TEST_F(GpuOps, Tf32RoundsTheOperandsOfProducts) {
  const int64_t m = 256, n = 128, k = 768;
  const auto body = [&](Case& c) {
    const View a = c.input("a", {m, k}, DType::f32, normal_values(m * k, 1));
    const View b = c.input("b", {k, n}, DType::f32, normal_values(k * n, 2));
    matmul(c.ctx(), c.output("c", {m, n}, DType::f32), a, b, {});
  };
  Settings tf32 = on_gpu();
  tf32.tf32 = true;
  const Outputs cpu = run_on_plan_and_cpu({}, body), rounded = run_on_plan_and_cpu(tf32, body),
                gpu = run_on_plan_and_cpu(on_gpu(), body);
  EXPECT_TRUE(close(gpu["c"], cpu["c"], 2 * tolerance(DType::f32, k)));
  EXPECT_TRUE(close(rounded["c"], cpu["c"], 2 * 0x1p-11 + 2 * tolerance(DType::f32, k)));
  EXPECT_FALSE(close(rounded["c"], gpu["c"], 0x1p-15)) << "or the library is absent";
}

// p, ds and what is stored are rounded to 16 bits on either side; differences of products that
// nearly cancel carry those of both.
struct Extras {
  float dropout = 0;
  bool padding = false;
  bool documents = false;
};
void expect_attention_of_the_cpu(DType t, int64_t D, bool causal, int64_t window, bool cudnn,
                                 Extras extras = {}) {
  SCOPED_TRACE(std::string(to_string(t)) + (causal ? " causal" : "") + " D " + std::to_string(D) +
               (extras.dropout > 0 ? " dropout" : "") + (extras.padding ? " padding" : "") +
               (extras.documents ? " documents" : ""));
  const int64_t B = 2, T = 200, H = 4, G = 2, width = (H + 2 * G) * D;
  const auto body = [&](Case& c) {
    AttentionSpec spec;
    spec.H = H;
    spec.G = G;
    spec.D = D;
    spec.scale = 0.125f;
    spec.causal = causal;
    spec.window = window;
    spec.dropout = extras.dropout;
    spec.site = 9;
    if (extras.documents) {
      Values starts;
      for (const int64_t length : {70, 1, 65, 64, 130, 70})
        starts.insert(starts.end(), static_cast<size_t>(length),
                      static_cast<double>(static_cast<int64_t>(starts.size()) % T));
      spec.document_start = c.input("document_start", {B, T}, DType::i32, starts);
      if (!causal) {
        spec.document_end = c.output("document_end", {B, T}, DType::i32);
        document_end(c.ctx(), spec.document_end, spec.document_start, B, T);
      }
    }
    if (extras.padding) spec.key_lengths = c.input("key_lengths", {B}, DType::i32, {T, 70});
    StepState at{};
    at.seed = 77;
    at.step = 5;
    const View state = extras.dropout > 0 ? c.step_state(at) : View();
    const View qkv = c.input("qkv", {B * T, width}, t, normal_values(B * T * width, 1, t));
    const View dout = c.input("dout", {B * T, H * D}, t, normal_values(B * T * H * D, 2, t));
    const View out = c.output("out", {B * T, H * D}, t);
    const View lse = c.output("lse", {B, H, T}, DType::f32);
    attention_forward(c.ctx(), out, lse, qkv, B, T, spec, state);
    attention_backward(c.ctx(), c.output("dqkv", {B * T, width}, t), dout, qkv, out, lse, B, T,
                       spec, state);
  };
  Settings settings = on_gpu();
  settings.cudnn = cudnn;
  const Outputs cpu = run_on_plan_and_cpu({}, body), gpu = run_on_plan_and_cpu(settings, body);
  EXPECT_TRUE(run_on_plan_and_cpu(settings, body) == gpu) << "not deterministic";
  const double step = t == DType::bf16 ? 0x1p-9 : 0x1p-12;
  EXPECT_TRUE(close(gpu["lse"], cpu["lse"], 1e-5));
  EXPECT_TRUE(close(gpu["out"], cpu["out"], 4 * step));
  EXPECT_TRUE(close(gpu["dqkv"], cpu["dqkv"], 16 * step));
}

TEST_F(GpuOps, AttentionByCudnnIsThatOfTheCpu) {
  std::string cudnn;
  if constexpr (kCudaBuilt) cudnn = describe_cudnn();
  if (!cudnn.starts_with("cuDNN ")) GTEST_SKIP() << cudnn;
  for (const DType t : {DType::bf16, DType::f16})
    for (const bool causal : {true, false})
      for (const Extras extras : {Extras{}, {0, true}})
        expect_attention_of_the_cpu(t, 64, causal, 0, true, extras);
}

// Our own, for every width its kernels are compiled for and some between.
TEST_F(GpuOps, AttentionOnTensorCoresIsThatOfTheCpu) {
  for (const DType t : {DType::bf16, DType::f16})
    for (const int64_t D : {7, 32, 64, 80, 128, 256})
      for (const bool causal : {true, false})
        for (const bool documents : {false, true})
          expect_attention_of_the_cpu(t, D, causal, causal && D == 80 ? 50 : 0, false,
                                      {.documents = documents});
}

}  // namespace
}  // namespace snug::test
