#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "engine/core/isa.h"
#include "layers/ops/layernorm.h"
#include "layers/ops/row_loops.h"
#include "tests/support/case.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"
#include "tests/support/gradient.h"
#include "tests/support/reference/lanes.h"
#include "tests/support/reference/layernorm.h"

namespace snug::test {
namespace {

struct Sizes {
  int64_t n, c;
};
constexpr Sizes
    kSizes[] = {{1, 1},   {5, 1},   {17, 3},   {130, 3},   {5, 31},   {130, 31},
                {17, 33}, {5, 64},  {130, 64}, {1, 768},   {17, 768}, {130, 40},
                {130, 8}, {600, 7}, {2, 2},    {33, 1000}, {2, 4133}};  // the last is wider than
                                                                        // what a row keeps near
constexpr float kEps = 1e-5f;

struct Data {
  Data(Sizes s, DType t, DType w, double mean = 0.3)
      : n(s.n),
        c(s.c),
        dtype(t),
        weight_dtype(w),
        x(normal_values(n * c, 1, t, 1, mean)),
        dy(normal_values(n * c, 2, t)),
        weight(normal_values(c, 3, w, 0.5, 1)),
        bias(normal_values(c, 4, w)),
        truth(layernorm_reference(x, weight, bias, kEps)) {}

  // How much of x's rounding survives in xhat: x - mean cancels when a row hardly varies.
  double condition() const {
    double most = 1;
    for (int64_t i = 0; i < n * c; ++i) most = std::max(most, std::fabs(x[i]) * truth.rstd[i / c]);
    return most;
  }

