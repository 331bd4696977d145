// On the CPU and in the emulator against the formulas of TRL in double, with complex-step slopes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <iterator>
#include <limits>

#include "layers/ops/pair_loss_simt.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"
#include "tests/support/gradient.h"
#include "tests/support/reference/pair_loss.h"

namespace snug::test {
namespace {

struct Variant {
  PairLoss loss;
  int64_t pairs = 5, longest = 12;
  double nll = 0.4;  // how large losses of tokens are
  int threads = 64;
  bool shifted = false;
};

constexpr float kCompared = 0.75f;

// Pairs back to back with a gap behind every third; every fourth is none.
struct Data {
  explicit Data(const Variant& v) {
    const bool with_reference = facts_of(v.loss.kind).reference,
               whole = facts_of(v.loss.kind).whole, single = facts_of(v.loss.kind).single;
    int64_t at = 1;  // the first row is of nothing
    for (int64_t p = 0; p < v.pairs; ++p) {
      if (p % 4 == 3) {
        places.insert(places.end(), kPairColumns, -1.0);
        continue;
      }
      int64_t a = 1 + (p * 7 + 3) % v.longest, b = 1 + (p * 5 + 1) % v.longest;
      if (single) (p % 2 == 0 ? b : a) = 0;
      const int64_t compared =
          facts_of(v.loss.kind).compared ? std::bit_cast<int32_t>(kCompared) : 0;
      // Where the whole sequence is learned, some of it before the answer.
      const int64_t before = whole && p % 2 == 0 ? p % a : 0;
      for (const int64_t x : {at, at + a, at + a + b, a - before, b, at + before,
                              whole ? int64_t{91} : compared, whole ? int64_t{13} : int64_t{0}})
        places.push_back(static_cast<double>(x));
      at += a + b + (p % 3 == 2 ? 2 : 0);
    }
    n = at + 1;
    nll = normal_values(n, 1, DType::f32, v.nll);
    for (double& x : nll) x = std::fabs(x);
    state.inverse_tokens = 1.0f / 7;
    state.loss_scale = 4;
    state.loss_sum = loss_sum = 2.5;
    state.loss_tokens = loss_tokens = 3;
    const double factor = double{state.inverse_tokens} * state.loss_scale;
    const Values shift = normal_values(2 * v.pairs, 3, DType::f32, 1);
    dnll.assign(static_cast<size_t>(n), 0.0);
    for (size_t p = 0; p < static_cast<size_t>(v.pairs); ++p) {
      const double* place = places.data() + kPairColumns * p;
      // Of the chosen answer, of the rejected sequence, of the whole chosen one.
      const double begins[] = {place[5], place[1], place[0]},
                   ends[] = {place[1], place[2], place[1]};
      double sums[3] = {0, 0, 0};
      if (place[0] >= 0)
        for (int k = 0; k < 3; ++k)
          for (auto i = static_cast<size_t>(begins[k]); i < static_cast<size_t>(ends[k]); ++i)
            sums[k] -= nll[i];
      const size_t first = logps.size();
      for (size_t k = 0; k < (whole ? 3 : 2); ++k)
        logps.push_back(static_cast<double>(static_cast<float>(sums[k])));
      for (size_t side = 0; side < 2; ++side)
        reference.push_back(
            static_cast<double>(static_cast<float>(sums[side] + shift[2 * p + side])));
      if (place[0] < 0) {
        loss.push_back(0);
        continue;
      }
      const auto f = [&](const auto& x) {
        return pair_loss_reference(v.loss, x[0], x[1], place[3], place[4], double{kCompared});
      };
      Values x{logps[first], logps[first + 1]};
      for (size_t side = 0; side < 2 && with_reference; ++side) x[side] -= reference[2 * p + side];
      const double weight = whole ? place[7] / place[6] : 0;
      loss.push_back(f(x) - (whole ? weight * logps[first + 2] : 0));
      loss_sum += loss.back();
      ++loss_tokens;
      const Values slope = complex_step_gradient(f, x);
      for (size_t k = 0; k < 2; ++k)
        for (auto i = static_cast<size_t>(begins[k]); i < static_cast<size_t>(ends[k]); ++i)
          dnll[i] = -slope[k] * factor;
      for (auto i = static_cast<size_t>(place[0]); i < static_cast<size_t>(place[1]); ++i)
        dnll[i] += weight * factor;
    }
  }
  int64_t n = 0;
  Values places, nll, logps, reference, loss, dnll;
  StepState state{};
  double loss_sum;
  int64_t loss_tokens;
};

auto body_of(const Variant& v, const Data& d) {
  return [&](auto& c) {
    const View state = c.step_state(d.state);
    const View pairs = c.input("pairs", {v.pairs, kPairColumns}, DType::i32, d.places);
    const View nll = c.input("nll", {d.n}, DType::f32, d.nll);
    View reference;
    if (facts_of(v.loss.kind).reference)
      reference = c.input("reference", {v.pairs, 2}, DType::f32, d.reference);
    const View logps = c.output("logps", {v.pairs, logp_columns(v.loss.kind)}, DType::f32);
    const View loss = c.output("loss", {v.pairs}, DType::f32);
    const View dnll = c.output("dnll", {d.n}, DType::f32);
    if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
      sequence_logps_on(c.queue(), logps, nll, pairs, v.threads);
      pair_loss_forward_on(c.queue(), loss, logps, reference, pairs, v.loss, state, v.threads);
      pair_loss_backward_on(c.queue(), dnll, logps, reference, pairs, v.loss, state, v.threads);
    } else {
      sequence_logps(c.ctx(), logps, nll, pairs);
      pair_loss_forward(c.ctx(), loss, logps, reference, pairs, v.loss, state);
      pair_loss_backward(c.ctx(), dnll, logps, reference, pairs, v.loss, state);
    }
  };
}

void check(const Variant& v) {
  SCOPED_TRACE(fmt::format("{} beta {} smoothing {} pairs {} threads {}",
                           facts_of(v.loss.kind).name, v.loss.beta, v.loss.label_smoothing, v.pairs,
                           v.threads));
  const Data d(v);
  const auto body = body_of(v, d);
  const Outputs cpu = run_in_all_modes(body), emu = run_in_all_schedules(body, v.shifted),
                place = run_on_emu(body);
  for (const Outputs* out : {&cpu, &emu, &place}) {
    EXPECT_TRUE(close((*out)["logps"], d.logps, tolerance(DType::f32, 1)));
    EXPECT_TRUE(close((*out)["loss"], d.loss, tolerance(DType::f32, 1)));
    EXPECT_TRUE(close((*out)["dnll"], d.dnll, tolerance(DType::f32, 1)));
    const StepState s = out->state();
    EXPECT_NEAR(s.loss_sum, d.loss_sum, std::fabs(d.loss_sum) * tolerance(DType::f32, 1));
    EXPECT_EQ(s.loss_tokens, d.loss_tokens);
  }
  EXPECT_EQ(cpu.ops, (std::vector<std::string>{"sequence_logps", "pair_loss_forward",
                                               "pair_loss_backward"}));
}

TEST(PairLoss, MatchesTrlOnBothPlaces) {
  for (size_t k = 0; k < std::size(kPairLosses); ++k) {
    const auto kind = static_cast<PairLossKind>(k);
    for (const double beta : {0.1, 0.5})
      for (const double smoothing : {0.0, 0.2}) {
        if (smoothing > 0 && !kPairLosses[k].smoothing) continue;
        check({.loss = {kind, beta, smoothing}});
      }
    check({.loss = {kind, 0.3, 0, 1.2}, .pairs = 1, .longest = 1});
    if (kPairLosses[k].single) check({.loss = {kind, 0.3, 0, 0.5, 0.7, 1.4}, .pairs = 7});
    check({.loss = {kind}, .pairs = 40, .longest = 97});
    for (const int threads : kBlockSizes)
      check({.loss = {kind}, .pairs = 21, .longest = 70, .threads = threads, .shifted = true});
  }
}

// Where one answer is all but certain: no overflow inside.
TEST(PairLoss, Extremes) {
  for (const double c : {-1e4, 1e4}) {
    const PairValue v = pair_loss_value({.beta = 1}, c, -c, 1, 1);
    EXPECT_EQ(v.loss, c < 0 ? 2e4 : 0);
    EXPECT_EQ(v.chosen, c < 0 ? -1 : 0);
    EXPECT_EQ(v.rejected, c < 0 ? 1 : 0);
  }
  // Tokens that are certain have no odds, and every loss and slope of them is a number.
  const PairLoss orpo{.kind = PairLossKind::orpo, .beta = 1};
  for (const double c : {0.0, -1e-9, -700.0})
    for (const double r : {0.0, -1e-9, -700.0}) {
      const PairValue v = pair_loss_value(orpo, c, r, 1, 1);
      EXPECT_TRUE(std::isfinite(v.loss) && std::isfinite(v.chosen) && std::isfinite(v.rejected))
          << c << " " << r;
    }
}

// A loss that hid a NaN would be the best one of a run.
TEST(PairLoss, HidesNoNan) {
  for (size_t k = 0; k < std::size(kPairLosses); ++k) {
    PairLoss loss;
    loss.kind = static_cast<PairLossKind>(k);
    for (const auto& [c, r] : {std::pair(std::nan(""), -1.0), std::pair(-1.0, std::nan(""))})
      EXPECT_TRUE(std::isnan(pair_loss_value(loss, c, r, 2, 3).loss)) << kPairLosses[k].name;
  }
}

TEST(PairLoss, RefusesWhatDoesNotFit) {
  const auto run = [](const Values& places, PairLossKind kind, bool with_reference,
                      DType of_pairs = DType::i32) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      const View pairs = c.input("pairs", {1, kPairColumns}, of_pairs, places);
      const View nll = c.input("nll", {8}, DType::f32, Values(8, 0.5));
      const View logps = c.output("logps", {1, 2}, DType::f32);
      sequence_logps(c.ctx(), logps, nll, pairs);
      View reference;
      if (with_reference) reference = c.input("reference", {1, 2}, DType::f32, {0, 0});
      const View state = c.step_state(StepState{});
      pair_loss_forward(c.ctx(), c.output("loss", {1}, DType::f32), logps, reference, pairs, {kind},
                        state);
      pair_loss_backward(c.ctx(), c.output("dnll", {8}, DType::f32), logps, reference, pairs,
                         {kind}, state);
    });
  };
  const Values good{0, 3, 8, 2, 2, 0, 0, 0};
  run(good, PairLossKind::sigmoid, true);
  run(Values(kPairColumns, -1), PairLossKind::sigmoid, true);
  for (const Values& places : {Values{0, 3, 9, 2, 2, 0, 0, 0},
                               {3, 3, 8, 2, 2, 3, 0, 0},
                               {0, 5, 5, 2, 2, 0, 0, 0},
                               {0, 3, 8, 0, 2, 0, 0, 0},
                               {1, 3, 8, 2, 2, 0, 0, 0},
                               {0, 3, 8, 2, 2, 3, 0, 0}})
    EXPECT_ERROR(run(places, PairLossKind::sigmoid, true), ErrorCode::data,
                 "a sequence or two of [0,N)=[0,8)", "pair 0 of pairs",
                 "check the pairs of the data");
  EXPECT_ERROR(run(good, PairLossKind::sigmoid, true, DType::f32), ErrorCode::unsupported, "pairs",
               "f32", "");
  for (const Values& one : {Values{0, 0, 8, 0, 2, 0, 0, 0}, {0, 8, 8, 2, 0, 0, 0, 0}}) {
    run(one, PairLossKind::kto, true);
    EXPECT_ERROR(run(one, PairLossKind::sigmoid, true), ErrorCode::data,
                 "two sequences of [0,N)=[0,8)", "pair 0 of pairs", "check the pairs of the data");
  }
  EXPECT_ERROR(run(good, PairLossKind::sigmoid, false), ErrorCode::usage,
               "log probabilities of a reference for the loss sigmoid", "none",
               "give what the loss has");
  EXPECT_ERROR(run(good, PairLossKind::simpo, true), ErrorCode::usage,
               "no reference for the loss simpo", "reference", "give what the loss has");
}

}  // namespace
}  // namespace snug::test
