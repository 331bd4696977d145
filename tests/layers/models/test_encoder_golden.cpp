// BERT, RoBERTa and DistilBERT with their heads against Hugging Face transformers in float64, each
// row computed alone there: loss, every gradient, ten AdamW steps, in several packings.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/core/rng.h"
#include "tests/layers/models/encoder_golden.h"
#include "tests/support/emu.h"

namespace snug {
namespace {

using test::EncoderGolden;
using test::EncoderRun;
using test::Packing;

class EncoderGoldens : public testing::TestWithParam<const char*> {};

// One row a window or two; more, two windows a micro-batch; all at once; and with the empty ends of
// windows computed.
std::vector<Packing> packings(const EncoderGolden& g) {
  return {{g.longest(), 1}, {g.spec.P, 2}, {g.spec.P, g.rows()}, {g.spec.P, 2, 7, true}};
}

TEST_P(EncoderGoldens, LossAndEveryGradientMatchFloat64) {
  const EncoderGolden g(GetParam());
  const double expected = g.numbers("loss")[0];
  for (const Packing& packing : packings(g))
    for (const char* recompute : {"none", "block"}) {
      EncoderRun run(g, "fp32", recompute, packing);
      EXPECT_LT(std::fabs(run.step() - expected) / expected, 1e-5) << packing.T;
      for (int i = 0; i < run.model.params().size(); ++i)
        EXPECT_LT(run.gradient_error(i), 1e-5) << run.model.params()[i].name.view() << packing.T;
    }
}

// Behind its attention the last block computes what the head reads: the rows that are classified or
// masked. Those of a classification of tokens are all.
TEST_P(EncoderGoldens, TheLastBlockEndsWithTheRowsOfTheHead) {
  const EncoderGolden g(GetParam());
  const Packing packing = packings(g)[1];
  const EncoderRun run(g, "fp32", "none", packing);
  const auto rows = [&](const std::string& slot, int64_t width) {
    int64_t bytes = 0;
    for (const TensorRecord& t : run.schedule.at(run.schedule.find("micro_first")).tensors)
      if (t.name.view() == slot && bytes == 0) bytes = t.bytes;
    EXPECT_EQ(bytes % (width * 4), 0) << slot;
    return bytes / (width * 4);
  };
  const std::string last = fmt::format("h.{}.", g.spec.L - 1);
  const int64_t all = packing.micro * packing.T;
  const int64_t read = run.session->head_index().shape[0];
  const bool some = g.spec.head != HeadKind::token_classification;
  if (g.spec.L > 1) EXPECT_EQ(rows("h.0.fc", g.spec.F), all);
  EXPECT_EQ(rows(last + "norm1", g.spec.C), all);
  EXPECT_EQ(rows(last + "fc", g.spec.F), some ? read : all);
  EXPECT_EQ(rows(last + "out", g.spec.C), some ? read : all);
}

TEST_P(EncoderGoldens, EvaluationHasTheLossAndTheLogits) {
  const EncoderGolden g(GetParam());
  const double expected = g.numbers("loss")[0];
  EncoderRun run(g, "fp32", "none", packings(g)[2]);
  // What a micro-step had in use is nothing to an evaluation that says nothing.
  EXPECT_LT(std::fabs(run.step() - expected) / expected, 1e-5);
  run.packing.whole = true;
  EXPECT_LT(std::fabs(run.step(false) - expected) / expected, 1e-5);
  run.packing.whole = false;
  EXPECT_LT(std::fabs(run.step(false) - expected) / expected, 1e-5);
  if (g.spec.head == HeadKind::masked_lm) return;  // its logits are made in chunks
  const std::vector<double> logits = g.numbers("logits");
  const int64_t K = g.spec.label_count();
  double worst = 0, largest = 0;
  const View& index = run.session->head_index();
  int64_t place = -1;
  for (size_t r = 0; r < logits.size() / static_cast<size_t>(K); ++r) {
    if (g.of_tokens && g.labels[r] == -100) continue;
    while (index.as<int32_t>()[++place] < 0) continue;
    for (int64_t k = 0; k < K; ++k) {
      const double want = logits[r * static_cast<size_t>(K) + static_cast<size_t>(k)];
      const auto got = static_cast<double>(run.session->head_logits().as<float>()[place * K + k]);
      worst = std::max(worst, std::fabs(got - want));
      largest = std::max(largest, std::fabs(want));
    }
  }
  EXPECT_LT(worst / largest, 1e-5);
}

TEST_P(EncoderGoldens, TenAdamWStepsMatchPyTorch) {
  const EncoderGolden g(GetParam());
  EncoderRun run(g, "fp32", "none", packings(g)[1]);
  const std::vector<double> losses = g.numbers("adamw_losses"),
                            norms = g.numbers("adamw_grad_norms");
  for (size_t step = 0; step < losses.size(); ++step) {
    const double loss = run.step();
    run.update();
    EXPECT_LT(std::fabs(loss - losses[step]) / losses[step], 1e-5) << "step " << step;
    const double norm = std::sqrt(run.session->state().grad_square_sum);
    EXPECT_LT(std::fabs(norm - norms[step]) / norms[step], 1e-4) << "step " << step;
  }
}

// The bound of test_gpt2_golden.cpp: what moving every weight of the fp32 model by up to `step` of
// itself does, times sqrt(3) for three sources of rounding, times 4 for the worst of all draws.
TEST_P(EncoderGoldens, SixteenBitsStayWithinTheirBounds) {
  const EncoderGolden g(GetParam());
  const Packing packing = packings(g)[1];
  const double expected = g.numbers("loss")[0];
  for (const auto& [precision, step] : {std::pair{"bf16", 0x1p-9f}, std::pair{"fp16", 0x1p-12f}}) {
    double loss_bound = static_cast<double>(step), gradient_bound = loss_bound;
    EncoderRun exact(g, "fp32", "none", packing);
    float* weights = exact.session->master().as<float>();
    const std::vector<float> original(weights, weights + exact.model.params().flat_elements());
    for (uint64_t draw = 0; draw < 8; ++draw) {
      for (size_t i = 0; i < original.size(); ++i) {
        const uint64_t bits = mix64(draw * 1000003 + i);
        const float u = uniform_from(static_cast<uint32_t>(bits)) * 2.0f - 1.0f;
        weights[i] = original[i] * (1.0f + u * step);
      }
      loss_bound = std::max(loss_bound, std::fabs(exact.step() - expected) / expected);
      for (int i = 0; i < exact.model.params().size(); ++i)
        gradient_bound = std::max(gradient_bound, exact.gradient_error(i));
    }
    const double factor = 4.0 * std::sqrt(3.0);
    EncoderRun run(g, precision, "none", packing);
    EXPECT_LT(std::fabs(run.step() - expected) / expected, factor * loss_bound) << precision;
    double worst = 0;
    for (int i = 0; i < run.model.params().size(); ++i) {
      worst = std::max(worst, run.gradient_error(i));
      EXPECT_LT(run.gradient_error(i), factor * gradient_bound)
          << precision << " " << run.model.params()[i].name.view();
    }
    EXPECT_GT(worst, 1e-5) << precision << " that is this exact was not " << precision;
  }
}

TEST_P(EncoderGoldens, EmulatedKernelsMatchFloat64) {
  const EncoderGolden g(GetParam());
  EncoderRun run(g, "fp32", "none", packings(g)[1], 1, Place::emu);
  EXPECT_EQ(run.session->context().resident_bytes(), run.schedule.arena_bytes());
  test::EveryOpLaunches launches;
  run.session->context().set_listener(&launches);
  const std::vector<double> losses = g.numbers("adamw_losses");
  for (size_t step = 0; step < 2; ++step) {
    const double loss = run.step();
    for (int i = 0; step == 0 && i < run.model.params().size(); ++i)
      EXPECT_LT(run.gradient_error(i), 1e-5) << run.model.params()[i].name.view();
    run.update();
    EXPECT_LT(std::fabs(loss - losses[step]) / losses[step], 1e-5) << "step " << step;
  }
}

// Memory never changes a bit: recompute, offload, threads; and on the place emu the order of blocks.
TEST_P(EncoderGoldens, RecomputeAndOffloadHaveTheSameBits) {
  const EncoderGolden g(GetParam());
  const Packing packing = packings(g)[1];
  for (const char* precision : {"fp32", "bf16"}) {
    EncoderRun plain(g, precision, "none", packing);
    const double loss = plain.step();
    const std::vector<float> gradients = plain.gradients();
    for (const char* recompute : {"norms", "mlp", "attention", "block", "mid+sum", "sum"}) {
      EncoderRun run(g, precision, recompute, packing, 1);
      EXPECT_EQ(run.step(), loss) << precision << recompute;
      EXPECT_EQ(run.gradients(), gradients) << precision << recompute;
    }
    for (const char* offload : {"inputs", "block", "sum+mid"}) {
      EncoderRun run(g, precision, "none", packing, 2, Place::cpu, 0, offload);
      EXPECT_EQ(run.step(), loss) << precision << offload;
      EXPECT_EQ(run.gradients(), gradients) << precision << offload;
    }
  }
}

// Masks of dropout in backward are those of forward: the gradient is the slope of the loss along
// itself. Another site, sample or position in one of the two gives another slope.
TEST_P(EncoderGoldens, GradientsUnderDropoutAreSlopes) {
  EncoderGolden g(GetParam());
  g.spec.residual_dropout = g.spec.embedding_dropout = 0.2f;
  g.spec.attention_dropout = g.spec.head_dropout = 0.2f;
  EncoderRun run(g, "fp32", "none", packings(g)[1]);
  const double undropped = g.numbers("loss")[0];
  EXPECT_GT(std::fabs(run.step() - undropped) / undropped, 1e-4) << "nothing was dropped";
  const std::vector<float> gradient = run.gradients();
  double square = 0;
  for (const float x : gradient) square += static_cast<double>(x) * static_cast<double>(x);
  const double norm = std::sqrt(square), h = 1e-3 / norm;  // where a relu seldom turns
  float* weights = run.session->master().as<float>();
  const std::vector<float> original(weights, weights + gradient.size());
  const auto loss_at = [&](double distance) {
    for (size_t i = 0; i < gradient.size(); ++i)
      weights[i] = static_cast<float>(static_cast<double>(original[i]) +
                                      distance * static_cast<double>(gradient[i]) / norm);
    return run.step();
  };
  const double slope = (loss_at(h) - loss_at(-h)) / (2 * h);
  EXPECT_NEAR(slope / norm, 1.0, 3e-3);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, EncoderGoldens,
                         testing::Values("a", "b", "c", "d", "e", "f", "g", "h", "i", "j"),
                         [](const auto& named) { return std::string(named.param); });

}  // namespace
}  // namespace snug
