// Gradients held in bf16 in whole sessions: what is rounded, and how far that goes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "optim/clip.h"
#include "tests/tools/session_case.h"

namespace snug {
namespace {

constexpr int64_t kBatch = 6;
constexpr double kRound = 0x1p-8;  // of bf16: half the distance of neighbours

test::RunOptions options_of(DType gradients) {
  test::RunOptions o;
  o.decisions.T = 8;
  o.decisions.micro_batch = 2;
  o.decisions.head_rows = 16;
  o.decisions.gradients = gradients;
  o.global_batch = kBatch;
  return o;
}

float rounded(float x) {
  return to_f32(from_f32<bf16>(x));
}

// What a micro-step adds to each parameter, in f32.
std::vector<std::vector<float>> contributions(const Model& model, const test::RunOptions& of) {
  test::RunOptions o = of;
  o.decisions.gradients = DType::f32;
  test::SessionRun one(model, o);
  Session& s = one.session();
  std::vector<std::vector<float>> list;
  for (int64_t first = 0; first < kBatch; first += o.decisions.micro_batch) {
    s.begin_window(3, 0, one.trained(0, kBatch));
    one.fill(0, first, o.decisions.micro_batch, kBatch);
    s.state().first_sample = first;
    s.micro(true);
    list.push_back(one.gradients());
  }
  return list;
}

// Rows of a micro-step that fit one chunk of every sum, and a head of its own: each parameter has
// one contribution a micro-step. It is that of f32, added to what is there and rounded, and nothing
// else is: to the bit.
TEST(SessionGradients, EveryContributionIsRoundedOnceAndNothingElseIs) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    const Model model(test::tiny_spec({.tied = false, .dropout = 0.1}), parse_precision(precision));
    test::RunOptions o = options_of(DType::bf16);
    o.decisions.loss_scaling.init_scale = 64;
    std::vector<float> want;
    for (const std::vector<float>& part : contributions(model, o)) {
      want.resize(part.size());
      for (size_t i = 0; i < part.size(); ++i) want[i] = rounded(want[i] + part[i]);
    }
    test::SessionRun run(model, o);
    const double loss = run.gradients_of(0);
    EXPECT_TRUE(test::same_bits(run.gradients(), want)) << precision;
    o.decisions.gradients = DType::f32;
    test::SessionRun wide(model, o);
    EXPECT_EQ(wide.gradients_of(0), loss) << "forward does not see gradients";
    EXPECT_FALSE(test::same_bits(wide.gradients(), want)) << "nothing was rounded";
  }
}

// Each parameter has n contributions, one a micro-step. A partial sum is at most S, the sum of
// their absolute values, so that n roundings of u = 2^-8 err by n u S (1 + u)^n at most. One step
// of gradient descent then moves the weights by no more than the rate times that apart, and the
// loss behind it, to first order, by the gradient's norm there times the move; a factor of two is
// room for the second order.
TEST(SessionGradients, StayWithinTheirBoundOfF32) {
  const Model model(test::tiny_spec({.tied = false}), parse_precision("fp32"));
  constexpr double kRate = 0.01;
  const auto run_of = [&](DType t) {
    test::RunOptions o = options_of(t);
    o.optimizer.name = "sgd";
    o.optimizer.learning_rate = kRate;
    return std::make_unique<test::SessionRun>(model, o);
  };
  const auto narrow = run_of(DType::bf16), wide = run_of(DType::f32);
  EXPECT_EQ(narrow->gradients_of(0), wide->gradients_of(0));
  const std::vector<float> got = narrow->gradients(), want = wide->gradients();
  const auto parts = contributions(model, options_of(DType::f32));
  const auto n = static_cast<double>(parts.size());
  double error_square = 0, bound_square = 0, worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    double sum = 0;
    for (const auto& part : parts) sum += std::fabs(static_cast<double>(part[i]));
    const double bound = n * kRound * std::pow(1 + kRound, n) * sum + 1e-9;
    const double error = std::fabs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    worst = std::max(worst, error / bound);
    error_square += error * error;
    bound_square += bound * bound;
  }
  EXPECT_LE(worst, 1);
  EXPECT_GT(error_square, 1e-3 * bound_square) << "a bound that could not see a wrong rounding";

  narrow->update();
  wide->update();
  const std::vector<float> a = narrow->weights(), b = wide->weights();
  double moved = 0;
  for (size_t i = 0; i < a.size(); ++i)
    moved += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  EXPECT_LE(std::sqrt(moved), kRate * std::sqrt(bound_square) + 1e-6);
  EXPECT_GT(moved, 0);
  const double narrow_loss = narrow->gradients_of(0), wide_loss = wide->gradients_of(0);
  double square = 0;
  for (const float g : wide->gradients()) square += static_cast<double>(g) * static_cast<double>(g);
  EXPECT_LE(std::fabs(narrow_loss - wide_loss), 2 * std::sqrt(square) * std::sqrt(moved) + 1e-6);
}

