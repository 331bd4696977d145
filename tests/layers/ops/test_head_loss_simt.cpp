// The rows of the head in the emulator against sums in double.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "layers/ops/head_loss_simt.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"

namespace snug::test {
namespace {

struct Variant {
  int64_t rows, V, Vp;
  DType dtype = DType::f32;  // of dz
  int threads = 64;
  bool shifted = false, in_place = false;
  double sd = 3;
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const auto& [rows, V, Vp] :
         {std::array{1, 1, 1}, {3, 1, 8}, {5, 13, 13}, {6, 13, 16}, {4, 131, 256}, {2, 1000, 1024}})
      all.push_back({rows, V, Vp, t});
  for (const int threads : kBlockSizes)
    for (const bool shifted : {false, true}) {
      all.push_back({4, 203, 208, DType::bf16, threads, shifted});
      all.push_back({4, 203, 208, DType::f32, threads, shifted, true});
    }
  all.push_back({.rows = 4, .V = 200, .Vp = 256, .sd = 40});
  return all;
}

struct Data {
  explicit Data(const Variant& v)
      : z(normal_values(v.rows * v.Vp, 1, DType::f32, v.sd)),
        targets(index_values(v.rows, v.V, 2)),
        dnll(normal_values(v.rows, 3)) {
    if (v.rows > 1) targets[1] = kIgnoredTarget;
    // What pads the vocabulary is large, so that a softmax that lets it in is seen.
    for (int64_t i = 0; i < v.rows * v.Vp; ++i)
      if (i % v.Vp >= v.V) z[static_cast<size_t>(i)] = 300;
    for (int64_t n = 0; n < v.rows; ++n) {
      const auto at = [&](int64_t i) { return z[static_cast<size_t>(n * v.Vp + i)]; };
      double top = -INFINITY, sum = 0;
      for (int64_t i = 0; i < v.V; ++i) top = std::max(top, at(i));
      for (int64_t i = 0; i < v.V; ++i) sum += std::exp(at(i) - top);
      lse.push_back(top + std::log(sum));
      const double target = targets[static_cast<size_t>(n)];
      nll.push_back(target < 0 ? 0 : lse.back() - at(static_cast<int64_t>(target)));
    }
  }
  Values gradient(const Variant& v, const Values& weight) const {
    Values dz(z.size(), 0.0);
    for (int64_t n = 0; n < v.rows; ++n)
      for (int64_t i = 0; i < v.V; ++i) {
        const double target = targets[static_cast<size_t>(n)];
        const auto at = static_cast<size_t>(n * v.Vp + i), row = static_cast<size_t>(n);
        if (target >= 0)
          dz[at] = weight[row] *
                   (std::exp(z[at] - lse[row]) - (static_cast<double>(i) == target ? 1 : 0));
      }
    return dz;
  }
  Values z, targets, dnll, lse, nll;
};

TEST(HeadLossSimt, RowsMatchTheFormula) {
  for (const Variant& v : variants()) {
    SCOPED_TRACE(fmt::format("rows {} V {} Vp {} {} threads {} shifted {} in_place {}", v.rows, v.V,
                             v.Vp, to_string(v.dtype), v.threads, v.shifted, v.in_place));
    const Data d(v);
    StepState state{};
    state.inverse_tokens = 1.0f / 24;
    state.loss_scale = 8;
    state.loss_sum = 100;
    state.loss_tokens = 1000;
    const Shape shape{v.rows, v.Vp};
    const Outputs train = run_in_all_schedules(
        [&](EmuCase& c) {
          const View z = v.in_place ? c.inout("dz", shape, DType::f32, d.z)
                                    : c.input("z", shape, DType::f32, d.z);
          const View dz = v.in_place ? z : c.output("dz", shape, v.dtype);
          const View targets = c.input("targets", {v.rows}, DType::i32, d.targets);
          const View nll = c.output("nll", {v.rows}, DType::f32), s = c.step_state(state);
          head_loss_train_rows_on(c.queue(), dz, nll, z, targets, v.V, s, v.threads);
          head_loss_collect_on(c.queue(), s, nll, targets, v.threads);
        },
        v.shifted);
    const Outputs two = run_in_all_schedules(
        [&](EmuCase& c) {
          const View z = v.in_place ? c.inout("dz", shape, DType::f32, d.z)
                                    : c.input("z", shape, DType::f32, d.z);
          const View dz = v.in_place ? z : c.output("dz", shape, v.dtype);
          const View targets = c.input("targets", {v.rows}, DType::i32, d.targets);
          const View lse = c.output("lse", {v.rows}, DType::f32),
                     nll = c.output("nll", {v.rows}, DType::f32);
          head_loss_forward_rows_on(c.queue(), nll, lse, z, targets, v.V, v.threads);
          head_loss_backward_rows_on(c.queue(), dz, c.input("dnll", {v.rows}, DType::f32, d.dnll),
                                     lse, z, targets, v.V, v.threads);
        },
        v.shifted);
    // A sum of V exponentials whose arguments are rounded; lse itself is rounded where it is
    // stored, an error of e^(z - lse) of that size.
    double largest = 1;
    for (const double x : d.z) largest = std::max(largest, std::fabs(x));
    const double floats = tolerance(DType::f32, v.V) + 4 * largest * 0x1p-24;
    EXPECT_TRUE(close(train["nll"], d.nll, floats));
    EXPECT_TRUE(close(two["nll"], d.nll, floats));
    EXPECT_TRUE(close(two["lse"], d.lse, floats));
    const double weight = 8.0f * (1.0f / 24), allowed = floats + tolerance(v.dtype, 1);
    EXPECT_TRUE(close(train["dz"], d.gradient(v, Values(d.lse.size(), weight)), allowed));
    EXPECT_TRUE(close(two["dz"], d.gradient(v, d.dnll), allowed));
    double sum = 100;
    for (const double x : train["nll"]) sum += x;
    EXPECT_NEAR(train.state().loss_sum, sum, 1e-15 * static_cast<double>(v.rows + 1) * sum);
    EXPECT_EQ(train.state().loss_tokens, 1000 + v.rows - (v.rows > 1 ? 1 : 0));
  }
}

// What no check has seen shows as NaN, and nothing outside is read.
TEST(HeadLossSimt, TargetsOutsideTheVocabularyGiveNan) {
  for (const double target : {-1.0, 5.0, 1e9}) {
    const Outputs out = run_in_all_schedules([&](EmuCase& c) {
      const View z = c.input("z", {1, 8}, DType::f32, Values(8, 1.0)),
                 targets = c.input("targets", {1}, DType::i32, {target}),
                 lse = c.output("lse", {1}, DType::f32);
      StepState s{};
      head_loss_train_rows_on(c.queue(), c.output("dz", {1, 8}, DType::bf16),
                              c.output("nll", {1}, DType::f32), z, targets, 5, c.step_state(s), 32);
      head_loss_forward_rows_on(c.queue(), c.output("nll2", {1}, DType::f32), lse, z, targets, 5);
      head_loss_backward_rows_on(c.queue(), c.output("dz2", {1, 8}, DType::f32), lse, lse, z,
                                 targets, 5);
    });
    for (const char* name : {"dz", "nll", "nll2", "dz2"})
      for (const double x : out[name]) EXPECT_TRUE(std::isnan(x)) << name;
  }
}

}  // namespace
}  // namespace snug::test
