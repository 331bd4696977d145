#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/core/units.h"
#include "layers/ops/head_loss.h"
#include "tests/support/case.h"
#include "tests/support/errors.h"
#include "tests/support/gradient.h"
#include "tests/support/reference/head_loss.h"

namespace snug::test {
namespace {

struct Sizes {
  int64_t N, C, V, Vp, rows_per_chunk;
  DType dtype, gradient = DType::f32;
  bool bias = false;
  double softcap = 0;
};
// Vocabularies with and without padding, chunks that divide N and do not, one row, one chunk.
const Sizes kSizes[] = {
    {1, 4, 13, 13, 1, DType::f32},
    {7, 8, 13, 16, 3, DType::f32},
    {12, 33, 131, 256, 4, DType::f32},
    {37, 24, 1000, 1024, 16, DType::f32},
    {10, 16, 1, 8, 64, DType::f32},
    {7, 8, 13, 16, 3, DType::bf16},
    {37, 24, 1000, 1024, 16, DType::bf16},
    {20, 64, 131, 256, 20, DType::bf16},
    {7, 8, 13, 16, 3, DType::f16},
    {37, 24, 1000, 1024, 16, DType::f16},
    {20, 64, 131, 256, 20, DType::f16},
    {7, 8, 13, 16, 3, DType::f32, DType::bf16},
    {37, 24, 1000, 1024, 16, DType::f32, DType::bf16},
    {20, 64, 131, 256, 20, DType::bf16, DType::bf16},
    {37, 24, 1000, 1024, 16, DType::f16, DType::bf16},
    {1, 4, 13, 13, 1, DType::f32, DType::f32, true},
    {7, 8, 13, 16, 3, DType::f32, DType::f32, true},
    {12, 33, 131, 256, 4, DType::f32, DType::f32, true},
    {37, 24, 1000, 1024, 16, DType::f32, DType::f32, true},
    {37, 24, 1000, 1024, 37, DType::bf16, DType::f32, true},
    {20, 64, 131, 256, 6, DType::f16, DType::f32, true},
    {20, 64, 131, 256, 20, DType::f32, DType::bf16, true},
    {37, 24, 1000, 1024, 16, DType::bf16, DType::bf16, true},
    {7, 8, 13, 16, 3, DType::f32, DType::f32, true, 1.5},
    {12, 33, 131, 256, 4, DType::f32, DType::f32, false, 3},
    {37, 24, 1000, 1024, 16, DType::f32, DType::bf16, false, 30},
    {20, 64, 131, 256, 6, DType::bf16, DType::f32, false, 2.5},
    {20, 64, 131, 256, 20, DType::f16, DType::f32, false, 2.5},
};

std::string name_of(const Sizes& s) {
  return fmt::format("N{} C{} V{} Vp{} rows{} {} to {}{}", s.N, s.C, s.V, s.Vp, s.rows_per_chunk,
                     to_string(s.dtype), to_string(s.gradient), s.bias ? ", bias" : "") +
         (s.softcap == 0 ? "" : fmt::format(", softcap {}", s.softcap));
}

struct Data {
  HeadCase c;
  int64_t rows_per_chunk = 1;
  DType dtype = DType::f32, gradient = DType::f32;
  Values x, weight, bias, dnll;
  Values dweight, dbias;  // what was there before
};

// About a third of the targets are ignored. The padded rows of the weight and the bias are large, so that a
// softmax or a product that lets them in is seen.
Data data_of(const Sizes& s) {
  Data d;
  d.c.N = s.N;
  d.c.C = s.C;
  d.c.V = s.V;
  d.c.Vp = s.Vp;
  d.c.softcap = s.softcap;
  d.rows_per_chunk = s.rows_per_chunk;
  d.dtype = s.dtype;
  d.gradient = s.gradient;
  d.x = normal_values(s.N * s.C, 1, s.dtype);
  d.weight = normal_values(s.Vp * s.C, 2, s.dtype, 0.5);
  std::fill(d.weight.begin() + s.V * s.C, d.weight.end(), 3.0);
  if (s.bias) {
    d.bias = normal_values(s.Vp, 6, s.dtype, 2.0);
    std::fill(d.bias.begin() + s.V, d.bias.end(), 9.0);
    d.dbias = normal_values(s.Vp, 7, s.gradient);
  }
  d.c.targets = index_values(s.N, s.V, 3);
  for (int64_t n = 0; n < s.N; n += 3)
    if (s.N > 1) d.c.targets[static_cast<size_t>(n)] = -100;
  d.dnll = normal_values(s.N, 4);
  d.dweight = normal_values(s.Vp * s.C, 5, s.gradient);
  return d;
}

StepState train_state() {
  StepState state{};
  state.inverse_tokens = 1.0f / 24;
  state.loss_scale = 8;
  state.loss_sum = 100;
  state.loss_tokens = 1000;
  return state;
}

struct Inputs {
  View x, weight, targets, bias;
};
Inputs inputs_of(Case& t, const Data& d) {
  return {t.input("x", {d.c.N, d.c.C}, d.dtype, d.x),
          t.input("weight", {d.c.Vp, d.c.C}, d.dtype, d.weight),
          t.input("targets", {d.c.N}, DType::i32, d.c.targets),
          d.bias.empty() ? View() : t.input("bias", {d.c.Vp}, d.dtype, d.bias)};
}

enum class Sink { assign, add, frozen };

GradView gradient_of(Case& t, const char* name, Shape shape, DType dtype, const Values& before,
                     Sink sink) {
  if (sink == Sink::assign) return {t.output(name, shape, dtype), false};
  if (sink == Sink::add) return {t.inout(name, shape, dtype, before), true};
  return {};
}
GradView weight_gradient(Case& t, const Data& d, Sink sink) {
  return gradient_of(t, "dweight", {d.c.Vp, d.c.C}, d.gradient, d.dweight, sink);
}
GradView bias_gradient(Case& t, const Data& d, Sink sink) {
  if (d.bias.empty()) return {};
  return gradient_of(t, "dbias", {d.c.Vp}, d.gradient, d.dbias, sink);
}

// Forward, then backward of the same rows.
Body two_passes(const Data& d, const Values& dnll, Sink sink) {
  return [&d, dnll, sink](Case& t) {
    const Inputs in = inputs_of(t, d);
    const View nll = t.output("nll", {d.c.N}, DType::f32),
               lse = t.output("lse", {d.c.N}, DType::f32);
    const View g = t.input("dnll", {d.c.N}, DType::f32, dnll);
    const View dx = t.output("dx", {d.c.N, d.c.C}, d.dtype);
    const GradView dweight = weight_gradient(t, d, sink), dbias = bias_gradient(t, d, sink);
    const View state = t.step_state(train_state());
    head_loss_forward(t.ctx(), nll, lse, in.x, in.weight, in.targets, d.c.V, d.rows_per_chunk,
                      state, {}, in.bias, static_cast<float>(d.c.softcap));
    head_loss_backward(t.ctx(), dx, dweight, g, lse, in.x, in.weight, in.targets, d.c.V,
                       d.rows_per_chunk, {}, in.bias, dbias, static_cast<float>(d.c.softcap));
  };
}

Body one_pass(const Data& d, Sink sink) {
  return [&d, sink](Case& t) {
    const Inputs in = inputs_of(t, d);
    const View dx = t.output("dx", {d.c.N, d.c.C}, d.dtype);
    const GradView dweight = weight_gradient(t, d, sink), dbias = bias_gradient(t, d, sink);
    const View state = t.step_state(train_state());
    head_loss_train(t.ctx(), dx, dweight, in.x, in.weight, in.targets, d.c.V, d.rows_per_chunk,
                    state, {}, in.bias, dbias, static_cast<float>(d.c.softcap));
  };
}

// Assigning in every mode; the others differ in the last product only and run plainly.
Outputs run(const Body& body, Sink sink) {
  return sink == Sink::assign ? run_in_all_modes(body) : run_on_plan_and_cpu({}, body);
}

// A gradient is a sum over V (dx) or N (dweight) of terms whose exponent is a sum over C. With bf16
// activations dz is rounded to bf16 too, and dx once more.
double gradient_tolerance(const Data& d) {
  return (d.dtype == DType::f32 ? 1 : 2) * tolerance(d.dtype, d.c.C + d.c.V + d.c.N);
}

// A bf16 dweight is rounded once a chunk, and each time what is there is at most the sum of the
// absolute terms: twice the result is room for what cancels between the chunks of these cases.
double weight_tolerance(const Data& d) {
  if (d.gradient == DType::f32) return gradient_tolerance(d);
  const auto chunks = static_cast<double>(ceil_div(d.c.N, d.rows_per_chunk));
  return gradient_tolerance(d) + 2 * chunks * unit_roundoff(DType::bf16);
}

void expect_gradients(const Data& d, const Outputs& got, const Values& dnll, Sink sink) {
  const HeadGradients want = head_loss_gradient(d.c, d.x, d.weight, d.bias, dnll);
  EXPECT_TRUE(close(got["dx"], want.dx, gradient_tolerance(d)));
  if (sink == Sink::frozen) return;
  const auto expect_sums = [&](const char* name, Values sums, const Values& before, int64_t each) {
    if (sink == Sink::add)
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += before[i];
    const Values all = got[name];
    EXPECT_TRUE(close(all, sums, weight_tolerance(d))) << name;
    // Exactly nothing is added to the padded rows.
    for (auto i = static_cast<size_t>(d.c.V * each); i < all.size(); ++i)
      EXPECT_EQ(all[i], sink == Sink::add ? before[i] : 0) << name;
  };
  expect_sums("dweight", want.dweight, d.dweight, d.c.C);
  if (!d.bias.empty()) expect_sums("dbias", want.dbias, d.dbias, 1);
}

int64_t trained_rows(const Data& d) {
  return d.c.N - std::count(d.c.targets.begin(), d.c.targets.end(), -100);
}

void expect_loss(const Data& d, const StepState& state) {
  double sum = 0;
  for (const double x : head_loss_reference<double>(d.c, d.x, d.weight, d.bias)) sum += x;
  EXPECT_NEAR(state.loss_sum - 100, sum, tolerance(DType::f32, d.c.C + d.c.V) * std::fabs(sum));
  EXPECT_EQ(state.loss_tokens, 1000 + trained_rows(d));
}

TEST(HeadLoss, TwoPassesMatchTheReferenceInEveryMode) {
  for (const Sizes& s : kSizes) {
    SCOPED_TRACE(name_of(s));
    const Data d = data_of(s);
    for (const Sink sink : {Sink::assign, Sink::add, Sink::frozen}) {
      const Outputs got = run(two_passes(d, d.dnll, sink), sink);
      std::vector<double> lse;
      const Values nll = head_loss_reference<double>(d.c, d.x, d.weight, d.bias, &lse);
      EXPECT_TRUE(close(got["nll"], nll, tolerance(DType::f32, s.C + s.V)));
      EXPECT_TRUE(close(got["lse"], lse, tolerance(DType::f32, s.C + s.V)));
      const Values loss = got["nll"];
      for (size_t n = 0; n < loss.size(); ++n) {
        if (d.c.targets[n] == -100) {
          EXPECT_EQ(loss[n], 0);
        }
      }
      expect_loss(d, got.state());
      expect_gradients(d, got, d.dnll, sink);
    }
  }
}

TEST(HeadLoss, OnePassMatchesTheReferenceInEveryMode) {
  for (const Sizes& s : kSizes) {
    SCOPED_TRACE(name_of(s));
    const Data d = data_of(s);
    const Values dnll(static_cast<size_t>(s.N), 8.0f * (1.0f / 24));
    for (const Sink sink : {Sink::assign, Sink::add, Sink::frozen}) {
      const Outputs got = run(one_pass(d, sink), sink);
      expect_loss(d, got.state());
      expect_gradients(d, got, dnll, sink);
    }
  }
}

// Of one chunk a bf16 dweight is the f32 one, rounded once: to the bit.
TEST(HeadLoss, AGradientInBf16IsRoundedOnceAChunk) {
  Data d = data_of({20, 24, 131, 256, 20, DType::f32, DType::bf16, true});
  for (const Sink sink : {Sink::assign, Sink::add}) {
    d.gradient = DType::f32;
    const Outputs wide = run_on_plan_and_cpu({}, one_pass(d, sink));
    d.gradient = DType::bf16;
    const Outputs got = run_on_plan_and_cpu({}, one_pass(d, sink));
    EXPECT_EQ(got["dweight"], rounded(wide["dweight"], DType::bf16));
    EXPECT_NE(got["dweight"], wide["dweight"]);
    EXPECT_EQ(got["dbias"], rounded(wide["dbias"], DType::bf16));
    EXPECT_NE(got["dbias"], wide["dbias"]);
    EXPECT_EQ(got["dx"], wide["dx"]);
  }
}

TEST(HeadLoss, BackwardIsTheComplexStepGradient) {
  for (const Sizes& s : kSizes) {
    if (s.dtype != DType::f32 || s.gradient != DType::f32 || s.N > 12 || s.V == 1) continue;
    SCOPED_TRACE(name_of(s));
    const Data d = data_of(s);
    const auto at_x = sample_indices(d.x.size(), 60), at_w = sample_indices(d.weight.size(), 60);
    const auto w = widen<Complex>(d.weight), x = widen<Complex>(d.x), b = widen<Complex>(d.bias);
    const Values dx = complex_step_gradient(
        [&](const std::vector<Complex>& z) {
          return weighted_sum(head_loss_reference(d.c, z, w, b), d.dnll);
        },
        d.x, at_x);
    const Values dweight = complex_step_gradient(
        [&](const std::vector<Complex>& z) {
          return weighted_sum(head_loss_reference(d.c, x, z, b), d.dnll);
        },
        d.weight, at_w);
    const HeadGradients closed = head_loss_gradient(d.c, d.x, d.weight, d.bias, d.dnll);
    EXPECT_TRUE(close(pick(closed.dx, at_x), dx, 1e-13));
    EXPECT_TRUE(close(pick(closed.dweight, at_w), dweight, 1e-13));
    const Values dbias = complex_step_gradient(
        [&](const std::vector<Complex>& z) {
          return weighted_sum(head_loss_reference(d.c, x, w, z), d.dnll);
        },
        d.bias);
    if (s.bias) {
      EXPECT_TRUE(close(closed.dbias, dbias, 1e-13));
    }
    const Outputs got = run_on_plan_and_cpu({}, two_passes(d, d.dnll, Sink::assign));
    if (s.bias) {
      EXPECT_TRUE(close(got["dbias"], dbias, gradient_tolerance(d)));
    }
    // The largest element, which sets the scale of the error, may not be in the sample.
    const double top_x = relative_error(closed.dx, Values(closed.dx.size(), 0.0), 1.0);
    const double top_w = relative_error(closed.dweight, Values(closed.dweight.size(), 0.0), 1.0);
    EXPECT_TRUE(close(pick(got["dx"], at_x), dx, gradient_tolerance(d), top_x));
    EXPECT_TRUE(close(pick(got["dweight"], at_w), dweight, gradient_tolerance(d), top_w));
  }
}

// The two forms round differently (e^(z - lse) against e^(z - max) / sum), no more.
TEST(HeadLoss, OnePassAgreesWithTwo) {
  for (const Sizes& s : kSizes) {
    SCOPED_TRACE(name_of(s));
    const Data d = data_of(s);
    const Values dnll(static_cast<size_t>(s.N), 8.0f * (1.0f / 24));
    const Outputs two = run_on_plan_and_cpu({}, two_passes(d, dnll, Sink::assign));
    const Outputs one = run_on_plan_and_cpu({}, one_pass(d, Sink::assign));
    EXPECT_EQ(one.state().loss_sum, two.state().loss_sum);
    // Half of the tolerance against the reference, and for bf16 a flip of the last bit of dz.
    EXPECT_TRUE(close(one["dx"], two["dx"], gradient_tolerance(d)));
    EXPECT_TRUE(close(one["dweight"], two["dweight"], weight_tolerance(d)));
    if (s.bias) {
      EXPECT_TRUE(close(one["dbias"], two["dbias"], weight_tolerance(d)));
    }
  }
}

TEST(HeadLoss, ChunksOfIgnoredRowsGiveZeros) {
  Data d = data_of({12, 8, 13, 16, 4, DType::f32});
  for (int64_t n = 0; n < 12; ++n)
    d.c.targets[static_cast<size_t>(n)] = n < 4 || n >= 8 ? -100 : static_cast<double>(n);
  const Values dnll(12, 8.0f * (1.0f / 24));
  const Outputs some = run_in_all_modes(one_pass(d, Sink::assign));
  expect_gradients(d, some, dnll, Sink::assign);
  expect_loss(d, some.state());
  std::fill(d.c.targets.begin(), d.c.targets.end(), -100.0);
  const Outputs none = run_in_all_modes(one_pass(d, Sink::assign));
  EXPECT_EQ(none["dx"], Values(none["dx"].size(), 0.0));
  EXPECT_EQ(none["dweight"], Values(none["dweight"].size(), 0.0));
  EXPECT_EQ(none.state().loss_sum, 100);
  EXPECT_EQ(none.state().loss_tokens, 1000);
}

TEST(HeadLoss, ChunksChangeNothingBeyondRounding) {
  Data d = data_of({37, 24, 131, 256, 37, DType::f32});
  const Outputs whole = run_on_plan_and_cpu({}, one_pass(d, Sink::assign));
  for (const int64_t rows : {1, 2, 16, 36, 1000}) {
    d.rows_per_chunk = rows;
    const Outputs got = run_on_plan_and_cpu({}, one_pass(d, Sink::assign));
    EXPECT_NEAR(got.state().loss_sum, whole.state().loss_sum, 1e-3);
    EXPECT_TRUE(close(got["dx"], whole["dx"], gradient_tolerance(d)));
    EXPECT_TRUE(close(got["dweight"], whole["dweight"], gradient_tolerance(d)));
  }
}

// Logits of thousands: the maximum is subtracted first. A logit errs by |z| roundings, which is a
// relative error of its probability.
TEST(HeadLoss, LargeLogitsStayFinite) {
  Data d = data_of({12, 8, 131, 256, 5, DType::f32});
  for (double& x : d.x) x = rounded(x * 1000, DType::f32);
  std::vector<double> lse;
  const Values nll = head_loss_reference<double>(d.c, d.x, d.weight, d.bias, &lse);
  const double highest = *std::max_element(lse.begin(), lse.end());
  EXPECT_GT(highest, 3000);
  const Outputs got = run_on_plan_and_cpu({}, two_passes(d, d.dnll, Sink::assign));
  EXPECT_TRUE(close(got["nll"], nll, tolerance(DType::f32, d.c.C)));
  const HeadGradients want = head_loss_gradient(d.c, d.x, d.weight, d.bias, d.dnll);
  EXPECT_TRUE(close(got["dx"], want.dx, 8 * highest * unit_roundoff(DType::f32)));
}

// What the plan holds beside inputs and results: one chunk, however many rows there are.
TEST(HeadLoss, TheLogitsOfAllRowsNeverExist) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const int64_t N = 640, C = 16, V = 1000, Vp = 1024, rows = 32;
    Schedule schedule;
    const int p = schedule.add(Name("case"), -1, false);
    Context plan(Place::plan, {});
    plan.program(schedule, p, [&] {
      Case t(plan);
      const View x = t.output("x", {N, C}, dtype), weight = t.output("weight", {Vp, C}, dtype);
      const View targets = t.output("targets", {N}, DType::i32);
      const View nll = t.output("nll", {N}, DType::f32), lse = t.output("lse", {N}, DType::f32);
      const View dx = t.output("dx", {N, C}, dtype);
      const GradView dweight{t.output("dweight", {Vp, C}, DType::f32), false};
      const View state = t.step_state(StepState{});
      head_loss_train(plan, dx, dweight, x, weight, targets, V, rows, state);
      head_loss_forward(plan, nll, lse, x, weight, targets, V, rows, state);
      head_loss_backward(plan, dx, dweight, nll, lse, x, weight, targets, V, rows);
      t.finish();
    });
    int64_t chunks = 0;
    for (const TensorRecord& t : schedule.at(p).tensors) {
      EXPECT_LT(t.shape.elements(), N * V) << t.name.view();
      if (t.category != Category::logits) continue;
      EXPECT_EQ(t.shape, (Shape{rows, Vp})) << t.name.view();
      ++chunks;
    }
    EXPECT_EQ(chunks, dtype == DType::f32 ? 3 : 5);
  }
}