// The norm is that of the rounded gradients, so it errs by their relative error at most; clipping
// follows it.
TEST(SessionGradients, TheNormIsThatOfWhatIsHeld) {
  const Model model(test::tiny_spec({}), parse_precision("fp32"));
  test::RunOptions o = options_of(DType::bf16);
  o.decisions.max_grad_norm = 0.5;
  o.optimizer.learning_rate = 1e-3;
  test::SessionRun run(model, o);
  run.gradients_of(0);
  double square = 0;
  for (const float g : run.gradients()) square += static_cast<double>(g) * static_cast<double>(g);
  run.update();
  const StepState& s = run.session().state();
  EXPECT_NEAR(s.grad_square_sum, square, 1e-12 * square);
  EXPECT_FLOAT_EQ(s.clip_factor, static_cast<float>(0.5 / (std::sqrt(square) + 1e-6)));
}

// Memory still changes no number: recompute, offload, windows of the host's states and threads.
TEST(SessionGradients, PlacesChangeNoBit) {
  for (const char* precision : {"fp32", "bf16"}) {
    const Model model(test::tiny_spec({.L = 3, .dropout = 0.1}), parse_precision(precision));
    test::RunOptions o = options_of(DType::bf16);
    o.decisions.max_grad_norm = 1.0;
    o.optimizer.learning_rate = 1e-2;
    o.settings.streams = StreamMode::worker;
    const test::Trace plain = test::trace_of(model, o);
    EXPECT_TRUE(plain.finite());
    o.decisions.recompute = "block";
    EXPECT_TRUE(same_bits(test::trace_of(model, o), plain)) << precision;
    o.decisions.offload_optimizer = true;
    EXPECT_TRUE(same_bits(test::trace_of(model, o), plain)) << precision;
    o.decisions.offload = "inputs";
    o.settings.threads = 2;
    EXPECT_TRUE(same_bits(test::trace_of(model, o), plain)) << precision;
    o.decisions.gradients = DType::f32;
    EXPECT_FALSE(same_bits(test::trace_of(model, o), plain)) << "or they were f32 all along";
  }
}

// A gradient that is not finite is seen and named as in f32: the first of all, and nothing moves.
TEST(SessionGradients, WhatIsNotFiniteIsNamed) {
  const Model model(test::tiny_spec({}), parse_precision("fp16"));
  for (const DType t : {DType::f32, DType::bf16}) {
    test::RunOptions o = options_of(t);
    o.decisions.loss_scaling.init_scale = 0x1p100;
    test::SessionRun run(model, o);
    run.gradients_of(0);
    const std::vector<float> before = run.weights();
    run.session().optimizer().prepare_step(run.session().state());
    run.session().update();
    EXPECT_EQ(run.session().state().found_inf, 1);
    EXPECT_GE(run.session().state().first_bad_element, 0);
    EXPECT_TRUE(test::same_bits(run.weights(), before));
  }
}

// Losses and weights of some steps, one micro-step each; the norms are sums in another order.
struct Steps {
  std::vector<double> losses, norms;
  std::vector<float> weights;
};
Steps steps_of(const Model& model, const test::RunOptions& o) {
  test::SessionRun run(model, o);
  Steps s;
  for (int64_t step = 0; step < 4; ++step) {
    s.losses.push_back(run.train_step(step));
    s.norms.push_back(gradient_norm_of(run.session().state()));
  }
  s.weights = run.weights();
  EXPECT_EQ(run.session().context().resident_bytes(), run.session().context().arena_bytes());
  return s;
}