  int64_t n, c;
  DType dtype, weight_dtype;
  Values x, dy, weight, bias;
  LayernormResult<double> truth;
};

std::string name_of(const Data& d) {
  return fmt::format("N{}_C{}_{}_weight_{}", d.n, d.c, to_string(d.dtype),
                     to_string(d.weight_dtype));
}

void check_forward(const Data& d, bool with_bias, bool in_place) {
  SCOPED_TRACE(name_of(d));
  const Outputs out = run_in_all_modes([&](Case& c) {
    const View x =
        in_place ? c.inout("y", {d.n, d.c}, d.dtype, d.x) : c.input("x", {d.n, d.c}, d.dtype, d.x);
    const View weight = c.input("weight", {d.c}, d.weight_dtype, d.weight);
    const View bias = with_bias ? c.input("bias", {d.c}, d.weight_dtype, d.bias) : View();
    const View y = in_place ? x : c.output("y", {d.n, d.c}, d.dtype);
    const View mean = c.output("mean", {d.n}, DType::f32);
    const View rstd = c.output("rstd", {d.n}, DType::f32);
    layernorm_forward(c.ctx(), y, mean, rstd, x, weight, bias, kEps);
  });
  const auto truth = layernorm_reference(d.x, d.weight, with_bias ? d.bias : Values(), kEps);
  const double exact = tolerance(DType::f32, d.c) * d.condition();
  EXPECT_TRUE(close(out["mean"], truth.mean, exact));
  EXPECT_TRUE(close(out["rstd"], truth.rstd, exact));
  EXPECT_TRUE(close(out["y"], truth.y, exact + tolerance(d.dtype, 1)));
  EXPECT_EQ(out.ops, std::vector<std::string>{"layernorm_forward"});
  EXPECT_EQ(out.bytes_moved, d.n * (2 * d.c * size_of(d.dtype) + 8)) << "x, y and two statistics";
}

// The bits of the sums are those of sum_lanes, whatever the instruction set computes them.
TEST(Layernorm, SumsAreInTheOrderOfTheLanes) {
  for (int64_t c = 1; c <= 100; ++c) {
    const Values x = normal_values(c, 5);
    const std::vector<float> row(x.begin(), x.end());
    const auto width = static_cast<float>(c);
    const float mean =
        sum_lanes(c, [&](int64_t i, int64_t r) { return load_lanes(row.data() + i, r); }) / width;
    const float square = sum_lanes(c, [&](int64_t i, int64_t r) {
      const F32x8 d = load_lanes(row.data() + i, r) - splat8(mean);
      return d * d;
    });
    const std::vector<float> ones(row.size(), 1.0f);
    std::vector<NormLoops<float, float>> all = {norm_loops_avx2<float, float>()};
    if (use_avx512()) all.push_back(norm_loops_avx512<float, float>());
    for (const auto& loops : all) {
      std::vector<float> y(row.size());
      float m = 0, r = 0;
      loops.forward(y.data(), &m, &r, row.data(), ones.data(), nullptr, 1, c, kEps, false);
      EXPECT_EQ(m, mean) << c;
      EXPECT_EQ(r, 1.0f / std::sqrt(square / width + kEps)) << c;
    }
  }
}

constexpr std::align_val_t kLine{64};

template <class T, class W>
std::vector<NormLoops<T, W>> all_norm_loops() {
  std::vector<NormLoops<T, W>> all = {norm_loops_avx2<T, W>()};
  if (use_avx512()) all.push_back(norm_loops_avx512<T, W>());
  if constexpr (std::is_same_v<T, bf16>)
    if (use_avx512_bf16()) all.push_back(norm_loops_avx512_bf16<W>());
  return all;
}

// Many rows at once, where weights are widened first, and past the caches: what AVX2 gives row by
// row. Weights down to subnormal numbers make results that are, which the CPU's conversion to bf16
// would lose.
template <class T, class W>
void check_rows_together(int64_t rows, int64_t c) {
  SCOPED_TRACE(fmt::format("{} rows of {}", rows, c));
  const auto array = [&]<class E>(E, int64_t n, uint64_t seed, double scale, double mean) {
    const auto free = [](E* p) { operator delete[](p, kLine); };
    std::unique_ptr<E[], decltype(free)> a(
        static_cast<E*>(operator new[](static_cast<size_t>(n) * sizeof(E), kLine)), free);
    const Values v = normal_values(n, static_cast<uint32_t>(seed), DType::f32, scale, mean);
    for (int64_t i = 0; i < n; ++i)
      a[i] = from_f32<E>(static_cast<float>(v[i] * (i % 5 == 0 ? 1e-39 : 1)));
    return a;
  };
  const int64_t n = rows * c;
  const auto x = array(T{}, n, 1, 1, 0.3), dy = array(T{}, n, 2, 1, 0),
             dx0 = array(T{}, n, 3, 1, 0);
  const auto y = array(T{}, n, 1, 0, 0), dx = array(T{}, n, 1, 0, 0);  // what is written
  const auto weight = array(W{}, c, 4, 0.5, 1), bias = array(W{}, c, 5, 1e-39, 0);
  struct Results {
    std::vector<unsigned char> bytes;
    bool operator==(const Results&) const = default;
  };
  // in_place: dx lies on dy.
  const auto run = [&](const NormLoops<T, W>& loops, bool together, bool past, bool shift, bool add,
                       bool in_place) {
    std::memcpy(&y[0], &x[0], static_cast<size_t>(n) * sizeof(T));
    std::memcpy(&dx[0], in_place ? &dy[0] : &dx0[0], static_cast<size_t>(n) * sizeof(T));
    const T* from = in_place ? &dx[0] : &dy[0];
    std::vector<float> mean(static_cast<size_t>(rows)), rstd(mean),
        sums(static_cast<size_t>(2 * c));
    const int64_t step = together ? rows : 1;
    for (int64_t i = 0; i < rows; i += step)
      loops.forward(&y[i * c], &mean[i], &rstd[i], &x[i * c], &weight[0],
                    shift ? &bias[0] : nullptr, step, c, kEps, past);
    for (int64_t i = 0; i < rows; i += step)
      loops.backward(&dx[i * c], add, sums.data(), shift ? &sums[c] : nullptr, from + i * c,
                     &x[i * c], &weight[0], &mean[i], &rstd[i], step, c, past);
    Results r;
    const auto take = [&](const void* p, size_t bytes) {
      const auto* b = static_cast<const unsigned char*>(p);
      r.bytes.insert(r.bytes.end(), b, b + bytes);
    };
    take(&y[0], static_cast<size_t>(n) * sizeof(T));
    take(&dx[0], static_cast<size_t>(n) * sizeof(T));
    take(mean.data(), mean.size() * 4);
    take(rstd.data(), rstd.size() * 4);
    take(sums.data(), sums.size() * 4);
    return r;
  };
  const auto all = all_norm_loops<T, W>();
  for (const bool shift : {false, true})
    for (const bool add : {false, true}) {
      const Results alone = run(all[0], false, false, shift, add, false);
      for (size_t i = 0; i < all.size(); ++i)
        for (const bool together : {false, true})
          for (const bool past : {false, true}) {
            if (past && c * static_cast<int64_t>(sizeof(T)) % 64 != 0) continue;
            EXPECT_EQ(run(all[i], together, past, shift, add, false), alone)
                << i << together << past << shift << add;
            if (add || past) continue;
            EXPECT_EQ(run(all[i], together, past, shift, add, true), alone)
                << i << together << shift << " in place";
          }
    }
}

TEST(Layernorm, RowsTogetherAndPastTheCachesAreThoseAlone) {
  for (const int64_t rows : {1, 9})
    for (const int64_t c : {32, 48, 70, 768, 4160}) {
      check_rows_together<float, float>(rows, c);
      check_rows_together<bf16, bf16>(rows, c);
      check_rows_together<bf16, float>(rows, c);
      check_rows_together<f16, f16>(rows, c);
      check_rows_together<f16, float>(rows, c);
    }
}

// More than the op keeps near: what the rows give.
TEST(Layernorm, LargeOnesHaveTheBitsOfTheirRows) {
  const int64_t n = 2100, c = 1024;
  const Data d({n, c}, DType::bf16, DType::bf16);
  for (const int threads : {1, 3}) {
    Settings options;
    options.threads = threads;
    const Outputs out = run_on_plan_and_cpu(options, [&](Case& k) {
      const View x = k.input("x", {n, c}, DType::bf16, d.x);
      const View weight = k.input("weight", {c}, DType::bf16, d.weight);
      const View mean = k.output("mean", {n}, DType::f32), rstd = k.output("rstd", {n}, DType::f32);
      layernorm_forward(k.ctx(), k.output("y", {n, c}, DType::bf16), mean, rstd, x, weight,
                        k.input("bias", {c}, DType::bf16, d.bias), kEps);
      layernorm_backward(k.ctx(), k.output("dx", {n, c}, DType::bf16), false, {}, {},
                         k.input("dy", {n, c}, DType::bf16, d.dy), x, weight, mean, rstd);
    });
    const auto loops = norm_loops_avx2<bf16, bf16>();
    const Values got_y = out["y"], got_dx = out["dx"];
    const auto narrow = [](const Values& v) {
      std::vector<bf16> a;
      for (const double e : v) a.push_back(from_f32<bf16>(static_cast<float>(e)));
      return a;
    };
    const auto x = narrow(d.x), dy = narrow(d.dy), weight = narrow(d.weight), bias = narrow(d.bias);
    std::vector<bf16> y(static_cast<size_t>(c)), dx(y);
    int64_t different = 0;
    for (int64_t row = 0; row < n; ++row) {
      float mean = 0, rstd = 0;
      loops.forward(y.data(), &mean, &rstd, &x[row * c], weight.data(), bias.data(), 1, c, kEps,
                    false);
      loops.backward(dx.data(), false, nullptr, nullptr, &dy[row * c], &x[row * c], weight.data(),
                     &mean, &rstd, 1, c, false);
      for (int64_t i = 0; i < c; ++i)
        different += to_f32(y[i]) != got_y[row * c + i] || to_f32(dx[i]) != got_dx[row * c + i];
    }
    EXPECT_EQ(different, 0) << threads;
  }
}

TEST(Layernorm, Forward) {
  for (const Sizes s : kSizes)
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      check_forward(Data(s, t, t), true, false);
  check_forward(Data({17, 33}, DType::f16, DType::f16), true, false);
  check_forward(Data({17, 33}, DType::bf16, DType::f32), true, false);
  check_forward(Data({17, 33}, DType::f16, DType::f32), false, true);
  check_forward(Data({5, 64}, DType::f32, DType::f32), false, true);
}

TEST(Layernorm, ForwardFarFromZero) {
  check_forward(Data({17, 768}, DType::f32, DType::f32, 100), true, false);
}

// Which gradients are wanted, and how they are written.
struct Gradients {
  bool weight, bias, add, add_dx, in_place;
  DType dtype = DType::f32;  // of dweight and dbias
};

void check_backward(const Data& d, Gradients g) {
  SCOPED_TRACE(name_of(d));
  const Values dx0 = normal_values(d.n * d.c, 5, d.dtype), dw0 = normal_values(d.c, 6, g.dtype),
               db0 = normal_values(d.c, 7, g.dtype);
  const Outputs out = run_in_all_modes([&](Case& c) {
    const View x = c.input("x", {d.n, d.c}, d.dtype, d.x);
    const View weight = c.input("weight", {d.c}, d.weight_dtype, d.weight);
    const View mean = c.input("mean", {d.n}, DType::f32, d.truth.mean);
    const View rstd = c.input("rstd", {d.n}, DType::f32, d.truth.rstd);
    const View dy = g.in_place ? c.inout("dx", {d.n, d.c}, d.dtype, d.dy)
                               : c.input("dy", {d.n, d.c}, d.dtype, d.dy);
    const View dx = g.in_place ? dy
                    : g.add_dx ? c.inout("dx", {d.n, d.c}, d.dtype, dx0)
                               : c.output("dx", {d.n, d.c}, d.dtype);
    const auto gradient = [&](bool wanted, const char* name, const Values& old) {
      if (!wanted) return GradView{};
      return GradView{g.add ? c.inout(name, {d.c}, g.dtype, old) : c.output(name, {d.c}, g.dtype),
                      g.add};
    };
    layernorm_backward(c.ctx(), dx, g.add_dx, gradient(g.weight, "dweight", dw0),
                       gradient(g.bias, "dbias", db0), dy, x, weight, mean, rstd);
  });

  using C = Complex;
  const std::vector<C> x = widen<C>(d.x), weight = widen<C>(d.weight), bias = widen<C>(d.bias);
  const auto limit = static_cast<size_t>(std::clamp<int64_t>(400000 / (d.n * d.c), 8, 64));
  const auto loss = [&](const std::vector<C>& a, const std::vector<C>& b, const std::vector<C>& e) {
    return weighted_sum(layernorm_reference(a, b, e, kEps).y, d.dy);
  };
  const auto check = [&](const char* name, const Values& at, const auto& f, const Values* old,
                         double allowed, double floor = 1e-3) {
    const std::vector<size_t> some = sample_indices(at.size(), limit);
    Values truth = complex_step_gradient(f, at, some);
    for (size_t k = 0; old && k < some.size(); ++k) truth[k] += (*old)[some[k]];
    EXPECT_TRUE(close(pick(out[name], some), truth, allowed, floor)) << name;
  };
  // xhat errs as in the forward; dx multiplies two such terms and both means.
  const double exact = 2 * tolerance(DType::f32, d.c) * d.condition();
  const double sums = tolerance(DType::f32, d.n) * d.condition() + tolerance(g.dtype, 1);
  // With one or two channels xhat is 0 or near +-1 whatever x is, and dx vanishes but for eps: it
  // is small against the terms that cancel, which are of size rstd |dy weight|.
  double floor = 1e-3;
  for (int64_t i = 0; d.c <= 2 && i < d.n * d.c; ++i)
    floor = std::max(floor, d.truth.rstd[i / d.c] * std::fabs(d.dy[i] * d.weight[i % d.c]));
  check(
      "dx", d.x, [&](const auto& v) { return loss(v, weight, bias); }, g.add_dx ? &dx0 : nullptr,
      exact + tolerance(d.dtype, 1), floor);
  if (g.weight)
    check(
        "dweight", d.weight, [&](const auto& v) { return loss(x, v, bias); },
        g.add ? &dw0 : nullptr, sums);
  if (g.bias)
    check(
        "dbias", d.bias, [&](const auto& v) { return loss(x, weight, v); }, g.add ? &db0 : nullptr,
        sums);
}

TEST(Layernorm, Backward) {
  for (const Sizes s : kSizes)
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      check_backward(Data(s, t, t), {true, true, false, false, false});
}

TEST(Layernorm, BackwardAddsAndSkips) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    const Data d({130, 33}, t, t);
    check_backward(d, {true, true, true, true, false});
    check_backward(d, {true, false, true, false, false});
    check_backward(d, {false, true, false, true, false});
    check_backward(d, {false, false, false, true, false});
    check_backward(d, {true, true, false, false, true});
  }
  // Into bf16: more columns than a piece of add_chunks and a tail, more rows than a chunk.
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const bool add : {false, true}) {
      check_backward(Data({130, 33}, t, t), {true, true, add, false, false, DType::bf16});
      check_backward(Data({17, 768}, t, t), {true, true, add, true, false, DType::bf16});
      check_backward(Data({600, 7}, t, t), {false, true, add, false, false, DType::bf16});
      check_backward(Data({600, 7}, t, t), {true, false, add, false, true, DType::bf16});
    }
  check_backward(Data({17, 33}, DType::bf16, DType::f32), {true, true, false, true, false});
  check_backward(Data({17, 33}, DType::f16, DType::f32), {true, true, false, true, false});
}

