// The norm, the finite check and the clip factor against torch.nn.utils.clip_grad_norm_.
#include <cmath>
#include <limits>
#include <utility>

#include "engine/stores/plain_states.h"
#include "optim/percentile.h"
#include "tests/optim/optim_case.h"

namespace snug::test {
namespace {

struct ClipCase {
  Values gradients;
  std::vector<StateSpan> spans;
  double max_norm = 1;
  StepState state = plain_state();

  Outputs run() const {
    return run_in_all_modes([this](Case& c) {
      const auto n = static_cast<int64_t>(gradients.size());
      const View g = c.inout("gradients", {n}, DType::f32, gradients);
      const View s = c.step_state(state);
      gradient_norm(c.ctx(), g, spans, s);
      clip(c.ctx(), s, max_norm);
    });
  }
};

// Gradients of `sizes` as a flat range with rubbish in the gaps.
ClipCase clip_case(const std::vector<Values>& tensors) {
  std::vector<int64_t> sizes;
  for (const Values& t : tensors) sizes.push_back(static_cast<int64_t>(t.size()));
  const ParamTable table = table_of(sizes);
  ClipCase c;
  c.spans = whole_parameter_spans(table);
  c.gradients.assign(static_cast<size_t>(table.flat_elements()), std::nan(""));
  for (size_t p = 0; p < tensors.size(); ++p)
    std::copy(tensors[p].begin(), tensors[p].end(), c.gradients.begin() + c.spans[p].offset);
  return c;
}

TEST(OptimClip, EqualsPyTorch) {
  const Fixture fixture("optim_clip");
  ASSERT_EQ(fixture.cases().size(), 5u);
  for (const auto& [name, description] : fixture.cases().items()) {
    SCOPED_TRACE(name);
    std::vector<Values> tensors;
    for (int i = 0; i < 3; ++i)
      tensors.push_back(fixture.values(name + ".grad." + std::to_string(i)));
    ClipCase c = clip_case(tensors);
    c.max_norm = description.at("max_norm");
    const StepState s = c.run().state();
    const double norm = fixture.scalar(name + ".total_norm");
    // Both sum 46 exact squares in double.
    EXPECT_NEAR(gradient_norm_of(s), norm, 46 * 0x1p-53 * norm);
    EXPECT_EQ(s.found_inf, 0);
    EXPECT_EQ(s.first_bad_element, -1);
    for (size_t i = 0; i < 3; ++i) {
      const Values want = fixture.values(name + ".clipped." + std::to_string(i));
      for (size_t k = 0; k < want.size(); ++k)  // the factor is rounded to float once
        EXPECT_NEAR(tensors[i][k] * s.clip_factor, want[k], 0x1.01p-24 * std::fabs(want[k]));
    }
  }
}

// 1 / (1 + 2e-7 + 1e-6) is 20 units of float below 1: the 1e-6 shows.
TEST(OptimClip, SeesTheSmallTermOfTheDenominator) {
  ClipCase c = clip_case({{1.0}});
  EXPECT_EQ(c.run().state().clip_factor, static_cast<float>(1.0 / (1.0 + 1e-6)));
  EXPECT_LT(c.run().state().clip_factor, 1.0f);
}

TEST(OptimClip, SumsLongGradientsAlikeForEveryThreadCount) {
  const Values g = as_f32(normal_values(300'000, 5));
  ClipCase c =
      clip_case({Values(g.begin(), g.begin() + 100'001), Values(g.begin() + 100'001, g.end())});
  long double sum = 0;
  for (const double x : g) sum += static_cast<long double>(x) * x;
  const StepState s = c.run().state();  // all modes give the same bits
  EXPECT_NEAR(s.grad_square_sum, static_cast<double>(sum), 1e-12 * static_cast<double>(sum));
}

TEST(OptimClip, DividesByTheLossScaleOnce) {
  ClipCase c = clip_case({{3 * 1024.0, 4 * 1024.0}});
  c.state.loss_scale = 1024;
  const StepState s = c.run().state();
  EXPECT_EQ(gradient_norm_of(s), 5.0);
  EXPECT_FLOAT_EQ(s.clip_factor, static_cast<float>(1.0 / (5.0 + 1e-6)));
}

TEST(OptimClip, ResetsWhatTheStepBeforeLeft) {
  ClipCase c = clip_case({{3.0}, {4.0}});
  c.state.grad_square_sum = 1e30;
  c.state.found_inf = 1;
  c.state.first_bad_element = 17;
  c.state.clip_factor = 0.125;
  const StepState s = c.run().state();
  EXPECT_EQ(s.grad_square_sum, 25.0);
  EXPECT_EQ(s.found_inf, 0);
  EXPECT_EQ(s.first_bad_element, -1);
}

// Sizes 256 and 512 leave no gap: with what follows that is two runs, 1 + 2 + 1 ops.
TEST(OptimClip, JoinsSpansWithoutAGap) {
  ClipCase c = clip_case({Values(256, 1.0), Values(512, 1.0), Values(1, 1.0), Values(3, 1.0)});
  const Outputs out = c.run();
  EXPECT_EQ(out.ops, (std::vector<std::string>{"gradient_norm_reset", "sum_of_squares_and_finite",
                                               "sum_of_squares_and_finite", "clip"}));
  EXPECT_EQ(out.state().grad_square_sum, 772.0);
  EXPECT_EQ(out.bytes_moved, 4 * 772);
  c.spans.clear();
  EXPECT_EQ(c.run().state().grad_square_sum, 0.0);
}

TEST(OptimClip, IsOffAtZero) {
  ClipCase c = clip_case({{300.0}});
  c.max_norm = 0;
  c.state.clip_factor = 0.5;
  EXPECT_EQ(c.run().state().clip_factor, 1.0f);
}

TEST(OptimClip, FindsTheFirstElementThatIsNotFinite) {
  const double bad[] = {std::numeric_limits<double>::infinity(),
                        -std::numeric_limits<double>::infinity(), std::nan("")};
  for (const double value : bad)
    for (const int64_t at : {0, 70'000}) {
      Values second = normal_values(100'000, 6);
      second[static_cast<size_t>(at)] = value;
      second[99'999] = std::nan("");
      ClipCase c = clip_case({{1.0, 2.0}, second});
      const StepState s = c.run().state();
      EXPECT_EQ(s.found_inf, 1);
      EXPECT_EQ(s.first_bad_element, 256 + at);
      EXPECT_EQ(s.clip_factor, 1.0f);
    }
}

// Squares near the largest float overflow float, and must not look like infinity.
TEST(OptimClip, TakesLargeGradientsForFinite) {
  ClipCase c = clip_case({{3e38, -3e38}});
  const StepState s = c.run().state();
  EXPECT_EQ(s.found_inf, 0);
  EXPECT_NEAR(gradient_norm_of(s), std::sqrt(2.0) * static_cast<double>(3e38f), 1e24);
}

TEST(OptimClip, RefusesABadLimit) {
  for (const double limit : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    expect_error(ErrorCode::usage,
                 {"max_grad_norm of at least 0", "max_grad_norm: ", "max_grad_norm=1.0"}, [&] {
                   ClipCase c = clip_case({{1.0}});
                   c.max_norm = limit;
                   c.run();
                 });
}

TEST(OptimClip, RefusesSpansOutsideAndNoLossScale) {
  ClipCase c = clip_case({{1.0}});
  c.spans[0].elements = 257;
  expect_error(ErrorCode::shape, {"rows 0..257", "gradients"}, [&] { c.run(); });
  ClipCase d = clip_case({{1.0}});
  d.state.loss_scale = 0;
  expect_error(ErrorCode::internal, {"loss scale above 0"}, [&] { d.run(); });
}

// A hundred and thirty updates of two parameters, so that the rings come round, beside those of
// PyTorch on gradients that were clipped; and the rings themselves.
TEST(PercentileClip, EqualsTheRuleOfBitsandbytes) {
  const Fixture fixture("optim_percentile");
  ASSERT_EQ(fixture.cases().size(), 4u);
  const Values p0 = fixture.values("p0"), gradients = fixture.values("grads");
  constexpr int64_t kFirst = 40, kAll = 60, kSteps = 130, kEvery = 10;
  const ParamTable table = table_of({kFirst, kAll - kFirst});
  const int64_t n = table.flat_elements(), second = table[1].offset;
  const auto flat = [&](const double* both) {
    Values v(static_cast<size_t>(n), 0.0);
    std::copy(both, both + kFirst, v.begin());
    std::copy(both + kFirst, both + kAll, v.begin() + second);
    return v;
  };
  for (const auto& [name, description] : fixture.cases().items()) {
    SCOPED_TRACE(name);
    OptimizerConfig config;
    config.name = description.at("optimizer");
    config.weight_decay = description.at("weight_decay");
    config.sgd_momentum = description.at("momentum");
    config.args = {{kPercentileArgument, description.at("percentile")}};
    const Values want = fixture.values(name + ".params"), norms = fixture.values(name + ".norms");
    // The scale and the factor of all are taken off before.
    for (const auto& [scale, clip] : {std::pair(1.0f, 1.0f), {1024.0f, 1.0f}, {1024.0f, 0.5f}})
      run_on_plan_and_cpu({}, [&](Case& c) {
        const auto optimizer = make_optimizer(config);
        PlainStateStore store(c.ctx(), table, optimizer->states(table));
        const View master = c.inout("master", {n}, DType::f32, flat(p0.data())),
                   gradient = c.output("gradients", {n}, DType::f32);
        StepState s = plain_state();
        s.loss_scale = scale;
        s.clip_factor = clip;
        const View state = c.step_state(s);
        for (int64_t step = 0; step < kSteps; ++step) {
          if (!c.ctx().planning()) {
            Values g = flat(gradients.data() + step * kAll);
            for (double& x : g) x *= scale / clip;
            store_values(gradient.data, DType::f32, g);
            step_state(state)->updates = step_state(state)->step = step;
            optimizer->prepare_step(*step_state(state));
          }
          optimizer->update(c.ctx(), {master, {}, gradient}, store, state);
          if (c.ctx().planning() || (step + 1) % kEvery != 0) continue;
          const Values got = load_values(master.data, DType::f32, n);
          const double* const row = want.data() + (step / kEvery) * kAll;
          double worst = 0, largest = 0;
          for (int64_t i = 0; i < kAll; ++i) {
            const auto at = static_cast<size_t>(i < kFirst ? i : second + i - kFirst);
            worst = std::max(worst, std::fabs(got[at] - row[i]));
            largest = std::max(largest, std::fabs(row[i]));
          }
          EXPECT_LE(worst, 1e-6 * largest) << "step " << step;
        }
        if (c.ctx().planning()) return;
        for (int p = 0; p < 2; ++p) {
          const View ring = store.acquire(c.ctx(), store.states() - 1, store.spans()[p]);
          for (int i = 0; i < kRingNorms; ++i)  // both sum exact squares in double
            ASSERT_EQ(ring.as<float>()[i],
                      static_cast<float>(norms[static_cast<size_t>(p * kRingNorms + i)]))
                << "parameter " << p << " norm " << i;
        }
      });
  }
}

TEST(PercentileClip, ErrorTexts) {
  const auto refused = [](const char* name, double value, const char* expected,
                          const char* advice) {
    OptimizerConfig c;
    c.name = name;
    c.args = {{kPercentileArgument, value}};
    expect_error(ErrorCode::usage, {expected, advice}, [&] { make_optimizer(c); });
  };
  for (const double value : {-1.0, 101.0, 2.5, 1e300, std::nan("")})
    refused("adamw", value, "percentile_clipping of optim_args as a whole number from 0 to 100",
            "optim_args=percentile_clipping=5");
  for (const char* name : {"muon", "adam_mini", "adafactor"})
    refused(name, 5, "an optimizer whose steps are not made of matrices for percentile_clipping",
            "optim=adamw");
  OptimizerConfig off;
  off.args = {{kPercentileArgument, 100}};
  EXPECT_EQ(make_optimizer(off)->state_names().size(), 2u);
}

}  // namespace
}  // namespace snug::test