TEST(HeadLoss, WeightAndBiasMayStayInFp32) {
  Data d = data_of({9, 16, 131, 256, 4, DType::bf16, DType::f32, true});
  d.bias = normal_values(d.c.Vp, 9, DType::f32, 2.0);
  d.weight = normal_values(d.c.Vp * d.c.C, 8, DType::f32, 0.5);
  const Outputs got = run_in_all_modes([&](Case& t) {
    const View x = t.input("x", {d.c.N, d.c.C}, DType::bf16, d.x);
    const View weight = t.input("weight", {d.c.Vp, d.c.C}, DType::f32, d.weight);
    const View targets = t.input("targets", {d.c.N}, DType::i32, d.c.targets);
    const View dx = t.output("dx", {d.c.N, d.c.C}, DType::bf16);
    const View bias = t.input("bias", {d.c.Vp}, DType::f32, d.bias);
    const GradView dweight = weight_gradient(t, d, Sink::assign);
    const GradView dbias = bias_gradient(t, d, Sink::assign);
    head_loss_train(t.ctx(), dx, dweight, x, weight, targets, d.c.V, d.rows_per_chunk,
                    t.step_state(train_state()), {}, bias, dbias);
  });
  expect_gradients(d, got, Values(9, 8.0f * (1.0f / 24)), Sink::assign);
  expect_loss(d, got.state());
}

TEST(HeadLoss, LogitsAreThePlainProductAndTheBias) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const bool bias : {false, true}) {
      const Data d = data_of({5, 33, 131, 256, 1, dtype, DType::f32, bias});
      const Outputs got = run_in_all_modes([&](Case& t) {
        const Inputs in = inputs_of(t, d);
        head_logits(t.ctx(), t.output("logits", {d.c.N, d.c.Vp}, DType::f32), in.x, in.weight, {},
                    in.bias);
      });
      Values want;
      for (size_t n = 0; n < 5; ++n)
        for (size_t v = 0; v < 256; ++v) {
          double z = d.bias.empty() ? 0 : d.bias[v];
          for (size_t c = 0; c < 33; ++c) z += d.x[n * 33 + c] * d.weight[v * 33 + c];
          want.push_back(z);
        }
      EXPECT_TRUE(close(got["logits"], want, tolerance(DType::f32, 33)));
    }
}

}  // namespace
}  // namespace snug::test
