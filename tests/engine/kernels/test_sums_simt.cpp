// The sums in the emulator against sums in double and against the CPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/kernels/kernels.h"
#include "engine/kernels/sums_simt.h"
#include "tests/support/emu.h"

namespace snug::test {
namespace {

struct Columns {
  int64_t n, c;
  DType dtype = DType::f32;
  bool add = false, shifted = false;
  int threads = 64;
};

void check(const Columns& v) {
  SCOPED_TRACE(fmt::format("N {} C {} {} add {} shifted {} threads {}", v.n, v.c,
                           to_string(v.dtype), v.add, v.shifted, v.threads));
  const Values x = normal_values(v.n * v.c, 1, v.dtype, 1, 0.5), old = normal_values(v.c, 2);
  const Outputs out = run_in_all_schedules(
      [&](EmuCase& c) {
        const View vx = c.input("x", {v.n, v.c}, v.dtype, x);
        const View to =
            v.add ? c.inout("out", {v.c}, DType::f32, old) : c.output("out", {v.c}, DType::f32);
        const View partial = c.output("partial", {row_chunks(v.n), v.c}, DType::f32);
        column_sum_on(c.queue(), {to, v.add}, partial, vx, v.threads);
      },
      v.shifted);
  Values sum = v.add ? old : Values(old.size(), 0.0);
  for (size_t i = 0; i < x.size(); ++i) sum[i % sum.size()] += x[i];
  EXPECT_TRUE(close(out["out"], sum, tolerance(DType::f32, v.n)));
}

TEST(SumsSimt, ColumnSum) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& [n, c] : {std::pair{1, 1}, {5, 3}, {17, 33}, {40, 64}, {3, 264}, {37, 40}})
      check({.n = n, .c = c, .dtype = t});
    for (const int threads : kBlockSizes)
      check({.n = 35,
             .c = 72,
             .dtype = t,
             .add = true,
             .shifted = threads == 64,
             .threads = threads});
  }
  check({.n = 0, .c = 5});
  check({.n = 0, .c = 5, .add = true});
  check({.n = 4101, .c = 3});
}

StepState some_state() {
  StepState s{};
  s.loss_scale = 8;
  s.grad_square_sum = 3;
  s.first_bad_element = -1;
  return s;
}

// The state after squares of x, in emulation and on the CPU.
std::pair<StepState, StepState> squares(const Values& x, const StepState& state, int64_t first,
                                        int threads = 64, bool shifted = false) {
  const auto n = static_cast<int64_t>(x.size());
  const auto body = [&](auto& c) {
    const View vx = c.input("x", {n}, DType::f32, x), s = c.step_state(state);
    if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
      const View partial = c.output("partial", {2 * square_chunks(n)}, DType::f64);
      sum_of_squares_and_finite_on(c.queue(), vx, partial, s, first, threads);
    } else {
      sum_of_squares_and_finite(c.ctx(), vx, s, first);
    }
  };
  return {run_in_all_schedules(body, shifted).state(), run_on_plan_and_cpu({}, body).state()};
}

TEST(SumsSimt, Squares) {
  for (const int64_t n : {0, 1, 3, 64, 1001, 65536, 65541})
    for (const bool shifted : {false, true}) {
      if (shifted && n > 1001) continue;
      SCOPED_TRACE(fmt::format("n {} shifted {}", n, shifted));
      const Values x = normal_values(n, 1, DType::f32, 100);
      const auto [emu, cpu] = squares(x, some_state(), 70, shifted ? 32 : 128, shifted);
      double sum = 3;
      for (const double v : x) sum += v * v / 64;
      // Sums of doubles: each addition rounds once, in whatever order.
      const double most = static_cast<double>(n + 2) * 0x1p-53 * sum;
      EXPECT_NEAR(emu.grad_square_sum, sum, most);
      EXPECT_NEAR(emu.grad_square_sum, cpu.grad_square_sum, 2 * most);
      EXPECT_EQ(emu.found_inf, 0);
      EXPECT_EQ(emu.first_bad_element, -1);
    }
}

// The ops themselves on the place emu, with the workspace planned for it.
TEST(SumsSimt, OpsOnThePlaceEmu) {
  const Values x = normal_values(600 * 300, 1);
  const auto body = [&](Case& c) {
    const View from = c.input("x", {600, 300}, DType::f32, x);
    column_sum(c.ctx(), {c.output("sum", {300}, DType::f32), false}, from);
    sum_of_squares_and_finite(c.ctx(), from.reshaped({600 * 300}), c.step_state(some_state()));
  };
  const Outputs emu = run_on_emu(body), cpu = run_on_plan_and_cpu({}, body);
  EXPECT_TRUE(close(emu["sum"], cpu["sum"], 2 * tolerance(DType::f32, 600)));
  const double total = cpu.state().grad_square_sum;
  EXPECT_NEAR(emu.state().grad_square_sum, total, 2 * 180000 * 0x1p-53 * total);
  EXPECT_GT(emu.planned_bytes, cpu.planned_bytes);  // 38 chunks of rows, not 32
}

TEST(SumsSimt, NamesTheFirstElementThatIsNotFinite) {
  for (const double bad : Values{INFINITY, -INFINITY, std::nan("")})
    for (const size_t at : {0, 37, 65537})
      for (const int64_t before : {-1, 20, 200000}) {
        Values x(65540, 1.0);
        x[at] = bad;
        x.back() = bad;
        StepState state = some_state();
        state.first_bad_element = before;
        const auto [emu, cpu] = squares(x, state, 70, 128);
        EXPECT_EQ(emu.found_inf, 1);
        EXPECT_EQ(emu.first_bad_element, before == 20 ? 20 : static_cast<int64_t>(at) + 70);
        EXPECT_EQ(emu.first_bad_element, cpu.first_bad_element);
        EXPECT_FALSE(std::isfinite(emu.grad_square_sum));
      }
}

}  // namespace
}  // namespace snug::test