// Where the update is changes no bit: precisions, optimizers, tables tied and not, residences of
// the states, packed weights (which are read until the end), dtypes of gradients, threads, and
// tensors at random places, poisoned and guarded.
TEST(UpdateInBackward, HasTheBitsOfTheOneBehindIt) {
  for (const char* precision : {"fp32", "bf16", "no_master"})
    for (const char* optimizer : {"adamw", "sgd"})
      for (const bool tied : {true, false})
        for (const DType t : {DType::f32, DType::bf16}) {
          const Model model(test::tiny_spec({.L = 3, .tied = tied, .dropout = 0.1}),
                            test::precision_of(precision));
          test::RunOptions o = options_of(t);
          o.decisions.micro_batch = kBatch;
          o.optimizer.name = optimizer;
          o.optimizer.learning_rate = 1e-2;
          o.optimizer.weight_decay = 0.1;
          o.settings.streams = StreamMode::worker;
          const Steps behind = steps_of(model, o);
          o.decisions.update_in_backward = true;
          const auto same = [&](const char* what) {
            const Steps in = steps_of(model, o);
            EXPECT_TRUE(test::same_bits(in.losses, behind.losses))
                << what << precision << optimizer;
            EXPECT_TRUE(test::same_bits(in.weights, behind.weights)) << what << precision;
            for (size_t i = 0; i < in.norms.size(); ++i)
              EXPECT_NEAR(in.norms[i], behind.norms[i], 1e-12 * behind.norms[i]) << what;
          };
          same("plain ");
          o.decisions.packed_weights = WeightPacking::both;
          o.decisions.recompute = "block";
          same("packed ");
          o.settings.guard_bytes = 256;
          o.settings.poison = true;
          o.shuffle = 77;
          o.settings.threads = 2;
          same("poisoned ");
          if (optimizer == std::string("sgd") && precision == std::string("fp32")) continue;
          o.decisions.offload_optimizer = true;
          same("offloaded ");
        }
}

// The gradients of a block at a time, and of what is outside the blocks.
TEST(UpdateInBackward, HoldsTheGradientsOfOneBlock) {
  const Model model(test::tiny_spec({.L = 5}), parse_precision("fp32"));
  test::RunOptions o = options_of(DType::f32);
  o.decisions.micro_batch = kBatch;
  const auto bytes_of = [&](bool in_backward) {
    o.decisions.update_in_backward = in_backward;
    const Schedule s = test::plan_schedule(model, o);
    int64_t resident = 0, block = 0, blocks = 0;
    for (const TensorRecord& t : s.at(s.find("root")).tensors)
      if (t.category == Category::gradients) resident += t.bytes;
    for (const TensorRecord& t : s.at(s.find("micro_first")).tensors)
      if (t.category == Category::gradients) {
        block = std::max(block, t.bytes);
        ++blocks;
      }
    return std::array{resident, block, blocks};
  };
  const auto behind = bytes_of(false), in = bytes_of(true);
  EXPECT_EQ(behind[2], 0);
  EXPECT_EQ(in[2], 5);
  EXPECT_NEAR(static_cast<double>(in[0] + 5 * in[1]), static_cast<double>(behind[0]), 8 * 1024.0);
}

// What is not finite stops the update of its part and of all behind it, and is named.
TEST(UpdateInBackward, StopsAtWhatIsNotFinite) {
  const Model model(test::tiny_spec({.L = 3, .tied = false}), parse_precision("fp32"));
  test::RunOptions o = options_of(DType::f32);
  o.decisions.micro_batch = kBatch;
  o.decisions.update_in_backward = true;
  o.optimizer.learning_rate = 1e-2;
  test::SessionRun run(model, o);
  const ParamTable& table = model.params();
  const ParamInfo& broken = table[table.find("h.1.mlp.c_fc.bias")];
  run.session().master().as<float>()[broken.offset] = std::numeric_limits<float>::infinity();
  const std::vector<float> before = run.weights();
  run.gradients_of(0);
  run.session().update();
  EXPECT_EQ(run.session().state().found_inf, 1);
  EXPECT_GE(run.session().state().first_bad_element, 0);
  EXPECT_TRUE(test::same_bits(run.weights(), before)) << "the loss is not finite: all of them";
}

}  // namespace
}  // namespace snug
