#include <gtest/gtest.h>

#include <limits>

#include "engine/kernels/kernels.h"
#include "engine/kernels/row_room.h"
#include "tests/support/case.h"
#include "tests/support/errors.h"

namespace snug::test {
namespace {

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16};
const Shape kShapes[] = {{1}, {3}, {31}, {5, 33}, {2, 3, 64}, {17, 768}, {70001}, {0}};

TEST(Kernels, CastRoundsOnce) {
  for (const DType from : kFloats)
    for (const DType to : kFloats)
      for (const Shape& shape : kShapes) {
        const Values x = normal_values(shape.elements(), 1, from, 10);
        const Outputs out = run_in_all_modes([&](Case& c) {
          cast(c.ctx(), c.output("y", shape, to), c.input("x", shape, from, x));
        });
        EXPECT_EQ(out["y"], rounded(x, to)) << to_string(shape) << to_string(from) << to_string(to);
        EXPECT_EQ(out.bytes_moved, shape.elements() * (size_of(from) + size_of(to)));
      }
}

TEST(Kernels, CopyMovesAnyDtype) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8,
                        DType::u16, DType::f64})
    for (const Shape& shape : kShapes) {
      const Values x = index_values(shape.elements(), 200, 1);
      const Outputs out = run_in_all_modes([&](Case& c) {
        const View vx = c.inout("x", shape, t, x);
        copy(c.ctx(), c.output("y", shape, t), vx);
        fill_zero(c.ctx(), vx);
      });
      EXPECT_EQ(out["y"], x) << to_string(t);
      EXPECT_EQ(out["x"], Values(x.size(), 0.0)) << to_string(t);
    }
}

TEST(Kernels, AddRoundsOnce) {
  for (const DType ty : kFloats)
    for (const DType tx : kFloats)
      for (const Shape& shape : kShapes) {
        const Values x = normal_values(shape.elements(), 1, tx);
        Values y = normal_values(shape.elements(), 2, ty);
        const Outputs out = run_in_all_modes(
            [&](Case& c) { add(c.ctx(), c.inout("y", shape, ty, y), c.input("x", shape, tx, x)); });
        for (size_t i = 0; i < y.size(); ++i)
          y[i] = rounded(static_cast<float>(y[i]) + static_cast<float>(x[i]), ty);
        EXPECT_EQ(out["y"], y) << to_string(shape) << to_string(ty) << to_string(tx);
      }
}

TEST(Kernels, ScaleRoundsOnce) {
  for (const DType t : kFloats)
    for (const Shape& shape : kShapes) {
      Values x = normal_values(shape.elements(), 1, t);
      const Outputs out =
          run_in_all_modes([&](Case& c) { scale(c.ctx(), c.inout("x", shape, t, x), 0.3f); });
      for (double& v : x) v = rounded(static_cast<float>(v) * 0.3f, t);
      EXPECT_EQ(out["x"], x) << to_string(shape) << to_string(t);
    }
}

TEST(Kernels, ColumnSumMatchesDouble) {
  for (const DType t : kFloats)
    for (const int64_t n : {0, 1, 5, 17, 130, 600})
      for (const int64_t c : {1, 3, 31, 33, 64, 768})
        for (const bool add : {false, true})
          for (const DType to : {DType::f32, DType::bf16}) {
            const Values x = normal_values(n * c, 1, t, 1, 0.5), old = normal_values(c, 2, to);
            const Outputs out = run_in_all_modes([&](Case& k) {
              const View sum = add ? k.inout("out", {c}, to, old) : k.output("out", {c}, to);
              column_sum(k.ctx(), {sum, add}, k.input("x", {n, c}, t, x));
            });
            Values truth = add ? old : Values(c, 0.0);
            for (int64_t i = 0; i < n * c; ++i) truth[i % c] += x[i];
            EXPECT_TRUE(close(out["out"], truth, tolerance(to, n)))
                << n << " " << c << " " << to_string(t) << " " << to_string(to);
          }
}

// What a bf16 sum holds is the f32 sum, rounded once: to the bit.
TEST(Kernels, ColumnSumIntoBf16RoundsOnce) {
  for (const int64_t n : {1, 130, 600})
    for (const bool add : {false, true}) {
      const int64_t c = 300;
      const Values x = normal_values(n * c, 1), old = normal_values(c, 2, DType::bf16);
      const auto sum = [&](DType to) {
        return run_on_plan_and_cpu({}, [&](Case& k) {
          const View out = add ? k.inout("out", {c}, to, old) : k.output("out", {c}, to);
          column_sum(k.ctx(), {out, add}, k.input("x", {n, c}, DType::f32, x));
        })["out"];
      };
      EXPECT_EQ(sum(DType::bf16), rounded(sum(DType::f32), DType::bf16)) << n << add;
    }
}

