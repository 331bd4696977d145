// The kernels in the emulator against the CPU: the same bits.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/kernels/elementwise_simt.h"
#include "engine/kernels/kernels.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"

namespace snug::test {
namespace {

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16};

// Random values of every size, and those where a rounding may go wrong.
Values awkward_values(int64_t n, uint32_t seed) {
  Values v = normal_values(n, seed, DType::f32, 100);
  const Values special = {0.0,     -0.0,       1.00390625, 1.01171875, 65504,  65519.9,  65520,
                          6.1e-05, 5.9604e-08, 2.98e-08,   1e-40,      3.3e38, INFINITY, -INFINITY};
  for (size_t i = 0; i < v.size(); ++i)
    if (i % 3 == 1) v[i] = special[i / 3 % special.size()];
  return v;
}

void check(int64_t n, DType to, DType from, int threads, bool shifted) {
  SCOPED_TRACE(fmt::format("n {} {} to {}, {} threads{}", n, to_string(from), to_string(to),
                           threads, shifted ? ", shifted" : ""));
  const Values x = awkward_values(n, 1), y0 = normal_values(n, 2, to);
  const auto body = [&](auto& c) {
    const View vx = c.input("x", {n}, from, x), cast_to = c.output("cast", {n}, to),
               sum = c.inout("sum", {n}, to, y0);
    if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
      cast_on(c.queue(), cast_to, vx, threads);
      add_on(c.queue(), sum, vx, threads);
    } else {
      cast(c.ctx(), cast_to, vx);
      add(c.ctx(), sum, vx);
    }
  };
  expect_equal_bits(run_in_all_schedules(body, shifted), run_on_plan_and_cpu({}, body));
}

TEST(ElementwiseSimt, SameBitsAsTheCpu) {
  for (const DType to : kFloats)
    for (const DType from : kFloats) {
      for (const int64_t n : {0, 1, 7, 8, 9, 255, 256, 1000}) check(n, to, from, 32, false);
      for (const int threads : kBlockSizes)
        for (const bool shifted : {false, true}) check(1003, to, from, threads, shifted);
    }
}

// The ops themselves on the place emu, held to what was planned for it.
TEST(ElementwiseSimt, OpsOnThePlaceEmu) {
  const Values x = awkward_values(300, 1), y = normal_values(300, 2, DType::bf16);
  const auto body = [&](Case& c) {
    const View from = c.input("x", {300}, DType::f32, x);
    const View sum = c.inout("sum", {300}, DType::bf16, y);
    cast(c.ctx(), c.output("cast", {300}, DType::bf16), from);
    add(c.ctx(), sum, from);
    scale(c.ctx(), sum, 0.3f);
    copy(c.ctx(), c.output("copy", {300}, DType::f32), from);
    fill_zero(c.ctx(), c.output("zero", {300}, DType::f16));
  };
  const Outputs cpu = run_on_plan_and_cpu({}, body);
  for (const uint64_t order : {0, 1, 77}) {
    Settings settings;
    settings.emulated_order = order;
    expect_equal_bits(run_on_emu(body, settings), cpu);
  }
}

TEST(ElementwiseSimt, NanStaysNan) {
  const Values x{std::nan(""), 1, -std::nan("")};
  for (const DType to : kFloats) {
    const auto body = [&](auto& c) {
      const View vx = c.input("x", {3}, DType::f32, x), y = c.output("y", {3}, to);
      if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
        cast_on(c.queue(), y, vx, 32);
      } else {
        cast(c.ctx(), y, vx);
      }
    };
    const Outputs out = run_in_all_schedules(body);
    expect_equal_bits(out, run_on_plan_and_cpu({}, body));
    EXPECT_TRUE(std::isnan(out["y"][0]) && std::isnan(out["y"][2]));
  }
}

TEST(ElementwiseSimt, RefusesOtherDtypes) {
  EmuCase c({}, false);
  const View x = c.output("x", {3}, DType::i32), y = c.output("y", {3}, DType::f32);
  expect_error(ErrorCode::unsupported, {"x of dtype f32|bf16|f16", "x (3) i32"},
               [&] { cast_on(c.queue(), y, x); });
  expect_error(ErrorCode::unsupported, {"y of dtype f32|bf16|f16", "x (3) i32"},
               [&] { add_on(c.queue(), x, y); });
}

}  // namespace
}  // namespace snug::test
