// On the CPU and in the emulator against the reference in double and its complex steps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "layers/ops/rmsnorm_simt.h"
#include "layers/ops/row_loops.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"
#include "tests/support/gradient.h"
#include "tests/support/grid.h"
#include "tests/support/reference/rmsnorm.h"

namespace snug::test {
namespace {

constexpr float kEps = 1e-6f;

struct Variant {
  int64_t n, c;
  DType dtype = DType::f32, weight = DType::f32;
  bool offset = false, in_place = false, add = false, add_dx = false, want_weight = true;
  HeadRows heads = {};
  DType gradient = DType::f32;
  int threads = 64;
  bool shifted = false;
  double sd = 1;
  int64_t width = 0;  // of rows of which c columns are normalised; 0: c

  int64_t row() const { return width > 0 ? width : c; }
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& [n, c] : {std::pair{1, 1},
                               {5, 3},
                               {130, 7},
                               {17, 33},
                               {5, 64},
                               {37, 264},
                               {17, 768},
                               {9, 1000},
                               {2, 4133},    // wider than what is kept near
                               {12, 4133}})  // and enough rows to keep it
      all.push_back({.n = n, .c = c, .dtype = t, .weight = t, .offset = c % 2 == 0});
    all.push_back({.n = 9, .c = 48, .dtype = t, .offset = true});
    all.push_back({.n = 9, .c = 64, .dtype = t, .weight = t, .in_place = true});
    all.push_back({.n = 9, .c = 65, .dtype = t, .weight = t, .add = true, .add_dx = true});
    all.push_back({.n = 9, .c = 64, .dtype = t, .add_dx = true, .want_weight = false});
    // The heads of q and of k in packed rows of 3 + 2 + 2 heads, and all of them.
    for (const HeadRows& heads : {HeadRows{7, 0, 3}, {7, 3, 2}, {7, 0, 7}, {7, 2, 0}})
      for (const bool add : {false, true})
        all.push_back({.n = 7 * 21,
                       .c = 40,
                       .dtype = t,
                       .weight = t,
                       .offset = true,
                       .in_place = !add,
                       .add = add,
                       .add_dx = add,
                       .heads = heads});
    // All heads of q, and of k, as one row in rows of 3 + 2 + 2 of them.
    for (const HeadRows& heads : {HeadRows{.column = 0, .columns = 24},
                                  {.column = 24, .columns = 16},
                                  {.column = 5, .columns = 3}})
      for (const bool add : {false, true})
        all.push_back({.n = 21,
                       .c = heads.columns,
                       .dtype = t,
                       .weight = t,
                       .offset = true,
                       .in_place = !add,
                       .add = add,
                       .add_dx = add,
                       .heads = heads,
                       .width = 56});
  }
  for (const int threads : kBlockSizes)
    for (const bool shifted : {false, true})
      all.push_back({.n = 50,
                     .c = 256,
                     .dtype = DType::bf16,
                     .in_place = true,
                     .threads = threads,
                     .shifted = shifted});
  all.push_back({.n = 2, .c = 16384 + 72, .dtype = DType::bf16, .weight = DType::bf16});
  all.push_back({.n = 8200, .c = 3});  // more rows than 512 chunks of 16
  all.push_back({.n = 5, .c = 40, .sd = 1e-4});
  all.push_back({.n = 0, .c = 8});
  return all;
}

std::string name_of(const Variant& v) {
  return fmt::format("N{} C{} {} weight {}{}{} add {} add_dx {} heads {}+{}/{} threads {} {}", v.n,
                     v.c, to_string(v.dtype), to_string(v.weight), v.offset ? " offset" : "",
                     v.in_place ? " in place" : "", v.add, v.add_dx, v.heads.first, v.heads.count,
                     v.heads.group, v.threads, v.shifted ? "shifted" : "");
}