StepState fresh_state(float loss_scale) {
  StepState s{};
  s.loss_scale = loss_scale;
  s.first_bad_element = -1;
  return s;
}

TEST(Kernels, SumOfSquaresMatchesDouble) {
  for (const DType t : {DType::f32, DType::bf16})
    for (const int64_t n : {1, 15, 16, 17, 1000, 65536, 65537, 200000}) {
      const Values x = normal_values(n, 1, t, 1e-3);
      StepState start = fresh_state(8);
      start.grad_square_sum = 0.125;
      const Outputs out = run_in_all_modes([&](Case& c) {
        sum_of_squares_and_finite(c.ctx(), c.input("x", {n}, t, x), c.step_state(start));
      });
      double truth = 0;
      for (const double v : x) truth += v * v;
      // Sums of double: far below float's roundoff.
      EXPECT_NEAR(out.state().grad_square_sum, 0.125 + truth / 64, 1e-13 * (0.125 + truth)) << n;
      EXPECT_EQ(out.state().found_inf, 0);
      EXPECT_EQ(out.state().first_bad_element, -1);
      EXPECT_EQ(out.bytes_moved, n * size_of(t));
    }
}

// Squares of the largest floats fit a double: large is not infinite.
TEST(Kernels, SumOfSquaresDoesNotOverflow) {
  const double big = std::numeric_limits<float>::max();
  const Outputs out = run_in_all_modes([&](Case& c) {
    sum_of_squares_and_finite(c.ctx(), c.input("x", {100}, DType::f32, Values(100, big)),
                              c.step_state(fresh_state(1)));
  });
  EXPECT_NEAR(out.state().grad_square_sum / (100 * big * big), 1, 1e-14);
  EXPECT_EQ(out.state().found_inf, 0);
}

TEST(Kernels, NamesTheFirstElementThatIsNotFinite) {
  const int64_t n = 140000;
  const double inf = std::numeric_limits<double>::infinity();
  for (const DType t : {DType::f32, DType::bf16})
    for (const int64_t bad : {int64_t{0}, int64_t{15}, int64_t{65535}, int64_t{65536}, n - 1})
      for (const double value : {inf, -inf, std::nan("")}) {
        Values x = normal_values(n, 1, t);
        x[bad] = value;
        x[n - 1] = value;  // a later one does not count
        const Outputs out = run_in_all_modes([&](Case& c) {
          const View state = c.step_state(fresh_state(1));
          sum_of_squares_and_finite(c.ctx(), c.input("x", {n}, t, x), state, 1000);
        });
        EXPECT_EQ(out.state().found_inf, 1);
        EXPECT_EQ(out.state().first_bad_element, 1000 + bad);
        EXPECT_FALSE(std::isfinite(out.state().grad_square_sum));
      }
}

// Over several calls the lowest number stays, and a good part does not clear a bad one.
TEST(Kernels, KeepsTheFirstOfSeveralParts) {
  Values x(10, 1.0), bad = x;
  bad[3] = std::nan("");
  const Outputs out = run_in_all_modes([&](Case& c) {
    const View state = c.step_state(fresh_state(1));
    const View good = c.input("good", {10}, DType::f32, x),
               other = c.input("other", {10}, DType::f32, bad);
    sum_of_squares_and_finite(c.ctx(), other, state, 20);
    sum_of_squares_and_finite(c.ctx(), other, state, 10);
    sum_of_squares_and_finite(c.ctx(), other, state, 30);
    sum_of_squares_and_finite(c.ctx(), good, state, 0);
  });
  EXPECT_EQ(out.state().first_bad_element, 13);
  EXPECT_EQ(out.state().found_inf, 1);
}

