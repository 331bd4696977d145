// The kernels in the emulator: forward against the reference in double, backward against the CPU
// op, which complex steps have proved.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "layers/ops/dropout_simt.h"
#include "layers/ops/layernorm_simt.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"
#include "tests/support/reference/layernorm.h"

namespace snug::test {
namespace {

constexpr float kEps = 1e-5f;

struct Variant {
  int64_t n, c;
  DType dtype = DType::f32, weight = DType::f32;
  int threads = 64;
  bool shifted = false, in_place = false, bias = true, add = false, add_dx = false;
  bool want_weight = true, want_bias = true;
  double mean = 0.3;
  float drop = -1;  // of a dropped copy; below 0: none is wanted
  bool drop_into_dy = false;
};

// The last ones take both forms of access, with and without tiles and chunks that are not full.
std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const auto& [n, c] : {std::pair{1, 1},
                               {5, 3},
                               {7, 31},
                               {17, 33},
                               {5, 64},
                               {3, 40},
                               {37, 264},
                               {2, 768},
                               {1, 1000}})
      all.push_back({.n = n, .c = c, .dtype = t, .weight = t});
  for (const int threads : kBlockSizes)
    for (const bool shifted : {false, true})
      all.push_back({.n = 19,
                     .c = 72,
                     .dtype = DType::bf16,
                     .weight = DType::f32,
                     .threads = threads,
                     .shifted = shifted});
  all.push_back({.n = 9, .c = 48, .dtype = DType::f16, .weight = DType::f16});
  all.push_back({.n = 9, .c = 48, .dtype = DType::f16, .weight = DType::f32, .bias = false});
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    all.push_back({.n = 9, .c = 64, .dtype = t, .weight = t, .in_place = true});
    all.push_back({.n = 9, .c = 65, .dtype = t, .weight = t, .add = true, .add_dx = true});
    all.push_back({.n = 9, .c = 64, .dtype = t, .weight = t, .add = true, .want_bias = false});
    all.push_back({.n = 9, .c = 64, .dtype = t, .weight = t, .add_dx = true, .want_weight = false});
    all.push_back(
        {.n = 9, .c = 64, .dtype = t, .weight = t, .want_weight = false, .want_bias = false});
  }
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const float drop : {0.0f, 0.3f}) {
      all.push_back({.n = 35, .c = 72, .dtype = t, .weight = t, .drop = drop});
      all.push_back({.n = 21, .c = 35, .dtype = t, .weight = t, .in_place = true, .drop = drop});
      all.push_back({.n = 21,
                     .c = 64,
                     .dtype = t,
                     .weight = t,
                     .add_dx = true,
                     .want_weight = false,
                     .want_bias = false,
                     .drop = drop,
                     .drop_into_dy = true});
    }
  // In place a block's rows are read whole before one is written; several slots and passes.
  for (const int threads : kBlockSizes)
    all.push_back({.n = 50,
                   .c = 256,
                   .dtype = DType::bf16,
                   .weight = DType::f32,
                   .threads = threads,
                   .in_place = true});
  all.push_back(
      {.n = 2, .c = 16384 + 72, .dtype = DType::bf16, .weight = DType::bf16, .in_place = true});
  all.push_back({.n = 17, .c = 768, .mean = 100});
  all.push_back({.n = 0, .c = 8});
  return all;
}

std::string name_of(const Variant& v) {
  return fmt::format("N{}_C{}_{}_weight_{}_threads{} shifted {} in_place {} add {} add_dx {}", v.n,
                     v.c, to_string(v.dtype), to_string(v.weight), v.threads, v.shifted, v.in_place,
                     v.add, v.add_dx);
}

