// Training steps of a small GPT-2 on the place cuda against the CPU, whose every gradient is held
// to float64 elsewhere (tests/layers/models). The same steps on the place emu run without a GPU and
// show that this file would see a difference.
#include <algorithm>

#include "tests/gpu/gpt2_steps.h"
#include "tests/gpu/gpu.h"

namespace snug::test {
namespace {

const ModelSpec& small_spec() {
  static const ModelSpec spec = gpt2_spec(2, 24, 3, 16, 61, 0.1);
  return spec;
}

double worst_error(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0, largest = 1e-30;
  for (size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::fabs(double{a[i]} - double{b[i]}));
    largest = std::max(largest, std::fabs(double{b[i]}));
  }
  return worst / largest;
}

// fp32: each side is within 1e-5 of float64 on fixtures of this size. 16 bits: a rounding that
// falls the other way is a step of the dtype, and layers amplify it; the bound is that of
// tests/layers/models, whose measured amplification stays below 32.
void expect_like_cpu(Place place, const char* precision, double loss_bound, double gradient_bound) {
  SCOPED_TRACE(precision);
  Gpt2Steps cpu(Place::cpu, small_spec(), {.precision = precision});
  Gpt2Steps other(place, small_spec(), {.precision = precision});
  EXPECT_EQ(other.context().resident_bytes(), other.planned_bytes());
  double first = 0;
  for (int step = 0; step < 4; ++step) {
    const double expected = cpu.step(), loss = other.step();
    if (step == 0) first = expected;
    EXPECT_LT(std::fabs(loss - expected) / expected, loss_bound) << "step " << step;
    EXPECT_EQ(other.state().loss_tokens, cpu.state().loss_tokens);
    EXPECT_EQ(other.state().found_inf, 0);
    if (step == 0) {
      EXPECT_LT(worst_error(other.gradients(), cpu.gradients()), gradient_bound);
      EXPECT_NEAR(other.state().grad_square_sum, cpu.state().grad_square_sum,
                  4 * gradient_bound * cpu.state().grad_square_sum);
    }
    if (step == 3) {
      EXPECT_LT(loss, 0.99 * first) << "nothing was learned";
    }
  }
}

void expect_like_cpu(Place place) {
  expect_like_cpu(place, "fp32", 2e-5, 2e-5);
  expect_like_cpu(place, "bf16", 32 * 0x1p-9, 32 * 0x1p-9);
  expect_like_cpu(place, "fp16", 32 * 0x1p-12, 32 * 0x1p-12);
}

struct Trace {
  std::vector<double> losses;
  std::vector<float> weights;
  bool operator==(const Trace&) const = default;
};
Trace trace(Place place, const char* precision, const char* recompute, bool graphs = false) {
  Gpt2Steps run(place, small_spec(),
                {.precision = precision, .recompute = recompute, .graphs = graphs});
  Trace t;
  for (int step = 0; step < 4; ++step) t.losses.push_back(run.step());
  t.weights = run.master();
  EXPECT_EQ(run.context().graphs(), graphs ? 3 : 0) << "first and next micro-step, update";
  return t;
}

// A graph keeps the numbers and addresses that its launches got when it was captured, in step 1;
// step, learning rates, samples and scales differ in those that it runs.
void expect_graphs_are_eager(Place place) {
  for (const char* precision : {"fp32", "bf16", "fp16"})
    EXPECT_EQ(trace(place, precision, "block", true), trace(place, precision, "block"))
        << precision;
}

void expect_same_bits(Place place) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    const Trace once = trace(place, precision, "none");
    EXPECT_EQ(trace(place, precision, "none"), once) << precision << " again";
    EXPECT_EQ(trace(place, precision, "block"), once) << precision << " recomputed";
  }
}

// With the arena closed to the host, as a GPU's is: an op that touched it would end the test
// program.
TEST(EmulatedGpt2Steps, AreThoseOfTheCpu) {
  expect_like_cpu(Place::emu);
}

TEST(EmulatedGpt2Steps, GraphsHaveTheBitsOfEagerSteps) {
  expect_graphs_are_eager(Place::emu);
}

// The closing itself: what an op would do that reads a tensor from the host.
TEST(EmulatedGpt2StepsDeathTest, TheHostCannotReadThePrivateArena) {
  Settings settings;
  settings.target = Place::emu;
  settings.device_private = true;
  Schedule schedule;
  const int root = schedule.add(Name("root"), -1, true);
  const auto make = [&](Context& ctx) {
    Tensor t;
    ctx.program(schedule, root,
                [&] { t = ctx.tensor(Name("t"), {4}, DType::f32, Category::batch); });
    return t;
  };
  Context plan(Place::plan, settings);
  make(plan);
  schedule.pack();
  Context emu(Place::emu, settings);
  emu.reserve(schedule);
  const Tensor t = make(emu);
  const float in[4] = {1, 2, 3, 4};
  float out[4] = {};
  emu.write(t, in);
  emu.read(out, t);
  EXPECT_EQ(out[3], 4.0f);
  EXPECT_DEATH(*const_cast<volatile float*>(t.view().as<float>()) = 0.0f, "");
}

class GpuGpt2 : public Gpu {};

TEST_F(GpuGpt2, StepsAreThoseOfTheCpu) {
  expect_like_cpu(Place::cuda);
}

TEST_F(GpuGpt2, SameBitsAgainAndUnderRecompute) {
  expect_same_bits(Place::cuda);
}

TEST_F(GpuGpt2, GraphsHaveTheBitsOfEagerSteps) {
  expect_graphs_are_eager(Place::cuda);
}

// The driver's free memory does not move after the first step, nor does what it says of the arena.
TEST_F(GpuGpt2, MemoryIsFlat) {
  Gpt2Steps run(Place::cuda, small_spec(), {.precision = "bf16", .graphs = true});
  for (int step = 0; step < 3; ++step) run.step();  // what libraries take, and the graphs
  const int64_t available = run.context().device().memory_info().available_bytes;
  for (int step = 0; step < 20; ++step) run.step();
  EXPECT_EQ(run.context().resident_bytes(), run.planned_bytes());
  EXPECT_EQ(run.context().device().memory_info().available_bytes, available)
      << "or another process came or went";
}

}  // namespace
}  // namespace snug::test