TEST(Kernels, RefuseWhatDoesNotFit) {
  const auto run = [](const std::function<void(Case&, View, View)>& body, Shape y, DType ty,
                      Shape x, DType tx) {
    run_on_plan_and_cpu({}, [&](Case& c) { body(c, c.output("y", y, ty), c.output("x", x, tx)); });
  };
  const auto casts = [](Case& c, View y, View x) { cast(c.ctx(), y, x); };
  const auto copies = [](Case& c, View y, View x) { copy(c.ctx(), y, x); };
  const auto adds = [](Case& c, View y, View x) { add(c.ctx(), y, x); };
  const auto scales = [](Case& c, View, View x) { scale(c.ctx(), x, 2); };
  const auto sums = [](Case& c, View y, View x) { column_sum(c.ctx(), {y, false}, x); };
  const auto squares = [](Case& c, View y, View x) { sum_of_squares_and_finite(c.ctx(), x, y); };
  const DType f32 = DType::f32, i32 = DType::i32;
  const auto shape = ErrorCode::shape, unsupported = ErrorCode::unsupported;

  expect_error(shape, {"cast: y of the shape of x", "y (2,3) f32 and x (3,2) f32"}, [&] {
    run(casts, {2, 3}, f32, {3, 2}, f32);
  });
  expect_error(shape, {"copy: y of the shape of x"}, [&] { run(copies, {2}, f32, {3}, f32); });
  expect_error(shape, {"add: y of the shape of x"}, [&] { run(adds, {2}, f32, {3}, f32); });
  expect_error(unsupported, {"cast: x of dtype f32|bf16|f16", "x (2) i32"},
               [&] { run(casts, {2}, f32, {2}, i32); });
  expect_error(unsupported, {"cast: y of dtype f32|bf16|f16", "y (2) i32"},
               [&] { run(casts, {2}, i32, {2}, f32); });
  expect_error(unsupported, {"copy: y of dtype i32", "y (2) f32"},
               [&] { run(copies, {2}, f32, {2}, i32); });
  expect_error(unsupported, {"add: y of dtype f32|bf16|f16"},
               [&] { run(adds, {2}, i32, {2}, f32); });
  expect_error(unsupported, {"scale: x of dtype f32|bf16|f16"},
               [&] { run(scales, {2}, f32, {2}, i32); });
  expect_error(shape, {"column_sum: x of shape (N,C)", "x (6) f32"},
               [&] { run(sums, {6}, f32, {6}, f32); });
  expect_error(shape, {"column_sum: out of shape (C)=(3)", "y (2) f32"}, [&] {
    run(sums, {2}, f32, {2, 3}, f32);
  });
  expect_error(unsupported, {"column_sum: out of dtype f32|bf16", "y (3) f16"}, [&] {
    run(sums, {3}, DType::f16, {2, 3}, f32);
  });
  expect_error(unsupported, {"sum_of_squares_and_finite: x of dtype f32|bf16", "x (3) f16"},
               [&] { run(squares, step_state_shape(), DType::u8, {3}, DType::f16); });
  expect_error(shape, {"sum_of_squares_and_finite: x of shape (elements)=(6)", "x (2,3) f32"}, [&] {
    run(squares, step_state_shape(), DType::u8, {2, 3}, f32);
  });
  expect_error(shape, {"state of shape (bytes)", "y (3) u8"},
               [&] { run(squares, {3}, DType::u8, {3}, f32); });
}

// 513 rows are 31 chunks, 512 are 32: what 513 rows plan is room for both.
TEST(Kernels, FewerRowsTakeNoMoreRoomForTheirChunks) {
  int64_t most = 0;
  for (int64_t n = 1; n < 5000; ++n) {
    most = std::max(most, RowSplit(n).chunks);
    ASSERT_GE(most_row_chunks(n), most) << n;
    ASSERT_GE(most_row_chunks(n), most_row_chunks(n - 1)) << n;
  }
  for (const auto& [planned, rows] : {std::pair{513, 512}, {545, 513}, {600, 576}}) {
    int64_t bytes[2] = {};
    for (int k = 0; k < 2; ++k) {
      Context ctx(Place::plan, {});
      Schedule schedule;
      const int index = schedule.add(Name("p"), -1, false);
      ctx.program(schedule, index, [&] {
        const Tensor x =
            ctx.tensor(Name("x"), {k == 0 ? planned : rows, 4}, DType::f32, Category::activations);
        const Tensor sum = ctx.tensor(Name("sum"), {4}, DType::f32, Category::gradients);
        column_sum(ctx, {sum.view(), false}, x);
      });
      bytes[k] = schedule.at(index).tensors.back().bytes;
    }
    EXPECT_GE(bytes[0], bytes[1]) << rows;
  }
}

}  // namespace
}  // namespace snug::test
