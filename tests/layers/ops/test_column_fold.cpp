// On the CPU and in the emulator against the formula in double; fold and lay are each other's transpose.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "layers/ops/column_fold_simt.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"

namespace snug::test {
namespace {

struct Variant {
  int64_t N, C, r;
  FoldedColumns columns;
  bool add = false;
};

const Variant kVariants[] = {
    {.N = 1, .C = 1, .r = 1, .columns = {0, 1}},
    {.N = 5, .C = 12, .r = 4, .columns = {0, 12}},
    {.N = 5, .C = 12, .r = 5, .columns = {0, 12}, .add = true},
    {.N = 5, .C = 12, .r = 5, .columns = {0, 12, true}},
    {.N = 40, .C = 96, .r = 21, .columns = {32, 50, true}, .add = true},
    {.N = 700, .C = 64, .r = 64, .columns = {0, 64, true}},
    {.N = 7, .C = 12, .r = 17, .columns = {1, 10}},
    {.N = 7, .C = 12, .r = 17, .columns = {1, 10, true}, .add = true},
    {.N = 33, .C = 20, .r = 40, .columns = {0, 20, true}},
};

TEST(ColumnFold, MatchesTheFormulaOnBothPlaces) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const Variant& v : kVariants) {
      SCOPED_TRACE(fmt::format("{}x{} to {} {}", v.N, v.C, v.r, to_string(t)));
      const FoldedColumns& f = v.columns;
      const Values x = normal_values(v.N * v.C, 1, t), narrow = normal_values(v.N * v.r, 2, t),
                   before = normal_values(v.N * v.C, 3, t);
      Values folded(static_cast<size_t>(v.N * v.r), 0.0), laid = before;
      // The columns, from their beginning again where that is asked for.
      const int64_t all = f.wrap ? (f.width + v.r - 1) / v.r * v.r : f.width;
      for (int64_t n = 0; n < v.N; ++n)
        for (int64_t i = 0; i < all; ++i) {
          const int64_t column = f.first + i % f.width;
          const auto wide = static_cast<size_t>(n * v.C + column),
                     own = static_cast<size_t>(n * v.r + i % v.r);
          folded[own] += x[wide];
          laid[wide] = (v.add || i >= f.width ? laid[wide] : 0.0) + narrow[own];
        }
      const auto body = [&](auto& c) {
        const View from = c.input("x", {v.N, v.C}, t, x);
        const View small = c.input("v", {v.N, v.r}, t, narrow);
        const View u = c.output("u", {v.N, v.r}, t);
        const View y = c.inout("y", {v.N, v.C}, t, before);
        if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
          column_fold_on(c.queue(), u, from, f, 64);
          column_lay_on(c.queue(), {y, v.add}, small, f, 64);
        } else {
          column_fold(c.ctx(), u, from, f);
          column_lay(c.ctx(), {y, v.add}, small, f);
        }
      };
      const Outputs out = run_in_all_modes(body);
      for (const Outputs& o : {out, run_in_all_schedules(body)}) {
        EXPECT_TRUE(close(o["u"], folded, tolerance(t, 1 + f.width / v.r)));
        EXPECT_TRUE(close(o["y"], laid, tolerance(t, 3)));
      }
      EXPECT_EQ(out.ops, (std::vector<std::string>{"column_fold", "column_lay"}));
    }
}

TEST(ColumnFold, RefusesWhatDoesNotFit) {
  const auto call = [](int64_t rows, int64_t r, FoldedColumns f, DType dtype) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      column_fold(c.ctx(), c.output("u", {rows, r}, dtype), c.output("x", {8, 4}, DType::f32), f);
    });
  };
  expect_error(ErrorCode::shape,
               {"as many rows, and columns 2 to 6 of x (8,4) f32", "u (8,3) f32",
                "the adapter and the model belong together"},
               [&] {
                 call(8, 3, {2, 4}, DType::f32);
               });
  expect_error(ErrorCode::shape, {"u (6,3) f32"}, [&] { call(6, 3, {0, 4}, DType::f32); });
  expect_error(ErrorCode::shape, {"0 to 4 of x (8,4) f32, at least half of those of the other"},
               [&] {
                 call(8, 9, {0, 4, true}, DType::f32);
               });
  expect_error(ErrorCode::unsupported,
               {"what they are folded onto of one dtype, f32", "u (8,3) bf16"}, [&] {
                 call(8, 3, {0, 4}, DType::bf16);
               });
}

}  // namespace
}  // namespace snug::test