struct Data {
  explicit Data(const Variant& v)
      : x(normal_values(v.n * v.c, 1, v.dtype, 1, v.mean)),
        dy(normal_values(v.n * v.c, 2, v.dtype)),
        weight(normal_values(v.c, 3, v.weight, 0.5, 1)),
        bias(v.bias ? normal_values(v.c, 4, v.weight) : Values()),
        truth(layernorm_reference(x, weight, bias, kEps)) {}
  // How much of x's rounding survives in xhat: x - mean cancels when a row hardly varies.
  double condition() const {
    double most = 1;
    const size_t c = weight.size();
    for (size_t i = 0; i < x.size(); ++i)
      most = std::max(most, std::fabs(x[i]) * truth.rstd[i / c]);
    return most;
  }
  Values x, dy, weight, bias;
  LayernormResult<double> truth;
};

TEST(LayernormSimt, Forward) {
  for (const Variant& v : variants()) {
    SCOPED_TRACE(name_of(v));
    const Data d(v);
    const Outputs out = run_in_all_schedules(
        [&](EmuCase& c) {
          const View x = v.in_place ? c.inout("y", {v.n, v.c}, v.dtype, d.x)
                                    : c.input("x", {v.n, v.c}, v.dtype, d.x);
          layernorm_forward_on(
              c.queue(), v.in_place ? x : c.output("y", {v.n, v.c}, v.dtype),
              c.output("mean", {v.n}, DType::f32), c.output("rstd", {v.n}, DType::f32), x,
              c.input("weight", {v.c}, v.weight, d.weight),
              v.bias ? c.input("bias", {v.c}, v.weight, d.bias) : View(), kEps, v.threads);
        },
        v.shifted);
    // As for the CPU op: a sum of C terms, times what cancels.
    const double exact = tolerance(DType::f32, v.c) * d.condition();
    EXPECT_TRUE(close(out["mean"], d.truth.mean, exact));
    EXPECT_TRUE(close(out["rstd"], d.truth.rstd, exact));
    EXPECT_TRUE(close(out["y"], d.truth.y, exact + tolerance(v.dtype, 1)));
  }
}

auto backward_body(const Variant& v, const Data& d, const Values& dx0, const Values& old) {
  return [&](auto& c) {
    const View x = c.input("x", {v.n, v.c}, v.dtype, d.x);
    const View weight = c.input("weight", {v.c}, v.weight, d.weight);
    const View mean = c.input("mean", {v.n}, DType::f32, d.truth.mean);
    const View rstd = c.input("rstd", {v.n}, DType::f32, d.truth.rstd);
    const View dy = v.in_place       ? c.inout("dx", {v.n, v.c}, v.dtype, d.dy)
                    : v.drop_into_dy ? c.inout("dropped", {v.n, v.c}, v.dtype, d.dy)
                                     : c.input("dy", {v.n, v.c}, v.dtype, d.dy);
    const View dx = v.in_place ? dy
                    : v.add_dx ? c.inout("dx", {v.n, v.c}, v.dtype, dx0)
                               : c.output("dx", {v.n, v.c}, v.dtype);
    const auto gradient = [&](bool wanted, const char* name) {
      if (!wanted) return GradView{};
      return GradView{
          v.add ? c.inout(name, {v.c}, DType::f32, old) : c.output(name, {v.c}, DType::f32), v.add};
    };
    const GradView dweight = gradient(v.want_weight, "dweight"),
                   dbias = gradient(v.want_bias, "dbias");
    DroppedCopy copy;
    if (v.drop >= 0) {
      StepState state{};
      state.seed = 7;
      state.first_sample = 3;
      copy = {v.drop_into_dy ? dy : c.output("dropped", {v.n, v.c}, v.dtype),
              1,
              v.n,
              {v.drop, 11},
              c.step_state(state)};
    }
    if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
      const int64_t chunks = layernorm_backward_chunks(v.n);
      const View partial = c.input("partial", {chunks, 2, v.c}, DType::f32,
                                   Values(static_cast<size_t>(chunks * 2 * v.c), std::nan("")));
      layernorm_backward_on(c.queue(), dx, v.add_dx, dweight, dbias, partial, dy, x, weight, mean,
                            rstd, copy, v.threads);
      // What the op of its own makes of dx.
      if (v.drop > 0)
        dropout_forward_on(c.queue(), c.output("again", {v.n, v.c}, v.dtype), dx, copy.B, copy.T,
                           copy.dropout, copy.state);
    } else {
      layernorm_backward(c.ctx(), dx, v.add_dx, dweight, dbias, dy, x, weight, mean, rstd, copy);
    }
  };
}

