// Dropout, the residual and the residual with its normalisation in the emulator: the bits of the
// CPU's masks, and the fused form the bits of its parts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "layers/ops/dropout_simt.h"
#include "layers/ops/layernorm_simt.h"
#include "layers/ops/residual.h"
#include "layers/ops/residual_simt.h"
#include "tests/support/emu.h"
#include "tests/support/reference/dropout.h"

namespace snug::test {
namespace {

struct Variant {
  int64_t b, t, c;
  DType dtype = DType::f32;
  float p = 0.3f;
  int threads = 64;
  bool shifted = false, in_place = false;
};

constexpr uint32_t kSite = 11;

StepState some_state() {
  StepState s{};
  s.seed = 0x123456789abcdefull;
  s.step = 1234567890123;
  s.first_sample = 0x1fffffffe;  // its high word changes inside the batch
  return s;
}

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& [b, n, c] :
         {std::array{1, 1, 1}, {5, 1, 3}, {1, 17, 31}, {2, 13, 33}, {2, 3, 64}, {1, 3, 150}})
      all.push_back({.b = b, .t = n, .c = c, .dtype = t});
    for (const float p : {0.0f, 0.1f, 0.999f})
      all.push_back({.b = 2, .t = 5, .c = 72, .dtype = t, .p = p});
    for (const int threads : kBlockSizes)
      all.push_back({.b = 3,
                     .t = 7,
                     .c = 48,
                     .dtype = t,
                     .threads = threads,
                     .shifted = threads == 64,
                     .in_place = threads == 128});
  }
  // Bounds that are the number of a channel, and the next: its upper half alone does not decide.
  const StepState s = some_state();
  const RandomKey key = random_key(s.seed, static_cast<uint64_t>(s.step), kSite);
  for (const uint32_t channel : {3u, 12u, 38u}) {
    const float u = channel_uniform(key, static_cast<uint64_t>(s.first_sample) + 1, 2, channel);
    for (const float p : {u, std::nextafter(u, 1.0f)})
      for (const DType t : {DType::f32, DType::bf16})
        all.push_back({.b = 2, .t = 5, .c = channel == 3 ? 39 : 48, .dtype = t, .p = p});
  }
  all.push_back({.b = 0, .t = 4, .c = 8});
  return all;
}

std::string name_of(const Variant& v) {
  return fmt::format("B{} T{} C{} {} p {} threads {} shifted {} in_place {}", v.b, v.t, v.c,
                     to_string(v.dtype), v.p, v.threads, v.shifted, v.in_place);
}

TEST(DropoutSimt, SameBitsAsTheCpu) {
  for (const Variant& v : variants()) {
    if (v.p == 0.0f) continue;
    SCOPED_TRACE(name_of(v));
    const int64_t n = v.b * v.t;
    Values x = normal_values(n * v.c, 1, v.dtype), dy = normal_values(n * v.c, 2, v.dtype);
    for (size_t i = 0; i < x.size(); i += 7) x[i] = INFINITY;  // a dropped one is 0
    const DropoutSpec spec{v.p, kSite};
    const auto body = [&](auto& c) {
      const Shape shape{n, v.c};
      const View s = c.step_state(some_state());
      const View vx =
          v.in_place ? c.inout("y", shape, v.dtype, x) : c.input("x", shape, v.dtype, x);
      const View vy = v.in_place ? vx : c.output("y", shape, v.dtype);
      const View vdy = c.input("dy", shape, v.dtype, dy), vdx = c.output("dx", shape, v.dtype);
      if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
        dropout_forward_on(c.queue(), vy, vx, v.b, v.t, spec, s, v.threads);
        dropout_forward_on(c.queue(), vdx, vdy, v.b, v.t, spec, s, v.threads);
      } else {
        dropout_forward(c.ctx(), vy, vx, v.b, v.t, spec, s);
        dropout_backward(c.ctx(), vdx, vdy, v.b, v.t, spec, s);
      }
    };
    const Outputs out = run_in_all_schedules(body, v.shifted);
    expect_equal_bits(out, run_on_plan_and_cpu({}, body));
    // And drawn one by one, from the definition.
    const StepState s = some_state();
    Values dx = dropout_factors_reference(v.b, v.t, v.c, v.p, s.seed, static_cast<uint64_t>(s.step),
                                          kSite, static_cast<uint64_t>(s.first_sample));
    for (size_t i = 0; i < dx.size(); ++i) dx[i] *= dy[i];
    EXPECT_TRUE(close(out["dx"], dx, tolerance(v.dtype, 1)));
  }
}

TEST(ResidualSimt, SameBitsAsTheCpu) {
  for (const Variant& v : variants()) {
    SCOPED_TRACE(name_of(v));
    const int64_t n = v.b * v.t;
    const Values x = normal_values(n * v.c, 1, v.dtype),
                 branch = normal_values(n * v.c, 2, v.dtype);
    const auto body = [&](auto& c) {
      const Shape shape{n, v.c};
      const View s = v.p > 0 ? c.step_state(some_state()) : View();
      const View vx = c.input("x", shape, v.dtype, x);
      const View vb = v.in_place ? c.inout("y", shape, v.dtype, branch)
                                 : c.input("branch", shape, v.dtype, branch);
      const View y = v.in_place ? vb : c.output("y", shape, v.dtype);
      const DropoutSpec spec{v.p, kSite};
      if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
        residual_forward_on(c.queue(), y, {vx, v.b, v.t, spec, s}, vb, v.threads);
      } else {
        residual_forward(c.ctx(), y, vx, vb, v.b, v.t, spec, s);
      }
    };
    expect_equal_bits(run_in_all_schedules(body, v.shifted), run_on_plan_and_cpu({}, body));
  }
}

// The fused form, and its parts one after the other.
TEST(ResidualSimt, WithTheNormHasTheBitsOfItsParts) {
  for (const Variant& v : variants())
    for (const DType weight : {v.dtype, DType::f32}) {
      SCOPED_TRACE(name_of(v) + " weight " + to_string(weight));
      const int64_t n = v.b * v.t;
      const Values x = normal_values(n * v.c, 1, v.dtype),
                   w = normal_values(v.c, 3, weight, 0.5, 1),
                   branch = normal_values(n * v.c, 2, v.dtype), b = normal_values(v.c, 4, weight);
      const auto run = [&](bool fused) {
        return run_in_all_schedules(
            [&](EmuCase& c) {
              const Shape shape{n, v.c};
              const View s = v.p > 0 ? c.step_state(some_state()) : View();
              const View vb = v.in_place ? c.inout("out", shape, v.dtype, branch)
                                         : c.input("branch", shape, v.dtype, branch);
              const ResidualInput in{c.input("x", shape, v.dtype, x), v.b, v.t, {v.p, 5}, s};
              const View out = v.in_place ? vb : c.output("out", shape, v.dtype);
              const NormOutput norm{c.output("y", shape, v.dtype),
                                    c.output("mean", {n}, DType::f32),
                                    c.output("rstd", {n}, DType::f32),
                                    c.input("weight", {v.c}, weight, w),
                                    v.in_place ? View() : c.input("bias", {v.c}, weight, b),
                                    1e-5f};
              if (fused) return residual_norm_forward_on(c.queue(), norm, out, in, vb, v.threads);
              residual_forward_on(c.queue(), out, in, vb, v.threads);
              layernorm_forward_on(c.queue(), norm.y, norm.mean, norm.rstd, out, norm.weight,
                                   norm.bias, norm.eps, v.threads);
            },
            v.shifted);
      };
      expect_equal_bits(run(true), run(false));
    }
}

}  // namespace
}  // namespace snug::test
