#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "layers/ops/cache_rows.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"

namespace snug::test {
namespace {

struct Sizes {
  int64_t b, p, g, d, position;
  std::vector<int32_t> source;  // (row, first position) of every row
  bool ring = false;
};

StepState state_at(int64_t position) {
  StepState s{};
  s.position = position;
  return s;
}

Outputs copied(const Sizes& s, DType t, const Values& k, const Values& v) {
  const Values source(s.source.begin(), s.source.end());
  const auto body = [&](Case& c) {
    const Shape shape{s.b, s.p, s.g, s.d};
    cache_rows_copy(c.ctx(), c.inout("k", shape, t, k), c.inout("v", shape, t, v),
                    c.input("source", {s.b, 2}, DType::i32, source),
                    c.step_state(state_at(s.position)), s.ring);
  };
  const Outputs out = run_in_all_modes(body);
  // The kernel too, with blocks and threads backwards: what one reads another must not have
  // written.
  Settings settings;
  settings.guard_bytes = 64;
  settings.emulated_order = 1;
  expect_equal_bits(run_on_emu(body, settings), out);
  return out;
}

// Copies move bits: every element is compared exactly.
TEST(CacheRows, EveryRowIsItsSourceUpToThePosition) {
  const Sizes cases[] = {{1, 3, 1, 1, 3, {0, 0}},
                         {2, 5, 2, 3, 4, {0, 0, 0, 0}},
                         {4, 7, 1, 8, 5, {1, 2, 1, 0, 1, 0, 3, 0}},
                         {4, 7, 1, 8, 7, {0, 0, 3, 3, 0, 6, 3, 0}},
                         {3, 33, 3, 16, 30, {2, 30, 2, 31, 2, 0}},
                         {5, 64, 12, 64, 50, {4, 1, 4, 20, 2, 0, 2, 49, 4, 0}},
                         {3, 4, 2, 2, 0, {1, 0, 1, 0, 1, 0}}};
  for (const Sizes& s : cases)
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(fmt::format("B{}_P{}_{}", s.b, s.p, to_string(t)));
      const int64_t cell = s.g * s.d, n = s.b * s.p * cell;
      const Values k = normal_values(n, 1, t), v = normal_values(n, 2, t);
      const Outputs out = copied(s, t, k, v);
      for (const auto& [name, old] : {std::pair{"k", &k}, {"v", &v}}) {
        const Values got = out[name];
        int64_t wrong = 0;
        for (int64_t i = 0; i < n; ++i) {
          const int64_t b = i / (s.p * cell), p = i / cell % s.p;
          const int64_t from = s.source[static_cast<size_t>(2 * b)],
                        first = s.source[static_cast<size_t>(2 * b + 1)];
          const int64_t row = p >= first && p < s.position ? from : b;
          const int64_t at = row * s.p * cell + i % (s.p * cell);
          wrong += got[static_cast<size_t>(i)] != (*old)[static_cast<size_t>(at)];
        }
        EXPECT_EQ(wrong, 0) << name;
      }
    }
}

// A ring holds the last P positions: where position p lies, p mod P, moves if p does.
TEST(CacheRows, ARingMovesWhatItHolds) {
  for (const int64_t position : {3, 4, 5, 9, 22})
    for (const int32_t first : {0, 3, 7, 21}) {
      SCOPED_TRACE(fmt::format("{} from {}", position, first));
      const Sizes s{2, 4, 1, 2, position, {0, 0, 0, first}, true};
      const int64_t n = s.b * s.p * s.g * s.d;
      const Values k = normal_values(n, 1), v = normal_values(n, 2);
      Values expected[] = {k, v};
      for (int64_t p = std::max<int64_t>(first, position - s.p); p < position; ++p)
        for (Values& x : expected)
          std::copy_n(x.begin() + p % s.p * s.d, s.d, x.begin() + (s.p + p % s.p) * s.d);
      const Outputs out = copied(s, DType::f32, k, v);
      EXPECT_EQ(out["k"], expected[0]);
      EXPECT_EQ(out["v"], expected[1]);
    }
}

TEST(CacheRows, WrongSourcesAreRefusedBeforeAnythingMoves) {
  const auto refused = [](std::vector<int32_t> source, int64_t position,
                          std::initializer_list<const char*> words) {
    const Sizes s{3, 4, 1, 2, position, std::move(source)};
    expect_error(ErrorCode::usage, words,
                 [&] { copied(s, DType::f32, normal_values(24, 1), normal_values(24, 2)); });
  };
  refused({0, 0, 3, 0, 2, 0}, 4, {"[0,B)=[0,3)", "row 3 from position 0 on for row 1", "itself"});
  refused({0, 0, -1, 0, 2, 0}, 4, {"[0,B)=[0,3)", "row -1"});
  refused({0, 0, 0, -1, 2, 0}, 4, {"a first position", "position -1"});
  refused({1, 0, 0, 0, 2, 0}, 4, {"keep their own values", "row 0 continues from row 1"});
  refused({0, 0, 0, 0, 1, 0}, 4, {"keep their own values", "row 2 continues from row 1"});
  refused({0, 0, 0, 0, 2, 0}, 5, {"at most P=4 tokens", "5", "longer cache"});
  refused({0, 0, 0, 0, 2, 0}, -1, {"at most P=4 tokens"});
}

TEST(CacheRows, ShapesAreChecked) {
  const auto run = [](Shape k, Shape v, Shape source, DType kd, DType vd, DType sd) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      cache_rows_copy(c.ctx(), c.output("k", k, kd), c.output("v", v, vd),
                      c.output("source", source, sd), c.step_state(state_at(0)));
    });
  };
  const DType f = DType::f32, i = DType::i32;
  expect_error(ErrorCode::shape, {"cache_k of shape (B,P,G,D)"}, [&] {
    run({2, 3, 4}, {2, 3, 4}, {2, 2}, f, f, i);
  });
  for (const Shape none : {Shape{0, 3, 4, 5}, {2, 0, 4, 5}})
    expect_error(ErrorCode::shape, {"cache_k of shape (B,P,G,D) with B and P above 0"}, [&] {
      run(none, none, {none[0], 2}, f, f, i);
    });
  expect_error(ErrorCode::shape, {"cache_v"}, [&] {
    run({2, 3, 4, 5}, {2, 3, 4, 6}, {2, 2}, f, f, i);
  });
  expect_error(ErrorCode::shape, {"source"}, [&] {
    run({2, 3, 4, 5}, {2, 3, 4, 5}, {3, 2}, f, f, i);
  });
  expect_error(ErrorCode::unsupported, {"cache_v"}, [&] {
    run({2, 3, 4, 5}, {2, 3, 4, 5}, {2, 2}, f, DType::bf16, i);
  });
  expect_error(ErrorCode::unsupported, {"source"}, [&] {
    run({2, 3, 4, 5}, {2, 3, 4, 5}, {2, 2}, f, f, f);
  });
}

}  // namespace
}  // namespace snug::test
