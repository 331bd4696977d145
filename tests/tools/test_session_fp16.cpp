// fp16 in whole sessions: steps whose gradients overflow change nothing but the scale, and training
// goes on from there as if they had not been.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "optim/clip.h"
#include "tests/tools/session_case.h"

namespace snug {
namespace {

const test::Tiny kModel{.V = 97, .P = 32, .C = 32, .L = 2, .H = 2, .F = 128};

test::RunOptions options_of(double init_scale) {
  test::RunOptions o;
  o.decisions.T = 32;
  o.decisions.micro_batch = 2;
  o.decisions.head_rows = 16;
  o.decisions.max_grad_norm = 1.0;
  o.decisions.eval_batch = 2;
  o.decisions.loss_scaling.init_scale = init_scale;
  o.decisions.loss_scaling.min_scale = std::min(1.0, init_scale);
  o.optimizer.learning_rate = 1e-2;
  o.global_batch = 4;
  return o;
}

// Everything an update may write, as bytes.
std::vector<float> all_of(Session& s) {
  std::vector<float> out;
  const auto append = [&](const View& v) {
    const auto* p = static_cast<const float*>(v.data);
    out.insert(out.end(), p, p + v.bytes() / 4);
  };
  append(s.master());
  append(s.stores().weights());
  if (s.state().updates > 0)
    for (int k = 0; k < s.optimizer_state().states(); ++k) append(s.optimizer_state().stored(k, 0));
  return out;
}

// One step on window `data`; true if it was skipped.
bool step_of(test::SessionRun& run, int64_t data, double* loss) {
  Session& s = run.session();
  *loss = run.gradients_of(data);
  for (float& rate : s.state().learning_rate) rate = 1e-2f;
  s.optimizer().prepare_step(s.state());
  s.update();
  if (s.state().found_inf) return true;
  ++s.state().updates;
  return false;
}

TEST(SessionFp16, StepsThatOverflowChangeNothingButTheScale) {
  const Model model(test::tiny_spec(kModel), parse_precision("fp16"));
  test::SessionRun high(model, options_of(0x1p40));
  Session& s = high.session();
  const std::vector<float> before = all_of(s);
  double loss = 0, first_loss = 0;
  float scale = 0x1p40f;
  int skipped = 0;
  while (step_of(high, 0, &loss)) {
    ++skipped;
    if (skipped == 1) first_loss = loss;
    EXPECT_EQ(loss, first_loss) << "forward knows no scale";
    EXPECT_EQ(s.state().loss_scale, scale / 2);
    EXPECT_GE(s.state().first_bad_element, 0);
    EXPECT_TRUE(test::same_bits(all_of(s), before)) << "skipped step " << skipped;
    scale = s.state().loss_scale;
    ASSERT_LT(skipped, 40);
  }
  EXPECT_GT(skipped, 10);
  EXPECT_EQ(s.state().loss_scale, scale);
  EXPECT_EQ(s.state().updates, 1);
  EXPECT_FALSE(test::same_bits(all_of(s), before));

  // From here on as a run that began with the scale that fits, to the bit.
  test::SessionRun fits(model, options_of(static_cast<double>(scale)));
  double other = 0;
  EXPECT_FALSE(step_of(fits, 0, &other));
  EXPECT_EQ(other, first_loss);
  for (int64_t i = 1; i < 12; ++i) {
    const bool skips = step_of(high, i % 2, &loss);
    EXPECT_EQ(step_of(fits, i % 2, &other), skips) << i;
    EXPECT_EQ(loss, other) << i;
  }
  EXPECT_LT(loss, 0.8 * first_loss);
  EXPECT_TRUE(test::same_bits(all_of(s), all_of(fits.session())));
  EXPECT_EQ(s.state().loss_scale, fits.session().state().loss_scale);
  EXPECT_EQ(s.state().growth_tracker, fits.session().state().growth_tracker);
}

// Unscaled, the gradients are those of fp32 but for what 16 bits round: f16 has three bits more
// than bf16, so an eighth of its error. A few sharp rows of attention carry most of it, so that it
// is few draws (parameter by parameter a third to a fifteenth); a factor of 4 is room for them.
// With a scale of 2^-16, as gradients of long windows are without one, f16 holds zeros.
TEST(SessionFp16, SmallGradientsSurvive) {
  const auto gradients_of = [](const char* precision, double scale) {
    const Model model(test::tiny_spec(kModel), parse_precision(precision));
    test::SessionRun run(model, options_of(scale));
    run.gradients_of(0);
    std::vector<double> g;
    for (const float x : run.gradients())
      g.push_back(static_cast<double>(x) / static_cast<double>(run.session().state().loss_scale));
    return g;
  };
  const std::vector<double> want = gradients_of("fp32", 1);
  const auto error_of = [&](const char* precision, double scale) {
    const std::vector<double> got = gradients_of(precision, scale);
    double difference = 0, square = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      difference += (got[i] - want[i]) * (got[i] - want[i]);
      square += want[i] * want[i];
    }
    return std::sqrt(difference / square);
  };
  const double rounded = error_of("bf16", 1);
  EXPECT_LT(error_of("fp16", 0x1p12), rounded / 2);
  EXPECT_GT(error_of("fp16", 0x1p12), rounded / 32) << "or it was not fp16";
  EXPECT_GT(error_of("fp16", 0x1p-16), 0.5);
}

// The norm and the clip factor know no scale: gradients are unscaled before both.
TEST(SessionFp16, ClippingSeesUnscaledGradients) {
  const Model model(test::tiny_spec(kModel), parse_precision("fp16"));
  test::SessionRun a(model, options_of(0x1p8)), b(model, options_of(0x1p12));
  double loss = 0;
  ASSERT_FALSE(step_of(a, 0, &loss));
  ASSERT_FALSE(step_of(b, 0, &loss));
  const double norm = gradient_norm_of(a.session().state());
  EXPECT_GT(norm, 1) << "or nothing is clipped";
  EXPECT_NEAR(gradient_norm_of(b.session().state()), norm, 0.01 * norm);
  EXPECT_NEAR(static_cast<double>(a.session().state().clip_factor), 1 / norm, 0.01 / norm);
  EXPECT_NEAR(static_cast<double>(b.session().state().clip_factor), 1 / norm, 0.01 / norm);
}

// Only fp16 has the op, so that the programs of the others are as they were.
TEST(SessionFp16, OthersHaveNoScale) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    const Model model(test::tiny_spec(kModel), parse_precision(precision));
    const Schedule s = test::plan_schedule(model, options_of(4096));
    int64_t ops = 0;
    for (const OpRecord& op : s.at(s.find("update")).ops)
      ops += op.name == std::string("update_loss_scale");
    EXPECT_EQ(ops, precision == std::string("fp16")) << precision;
    test::SessionRun run(model, options_of(4096));
    EXPECT_EQ(run.session().state().loss_scale, precision == std::string("fp16") ? 4096.0f : 1.0f);
  }
}

}  // namespace
}  // namespace snug