struct Data {
  explicit Data(const Variant& v)
      : x(normal_values(v.n * v.row(), 1, v.dtype, v.sd, 0.1 * v.sd)),
        dy(normal_values(v.n * v.row(), 2, v.dtype)),
        weight(normal_values(v.c, 3, v.weight, 0.5, v.offset ? 0 : 1)),
        dx0(normal_values(v.n * v.row(), 4, v.dtype)),
        dweight0(normal_values(v.c, 5, v.gradient)),
        truth(of(v, x, weight)) {}
  template <class T>
  static RmsnormResult<T> of(const Variant& v, const std::vector<T>& x,
                             const std::vector<T>& weight) {
    if (v.width > 0) {
      const auto width = static_cast<size_t>(v.width), first = static_cast<size_t>(v.heads.column);
      RmsnormResult<T> all{std::vector<T>(x.size(), T(0)), {}};
      for (size_t row = 0; row < x.size(); row += width) {
        const auto begin = x.begin() + static_cast<int64_t>(row + first);
        const RmsnormResult<T> one = rmsnorm_reference(
            std::vector<T>(begin, begin + v.heads.columns), weight, v.offset ? 1 : 0, kEps);
        std::copy(one.y.begin(), one.y.end(), all.y.begin() + static_cast<int64_t>(row + first));
        all.rstd.push_back(one.rstd.front());
      }
      return all;
    }
    return rmsnorm_reference(x, weight, v.offset ? 1 : 0, kEps, static_cast<size_t>(v.heads.group),
                             static_cast<size_t>(v.heads.first),
                             static_cast<size_t>(v.heads.count));
  }
  Values x, dy, weight, dx0, dweight0;
  RmsnormResult<double> truth;
};

auto body_of(const Variant& v, const Data& d) {
  return [&](auto& c) {
    const Shape shape{v.n, v.row()};
    const int64_t m = v.heads.of(v.n);
    const View x = c.input("x", shape, v.dtype, d.x);
    // What is not touched keeps its numbers: y and dx begin as 0 or as what is added to.
    const Values zeros(d.x.size(), 0.0);
    const View y =
        v.in_place ? c.inout("y", shape, v.dtype, d.x) : c.inout("y", shape, v.dtype, zeros);
    const View dy =
        v.in_place ? c.inout("dx", shape, v.dtype, d.dy) : c.input("dy", shape, v.dtype, d.dy);
    const View dx = v.in_place ? dy : c.inout("dx", shape, v.dtype, v.add_dx ? d.dx0 : zeros);
    const View weight = c.input("weight", {v.c}, v.weight, d.weight);
    const View rstd = c.output("rstd", {m}, DType::f32);
    GradView dweight;
    if (v.want_weight)
      dweight = {v.add ? c.inout("dweight", {v.c}, v.gradient, d.dweight0)
                       : c.output("dweight", {v.c}, v.gradient),
                 v.add};
    if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
      const int64_t chunks = rmsnorm_backward_chunks(m);
      const View partial = c.input("partial", {chunks, v.c}, DType::f32,
                                   Values(static_cast<size_t>(chunks * v.c), std::nan("")));
      rmsnorm_forward_on(c.queue(), y, rstd, v.in_place ? y : x, weight, kEps, v.offset, v.heads,
                         v.threads);
      rmsnorm_backward_on(c.queue(), dx, v.add_dx, dweight, partial, dy, x, weight, rstd, v.offset,
                          v.heads, v.threads);
    } else {
      rmsnorm_forward(c.ctx(), y, rstd, v.in_place ? y : x, weight, kEps, v.offset, v.heads);
      rmsnorm_backward(c.ctx(), dx, v.add_dx, dweight, dy, x, weight, rstd, v.offset, v.heads);
    }
  };
}