// What a bf16 gradient holds is the f32 one, rounded once: to the bit.
TEST(Layernorm, ParameterGradientsInBf16AreRoundedOnce) {
  const Data d({130, 300}, DType::f32, DType::f32);
  const Values dw0 = normal_values(d.c, 6, DType::bf16), db0 = normal_values(d.c, 7, DType::bf16);
  for (const bool add : {false, true}) {
    const auto run = [&](DType dweight, DType dbias) {
      return run_on_plan_and_cpu({}, [&](Case& c) {
        const auto gradient = [&](const char* name, DType t, const Values& old) {
          return GradView{add ? c.inout(name, {d.c}, t, old) : c.output(name, {d.c}, t), add};
        };
        const View dy = c.input("dy", {d.n, d.c}, DType::f32, d.dy);
        const View x = c.input("x", {d.n, d.c}, DType::f32, d.x);
        layernorm_backward(c.ctx(), c.output("dx", {d.n, d.c}, DType::f32), false,
                           gradient("dweight", dweight, dw0), gradient("dbias", dbias, db0), dy, x,
                           c.input("weight", {d.c}, DType::f32, d.weight),
                           c.input("mean", {d.n}, DType::f32, d.truth.mean),
                           c.input("rstd", {d.n}, DType::f32, d.truth.rstd));
      });
    };
    const Outputs wide = run(DType::f32, DType::f32);
    // Each of the two may have either type.
    for (const auto& [dweight, dbias] : {std::pair{DType::bf16, DType::bf16},
                                         {DType::bf16, DType::f32},
                                         {DType::f32, DType::bf16}}) {
      const Outputs got = run(dweight, dbias);
      EXPECT_EQ(got["dweight"], rounded(wide["dweight"], dweight)) << add;
      EXPECT_EQ(got["dbias"], rounded(wide["dbias"], dbias)) << add;
      EXPECT_EQ(got["dx"], wide["dx"]);
    }
  }
}

