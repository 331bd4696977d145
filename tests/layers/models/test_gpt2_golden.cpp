// GPT-2 against Hugging Face transformers in float64: logits, loss, every gradient, ten AdamW
// steps. The fixtures and how they were made are in tests/golden.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/core/rng.h"
#include "tests/layers/models/gpt2_golden.h"
#include "tests/support/emu.h"

namespace snug {
namespace {

using test::Golden;
using test::GoldenRun;

std::vector<float> all_logits(const Golden& g, const char* precision) {
  const Model model(g.spec, parse_precision(precision));
  const int64_t Vp = g.spec.Vp(), N = g.B * g.T;
  std::vector<float> out;
  Schedule schedule;
  const int root = schedule.add(Name("root"), -1, true);
  const int forward = schedule.add(Name("forward"), root, false);
  for (const Place place : {Place::plan, Place::cpu}) {
    Context ctx(place, {.threads = 2});
    if (place == Place::cpu) {
      schedule.pack();
      ctx.reserve(schedule);
    }
    std::unique_ptr<PlainParamStore> params;
    Tensor tokens, state, starts;
    ctx.program(schedule, root, [&] {
      params = std::make_unique<PlainParamStore>(ctx, model.params(), model.precision().compute);
      tokens = ctx.tensor(Name("tokens"), {g.B, g.T}, DType::i32, Category::batch);
      state = ctx.tensor(Name("state"), step_state_shape(), DType::u8, Category::state);
      if (!g.starts.empty())
        starts = ctx.tensor(Name("starts"), {g.B, g.T}, DType::i32, Category::batch);
    });
    if (place == Place::cpu) {
      load_weights(model, g.path, params->flat(), 2);
      const auto ids = g.integers("input_ids");
      std::copy(ids.begin(), ids.end(), tokens.view().as<int32_t>());
      *step_state(state.view()) = StepState{};
      if (starts.defined())
        std::copy(g.starts.begin(), g.starts.end(), starts.view().as<int32_t>());
    }
    ModelPass pass = model.make_inference_pass();
    ctx.program(schedule, forward, [&] {
      Runtime rt{*params, nullptr, state, nullptr};
      if (starts.defined()) rt.document_start = starts;
      const Tensor hidden = model.hidden(ctx, rt, pass, tokens, PassMode::inference);
      const Tensor logits = ctx.tensor(Name("logits"), {N, Vp}, DType::f32, Category::logits);
      model.logits(ctx, rt, logits, hidden);
      if (place == Place::cpu) {
        const float* p = logits.view().as<float>();
        out.assign(p, p + N * Vp);
      }
    });
  }
  return out;
}

class Gpt2Golden : public testing::TestWithParam<const char*> {};

TEST_P(Gpt2Golden, LogitsMatchFloat64) {
  const Golden g(std::string("gpt2_") + GetParam());
  const std::vector<float> got = all_logits(g, "fp32");
  const std::vector<double> expected = g.numbers("logits");
  double worst = 0, largest = 0;
  for (int64_t n = 0; n < g.B * g.T; ++n)
    for (int64_t v = 0; v < g.spec.V; ++v) {
      const double e = expected[static_cast<size_t>(n * g.spec.V + v)];
      worst = std::max(
          worst, std::fabs(e - static_cast<double>(got[static_cast<size_t>(n * g.spec.Vp() + v)])));
      largest = std::max(largest, std::fabs(e));
    }
  EXPECT_LT(worst / largest, 1e-5);
}

TEST_P(Gpt2Golden, LossAndEveryGradientMatchFloat64) {
  const Golden g(std::string("gpt2_") + GetParam());
  GoldenRun run(g, "fp32", "none", g.B);
  const double expected = g.numbers("loss")[0];
  EXPECT_LT(std::fabs(run.step_gradients() - expected) / expected, 1e-5);
  for (int i = 0; i < run.model.params().size(); ++i)
    EXPECT_LT(run.gradient_error(i), 1e-5) << run.model.params()[i].name.view();
}

TEST_P(Gpt2Golden, AccumulationOverUnequalMicroBatchesMatchesTheBatch) {
  const Golden g(std::string("gpt2_") + GetParam());
  for (int64_t micro = 1; micro < g.B; ++micro) {
    GoldenRun run(g, "fp32", "block", micro);
    const double expected = g.numbers("loss")[0];
    EXPECT_LT(std::fabs(run.step_gradients() - expected) / expected, 1e-5);
    for (int i = 0; i < run.model.params().size(); ++i)
      EXPECT_LT(run.gradient_error(i), 1e-5) << run.model.params()[i].name.view() << " " << micro;
  }
}

TEST_P(Gpt2Golden, TenAdamWStepsMatchPyTorch) {
  const Golden g(std::string("gpt2_") + GetParam());
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

// A 16-bit type rounds every stored value by at most `step` of itself: 2^-9 for bf16, 2^-12 for
// f16. What that does to a gradient depends on how the model amplifies: fixture g, with unscaled
// scores, amplifies most. The amplification is measured on the fp32 model, whose every weight is
// moved by up to `step` of itself. The type moves the weights, the activations and the gradients of
// activations like that: three independent sources of that size, sqrt(3), and a factor 4 because
// the worst of eight draws stands for the worst of all. Loss scaling keeps the gradients of f16
// where its steps are of that size.
void expect_within_bound(const char* fixture, const char* precision, float step, double least,
                         Place place = Place::cpu) {
  const Golden g(std::string("gpt2_") + fixture);
  const double expected = g.numbers("loss")[0];
  double loss_bound = step, gradient_bound = step;
  {
    GoldenRun run(g, "fp32", "none", g.B);
    float* weights = run.session->master().as<float>();
    const int64_t n = run.model.params().flat_elements();
    const std::vector<float> original(weights, weights + n);
    for (uint64_t draw = 0; draw < 8; ++draw) {
      for (int64_t i = 0; i < n; ++i) {
        const uint64_t bits = mix64(draw * 1000003 + static_cast<uint64_t>(i));
        const float u = uniform_from(static_cast<uint32_t>(bits)) * 2.0f - 1.0f;
        weights[i] = original[static_cast<size_t>(i)] * (1.0f + u * step);
      }
      loss_bound = std::max(loss_bound, std::fabs(run.step_gradients() - expected) / expected);
      for (int i = 0; i < run.model.params().size(); ++i)
        gradient_bound = std::max(gradient_bound, run.gradient_error(i));
    }
  }
  const double factor = 4.0 * std::sqrt(3.0);
  GoldenRun run(g, precision, "none", g.B, 2, place);
  EXPECT_LT(std::fabs(run.step_gradients() - expected) / expected, factor * loss_bound);
  double worst = 0;
  for (int i = 0; i < run.model.params().size(); ++i) {
    const double error = run.gradient_error(i);
    worst = std::max(worst, error);
    EXPECT_LT(error, factor * gradient_bound) << run.model.params()[i].name.view();
  }
  EXPECT_GT(worst, least) << precision << " that is this exact was not " << precision;
}

TEST_P(Gpt2Golden, Bf16StaysWithinItsBound) {
  expect_within_bound(GetParam(), "bf16", 0x1p-9f, 1e-4);
}

TEST_P(Gpt2Golden, Fp16StaysWithinItsBound) {
  expect_within_bound(GetParam(), "fp16", 0x1p-12f, 1e-5);
}

// The whole step through the kernels: forward, backward, norm, clipping and update run in the
// emulator, with the bounds of the CPU against float64; the bytes of the arena are those planned.
TEST_P(Gpt2Golden, EmulatedKernelsMatchFloat64) {
  const Golden g(std::string("gpt2_") + GetParam());
  GoldenRun run(g, "fp32", "none", g.B, 1, Place::emu);
  EXPECT_EQ(run.session->context().resident_bytes(), run.schedule.arena_bytes());
  test::EveryOpLaunches launches;
  run.session->context().set_listener(&launches);
  const std::vector<double> losses = g.numbers("adamw_losses"),
                            norms = g.numbers("adamw_grad_norms");
  for (size_t step = 0; step < 2; ++step) {
    const double loss = run.step_gradients();
    for (int i = 0; step == 0 && i < run.model.params().size(); ++i)
      EXPECT_LT(run.gradient_error(i), 1e-5) << run.model.params()[i].name.view();
    run.update();
    EXPECT_LT(std::fabs(loss - losses[step]) / losses[step], 1e-5) << "step " << step;
    const double norm = std::sqrt(run.session->state().grad_square_sum);
    EXPECT_LT(std::fabs(norm - norms[step]) / norms[step], 1e-4) << "step " << step;
  }
}

// Two steps on the place emu: losses and the weights after them.
struct Trace {
  std::vector<double> losses;
  std::vector<float> weights;
  bool operator==(const Trace&) const = default;
};
Trace emulated_trace(const Golden& g, const char* precision, const std::string& recompute,
                     int64_t micro, uint64_t order) {
  GoldenRun run(g, precision, recompute, micro, 1, Place::emu, order);
  Trace trace;
  for (int step = 0; step < 2; ++step) {
    trace.losses.push_back(run.step_gradients());
    run.update();
  }
  const float* w = run.session->master().as<float>();
  trace.weights.assign(w, w + run.model.params().flat_elements());
  return trace;
}

// The order of blocks and threads does not show in a bit, nor does recomputing.
TEST(Gpt2Emulated, SameBitsInEveryScheduleAndUnderRecompute) {
  const Golden g("gpt2_d");
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    const Trace plain = emulated_trace(g, precision, "none", 1, 0);
    EXPECT_EQ(emulated_trace(g, precision, "none", 1, 77), plain) << precision << " shuffled";
    EXPECT_EQ(emulated_trace(g, precision, "block", 1, 1), plain)
        << precision << " recompute, reversed";
  }
}

TEST(Gpt2Emulated, SixteenBitsStayWithinTheirBounds) {
  expect_within_bound("d", "bf16", 0x1p-9f, 1e-4, Place::emu);
  expect_within_bound("d", "fp16", 0x1p-12f, 1e-5, Place::emu);
}

// Both places draw the same masks: each errs by at most 1e-5 from the exact loss of that draw, as
// without dropout.
TEST(Gpt2Emulated, DropsWhatTheCpuDrops) {
  const Golden g("gpt2_d", 0.2), without("gpt2_d");
  for (const int64_t micro : {int64_t{1}, g.B}) {
    GoldenRun cpu(g, "fp32", "none", micro), emu(g, "fp32", "none", micro, 1, Place::emu);
    GoldenRun plain(without, "fp32", "none", micro);
    for (int step = 0; step < 2; ++step) {
      const double loss = cpu.step_gradients();
      EXPECT_GT(std::fabs(loss - plain.step_gradients()) / loss, 1e-3) << "nothing was dropped";
      EXPECT_LT(std::fabs(emu.step_gradients() - loss) / loss, 2e-5);
      for (GoldenRun* run : {&cpu, &emu, &plain}) run->update();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Gpt2Golden,
                         testing::Values("a", "b", "c", "d", "e", "f", "g", "h"));

}  // namespace
}  // namespace snug
