// The kernels in the emulator against the CPU op: the same bits in both directions.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/kernels/row_split.h"
#include "layers/ops/embedding_simt.h"
#include "tests/support/emu.h"

namespace snug::test {
namespace {

struct Variant {
  int64_t b, t, c, vocabulary, positions, position = 0;
  DType dtype = DType::f32;
  bool learned = true, add = false, documents = false, shifted = false;
  bool want_token = true, want_place = true;
  int threads = 64;
  int64_t kinds = 0;  // of types
  bool types_named = true;
};

// Every position begins a document or belongs to that of the one before it.
Values starts_of(const Variant& v) {
  Values starts;
  for (int64_t b = 0; b < v.b; ++b)
    for (int64_t t = 0; t < v.t; ++t)
      starts.push_back(t > 0 && (t * 5 + b) % 4 != 0 ? starts.back() : static_cast<double>(t));
  return starts;
}

// Workspace with anything in it.
View sort_space(EmuCase& c, int64_t n) {
  const int64_t words = embedding_sort_words(n);
  return c.input("order", {words}, DType::i64, Values(static_cast<size_t>(words), -7.0));
}

void check(const Variant& v) {
  SCOPED_TRACE(
      fmt::format("B{} T{} C{} {} learned {} add {} documents {} shifted {} threads {} K{}{}", v.b,
                  v.t, v.c, to_string(v.dtype), v.learned, v.add, v.documents, v.shifted, v.threads,
                  v.kinds, v.types_named ? "" : " unnamed"));
  const int64_t n = v.b * v.t;
  const Values tokens = index_values(n, v.vocabulary, 1), starts = starts_of(v);
  const Values wte = normal_values(v.vocabulary * v.c, 2, v.dtype),
               wpe = normal_values(v.positions * v.c, 3, v.dtype),
               dy = normal_values(n * v.c, 4, v.dtype);
  const Values dwte0 = normal_values(v.vocabulary * v.c, 5),
               dwpe0 = normal_values(v.positions * v.c, 6);
  const Values types = index_values(n, std::max<int64_t>(v.kinds, 1), 7),
               wtt = normal_values(v.kinds * v.c, 8, v.dtype),
               dwtt0 = normal_values(v.kinds * v.c, 9);
  StepState state{};
  state.position = v.position;
  const auto body = [&](auto& c) {
    const View ids = c.input("tokens", {v.b, v.t}, DType::i32, tokens), s = c.step_state(state);
    const View token = c.input("wte", {v.vocabulary, v.c}, v.dtype, wte);
    const View place = v.learned ? c.input("wpe", {v.positions, v.c}, v.dtype, wpe) : View();
    const View documents =
        v.documents ? c.input("document_start", {v.b, v.t}, DType::i32, starts) : View();
    const View type =
        v.kinds > 0 && v.types_named ? c.input("types", {v.b, v.t}, DType::i32, types) : View();
    const View kind = v.kinds > 0 ? c.input("wtt", {v.kinds, v.c}, v.dtype, wtt) : View();
    const View y = c.output("y", {n, v.c}, v.dtype), g = c.input("dy", {n, v.c}, v.dtype, dy);
    const auto gradient = [&](bool wanted, const char* name, int64_t rows, const Values& old) {
      if (!wanted) return GradView{};
      const Shape shape{rows, v.c};
      return GradView{
          v.add ? c.inout(name, shape, DType::f32, old) : c.output(name, shape, DType::f32), v.add};
    };
    const GradView dwte = gradient(v.want_token, "dwte", v.vocabulary, dwte0);
    const GradView dwpe = gradient(v.learned && v.want_place, "dwpe", v.positions, dwpe0);
    const GradView dwtt = gradient(v.kinds > 0, "dwtt", v.kinds, dwtt0);
    if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
      embedding_forward_on(c.queue(), y, ids, token, place, s, documents, type, kind, {},
                           v.threads);
      const View order = sort_space(c, n);
      embedding_backward_on(c.queue(), dwte, dwpe, g, ids, s, documents, order, v.threads);
      if (v.kinds == 0) return;
      const Shape partial{RowSplit(n).chunks, v.kinds, v.c};
      embedding_type_gradient_on(c.queue(), dwtt, g, type,
                                 c.input("partial", partial, DType::f32,
                                         Values(static_cast<size_t>(partial.elements()), -7.0)),
                                 0, v.threads);
    } else {
      embedding_forward(c.ctx(), y, ids, token, place, s, documents, type, kind);
      embedding_backward(c.ctx(), dwte, dwpe, g, ids, s, documents, type, dwtt);
    }
  };
  expect_equal_bits(run_in_all_schedules(body, v.shifted), run_on_plan_and_cpu({}, body));
}

TEST(EmbeddingSimt, SameBitsAsTheCpu) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const bool add : {false, true})
      for (const bool documents : {false, true}) {
        check({1, 1, 1, 1, 1, 0, t, true, add, documents});
        check({2, 9, 3, 7, 13, 4, t, true, add, documents});
        check({2, 35, 36, 11, 40, 0, t, true, add, documents});
        check({3, 4, 40, 50, 16, 7, t, true, add, documents, true});
      }
  for (const int threads : kBlockSizes)
    check({.b = 1,
           .t = 70,
           .c = 136,
           .vocabulary = 3,
           .positions = 70,
           .dtype = DType::bf16,
           .threads = threads});
  // More rows than a tile of the sort, tokens of one digit, two and three, some of them often.
  for (const int threads : kBlockSizes)
    for (const int64_t vocabulary : {5, 256, 300, 70000})
      check({.b = 2,
             .t = 1100,
             .c = vocabulary > 1000 ? 1 : 3,
             .vocabulary = vocabulary,
             .positions = 1100,
             .dtype = DType::bf16,
             .documents = vocabulary == 300,
             .threads = threads});
  check({.b = 3, .t = 40, .c = 264, .vocabulary = 9, .positions = 40, .add = true});
  check({.b = 2, .t = 9, .c = 8, .vocabulary = 7, .positions = 9, .learned = false});
  check({.b = 2, .t = 9, .c = 8, .vocabulary = 7, .positions = 9, .want_token = false});
  check({.b = 2, .t = 9, .c = 8, .vocabulary = 7, .positions = 9, .want_place = false});
}

