// snug bench gemm: the matrix products of a configuration in their three directions, by every
// kernel that takes them, with B as it is and packed.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/blas/matmul_cpu.h"
#include "engine/core/error.h"
#include "engine/device/device.h"
#include "tools/bench.h"
#include "tools/cli/argument_parser.h"
#include "tools/planner/batch_room.h"

namespace snug {
namespace {

struct Product {
  std::string part, direction;
  MatmulProblem problem;  // without data
};

// A weight of (out, in) on M rows: x W^T forward, dy W for the input, dy^T x into the weight's
// gradient.
void add_products(std::vector<Product>& list, const std::string& part, int64_t M, int64_t out,
                  int64_t in, DType t, DType forward_dtype) {
  const auto add = [&](const char* direction, int64_t m, int64_t n, int64_t k, bool ta, bool tb,
                       DType c, bool accumulate) {
    MatmulProblem p;
    p.M = m;
    p.N = n;
    p.K = k;
    p.a = {nullptr, t, ta ? 1 : k, ta ? m : 1};
    p.b = {nullptr, t, tb ? 1 : n, tb ? k : 1};
    p.c_dtype = c;
    p.ldc = n;
    p.accumulate = accumulate;
    list.push_back({part, direction, p});
  };
  add("x W^T", M, out, in, false, true, forward_dtype, false);
  add("dy W", M, in, out, false, false, t, false);
  add("dy^T x", out, in, M, true, false, DType::f32, true);
}

std::vector<Product> products_of(const Model& model, const Decisions& d) {
  const ModelSpec& s = model.spec();
  const int64_t M = d.micro_batch * d.T, heads = s.H * s.D;
  const DType t = model.precision().compute;
  std::vector<Product> list;
  add_products(list, "attention in", M, heads + 2 * s.G * s.D, s.C, t, t);
  add_products(list, "attention out", M, s.C, heads, t, t);
  add_products(list, "mlp in", M, s.F * (s.gated_mlp ? 2 : 1), s.C, t, t);
  add_products(list, "mlp out", M, s.C, s.F, t, t);
  add_products(list, "head", std::min(M, d.head_rows), s.Vp(), s.C, t, DType::f32);
  return list;
}

// Memory as a run's arena has it, in huge pages where the system gives them: on small ones a
// product whose rows are far apart waits for addresses to be looked up.
class Pages {
 public:
  Pages(Device& device, int64_t bytes, int threads)
      : device_(device), bytes_(bytes), data_(device.reserve(bytes, Residence::device)) {
    device.touch(data_, bytes, threads);
  }
  ~Pages() { device_.release(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* data() const { return data_; }
  // Ordinary values, read as f32 or bf16.
  void fill(int64_t elements, DType t) {
    for (int64_t i = 0; i < elements; ++i) {
      const float v = 0.25f + static_cast<float>(i % 17) / 32.0f;
      if (t == DType::bf16)
        reinterpret_cast<bf16*>(data_)[i] = from_f32<bf16>(v);
      else
        reinterpret_cast<float*>(data_)[i] = v;
    }
  }

 private:
  Device& device_;
  int64_t bytes_;
  std::byte* data_;
};

struct GemmRow {
  const Product* product;
  MatmulKernel kernel;
  bool packed;
  Times times;
  double pack_seconds = 0;  // of packing B once
};

}  // namespace

int bench_gemm(const Arguments& arguments) {
  int64_t repeat = 5;
  bool json = false;
  const ConfigArguments a = parse_config_arguments(
      "bench gemm",
      "times the matrix products of a configuration by every kernel, in turn: forward, for the "
      "input and for the weight, with B as it is and packed beforehand.",
      {"snug bench gemm model=gpt2 precision=bf16 max_length=1024 global_batch_size=4",
       "snug bench gemm --config run.yaml threads=1 --repeat 9 --json"},
      arguments, [&](ArgumentParser& parser) {
        parser
            .option("--repeat", repeat, "N", "rounds; every product and kernel has a turn in each")
            .flag("--json", json, "print the figures as JSON");
      });
  if (!a.proceed) return 0;
  if (repeat < 2)
    fail(ErrorCode::usage, "--repeat of at least 2", std::to_string(repeat), "--repeat 5");
  refuse_target(a.config, "bench");
  refuse_emulator(a.config, "bench");
  if (resolve_place(a.config) == Place::cuda)
    fail(ErrorCode::usage,
         "device: auto or cpu for snug bench gemm, which compares kernels of CPUs",
         fmt::format("device: {} ({})", a.config.device, a.config.where("device")),
         "snug bench ops device=cuda, or snug calibrate device=cuda for products by class");
  RunSetup setup = make_setup(a.config);
  setup.request.follow = {};  // of a plan its decisions alone: these programs are fewer
  setup.request.evaluate = false;
  setup.request.kv_length = 0;
  forget_free_bytes(setup.request);  // only operands are reserved here
  check_batch_room(setup.request);
  const Plan plan = make_plan(setup.request);
  if (!plan.fits) refuse_plan(plan);
  const int threads = plan.threads;
  const std::vector<Product> products = products_of(*setup.model, plan.decisions);
  const DType t = setup.model->precision().compute;
  const Roofs before = measure_roofs(threads);

  std::vector<GemmRow> rows;
  int64_t a_most = 0, b_most = 0, c_most = 0, pack_most = 0, scratch_most = 0;
  for (const Product& product : products) {
    const MatmulProblem& p = product.problem;
    a_most = std::max(a_most, p.M * p.K);
    b_most = std::max(b_most, p.K * p.N);
    c_most = std::max(c_most, p.M * p.N);
    for (const MatmulKernel k : kMatmulKernels) {
      if (k == MatmulKernel::reference || k == MatmulKernel::amx_bf16_emulated) continue;
      if (!matmul_supports(p, k)) continue;
      rows.push_back({&product, k, false, {}});
      const int64_t packed = matmul_packed_bytes(p.K, p.N, k);
      // The weight's gradient multiplies two activations: nothing is used twice.
      if (packed > 0 && !p.accumulate) rows.push_back({&product, k, true, {}});
      pack_most = std::max(pack_most, packed);
      for (const bool is_packed : {false, true})
        if (!is_packed || packed > 0)
          scratch_most = std::max(scratch_most, matmul_scratch_bytes(p.M, p.N, p.K, t, t, p.c_dtype,
                                                                     k, threads, is_packed));
    }
  }
  const auto device = make_device(Place::cpu);
  Pages left(*device, a_most * size_of(t), threads), right(*device, b_most * size_of(t), threads);
  Pages sums(*device, c_most * size_of(DType::f32), threads), packed(*device, pack_most, threads);
  Pages scratch(*device, scratch_most, threads);
  left.fill(a_most, t);
  right.fill(b_most, t);
  sums.fill(c_most, DType::f32);
  for (int64_t round = 0; round < repeat; ++round)
    for (GemmRow& row : rows) {
      MatmulProblem p = row.product->problem;
      p.a.data = left.data();
      p.b.data = right.data();
      p.c = sums.data();
      if (row.packed) {
        const double started = monotonic_seconds();
        matmul_pack(packed.data(), p.b, p.K, p.N, row.kernel, threads);
        const double seconds = monotonic_seconds() - started;
        row.pack_seconds = round == 0 ? seconds : std::min(row.pack_seconds, seconds);
        p.b_packed = packed.data();
      }
      // Two calls, of which the second finds the caches as a loop would leave them.
      double seconds = 0;
      for (int call = 0; call < 2; ++call) {
        const double started = monotonic_seconds();
        matmul_cpu(p, row.kernel, scratch.data(), threads);
        seconds = monotonic_seconds() - started;
      }
      row.times.seconds.push_back(seconds);
    }
  const Roofs after = measure_roofs(threads), roofs = larger(before, after);

  const bool narrow = t == DType::bf16;
  nlohmann::json list = nlohmann::json::array();
  if (!json) {
    fmt::print("roofs before, {}\n", to_string(before));
    fmt::print("roofs after,  {}\n\n", to_string(after));
    fmt::print("{:<14} {:<7} {:>21} {:<12} {:<7} {:>9} {:>6} {:>9} {:>6} {:>8}\n", "product", "",
               "M x N x K", "kernel", "B", "ms", "noise", "GFLOP/s", "roof", "pack ms");
  }
  for (const GemmRow& row : rows) {
    const MatmulProblem& p = row.product->problem;
    const double flops =
        2.0 * static_cast<double>(p.M) * static_cast<double>(p.N) * static_cast<double>(p.K);
    const double seconds = row.times.median(), rate = flops / seconds;
    const WeightPacking packing = plan.decisions.packed_weights;
    const bool from_copy =
        !p.accumulate &&
        (packing == WeightPacking::both ||
         (packing == WeightPacking::forward && row.product->direction == std::string("x W^T")));
    const bool used = setup.kernels->choose(p) == row.kernel && row.packed == from_copy;
    if (json) {
      list.push_back({{"product", row.product->part},
                      {"direction", row.product->direction},
                      {"M", p.M},
                      {"N", p.N},
                      {"K", p.K},
                      {"kernel", to_string(row.kernel)},
                      {"class", to_string(product_class(p))},
                      {"packed", row.packed},
                      {"used", used},
                      {"seconds", seconds},
                      {"fastest_seconds", row.times.least()},
                      {"noise", row.times.noise()},
                      {"flops_per_second", rate},
                      {"roof_share", rate / roofs.flops(narrow)}});
      if (row.packed) list.back()["pack_seconds"] = row.pack_seconds;
    } else {
      fmt::print("{:<14} {:<7} {:>21} {:<12} {:<7} {:>9.3f} {:>5.1f}% {:>9.1f} {:>5.0f}% {:>8}{}\n",
                 row.product->part, row.product->direction,
                 fmt::format("{} x {} x {}", p.M, p.N, p.K), to_string(row.kernel),
                 row.packed ? "packed" : "as is", seconds * 1e3, 100.0 * row.times.noise(),
                 rate * 1e-9, 100.0 * rate / roofs.flops(narrow),
                 row.packed ? fmt::format("{:.3f}", row.pack_seconds * 1e3) : std::string(),
                 used ? "  *" : "");
    }
  }
  if (json)
    fmt::print("{}\n", nlohmann::json({{"roofs", roofs_json(roofs)},
                                       {"roofs_before", roofs_json(before)},
                                       {"roofs_after", roofs_json(after)},
                                       {"threads", threads},
                                       {"products", list}})
                           .dump(2));
  else
    fmt::print("\n* the kernel a run uses. roof: of {} arithmetic.\n",
               roofs.is_bf16(narrow) ? "bf16" : "fp32");
  return 0;
}

}  // namespace snug
