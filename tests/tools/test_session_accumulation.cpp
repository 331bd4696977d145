// A global batch means the same however it is cut into micro-batches, and on any number of threads.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/blas/matmul_cpu.h"
#include "tests/tools/session_case.h"

namespace snug {
namespace {

constexpr int64_t kBatch = 6, kT = 8;

test::RunOptions options_of(int64_t micro) {
  test::RunOptions o;
  o.decisions.T = kT;
  o.decisions.micro_batch = micro;
  o.decisions.head_rows = 5;  // chunks that divide neither a sequence nor a micro-batch
  o.global_batch = kBatch;
  return o;
}

class Accumulation : public testing::TestWithParam<int64_t> {};

// A row's forward and backward do not depend on the rows beside it, so only the sums over rows
// differ: the same N terms in another order. Either order errs by at most N u S, u = 2^-24 and S
// the sum of the terms' absolute values, hence 2 N u S between them. S is bounded from below by the
// sum of absolute gradients of the sequences taken alone, which is what is used: errors of random
// sign stay below N u by about sqrt(N), which leaves room for the cancellation inside a sequence.
TEST_P(Accumulation, GradientsAndLossEqualTheWholeBatch) {
  test::Tiny tiny;
  tiny.dropout = 0.2;
  const Model model(test::tiny_spec(tiny), parse_precision("fp32"));
  test::SessionRun whole(model, options_of(kBatch));
  const double loss = whole.gradients_of(0);
  const std::vector<float> expected = whole.gradients();

  // Terms: one sequence trained, the others ignored; the rest as in the window.
  std::vector<double> sum(expected.size(), 0.0), absolute(expected.size(), 0.0);
  {
    test::SessionRun one(model, options_of(1));
    Session& s = one.session();
    for (int64_t i = 0; i < kBatch; ++i) {
      s.begin_window(3, 0, one.trained(0, kBatch));
      one.fill(0, i, 1, kBatch);
      s.state().first_sample = i;
      s.micro(true);
      const std::vector<float> g = one.gradients();
      for (size_t k = 0; k < g.size(); ++k) {
        sum[k] += static_cast<double>(g[k]);
        absolute[k] += std::fabs(static_cast<double>(g[k]));
      }
    }
  }
  const double u = 0x1p-24, N = kBatch * kT;
  const double bound = 2.0 * N * u * *std::max_element(absolute.begin(), absolute.end());

  test::SessionRun parts(model, options_of(GetParam()));
  // The double sum of the same N losses: its terms are below 2^4 and round at 2^-53 of the sum.
  EXPECT_NEAR(parts.gradients_of(0), loss, N * 0x1p-53 * loss * 2);
  const std::vector<float> got = parts.gradients();
  double worst = 0, worst_sum = 0, largest = 0;
  for (size_t k = 0; k < got.size(); ++k) {
    const double e = static_cast<double>(expected[k]);
    worst = std::max(worst, std::fabs(static_cast<double>(got[k]) - e));
    worst_sum = std::max(worst_sum, std::fabs(sum[k] - e));
    largest = std::max(largest, std::fabs(e));
  }
  EXPECT_LE(worst, bound) << "of gradients up to " << largest;
  EXPECT_LE(worst_sum, bound) << "the terms do not add up to the batch";
  EXPECT_GT(largest, 1000 * bound) << "a bound that could not see a wrong term";

  // Without the sequence's number in the random key the masks differ and so does everything.
  if (GetParam() < kBatch) {
    test::SessionRun wrong(model, options_of(GetParam()));
    wrong.number_samples = false;
    EXPECT_GT(std::fabs(wrong.gradients_of(0) - loss), 1e-4);
    const std::vector<float> other = wrong.gradients();
    double difference = 0;
    for (size_t k = 0; k < other.size(); ++k)
      difference = std::max(difference, static_cast<double>(std::fabs(other[k] - expected[k])));
    EXPECT_GT(difference, 100 * bound);
  }
}

// 4 of 6 leaves a second micro-batch that is half padding.
INSTANTIATE_TEST_SUITE_P(MicroBatch, Accumulation, testing::Values(1, 2, 3, 4, 5, 6));

// A window's first micro-step assigns: nothing of the window before is left in the gradients.
TEST(AccumulationWindow, WindowsAreIndependent) {
  const Model model(test::tiny_spec({}), parse_precision("fp32"));
  test::SessionRun run(model, options_of(2));
  run.gradients_of(0);
  const std::vector<float> first = run.gradients();
  run.gradients_of(1);
  EXPECT_FALSE(test::same_bits(run.gradients(), first));
  run.gradients_of(0);
  EXPECT_TRUE(test::same_bits(run.gradients(), first));
}

// Dropout differs from step to step and from sequence to sequence, and evaluation has none.
TEST(AccumulationWindow, DropoutIsKeyedByStepAndSwitchedOffInEvaluation) {
  test::Tiny tiny;
  const Model plain(test::tiny_spec(tiny), parse_precision("fp32"));
  tiny.dropout = 0.5;
  const Model dropping(test::tiny_spec(tiny), parse_precision("fp32"));
  test::RunOptions o = options_of(kBatch);
  o.decisions.eval_batch = 3;
  test::SessionRun a(plain, o), b(dropping, o);
  EXPECT_EQ(a.evaluate(), b.evaluate());
  EXPECT_NE(a.gradients_of(0), b.gradients_of(0));
  // The same data under another step: other masks.
  b.gradients_of(0);
  const std::vector<float> step0 = b.gradients();
  Session& s = b.session();
  s.begin_window(3, 1, b.trained(0, kBatch));
  b.fill(0, 0, kBatch, kBatch);
  s.state().first_sample = 0;
  s.micro(true);
  EXPECT_FALSE(test::same_bits(b.gradients(), step0));
}

TEST(Threads, OneAndTwoGiveTheSameBits) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    test::Tiny tiny{.V = 300, .P = 64, .C = 64, .L = 2, .H = 4, .F = 256};
    tiny.dropout = 0.1;
    const Model model(test::tiny_spec(tiny), parse_precision(precision));
    test::RunOptions o = options_of(3);
    o.decisions.T = 64;
    o.decisions.head_rows = 64;
    o.decisions.eval_batch = 3;
    o.decisions.max_grad_norm = 1.0;
    o.decisions.recompute = "norms+mlp";
    o.decisions.loss_scaling.init_scale = 64;  // a step that is skipped would show nothing
    o.optimizer.learning_rate = 1e-2;
    const test::Trace one = test::trace_of(model, o);
    o.settings.threads = 2;
    EXPECT_TRUE(same_bits(test::trace_of(model, o), one)) << precision;
  }
}

}  // namespace
}  // namespace snug
