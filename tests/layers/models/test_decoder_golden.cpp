// Every family of decoders against Hugging Face transformers in float64: loss, every gradient, ten
// AdamW steps; recompute, offload and the emulated kernels.
#include <gtest/gtest.h>

#include "engine/core/rng.h"
#include "tests/layers/models/gpt2_golden.h"
#include "tests/support/emu.h"

namespace snug {
namespace {

using test::Golden;
using test::GoldenRun;

class DecoderGoldens : public testing::TestWithParam<const char*> {
 protected:
  Golden golden_{std::string("decoder_") + GetParam()};
};

TEST_P(DecoderGoldens, LossAndEveryGradientMatchFloat64) {
  const Golden& g = golden_;
  const double expected = g.numbers("loss")[0];
  for (const char* recompute : {"none", "block"})
    for (const int64_t micro : {g.B, int64_t{1}}) {
      GoldenRun run(g, "fp32", recompute, micro);
      EXPECT_LT(std::fabs(run.step_gradients() - expected) / expected, 1e-5);
      for (int i = 0; i < run.model.params().size(); ++i)
        EXPECT_LT(run.gradient_error(i), 1e-5) << run.model.params()[i].name.view() << recompute;
    }
}

TEST_P(DecoderGoldens, TenAdamWStepsMatchPyTorch) {
  const Golden& g = golden_;
  GoldenRun run(g, "fp32", "none", g.B);
  const std::vector<double> losses = g.numbers("adamw_losses"),
                            norms = g.numbers("adamw_grad_norms");
  for (size_t step = 0; step < losses.size(); ++step) {
    const double loss = run.step_gradients();
    run.update();
    EXPECT_LT(std::fabs(loss - losses[step]) / losses[step], 1e-5) << "step " << step;
    const double norm = std::sqrt(run.session->state().grad_square_sum);
    EXPECT_LT(std::fabs(norm - norms[step]) / norms[step], 1e-4) << "step " << step;
  }
}

// The bound of test_gpt2_golden.cpp: what moving every weight of the fp32 model by up to `step` of
// itself does, times sqrt(3) for three sources of rounding, times 4 for the worst of all draws.
TEST_P(DecoderGoldens, SixteenBitsStayWithinTheirBounds) {
  const Golden& g = golden_;
  const double expected = g.numbers("loss")[0];
  for (const auto& [precision, step] : {std::pair{"bf16", 0x1p-9f}, std::pair{"fp16", 0x1p-12f}}) {
    double loss_bound = static_cast<double>(step), gradient_bound = loss_bound;
    GoldenRun exact(g, "fp32", "none", g.B);
    float* weights = exact.session->master().as<float>();
    const std::vector<float> original(weights, weights + exact.model.params().flat_elements());
    for (uint64_t draw = 0; draw < 8; ++draw) {
      for (size_t i = 0; i < original.size(); ++i) {
        const uint64_t bits = mix64(draw * 1000003 + i);
        const float u = uniform_from(static_cast<uint32_t>(bits)) * 2.0f - 1.0f;
        weights[i] = original[i] * (1.0f + u * step);
      }
      loss_bound = std::max(loss_bound, std::fabs(exact.step_gradients() - expected) / expected);
      for (int i = 0; i < exact.model.params().size(); ++i)
        gradient_bound = std::max(gradient_bound, exact.gradient_error(i));
    }
    const double factor = 4.0 * std::sqrt(3.0);
    GoldenRun run(g, precision, "none", g.B);
    double loss = run.step_gradients();
    // As a run of fp16 does: the scale falls until every gradient is finite.
    const auto finite = [&] {
      for (int i = 0; i < run.model.params().size(); ++i)
        for (const double value : run.gradient(i))
          if (!std::isfinite(value)) return false;
      return true;
    };
    for (int k = 0; k < 8 && !finite(); ++k) {
      run.session->state().loss_scale /= 2;
      loss = run.step_gradients();
    }
    EXPECT_LT(std::fabs(loss - expected) / expected, factor * loss_bound);
    double worst = 0;
    for (int i = 0; i < run.model.params().size(); ++i) {
      worst = std::max(worst, run.gradient_error(i));
      EXPECT_LT(run.gradient_error(i), factor * gradient_bound)
          << precision << " " << run.model.params()[i].name.view();
    }
    EXPECT_GT(worst, 1e-5) << precision << " that is this exact was not " << precision;
  }
}

TEST_P(DecoderGoldens, EmulatedKernelsMatchFloat64) {
  const Golden& g = golden_;
  GoldenRun run(g, "fp32", "none", g.B, 1, Place::emu);
  EXPECT_EQ(run.session->context().resident_bytes(), run.schedule.arena_bytes());
  test::EveryOpLaunches launches;
  run.session->context().set_listener(&launches);
  const std::vector<double> losses = g.numbers("adamw_losses");
  for (size_t step = 0; step < 2; ++step) {
    const double loss = run.step_gradients();
    for (int i = 0; step == 0 && i < run.model.params().size(); ++i)
      EXPECT_LT(run.gradient_error(i), 1e-5) << run.model.params()[i].name.view();
    run.update();
    EXPECT_LT(std::fabs(loss - losses[step]) / losses[step], 1e-5) << "step " << step;
  }
}

TEST_P(DecoderGoldens, RecomputeAndThreadsHaveTheSameBits) {
  const Golden& g = golden_;
  for (const char* precision : {"fp32", "bf16"}) {
    const auto gradients = [&](const char* recompute, int threads) {
      GoldenRun run(g, precision, recompute, g.B, threads);
      run.step_gradients();
      const View& flat = run.session->stores().flat_gradients();
      return std::vector<float>(flat.as<float>(), flat.as<float>() + flat.elements());
    };
    const std::vector<float> plain = gradients("none", 2);
    for (const char* recompute : {"norms", "mlp", "attention", "block", "mid", "fc"})
      EXPECT_EQ(gradients(recompute, 1), plain) << precision << recompute;
  }
}

// Where slots, weights, gradients and states rest changes no bit, and the arenas are what was planned.
TEST_P(DecoderGoldens, PlacesAndPackingsHaveTheSameBits) {
  const Golden& g = golden_;
  const std::pair<const char*, std::function<void(Decisions&)>> ways[] = {
      {"plain", [](Decisions&) {}},
      {"inputs away", [](Decisions& d) { d.offload = "inputs"; }},
      {"block away",
       [](Decisions& d) {
         d.offload = "block";
         d.recompute = "norms";
       }},
      {"packed", [](Decisions& d) { d.packed_weights = WeightPacking::both; }},
      {"states away", [](Decisions& d) { d.offload_optimizer = true; }},
      {"streamed", [](Decisions& d) {
         d.offload_optimizer = d.offload_params = d.offload_gradients = true;
         d.recompute = "block";
         d.offload = "inputs";
       }}};
  for (const char* precision : {"fp32", "bf16"}) {
    std::vector<double> plain;
    for (const auto& [name, change] : ways) {
      GoldenRun run(g, precision, "none", 1, 2, Place::cpu, 0, change);
      EXPECT_EQ(run.session->context().resident_bytes(), run.schedule.arena_bytes()) << name;
      std::vector<double> got;
      for (int step = 0; step < 2; ++step) {
        got.push_back(run.step_gradients());
        run.update();
      }
      const View& weights = run.session->master();
      got.insert(got.end(), weights.as<float>(), weights.as<float>() + weights.elements());
      if (plain.empty()) plain = got;
      EXPECT_EQ(got, plain) << precision << " " << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, DecoderGoldens,
                         testing::Values("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l",
                                         "m", "n", "o", "p", "q", "r", "s", "t", "u", "v", "w",
                                         "x"),
                         [](const auto& named) { return std::string(named.param); });

}  // namespace
}  // namespace snug
