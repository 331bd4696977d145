#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "layers/ops/rows_simt.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"
#include "tests/support/gradient.h"
#include "tests/support/reference/rows.h"

namespace snug::test {
namespace {

struct Variant {
  int64_t n, c;
  Values index;
  int threads = 64;
};

// Every k-th row, from the last on, with a place for none after every third.
Values some_rows(int64_t n, int64_t k) {
  Values index;
  for (int64_t row = n - 1; row >= 0; row -= k) {
    index.push_back(static_cast<double>(row));
    if (index.size() % 4 == 3) index.push_back(-1);
  }
  return index;
}

std::vector<Variant> variants() {
  return {{1, 1, {0}},
          {1, 3, {-1}},
          {4, 5, {}},
          {5, 3, {4, 0, 2}},
          {17, 31, {3, -1, 16, -1, 0, 5}},
          {33, 33, some_rows(33, 1)},
          {64, 64, some_rows(64, 5), 32},
          {70, 768, some_rows(70, 3), 128},
          {3, 20000, {2, -1, 1}}};
}

auto body_of(const Variant& v, DType t, bool add, const Values& x, const Values& dy,
             const Values& dx0) {
  return [=, &v, &x, &dy, &dx0](auto& c) {
    const auto m = static_cast<int64_t>(v.index.size());
    const View index = c.input("index", {m}, DType::i32, v.index);
    const View vx = c.input("x", {v.n, v.c}, t, x), vdy = c.input("dy", {m, v.c}, t, dy);
    const View y = c.output("y", {m, v.c}, t);
    const View dx = add ? c.inout("dx", {v.n, v.c}, t, dx0) : c.output("dx", {v.n, v.c}, t);
    if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
      rows_gather_forward_on(c.queue(), y, vx, index, v.threads);
      const View source = c.input("source", {v.n}, DType::i32, Values(static_cast<size_t>(v.n), 9));
      rows_gather_backward_on(c.queue(), dx, vdy, index, add, source, v.threads);
    } else {
      rows_gather_forward(c.ctx(), y, vx, index);
      if (add)
        rows_gather_backward(c.ctx(), dx, vdy, index, true);
      else
        rows_gather_backward(c.ctx(), dx, vdy, index);
    }
  };
}

TEST(Rows, MatchTheReferenceOnBothPlaces) {
  for (const Variant& v : variants())
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      for (const bool add : {false, true}) {
        const auto m = static_cast<int64_t>(v.index.size());
        SCOPED_TRACE(fmt::format("N{} M{} C{} {}{}", v.n, m, v.c, to_string(t), add ? " add" : ""));
        const Values x = normal_values(v.n * v.c, 1, t), dy = normal_values(m * v.c, 2, t),
                     dx0 = normal_values(v.n * v.c, 3, t);
        const auto body = body_of(v, t, add, x, dy, dx0);
        const Outputs out = run_in_all_modes(body);
        const auto c = static_cast<size_t>(v.c);
        EXPECT_EQ(out["y"], rows_gather_reference(x, v.index, c));
        const auto limit =
            static_cast<size_t>(std::clamp<int64_t>(400000 / (m * v.c + 1), 30, 500));
        const std::vector<size_t> some = sample_indices(x.size(), limit);
        Values truth = complex_step_gradient(
            [&](const std::vector<Complex>& z) {
              return weighted_sum(rows_gather_reference(z, v.index, c), dy);
            },
            x, some);
        for (size_t k = 0; add && k < some.size(); ++k)
          truth[k] = rounded(truth[k] + dx0[some[k]], t);
        EXPECT_TRUE(close(pick(out["dx"], some), truth, tolerance(DType::f32, 1)));
        EXPECT_EQ(out.ops,
                  (std::vector<std::string>{"rows_gather_forward", "rows_gather_backward"}));
        EXPECT_EQ(out.flops, add ? m * v.c : 0);
        EXPECT_EQ(out.bytes_moved,
                  (size_of(t) * (m * v.c * (add ? 5 : 3) + (add ? 0 : v.n * v.c)) + 2 * 4 * m));
        for (const bool shifted : {false, true})
          expect_equal_bits(run_in_all_schedules(body, shifted), out);
      }
}

// What no check has seen does no harm.
TEST(Rows, KernelsStayInsideTheirTensors) {
  const Outputs out = run_in_all_schedules([](EmuCase& c) {
    const View index = c.input("index", {5}, DType::i32, {1, 3, -2, 1, -1});
    rows_gather_forward_on(c.queue(), c.output("y", {5, 2}, DType::f32),
                           c.input("x", {3, 2}, DType::f32, Values(6, 7)), index, 32);
    rows_gather_backward_on(c.queue(), c.output("dx", {3, 2}, DType::f32),
                            c.input("dy", {5, 2}, DType::f32, {1, 1, 2, 2, 3, 3, 4, 4, 5, 5}),
                            index, false, c.output("source", {3}, DType::i32), 32);
  });
  const Values y = out["y"];
  for (const size_t row : {1, 2}) EXPECT_TRUE(std::isnan(y[2 * row]));
  EXPECT_EQ(y[0], 7);
  EXPECT_EQ(y[8], 0);
  EXPECT_EQ(out["dx"], (Values{0, 0, 4, 4, 0, 0}));
}

// The index is data: an error names the place, and nothing was written.
TEST(Rows, RefuseAnIndexThatIsNone) {
  const auto run = [](const Values& index, bool backward) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      const auto m = static_cast<int64_t>(index.size());
      const View i = c.input("index", {m}, DType::i32, index);
      const View whole = c.output("whole", {4, 3}, DType::f32);
      const View some = c.output("some", {m, 3}, DType::f32);
      if (backward)
        rows_gather_backward(c.ctx(), whole, some, i);
      else
        rows_gather_forward(c.ctx(), some, whole, i);
    });
  };
  for (const bool backward : {false, true}) {
    run({3, 0, -1, -1}, backward);
    expect_error(ErrorCode::data, {"index of [0,N)=[0,4), or -1", "4 at place 1 of index"}, [&] {
      run({0, 4}, backward);
    });
    expect_error(ErrorCode::data, {"-2 at place 0 of index"}, [&] { run({-2}, backward); });
  }
  run({2, 2}, false);
  expect_error(ErrorCode::data, {"names a row once", "2 at places 1 and 3 of index"}, [&] {
    run({0, 2, -1, 2}, true);
  });
}