TEST(EmbeddingSimt, TypesHaveTheSameBits) {
  const auto types = [](Variant v, int64_t kinds, bool named) {
    v.kinds = kinds;
    v.types_named = named;
    check(v);
  };
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const bool add : {false, true}) {
      types({1, 1, 1, 1, 1, 0, t, true, add}, 1, false);
      types({2, 9, 3, 7, 13, 4, t, true, add}, 2, true);
      types({3, 31, 40, 50, 40, 7, t, true, add, true}, 4, true);
      types({3, 4, 40, 50, 16, 7, t, true, add, false, true}, 3, true);
    }
  // More than one row of warps, and more rows than 32 chunks of 16.
  for (const int threads : kBlockSizes)
    types({.b = 7,
           .t = 90,
           .c = 264,
           .vocabulary = 9,
           .positions = 90,
           .dtype = DType::bf16,
           .threads = threads},
          2, threads != 32);
  types({.b = 2, .t = 9, .c = 8, .vocabulary = 7, .positions = 9, .learned = false}, 2, true);
  types({.b = 2,
         .t = 9,
         .c = 8,
         .vocabulary = 7,
         .positions = 9,
         .want_token = false,
         .want_place = false},
        2, true);
}

// What no check has seen does no harm: such a row is NaN, and its gradient goes nowhere. The tables
// have a row more than they say, which is none of theirs.
TEST(EmbeddingSimt, StaysInsideItsTables) {
  const Values ids = {1, -1, 3, 2, 4, 0};
  StepState state{};
  state.position = 1;  // the last of three columns is outside
  const auto tail = [](size_t rows) {
    Values v(2 * rows, 0.0);
    v[2 * rows - 1] = v[2 * rows - 2] = 7;
    return v;
  };
  const Outputs out = run_in_all_schedules([&](EmuCase& c) {
    const View tokens = c.input("tokens", {2, 3}, DType::i32, ids), s = c.step_state(state);
    embedding_forward_on(c.queue(), c.output("y", {6, 2}, DType::f32), tokens,
                         c.input("wte", {5, 2}, DType::f32, Values(10, 1.0)).rows(0, 4),
                         c.input("wpe", {4, 2}, DType::f32, Values(8, 1.0)).rows(0, 3), s);
    embedding_backward_on(
        c.queue(), {c.inout("dwte", {5, 2}, DType::f32, tail(5)).rows(0, 4), false},
        {c.inout("dwpe", {4, 2}, DType::f32, tail(4)).rows(0, 3), false},
        c.input("dy", {6, 2}, DType::f32, Values(12, 1.0)), tokens, s, {}, sort_space(c, 6));
  });
  for (const size_t row : {1, 2, 4, 5}) EXPECT_TRUE(std::isnan(out["y"][2 * row]));
  for (const size_t row : {0, 3}) EXPECT_EQ(out["y"][2 * row], 2);
  EXPECT_EQ(out["dwte"], (Values{1, 1, 1, 1, 1, 1, 1, 1, 7, 7}));
  EXPECT_EQ(out["dwpe"], (Values{0, 0, 2, 2, 2, 2, 7, 7}));

  const Outputs types = run_in_all_schedules([&](EmuCase& c) {
    const View type = c.input("types", {2, 3}, DType::i32, {0, 2, 1, -1, 1, 0});
    embedding_forward_on(c.queue(), c.output("y", {6, 2}, DType::f32),
                         c.input("tokens", {2, 3}, DType::i32, Values(6, 0.0)),
                         c.input("wte", {4, 2}, DType::f32, Values(8, 1.0)), {}, {}, {}, type,
                         c.input("wtt", {2, 2}, DType::f32, Values(4, 1.0)));
    embedding_type_gradient_on(c.queue(), {c.output("dwtt", {2, 2}, DType::f32), false},
                               c.input("dy", {6, 2}, DType::f32, Values(12, 1.0)), type,
                               c.output("partial", {1, 2, 2}, DType::f32));
  });
  for (const size_t row : {1, 3}) EXPECT_TRUE(std::isnan(types["y"][2 * row]));
  for (const size_t row : {0, 2, 4, 5}) EXPECT_EQ(types["y"][2 * row], 2);
  EXPECT_EQ(types["dwtt"], Values(4, 2.0));
}

}  // namespace
}  // namespace snug::test