TEST(Layernorm, WantsNoWorkspaceWhenFrozen) {
  const auto bytes = [](bool wanted) {
    return run_on_plan_and_cpu(
               {},
               [&](Case& c) {
                 const View x = c.input("x", {512, 256}, DType::f32, Values(512 * 256, 1.0));
                 const View w = c.input("weight", {256}, DType::f32, Values(256, 1.0));
                 const View s = c.input("mean", {512}, DType::f32, Values(512, 1.0));
                 const View dw = c.output("dweight", {256}, DType::f32);
                 layernorm_backward(
                     c.ctx(), x, false, wanted ? GradView{dw, false} : GradView{}, {}, x,
                     c.input("x2", {512, 256}, DType::f32, Values(512 * 256, 1.0)), w, s, s);
               })
        .planned_bytes;
  };
  EXPECT_EQ(bytes(true) - bytes(false), 32 * 2 * 256 * 4);
}

// Evaluation has no step state.
TEST(Layernorm, ACopyThatDropsNothingNeedsNoState) {
  const Values dy = normal_values(24, 1);
  const auto body = [&](Case& c) {
    const View x = c.input("x", {4, 6}, DType::f32, dy),
               s = c.input("s", {4}, DType::f32, {1, 1, 1, 1});
    layernorm_backward(c.ctx(), c.output("dx", {4, 6}, DType::f32), false, {}, {},
                       c.input("dy", {4, 6}, DType::f32, dy), x,
                       c.input("weight", {6}, DType::f32, Values(6, 1.0)), s, s,
                       {c.output("copy", {4, 6}, DType::f32), 1, 4, {0.0f, 7}, {}});
  };
  for (const Outputs& out : {run_on_plan_and_cpu({}, body), run_on_emu(body)})
    EXPECT_EQ(out["copy"], out["dx"]);
}