TEST(Rows, RefuseWhatDoesNotFit) {
  const auto forward = [](Shape y, DType y_dtype, Shape x, Shape index, DType index_dtype,
                          DType x_dtype = DType::f32) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      rows_gather_forward(c.ctx(), c.output("y", y, y_dtype), c.output("x", x, x_dtype),
                          c.output("index", index, index_dtype));
    });
  };
  const DType f32 = DType::f32, i32 = DType::i32;
  expect_error(ErrorCode::shape, {"y of shape (M,C)=(2,4)", "y (3,4) f32"}, [&] {
    forward({3, 4}, f32, {5, 4}, {2}, i32);
  });
  expect_error(ErrorCode::shape, {"x of shape (N,C)", "x (20) f32"}, [&] {
    forward({2, 4}, f32, {20}, {2}, i32);
  });
  expect_error(ErrorCode::shape, {"index of shape (M)", "index (1,2) i32"}, [&] {
    forward({2, 4}, f32, {5, 4}, {1, 2}, i32);
  });
  expect_error(ErrorCode::unsupported, {"index of dtype i32", "index (2) i64"}, [&] {
    forward({2, 4}, f32, {5, 4}, {2}, DType::i64);
  });
  expect_error(ErrorCode::unsupported, {"y of dtype f32", "y (2,4) bf16"}, [&] {
    forward({2, 4}, DType::bf16, {5, 4}, {2}, i32);
  });
  expect_error(ErrorCode::unsupported, {"x of dtype f32|bf16|f16", "x (5,4) i64"}, [&] {
    forward({2, 4}, DType::i64, {5, 4}, {2}, i32, DType::i64);
  });
  expect_error(ErrorCode::shape, {"dy of shape (M,C)=(2,4)", "dy (2,3) f32"}, [&] {
    run_on_plan_and_cpu({}, [&](Case& c) {
      rows_gather_backward(c.ctx(), c.output("dx", {5, 4}, f32), c.output("dy", {2, 3}, f32),
                           c.output("index", {2}, i32));
    });
  });
}

}  // namespace
}  // namespace snug::test
