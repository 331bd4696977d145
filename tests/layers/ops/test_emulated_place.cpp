// The ops on the place emu: each finds its kernels, with the workspace that was planned for them,
// and gives what it gives on the CPU within the errors of both. The kernels have tests of their
// own.
#include <gtest/gtest.h>

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
}

}  // namespace
}  // namespace snug::test
