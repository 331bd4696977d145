// The ops on the place emu: each finds its kernels, with the workspace that was planned for them,
// and gives what it gives on the CPU within the errors of both. The kernels have tests of their
// own.
#include <gtest/gtest.h>

#include "engine/kernels/kernels.h"
#include "tests/layers/ops/place_cases.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"

namespace snug::test {
namespace {

// In three orders that must agree.
TEST(EmulatedPlace, GivesWhatTheCpuGives) {
  for (const PlaceCase& p : place_cases()) {
    const Outputs cpu = run_on_plan_and_cpu({}, p.body);
    Settings settings;
    settings.guard_bytes = 64;
    settings.poison = true;
    settings.device_private = true;
    Outputs first;
    for (const uint64_t order : {0, 1, 77}) {
      settings.emulated_order = order;
      const Outputs emu = run_on_emu(p.body, settings);
      if (order == 0) first = emu;
      EXPECT_TRUE(emu == first) << p.name << ", order " << order;
    }
    expect_near(first, cpu, p);
  }
}

// What has no kernel is refused where it is planned.
TEST(EmulatedPlace, RefusesWhatHasNoKernel) {
  Context ctx(Place::plan, {.target = Place::emu});
  const auto refused = [](const char* op, auto&& f) {
    expect_error(ErrorCode::unsupported, {"an op with a kernel on the place emu", op, "device=cpu"},
                 f);
  };
  refused("matmul_pack", [&] { matmul_pack(ctx, {}, {}, true, DType::f32); });
  // Gradients in bf16.
  const auto refused_gradient = [](const Body& body) {
    expect_error(ErrorCode::unsupported, {"gradients in f32 on the place emu", "bf16"},
                 [&] { run_on_emu(body); });
  };
  const DType f32 = DType::f32, bf16 = DType::bf16;
  refused_gradient([&](Case& c) {
    column_sum(c.ctx(), {c.output("sum", {6}, bf16), false}, c.output("x", {4, 6}, f32));
  });
  refused_gradient([&](Case& c) {
    sum_of_squares_and_finite(c.ctx(), c.output("x", {24}, bf16), c.step_state(StepState{}));
  });
  refused_gradient([&](Case& c) {
    const View x = c.output("x", {4, 6}, f32), s = c.output("mean", {4}, f32);
    layernorm_backward(c.ctx(), x, false, {c.output("dweight", {6}, bf16), false}, {}, x, x,
                       c.output("weight", {6}, f32), s, s);
  });
  refused_gradient([&](Case& c) {
    embedding_backward(c.ctx(), {c.output("dwte", {9, 6}, bf16), false}, {},
                       c.output("dy", {4, 6}, f32), c.output("tokens", {2, 2}, DType::i32),
                       c.step_state(StepState{}));
  });
}

}  // namespace
}  // namespace snug::test