TEST(LayernormSimt, Backward) {
  for (const Variant& v : variants()) {
    SCOPED_TRACE(name_of(v));
    const Data d(v);
    const Values dx0 = normal_values(v.n * v.c, 5, v.dtype), old = normal_values(v.c, 6);
    const auto body = backward_body(v, d, dx0, old);
    const Outputs out = run_in_all_schedules(body, v.shifted), cpu = run_on_plan_and_cpu({}, body);
    // Either errs from the truth by what tests/layers/ops/test_layernorm.cpp derives.
    const double exact = 2 * tolerance(DType::f32, v.c) * d.condition();
    const double sums = tolerance(DType::f32, v.n) * d.condition();
    // dx of one channel vanishes but for eps: it is small against rstd |dy weight|.
    double floor = 1e-3;
    for (size_t i = 0; v.c <= 2 && i < d.x.size(); ++i)
      floor = std::max(floor, d.truth.rstd[i / static_cast<size_t>(v.c)] * std::fabs(d.dy[i]));
    EXPECT_TRUE(close(out["dx"], cpu["dx"], 2 * (exact + tolerance(v.dtype, 1)), floor));
    const auto check = [&](bool wanted, const char* name) {
      if (!wanted) return;
      EXPECT_TRUE(close(out[name], cpu[name], 2 * sums)) << name;
    };
    check(v.want_weight, "dweight");
    check(v.want_bias, "dbias");
    if (v.drop < 0) continue;
    EXPECT_EQ(out["dropped"], out[v.drop > 0 ? "again" : "dx"]);
    const auto dropped_ones = [](const Values& x) { return std::count(x.begin(), x.end(), 0.0); };
    EXPECT_EQ(dropped_ones(out["dropped"]), dropped_ones(cpu["dropped"]));
    EXPECT_EQ(v.drop > 0, dropped_ones(out["dropped"]) > 0);
  }
}

// More rows than 512 chunks of 16: a chunk grows, and the last one is not full.
TEST(LayernormSimt, ManyRows) {
  EXPECT_EQ(layernorm_backward_chunks(0), 0);
  EXPECT_EQ(layernorm_backward_chunks(16), 1);
  EXPECT_EQ(layernorm_backward_chunks(8192), 512);
  EXPECT_EQ(layernorm_backward_chunks(8193), 482);
  const Variant v{.n = 8200, .c = 3};
  const Data d(v);
  const auto body = backward_body(v, d, {}, {});
  const Outputs out = run_in_all_schedules(body), cpu = run_on_plan_and_cpu({}, body);
  const double sums = tolerance(DType::f32, v.n) * d.condition();
  EXPECT_TRUE(close(out["dweight"], cpu["dweight"], 2 * sums));
  EXPECT_TRUE(close(out["dbias"], cpu["dbias"], 2 * sums));
}

TEST(LayernormSimt, RefusesOtherDtypes) {
  EmuCase c({}, false);
  const View x = c.output("x", {2, 4}, DType::f32), s = c.output("s", {2}, DType::f32),
             w = c.output("w", {4}, DType::bf16);
  expect_error(ErrorCode::unsupported, {"weight of dtype f32 or that of x", "w (4) bf16"},
               [&] { layernorm_forward_on(c.queue(), x, s, s, x, w, {}, kEps); });
}

}  // namespace
}  // namespace snug::test
