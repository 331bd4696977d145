// On the CPU and in the emulator against the formula in double, and its gradients against complex steps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "layers/ops/lstm_cell.h"
#include "layers/ops/lstm_cell_simt.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"
#include "tests/support/gradient.h"
#include "tests/support/reference/lstm_cell.h"

namespace snug::test {
namespace {

void check(int64_t n, int64_t h, DType t, bool first, bool in_place) {
  SCOPED_TRACE(fmt::format("N{} H{} {}{}{}", n, h, to_string(t), first ? " first" : "",
                           in_place ? " in place" : ""));
  const auto width = static_cast<size_t>(h);
  const Values gates = normal_values(n * 4 * h, 1, t, 2),
               before = first ? Values() : normal_values(n * h, 2, t),
               dh = normal_values(n * h, 3, t), dc = normal_values(n * h, 4, t);
  const LstmStep<double> step = lstm_cell_reference(gates, before, width);
  const auto sum = [&](const auto& of_gates, const auto& of_before) {
    const auto made = lstm_cell_reference(of_gates, of_before, width);
    Complex all = 0;
    for (size_t k = 0; k < dh.size(); ++k) all += made.h[k] * dh[k] + made.c[k] * dc[k];
    return all;
  };
  const Values dgates =
      complex_step_gradient([&](const auto& x) { return sum(x, widen<Complex>(before)); }, gates);
  // Of the first step it is that of a state that is 0.
  const Values zero(static_cast<size_t>(n * h), 0.0);
  const Values dbefore = complex_step_gradient(
      [&](const auto& x) { return sum(widen<Complex>(gates), x); }, first ? zero : before);
  const auto body = [&](auto& c) {
    const View of_gates = in_place ? c.inout("dgates", {n, 4 * h}, t, gates)
                                   : c.input("gates", {n, 4 * h}, t, gates),
               to_h = c.output("h", {n, h}, t), to_c = c.output("c", {n, h}, t),
               of_dh = c.input("dh", {n, h}, t, dh), of_dc = c.inout("dc", {n, h}, t, dc),
               to = in_place ? of_gates : c.output("dgates", {n, 4 * h}, t);
    const View old = first ? View() : c.input("before", {n, h}, t, before);
    if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
      lstm_cell_forward_on(c.queue(), to_h, to_c, of_gates, old, 64);
      lstm_cell_backward_on(c.queue(), to, of_dc, of_dh, of_gates, to_c, old, 64);
    } else {
      lstm_cell_forward(c.ctx(), to_h, to_c, of_gates, old);
      lstm_cell_backward(c.ctx(), to, of_dc, of_dh, of_gates, to_c, old);
    }
  };
  const Outputs out = run_in_all_modes(body);
  EXPECT_EQ(out.flops, 66 * n * h);
  EXPECT_EQ(out.bytes_moved, size_of(t) * n * h * ((4 + 2) + (8 + 2 + 2) + (first ? 0 : 2)));
  for (const Outputs& o : {out, run_in_all_schedules(body)}) {
    EXPECT_TRUE(close(o["h"], step.h, tolerance(t, 8)));
    EXPECT_TRUE(close(o["c"], step.c, tolerance(t, 8)));
    // 1 - tanh(c)^2 of c as it is held is off by 2 of its rounding.
    EXPECT_TRUE(close(o["dgates"], dgates, tolerance(t, 24)));
    EXPECT_TRUE(close(o["dc"], dbefore, tolerance(t, 24)));
  }
}

TEST(LstmCell, MatchesTheFormulaAndItsSlopes) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const bool first : {false, true})
      for (const bool in_place : {false, true}) {
        check(1, 1, t, first, in_place);
        check(3, 7, t, first, in_place);
        check(1, 90, t, first, in_place);
      }
}

// Gates that are open or shut: no number comes of an overflow inside.
TEST(LstmCell, Extremes) {
  const Values gates{500, -500, 1e30, -1e30, 500, 500, -500, -500}, before{2, -3};
  const auto body = [&](auto& c) {
    const View of = c.input("gates", {2, 4}, DType::f32, gates),
               old = c.input("before", {2, 1}, DType::f32, before),
               h = c.output("h", {2, 1}, DType::f32), now = c.output("c", {2, 1}, DType::f32),
               dh = c.input("dh", {2, 1}, DType::f32, {1, 1}),
               dc = c.inout("dc", {2, 1}, DType::f32, {1, 1}),
               to = c.output("dgates", {2, 4}, DType::f32);
    if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
      lstm_cell_forward_on(c.queue(), h, now, of, old, 64);
      lstm_cell_backward_on(c.queue(), to, dc, dh, of, now, old, 64);
    } else {
      lstm_cell_forward(c.ctx(), h, now, of, old);
      lstm_cell_backward(c.ctx(), to, dc, dh, of, now, old);
    }
  };
  for (const Outputs& o : {run_in_all_modes(body), run_in_all_schedules(body)}) {
    EXPECT_EQ(o["c"], (Values{1, -4}));  // i g alone; the state beside it
    EXPECT_EQ(o["h"], (Values{0, 0}));
    for (const double x : o["dgates"]) EXPECT_EQ(x, 0);
    EXPECT_EQ(o["dc"], (Values{0, 1}));
  }
}

TEST(LstmCell, RefusesWhatDoesNotFit) {
  const auto run = [](Shape gates, Shape c, Shape h, DType t = DType::f32) {
    run_on_plan_and_cpu({}, [&](Case& of) {
      lstm_cell_forward(of.ctx(), of.output("h", h, t), of.output("c", c, t),
                        of.output("gates", gates, t), {});
    });
  };
  expect_error(ErrorCode::shape, {"gates of shape (N,4H)", "gates (2,6) f32"}, [&] {
    run({2, 6}, {2, 1}, {2, 1});
  });
  expect_error(ErrorCode::shape, {"lstm_cell: c of shape", "(2,2)"}, [&] {
    run({2, 8}, {2, 3}, {2, 2});
  });
  expect_error(ErrorCode::shape, {"lstm_cell: h of shape", "(1,2)"}, [&] {
    run({2, 8}, {2, 2}, {1, 2});
  });
  expect_error(ErrorCode::unsupported, {"gates of dtype f32|bf16|f16", "i64"}, [&] {
    run({2, 8}, {2, 2}, {2, 2}, DType::i64);
  });
}

}  // namespace
}  // namespace snug::test
