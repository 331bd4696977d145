// On the CPU and in the emulator against the formula in double.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "layers/ops/matrix_block_simt.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"

namespace snug::test {
namespace {

struct Variant {
  int64_t M, K, r, c;
  BlockPlace place;
  bool add = false;
};

const Variant kVariants[] = {
    {.M = 1, .K = 1, .r = 1, .c = 1, .place = {}},
    {.M = 12, .K = 7, .r = 5, .c = 3, .place = {4, 2, 1.0f}},
    {.M = 12, .K = 7, .r = 12, .c = 7, .place = {0, 0, -2.5f}, .add = true},
    {.M = 300, .K = 96, .r = 200, .c = 32, .place = {100, 64, 0.3f}},
    {.M = 2100, .K = 40, .r = 2000, .c = 16, .place = {7, 24, 1.5f}, .add = true},
};

TEST(MatrixBlock, MatchesTheFormulaOnBothPlaces) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const Variant& v : kVariants) {
      SCOPED_TRACE(fmt::format("{}x{} of {}x{} {}", v.r, v.c, v.M, v.K, to_string(t)));
      const DType of_b = t == DType::f16 ? DType::f32 : t;  // gradients are f32 or bf16
      const Values m = normal_values(v.M * v.K, 1, t), b = normal_values(v.r * v.c, 2, of_b);
      Values put = m, taken = b;
      for (int64_t i = 0; i < v.r; ++i)
        for (int64_t j = 0; j < v.c; ++j) {
          const auto at = static_cast<size_t>((v.place.row + i) * v.K + v.place.col + j);
          const auto own = static_cast<size_t>(i * v.c + j);
          const auto factor = static_cast<double>(v.place.factor);
          taken[own] = (v.add ? b[own] : 0.0) + factor * m[at];
          put[at] = factor * b[own];
        }
      const auto body = [&](auto& c) {
        const View whole = c.input("whole", {v.M, v.K}, t, m);
        const View into = c.inout("m", {v.M, v.K}, t, m);
        const View part = c.input("part", {v.r, v.c}, of_b, b);
        const View out = c.inout("b", {v.r, v.c}, of_b, b);
        if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
          block_put_on(c.queue(), into, part, v.place, 64);
          block_take_on(c.queue(), {out, v.add}, whole, v.place, 64);
        } else {
          block_put(c.ctx(), into, part, v.place);
          block_take(c.ctx(), {out, v.add}, whole, v.place);
        }
      };
      const Outputs out = run_in_all_modes(body);
      for (const Outputs& o : {out, run_in_all_schedules(body)}) {
        EXPECT_TRUE(close(o["m"], put, tolerance(t, 1)));
        EXPECT_TRUE(close(o["b"], taken, tolerance(of_b, 2)));
      }
      EXPECT_EQ(out.ops, (std::vector<std::string>{"block_put", "block_take"}));
      const int64_t each = v.r * v.c * (size_of(t) + size_of(of_b));
      EXPECT_EQ(out.bytes_moved, 2 * each + (v.add ? v.r * v.c * size_of(of_b) : 0));
    }
}

TEST(MatrixBlock, RefusesWhatDoesNotFit) {
  const auto call = [](int64_t rows, BlockPlace place, DType dtype) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      block_take(c.ctx(), {c.output("b", {rows, 3}, dtype), false},
                 c.output("m", {8, 4}, DType::f32), place);
    });
  };
  expect_error(ErrorCode::shape,
               {"a block inside of m (8,4) f32", "b (6,3) f32 at row 3 and column 0",
                "the adapter and the model belong together"},
               [&] {
                 call(6, {3, 0}, DType::f32);
               });
  expect_error(ErrorCode::shape, {"b (2,3) f32 at row 0 and column 2"}, [&] {
    call(2, {0, 2}, DType::f32);
  });
  expect_error(ErrorCode::unsupported, {"b of dtype f32|bf16", "b (2,3) f16"}, [&] {
    call(2, {0, 0}, DType::f16);
  });
}

}  // namespace
}  // namespace snug::test
