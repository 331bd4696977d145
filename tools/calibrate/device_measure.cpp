// The measuring part of device_calibration.h.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/blas/matmul.h"
#include "engine/blas/matmul_cuda.h"
#include "engine/core/error.h"
#include "engine/device/cuda.h"
#include "engine/kernels/kernels.h"
#include "layers/models/family.h"
#include "layers/ops/attention.h"
#include "tools/calibrate/calibration.h"
#include "tools/calibrate/device_calibration.h"
#include "tools/calibrate/measure_ops.h"
#include "tools/calibrate/op_bench.h"
#include "tools/session/computes_on.h"
#include "tools/session/warm_up.h"

namespace snug {
namespace {

// How much is measured of a place: a GPU does in a second what the emulator does in a day.
struct Amount {
  std::array<int64_t, 3> M, N;  // by the columns of a class; M 0: not measured
  std::array<int64_t, 2> K;     // by its depth; 0: not measured
  int64_t square;               // of the roofs' products
  int64_t array_bytes;          // of the roofs' arrays, at most
  int64_t link_bytes;
  int64_t launches;
  std::array<int64_t, 2> head_sizes, lengths;  // of attention; 0: not measured
  int64_t heads, attention_rows;
  int repeats;
};
constexpr Amount kGpu = {.M = {8192, 8192, 1024},
                         .N = {384, 3072, 50304},
                         .K = {256, 3072},
                         .square = 8192,
                         .array_bytes = int64_t{256} << 20,
                         .link_bytes = int64_t{256} << 20,
                         .launches = 512,
                         .head_sizes = {64, 128},
                         .lengths = {1024, 4096},
                         .heads = 12,
                         .attention_rows = 16384,
                         .repeats = 9};
constexpr Amount kEmulator = {.M = {16, 0, 0},
                              .N = {16, 0, 0},
                              .K = {16, 0},
                              .square = 32,
                              .array_bytes = 1 << 16,
                              .link_bytes = 1 << 16,
                              .launches = 8,
                              .head_sizes = {8, 0},
                              .lengths = {8, 0},
                              .heads = 2,
                              .attention_rows = 8,
                              .repeats = 2};

const Amount& amount_of(Place place) {
  require(place == Place::cuda || place == Place::emu, "a place with kernels to measure");
  return place == Place::cuda ? kGpu : kEmulator;
}

Settings settings_of(Place place, int gpu, bool tf32 = false) {
  Settings s;
  s.target = place;
  s.gpu = gpu;
  s.tf32 = tf32;
  s.cublaslt = cublaslt_is_there();
  s.device_private = place == Place::emu;
  return s;
}

// FLOP/s of C (M,N) = A B in one dtype; the gradient of a weight (A transposed) is f32.
double product_rate(Place place, const Settings& settings, const ProductRate& p, int repeats) {
  const OpBench b =
      bench_op(place, settings, "matmul", repeats, [&](Context& ctx, std::vector<Tensor>& keep) {
        MatmulOptions o;
        o.transpose_a = p.shapes.a_transposed;
        o.transpose_b = p.shapes.b_transposed;
        const View a =
            noise(ctx, keep, "a", o.transpose_a ? Shape{p.K, p.M} : Shape{p.M, p.K}, p.dtype);
        const View b_view =
            noise(ctx, keep, "b", o.transpose_b ? Shape{p.N, p.K} : Shape{p.K, p.N}, p.dtype);
        const DType c = o.transpose_a ? DType::f32 : p.dtype;
        matmul(ctx, zeros(ctx, keep, "c", {p.M, p.N}, c), a, b_view, o);
      });
  return static_cast<double>(b.flops) / b.least;
}

double memory_rate(Place place, const Settings& settings, const char* op, int64_t bytes,
                   int repeats) {
  const OpBench b =
      bench_op(place, settings, op, repeats, [&](Context& ctx, std::vector<Tensor>& keep) {
        const Shape shape{bytes / 4};
        const View x = zeros(ctx, keep, "x", shape, DType::f32);
        const std::string_view name = op;
        if (name == "sum_of_squares_and_finite")
          sum_of_squares_and_finite(ctx, x,
                                    zeros(ctx, keep, "state", step_state_shape(), DType::u8));
        else if (name == "copy")
          copy(ctx, zeros(ctx, keep, "y", shape, DType::f32), x);
        else if (name == "cast")
          cast(ctx, zeros(ctx, keep, "y", shape, DType::f32), x);
        else
          require(false, "an op that is bound by memory");
      });
  return static_cast<double>(b.bytes) / b.least;
}

// Both directions, one after the other, between the arenas.
double link_rate(Place place, const Settings& settings, const char* op, int64_t bytes,
                 int repeats) {
  const OpBench b =
      bench_op(place, settings, op, repeats, [&](Context& ctx, std::vector<Tensor>& keep) {
        keep.push_back(ctx.host_tensor(Name("host"), {bytes}, DType::u8));
        keep.push_back(ctx.tensor(Name("device"), {bytes}, DType::u8, Category::offload));
        Tensor &host = keep[0], &device = keep[1];
        fill_zero(ctx, device);
        ctx.wait_event(kToHost, ctx.record_event(kCompute));
        ctx.copy_to_host(host, device);
        ctx.wait_event(kCompute, ctx.record_event(kToHost));
        ctx.wait_event(kToDevice, ctx.record_event(kCompute));
        ctx.copy_to_device(device, host);
        ctx.wait_event(kCompute, ctx.record_event(kToDevice));
      });
  return static_cast<double>(b.bytes) / b.least;
}

// Seconds of forward and backward; -1 where cuDNN is asked for and refuses.
double attention_seconds(Place place, Settings settings, bool cudnn, const AttentionRate& a,
                         const Amount& amount) {
  settings.cudnn = cudnn;
  AttentionSpec spec;
  spec.H = spec.G = amount.heads;
  spec.D = a.D;
  spec.scale = 1.0f / std::sqrt(static_cast<float>(a.D));
  const int64_t B = std::max<int64_t>(1, amount.attention_rows / a.T), N = B * a.T;
  const auto seconds = [&](const char* op, bool backward) {
    return bench_op(place, settings, op, amount.repeats,
                    [&](Context& ctx, std::vector<Tensor>& keep) {
                      const int64_t C = spec.H * spec.D;
                      const auto z = [&](const char* name, int64_t width) {
                        return noise(ctx, keep, name, {N, width}, DType::bf16);
                      };
                      const View qkv = z("qkv", 3 * C), out = z("out", C);
                      const View lse = zeros(ctx, keep, "lse", {B, spec.H, a.T}, DType::f32);
                      if (backward)
                        attention_backward(ctx, z("dqkv", 3 * C), z("dout", C), qkv, out, lse, B,
                                           a.T, spec, {});
                      else
                        attention_forward(ctx, out, lse, qkv, B, a.T, spec, {});
                    })
        .median;
  };
  try {
    return seconds("attention_forward", false) + seconds("attention_backward", true);
  } catch (const Error& e) {
    if (!cudnn || e.code() != ErrorCode::unsupported) throw;
    return -1;
  }
}

// What one more op costs that has next to nothing to do.
double launch_seconds(Place place, Settings settings, bool graphs, const Amount& amount) {
  settings.graphs = graphs;
  const auto program = [&](int64_t ops) {
    return bench_program(place, settings, amount.repeats,
                         [&](Context& ctx, std::vector<Tensor>& keep) {
                           const View x = zeros(ctx, keep, "x", {1}, DType::f32);
                           for (int64_t i = 0; i < ops; ++i) scale(ctx, x, 0.5f);
                         });
  };
  const double few = program(amount.launches), many = program(2 * amount.launches);
  return std::max(0.0, (many - few) / static_cast<double>(amount.launches));
}

// A model whose programs have as many ops as those of real ones, and little in each.
std::unique_ptr<Model> model_of_many_ops(Place place) {
  const int64_t layers = place == Place::cuda ? RuntimeParts::kGraphLayers : 2;
  const nlohmann::json map = {{"type", "gpt2"}, {"vocab_size", 256}, {"n_positions", 32},
                              {"n_embd", 128},  {"n_layer", layers}, {"n_head", 2}};
  return std::make_unique<Model>(resolve_model("", map.dump()).spec, parse_precision("bf16"));
}

// What the first run of such a model takes beside its arena.
int64_t taken_by_a_run(Place place, Settings settings, bool graphs,
                       const std::function<int64_t()>& free_bytes) {
  const auto model = model_of_many_ops(place);
  settings.graphs = graphs;
  Decisions d;
  d.T = place == Place::cuda ? 32 : 8;
  d.micro_batch = 1;
  d.head_rows = d.T;
  d.max_grad_norm = 1;
  Session plan(Place::plan, *model, d, {}, settings);
  plan.open();
  plan.schedule().pack();
  Session session(place, *model, d, {}, settings, &plan.schedule());
  session.open();
  const int64_t before = free_bytes();
  warm_up(session);
  session.context().device().synchronize();
  return std::max<int64_t>(0, before - free_bytes());
}

}  // namespace

DeviceKey device_key(Place place, [[maybe_unused]] int gpu) {
  const MachineKey machine = machine_key(1);
  DeviceKey key;
  key.version = machine.version;
  key.build = machine.build;
  if (place == Place::emu) {
    key.device = kEmulatorName;
    key.libraries = "none";
    return key;
  }
  require(place == Place::cuda, "a place with kernels to measure");
  if constexpr (kCudaBuilt) {
    const CudaFacts facts = cuda_facts(gpu);
    const ComputesOn on = computes_on(facts, {});
    key.device = on.gpu;
    key.libraries =
        fmt::format("driver {}, CUDA {}, cuBLASLt {}", facts.driver, facts.runtime, on.cublaslt);
    return key;
  }
  refuse_no_cuda_build();
}

Roofs measure_device_roofs(Place place, int gpu) {
  const Amount& amount = amount_of(place);
  Roofs r;
  r.device = device_key(place, gpu).device;
  r.threads = 1;
  const MemoryInfo memory = make_device(place, gpu)->memory_info();
  const int64_t room = memory.available_bytes / 4;
  int64_t side = amount.square;
  while (side > 64 && 3 * side * side * 4 > room) side /= 2;
  const int64_t bytes = std::min(amount.array_bytes, room / 2) / 4096 * 4096;
  const auto square = [&](DType t, bool tf32) {
    ProductRate p;
    p.shapes = {false, true, 1, 1};
    p.dtype = t;
    p.M = p.N = p.K = side;
    return product_rate(place, settings_of(place, gpu, tf32), p, amount.repeats);
  };
  r.fp32_flops = square(DType::f32, false);
  if (place == Place::cuda) r.tf32_flops = square(DType::f32, true);
  r.bf16_flops = square(DType::bf16, false);
  const Settings settings = settings_of(place, gpu);
  r.read_bytes = memory_rate(place, settings, "sum_of_squares_and_finite", bytes, amount.repeats);
  r.copy_bytes = memory_rate(place, settings, "copy", bytes, amount.repeats);
  r.stream_bytes = memory_rate(place, settings, "cast", bytes, amount.repeats);
  return r;
}

DeviceCalibration calibrate_device(Place place, int gpu, double seconds, int64_t context_bytes,
                                   const std::function<int64_t()>& free_bytes) {
  const double started = monotonic_seconds();
  const Amount& amount = amount_of(place);
  const Settings settings = settings_of(place, gpu);
  DeviceCalibration c;
  c.key = device_key(place, gpu);
  // First, while nothing was loaded yet.
  const auto device = make_device(place, gpu);
  const auto free_now =
      free_bytes ? free_bytes : [&] { return device->memory_info().available_bytes; };
  c.runtime.context = context_bytes;
  c.runtime.libraries = taken_by_a_run(place, settings, false, free_now);
  c.runtime.graphs = taken_by_a_run(place, settings, true, free_now);

  c.roofs = measure_device_roofs(place, gpu);
  for (const bool tf32 : {false, true})
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
      if (tf32 && (t != DType::f32 || place != Place::cuda)) continue;
      for (const ProductClass& s : product_classes()) {
        ProductRate p;
        p.shapes = s;
        p.dtype = t;
        p.tf32 = tf32;
        p.M = amount.M[static_cast<size_t>(s.columns)];
        p.N = amount.N[static_cast<size_t>(s.columns)];
        p.K = amount.K[static_cast<size_t>(s.depth)];
        // The products of training: x W^T, dy W and dy^T x.
        if (p.M == 0 || p.K == 0 || (s.a_transposed && s.b_transposed)) continue;
        p.flops = product_rate(place, settings_of(place, gpu, tf32), p, amount.repeats);
        c.products.push_back(p);
      }
    }
  for (const int64_t D : amount.head_sizes)
    for (const int64_t T : amount.lengths) {
      if (D == 0 || T == 0) continue;
      AttentionRate a{D, T};
      a.own = attention_seconds(place, settings, false, a, amount);
      if (place == Place::cuda) a.cudnn = attention_seconds(place, settings, true, a, amount);
      c.attention.push_back(a);
    }
  c.to_host = link_rate(place, settings, "copy_to_host", amount.link_bytes, amount.repeats);
  c.to_device = link_rate(place, settings, "copy_to_device", amount.link_bytes, amount.repeats);
  c.launch = launch_seconds(place, settings, false, amount);
  c.graph_launch = launch_seconds(place, settings, true, amount);
  const double share = seconds / (place == Place::cuda ? 4 : 3);
  c.fp32_ops = measure_ops(DType::f32, settings, share);
  c.bf16_ops = measure_ops(DType::bf16, settings, share);
  c.fp16_ops = measure_ops(DType::f16, settings, share);
  if (place == Place::cuda)
    c.tf32_ops = measure_ops(DType::f32, settings_of(place, gpu, true), share);
  c.seconds = monotonic_seconds() - started;
  return c;
}

}  // namespace snug