TEST(Layernorm, RefusesWhatDoesNotFit) {
  const auto forward = [](Shape y, Shape weight, DType weight_dtype, DType dtype, Shape mean) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      const View x = c.output("x", {4, 6}, dtype);
      layernorm_forward(c.ctx(), c.output("y", y, dtype), c.output("mean", mean, DType::f32),
                        c.output("rstd", {4}, DType::f32), x,
                        c.output("weight", weight, weight_dtype), {}, kEps);
    });
  };
  const DType f32 = DType::f32;
  forward({4, 6}, {6}, f32, f32, {4});
  expect_error(ErrorCode::shape, {"y of shape (N,C)=(4,6)", "y (4,5) f32"}, [&] {
    forward({4, 5}, {6}, f32, f32, {4});
  });
  expect_error(ErrorCode::shape, {"weight of shape (C)=(6)", "weight (7) f32"}, [&] {
    forward({4, 6}, {7}, f32, f32, {4});
  });
  expect_error(ErrorCode::shape, {"mean of shape (N)=(4)", "mean (3) f32"}, [&] {
    forward({4, 6}, {6}, f32, f32, {3});
  });
  expect_error(ErrorCode::unsupported, {"x of dtype f32|bf16|f16", "x (4,6) i32"}, [&] {
    forward({4, 6}, {6}, f32, DType::i32, {4});
  });
  expect_error(ErrorCode::unsupported, {"weight of dtype f32 or that of x", "weight (6) bf16"},
               [&] {
                 forward({4, 6}, {6}, DType::bf16, f32, {4});
               });
  expect_error(ErrorCode::shape, {"x of shape (N,C)", "x (6) f32"}, [&] {
    run_on_plan_and_cpu({}, [&](Case& c) {
      const View x = c.output("x", {6}, f32);
      layernorm_forward(c.ctx(), x, x, x, x, x, {}, kEps);
    });
  });
  expect_error(ErrorCode::unsupported, {"dweight of dtype f32|bf16", "dweight (6) f16"}, [&] {
    run_on_plan_and_cpu({}, [&](Case& c) {
      const View x = c.output("x", {4, 6}, f32), s = c.output("mean", {4}, f32);
      layernorm_backward(c.ctx(), x, false, {c.output("dweight", {6}, DType::f16), false}, {}, x, x,
                         c.output("weight", {6}, f32), s, s);
    });
  });
}

}  // namespace
}  // namespace snug::test