// Sums of C terms in y, of as many in dx, and of M in dweight, each rounded where it is stored.
void compare(const Variant& v, const Data& d, const Outputs& out) {
  const auto m = v.heads.of(v.n);
  const double sums = tolerance(DType::f32, v.c);
  EXPECT_TRUE(close(out["rstd"], d.truth.rstd, sums));
  const auto counts = [&](int64_t element) {
    if (v.width > 0)
      return element % v.width >= v.heads.column &&
             element % v.width < v.heads.column + v.heads.columns;
    const int64_t h = element / v.c % v.heads.group;
    return h >= v.heads.first && h < v.heads.first + v.heads.count;
  };
  const auto rows = [&](const Values& all) {  // those that are normalised
    Values some;
    for (size_t i = 0; i < all.size(); ++i)
      if (counts(static_cast<int64_t>(i))) some.push_back(all[i]);
    return some;
  };
  const auto others = [&](const char* name, const Values& before) {
    const Values after = out[name];
    for (size_t i = 0; i < after.size(); ++i)
      if (!counts(static_cast<int64_t>(i))) {
        ASSERT_EQ(after[i], before[i]) << name;
      }
  };
  const Values zeros(d.x.size(), 0.0);
  EXPECT_TRUE(close(rows(out["y"]), rows(d.truth.y), sums + tolerance(v.dtype, 1)));
  if (m < v.n || v.width > 0) others("y", v.in_place ? d.x : zeros);
  if (m < v.n || v.width > 0) others("dx", v.in_place ? d.dy : v.add_dx ? d.dx0 : zeros);

  const auto limit = static_cast<size_t>(std::clamp<int64_t>(2000000 / (v.n * v.c + 1), 20, 300));
  using C = std::vector<Complex>;
  const auto gradient = [&](const Values& at, const auto& f) {
    const std::vector<size_t> some = sample_indices(at.size(), limit);
    return std::pair{some, complex_step_gradient(f, at, some)};
  };
  auto [some, dx] = gradient(d.x, [&](const C& x) {
    return weighted_sum(Data::of(v, x, widen<Complex>(d.weight)).y, d.dy);
  });
  Values got;
  const Values all_dx = out["dx"];
  // dx of one channel vanishes but for eps: it is small against rstd |dy w|, of which it is the
  // rest.
  double floor = 1e-3;
  for (size_t k = 0; k < some.size(); ++k) {
    const bool normalised = counts(static_cast<int64_t>(some[k]));
    got.push_back(normalised ? all_dx[some[k]] : 0);
    if (normalised && v.add_dx) dx[k] += d.dx0[some[k]];
  }
  for (size_t i = 0; m == v.n && v.c <= 2 && i < d.x.size(); ++i)
    floor = std::max(floor, d.truth.rstd[i / static_cast<size_t>(v.c)] * std::fabs(d.dy[i]) * 2);
  EXPECT_TRUE(close(got, dx, 2 * sums + tolerance(v.dtype, 1), floor));
  if (!v.want_weight) return;
  auto [some_weights, dweight] = gradient(d.weight, [&](const C& w) {
    return weighted_sum(Data::of(v, widen<Complex>(d.x), w).y, d.dy);
  });
  for (size_t k = 0; v.add && k < dweight.size(); ++k) dweight[k] += d.dweight0[some_weights[k]];
  EXPECT_TRUE(close(pick(out["dweight"], some_weights), dweight,
                    sums + tolerance(v.gradient, std::max<int64_t>(m, 1))));
}

TEST(Rmsnorm, MatchesTheReference) {
  for (const Variant& v : variants()) {
    SCOPED_TRACE(name_of(v));
    const Data d(v);
    const Outputs out = run_in_all_modes(body_of(v, d));
    compare(v, d, out);
    EXPECT_EQ(out.ops, (std::vector<std::string>{"rmsnorm_forward", "rmsnorm_backward"}));
    const int64_t m = v.heads.of(v.n);
    EXPECT_EQ(out.bytes_moved, (v.add_dx ? 6 : 5) * m * v.c * size_of(v.dtype) + 8 * m);
  }
}

TEST(Rmsnorm, MatchesTheReferenceInTheEmulator) {
  for (const Variant& v : grid(variants())) {
    SCOPED_TRACE(name_of(v));
    const Data d(v);
    compare(v, d, run_in_all_schedules(body_of(v, d), v.shifted));
  }
}

TEST(Rmsnorm, GradientsMayBeBf16) {
  for (const DType t : {DType::f32, DType::bf16})
    for (const bool add : {false, true}) {
      const Variant v{.n = 600, .c = 33, .dtype = t, .add = add, .gradient = DType::bf16};
      const Data d(v);
      compare(v, d, run_in_all_modes(body_of(v, d)));
    }
}

// Large results go past the caches: with the bits of small ones, row by row.
TEST(Rmsnorm, LargeResultsHaveTheBitsOfSmallOnes) {
  const int64_t c = 64;
  for (const DType t : {DType::f32, DType::bf16}) {
    const int64_t n = (4 << 20) / c / size_of(t), part = 1000;
    const Values x = normal_values(n * c, 1, t), dy = normal_values(n * c, 2, t),
                 w = normal_values(c, 3, t);
    const auto run = [&](int64_t rows) {
      return run_on_plan_and_cpu({.threads = 2}, [&](Case& k) {
        const auto some = [&](const Values& all) {
          return Values(all.begin(), all.begin() + rows * c);
        };
        const View vx = k.input("x", {rows, c}, t, some(x)), weight = k.input("w", {c}, t, w);
        const View rstd = k.output("rstd", {rows}, DType::f32);
        rmsnorm_forward(k.ctx(), k.output("y", {rows, c}, t), rstd, vx, weight, kEps);
        rmsnorm_backward(k.ctx(), k.output("dx", {rows, c}, t), false, {},
                         k.input("dy", {rows, c}, t, some(dy)), vx, weight, rstd);
      });
    };
    const Outputs large = run(n), small = run(part);
    for (const char* name : {"y", "dx", "rstd"}) {
      const Values l = large[name], s = small[name];
      EXPECT_TRUE(std::equal(s.begin(), s.end(), l.begin())) << name << to_string(t);
    }
  }
}

TEST(Rmsnorm, RefusesWhatDoesNotFit) {
  const auto forward = [](Shape y, Shape rstd, Shape x, Shape weight, DType weight_dtype,
                          const HeadRows& heads = {}, DType rstd_dtype = DType::f32) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      rmsnorm_forward(c.ctx(), c.output("y", y, DType::bf16), c.output("rstd", rstd, rstd_dtype),
                      c.output("x", x, DType::bf16), c.output("w", weight, weight_dtype), kEps,
                      false, heads);
    });
  };
  const DType b = DType::bf16;
  expect_error(ErrorCode::shape, {"x of shape (N,C)", "x (24) bf16"}, [&] {
    forward({4, 6}, {4}, {24}, {6}, b);
  });
  expect_error(ErrorCode::shape, {"y of shape (N,C)=(4,6)", "y (4,5) bf16"}, [&] {
    forward({4, 5}, {4}, {4, 6}, {6}, b);
  });
  expect_error(ErrorCode::shape, {"rstd of shape (M)=(4)", "rstd (6) f32"}, [&] {
    forward({4, 6}, {6}, {4, 6}, {6}, b);
  });
  expect_error(ErrorCode::shape, {"weight of shape (C)=(6)", "w (4) bf16"}, [&] {
    forward({4, 6}, {4}, {4, 6}, {4}, b);
  });
  expect_error(ErrorCode::unsupported, {"weight of dtype f32 or that of x", "w (6) f16"}, [&] {
    forward({4, 6}, {4}, {4, 6}, {6}, DType::f16);
  });
  expect_error(ErrorCode::unsupported, {"rstd of dtype f32", "rstd (4) bf16"}, [&] {
    forward({4, 6}, {4}, {4, 6}, {6}, b, {}, b);
  });
  expect_error(ErrorCode::shape,
               {"rows of x in whole groups", "x (4,6) bf16 and heads 0 to 1 of 3"}, [&] {
                 forward({4, 6}, {4}, {4, 6}, {6}, b, {3, 0, 2});
               });
  expect_error(ErrorCode::shape, {"heads inside a group", "heads 1 to 4 of 4", "numbers of heads"},
               [&] {
                 forward({4, 6}, {4}, {4, 6}, {6}, b, {4, 1, 4});
               });
  expect_error(ErrorCode::shape, {"rstd of shape (M)=(2)", "rstd (4) f32"}, [&] {
    forward({4, 6}, {4}, {4, 6}, {6}, b, {2, 1, 1});
  });
  expect_error(ErrorCode::shape,
               {"columns inside the rows of x", "x (4,6) bf16 and columns 4 to 6"}, [&] {
                 forward({4, 6}, {4}, {4, 6}, {3}, b, {.column = 4, .columns = 3});
               });
  const auto backward = [](Shape dx, Shape dy, Shape dweight, DType dweight_dtype) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      const DType f32 = DType::f32;
      rmsnorm_backward(c.ctx(), c.output("dx", dx, f32), false,
                       {c.output("dw", dweight, dweight_dtype), false}, c.output("dy", dy, f32),
                       c.output("x", {4, 6}, f32), c.output("w", {6}, f32),
                       c.output("rstd", {4}, f32));
    });
  };
  expect_error(ErrorCode::shape, {"dx of shape (N,C)=(4,6)", "dx (6,4) f32"}, [&] {
    backward({6, 4}, {4, 6}, {6}, DType::f32);
  });
  expect_error(ErrorCode::shape, {"dy of shape (N,C)=(4,6)", "dy (6,4) f32"}, [&] {
    backward({4, 6}, {6, 4}, {6}, DType::f32);
  });
  expect_error(ErrorCode::shape, {"dweight of shape (C)=(6)", "dw (4) f32"}, [&] {
    backward({4, 6}, {4, 6}, {4}, DType::f32);
  });
  expect_error(ErrorCode::unsupported, {"dweight of dtype f32|bf16", "dw (6) f16"}, [&] {
    backward({4, 6}, {4, 6}, {6}, DType::f16);
  });
}

}  // namespace
}  // namespace snug::test
