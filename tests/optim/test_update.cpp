// What the driver does around an optimizer's arithmetic: spans, chunks, threads, groups, factors,
// skipped steps, rounded weights.
#include <cmath>
#include <limits>

#include "engine/stores/plain_states.h"
#include "optim/elementwise.h"
#include "optim/resting.h"
#include "tests/optim/optim_case.h"

namespace snug::test {
namespace {

const std::vector<int64_t> kSizes = {1, 255, 256, 257, 16383, 16384, 16385, 3};
constexpr int64_t kPeriod = 50;

// Element i of every span has the values of element i % 50.
Values periodic(const ParamTable& table, const Values& period, double gap) {
  Values v(static_cast<size_t>(table.flat_elements()), gap);
  for (int p = 0; p < table.size(); ++p)
    for (int64_t i = 0; i < table[p].elements(); ++i)
      v[static_cast<size_t>(table[p].offset + i)] = period[static_cast<size_t>(i % kPeriod)];
  return v;
}

Values normal(uint32_t seed) {
  return as_f32(normal_values(kPeriod, seed));
}

Values squares(Values v) {
  for (double& x : v) x *= x;
  return as_f32(v);
}

UpdateCase periodic_case(const std::string& name, const ParamTable& table) {
  UpdateCase u;
  u.config.name = name;
  u.config.weight_decay = 0.1;
  if (has_momentum(name)) u.config.sgd_momentum = 0.9;
  u.spans = whole_parameter_spans(table);
  u.master = periodic(table, normal(1), 123);
  // Gradients in the gaps are not finite: an update that read them would show it.
  u.gradients = periodic(table, normal(2), std::nan(""));
  u.states = {};
  for (const Name& state : std::vector<Name>(make_optimizer(u.config)->state_names()))
    u.states.push_back(holds_squares(state) ? periodic(table, squares(normal(4)), 6)
                                            : periodic(table, normal(3), 5));
  u.state.updates = 4;
  return u;
}

std::vector<bool> inside(const UpdateCase& u) {
  std::vector<bool> in(u.master.size());
  for (const StateSpan& s : u.spans)
    for (int64_t i = 0; i < s.elements; ++i) in[static_cast<size_t>(s.offset + i)] = true;
  return in;
}

class OptimUpdate : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, OptimUpdate, ::testing::ValuesIn(optimizer_names()),
                         [](const auto& i) { return i.param; });

// Bodies and tails of vectors and chunks give the same bits for the same values; what lies outside
// the spans stays; and so in every mode, thread counts included.
TEST_P(OptimUpdate, IsTheSameForEveryPlaceOfAnElement) {
  const ParamTable table = table_of(kSizes);
  const UpdateCase u = periodic_case(GetParam(), table);
  const Outputs out = run_in_all_modes(u.body());
  const std::vector<bool> in = inside(u);
  const bool whole =
      find_optimizer(GetParam())->reach != OptimReach::element;  // alike within a parameter alone
  for (const Output& o : out.all) {
    if (o.name == "step_state" || o.name == "gradients") continue;
    SCOPED_TRACE(o.name);
    const Values v = o.values();
    const int64_t long_span[2] = {table[6].offset, table[5].offset};  // decayed, not decayed
    for (int p = 0; p < table.size(); ++p)
      for (int64_t i = 0; i < table[p].elements(); ++i) {
        const int64_t like = (whole ? table[p].offset : long_span[table[p].group]) + i % kPeriod;
        ASSERT_EQ(v[table[p].offset + i], v[like]) << "parameter " << p << " element " << i;
      }
    Values before = u.master;
    const std::vector<Name> names = make_optimizer(u.config)->state_names();
    for (size_t k = 0; k < names.size(); ++k)
      if (o.name == names[k].str()) before = u.states[k];
    for (size_t i = 0; i < v.size(); ++i) {
      if (in[i]) {
        ASSERT_NE(v[i], before[i]) << "element " << i << " was not updated";
      } else {
        ASSERT_EQ(v[i], before[i]) << "element " << i << " outside the spans";
      }
    }
  }
}

TEST_P(OptimUpdate, IsOneOpThatReportsItsTraffic) {
  const ParamTable table = table_of(kSizes);
  UpdateCase u = periodic_case(GetParam(), table);
  int64_t n = 0;
  for (const int64_t size : kSizes) n += size;
  const Outputs fp32 = run_on_plan_and_cpu({}, u.body());
  EXPECT_EQ(fp32.ops, std::vector<std::string>{GetParam() + "_update"});
  const auto states = static_cast<int64_t>(make_optimizer(u.config)->state_names().size());
  const int64_t again = measures(GetParam()) ? 4 + 4 + 4 * states : 0;  // for norms
  const int64_t each = 4 + 8 + 8 * states + again;
  EXPECT_EQ(fp32.bytes_moved, n * each);
  u.weights = DType::bf16;
  EXPECT_EQ(run_on_plan_and_cpu({}, u.body()).bytes_moved, n * (each + 2));
  u.gradient = DType::bf16;
  EXPECT_EQ(run_on_plan_and_cpu({}, u.body()).bytes_moved, n * (each - (again > 0 ? 2 : 0)));
  u.weights = DType::f32;
  u.held = DType::bf16;
  u.master = rounded(u.master, DType::bf16);
  EXPECT_EQ(run_on_plan_and_cpu({}, u.body()).bytes_moved, n * (each - 6 - (again > 0 ? 4 : 0)));
}

// Gradients in bf16 are widened, which is exact: the bits of the same numbers in f32.
TEST_P(OptimUpdate, ReadsGradientsInBf16) {
  const ParamTable table = table_of(kSizes);
  UpdateCase u = periodic_case(GetParam(), table);
  u.gradients = rounded(u.gradients, DType::bf16);
  u.weights = DType::bf16;
  const Outputs want = run_on_plan_and_cpu({}, u.body());
  u.gradient = DType::bf16;
  const Outputs got = run_in_all_modes(u.body());
  EXPECT_EQ(got["master"], want["master"]);
  EXPECT_EQ(got["weights"], want["weights"]);
  for (const Output& o : want.all)
    if (o.name != "gradients" && o.name != "step_state") {
      EXPECT_EQ(got[o.name], o.values()) << o.name;
    }
}

// But the weights, which are rounded from the master as it is: bits that they have in a run, and
// that those of a window, which is only written, have to get.
TEST_P(OptimUpdate, LeavesMasterAndStatesWhenAGradientWasNotFinite) {
  const ParamTable table = table_of(kSizes);
  UpdateCase u = periodic_case(GetParam(), table);
  u.weights = DType::bf16;
  u.state.found_inf = 1;
  const Outputs out = run_in_all_modes(u.body());
  EXPECT_EQ(out["master"], u.master);
  Values want = rounded(u.master, DType::bf16);
  const std::vector<bool> in = inside(u);
  for (size_t i = 0; i < want.size(); ++i)
    if (!in[i]) want[i] = 7.0;
  EXPECT_EQ(out["weights"], want);
  const auto optimizer = make_optimizer(u.config);
  for (size_t k = 0; k < optimizer->state_names().size(); ++k)
    EXPECT_EQ(out[optimizer->state_names()[k].c_str()], u.states[k]);
}

TEST_P(OptimUpdate, RoundsTheWeightsFromTheMaster) {
  const ParamTable table = table_of(kSizes);
  UpdateCase u = periodic_case(GetParam(), table);
  const Values master = run_on_plan_and_cpu({}, u.body())["master"];
  const std::vector<bool> in = inside(u);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    u.weights = dtype;
    const Outputs out = run_in_all_modes(u.body());
    EXPECT_EQ(out["master"], master);
    Values want = rounded(master, dtype);
    for (size_t i = 0; i < want.size(); ++i)
      if (!in[i]) want[i] = 7.0;
    EXPECT_EQ(out["weights"], want) << to_string(dtype);
  }
}

// Loss scale and clip factor are powers of two here, so undoing them is exact.
// Without a master: what an fp32 master would get, rounded to one of its two neighbours in bf16; the
// bits of every mode, thread counts included. A skipped step changes nothing.
TEST_P(OptimUpdate, RoundsBf16ParametersAtRandom) {
  const ParamTable table = table_of(kSizes);
  UpdateCase u = periodic_case(GetParam(), table);
  u.master = rounded(u.master, DType::bf16);
  const Outputs exact = run_on_plan_and_cpu({}, u.body());
  u.held = DType::bf16;
  const Outputs out = run_in_all_modes(u.body());
  const Values got = out["master"], want = exact["master"];
  const std::vector<bool> in = inside(u);
  int64_t up = 0, between = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!in[i]) {
      ASSERT_EQ(got[i], u.master[i]) << "element " << i << " outside the spans";
      continue;
    }
    const double ulp = std::ldexp(1.0, std::ilogb(want[i]) - 7);
    const double below = std::floor(want[i] / ulp) * ulp;
    ASSERT_TRUE(got[i] == below || (got[i] == below + ulp && want[i] != below)) << i;
    up += got[i] != below;
    between += want[i] != below;
  }
  EXPECT_GT(up, between / 4);
  EXPECT_LT(up, between - between / 4);
  for (const Output& o : exact.all)
    if (o.name != "gradients" && o.name != "step_state" && o.name != "master") {
      EXPECT_EQ(out[o.name], o.values()) << o.name;
    }
  u.state.step = 1;
  EXPECT_NE(run_on_plan_and_cpu({}, u.body())["master"], got);
  u.state.found_inf = 1;
  EXPECT_EQ(run_in_all_modes(u.body())["master"], u.master);
}

// The mean is that of exact numbers, in double by hand: 300 updates of sgd, each of which moves by a
// share of the distance of neighbours, so that rounding to the nearest would stay or go the whole
// way. A rounding of x in [below, below + ulp] has the variance f (1 - f) ulp^2 of f = (x - below) /
// ulp, at most ulp^2 / 4; the mean of n elements strays by five of its deviations at most.
TEST(NoMaster, TheMeanIsThatOfExactNumbers) {
  constexpr int64_t kElements = 1 << 16, kUpdates = 300;
  const ParamTable table = table_of({kElements});
  for (const double share : {0.003, 0.11, 0.49, 0.51}) {
    SCOPED_TRACE(share);
    constexpr double kUlp = 0x1p-7;  // of [1, 2)
    const double rate = 0x1p-10, gradient = static_cast<float>(share * kUlp / rate);
    OptimizerConfig config;
    config.name = "sgd";
    run_on_plan_and_cpu({}, [&](Case& c) {
      const auto optimizer = make_optimizer(config);
      const View master = c.inout("master", {kElements}, DType::bf16, Values(kElements, 0.75));
      const View gradients =
          c.input("gradients", {kElements}, DType::f32, Values(kElements, -gradient));
      const View state = c.step_state(plain_state(rate));
      CaseStore store(whole_parameter_spans(table), {});
      double exact = 0.75, variance = 0;
      for (int64_t step = 0; step < kUpdates; ++step) {
        if (!c.ctx().planning()) {
          step_state(state)->updates = step_state(state)->step = step;
          optimizer->prepare_step(*step_state(state));
        }
        optimizer->update(c.ctx(), {master, {}, gradients}, store, state);
        exact += rate * gradient;
        const double ulp = std::ldexp(1.0, std::ilogb(exact + 4 * kUlp) - 7);
        variance += ulp * ulp / 4;
        if (c.ctx().planning() || (step + 1) % 100 != 0) continue;
        double sum = 0;
        for (const double x : load_values(master.data, DType::bf16, kElements)) sum += x;
        EXPECT_NEAR(sum / kElements, exact, 5 * std::sqrt(variance / kElements));
      }
    });
  }
}

// In double by hand, of the first update: lamb with u = m / (sqrt(v) + eps) + decay p, and lars without
// momentum. Parameters of less than a chunk and of several, alone and beside others.
TEST(WholeParameters, AreScaledByTheirOwnNorms) {
  const ParamTable table = table_of({7, 300, 40000, 1, 20000});
  const auto n = static_cast<size_t>(table.flat_elements());
  for (const char* name : {"lamb", "lars"}) {
    SCOPED_TRACE(name);
    UpdateCase u;
    u.config.name = name;
    u.config.weight_decay = 0.1;
    u.spans = whole_parameter_spans(table);
    u.master = normal_values(static_cast<int64_t>(n), 1);
    u.gradients = normal_values(static_cast<int64_t>(n), 2);
    u.states.assign(make_optimizer(u.config)->state_names().size(), Values(n, 3.0));
    const Values got = run_in_all_modes(u.body())["master"];
    const bool lamb = u.config.name == "lamb";
    for (const StateSpan& s : u.spans) {
      const double decay = s.group == kGroupDecay ? 0.1 : 0.0,
                   rate = u.state.learning_rate[s.group];
      double p2 = 0, x2 = 0, largest = 0;
      const auto step = [&](size_t i) {
        const double g = u.gradients[i], p = u.master[i];
        return lamb ? 0.1 * g / (std::sqrt(0.001 * g * g) + 1e-6) + decay * p : g;
      };
      const auto first = static_cast<size_t>(s.offset),
                 last = first + static_cast<size_t>(s.elements);
      for (size_t i = first; i < last; ++i) {
        p2 += u.master[i] * u.master[i];
        x2 += step(i) * step(i);
        largest = std::max(largest, std::fabs(u.master[i]));
      }
      const double p = std::sqrt(p2), x = std::sqrt(x2);
      const double factor = lamb         ? std::min(p, 10.0) / x
                            : decay == 0 ? 1.0
                                         : p / (x + p * decay + 1e-8) * 0.01;
      for (size_t i = first; i < last; ++i) {
        const double d = lamb ? step(i) : step(i) + decay * u.master[i];
        ASSERT_NEAR(got[i], u.master[i] - rate * factor * d, 1e-6 * largest) << i;
      }
      // Alone it has the same bits.
      const ParamTable one = table_of({s.elements});
      UpdateCase alone = u;
      alone.spans = whole_parameter_spans(one);
      alone.spans[0].group = s.group;
      for (Values* v : {&alone.master, &alone.gradients}) {
        v->assign(v->begin() + s.offset, v->begin() + s.offset + s.elements);
        v->resize(static_cast<size_t>(one.flat_elements()));
      }
      for (Values& v : alone.states) v.resize(static_cast<size_t>(one.flat_elements()));
      const Values same = run_on_plan_and_cpu({}, alone.body())["master"];
      for (size_t i = first; i < last; ++i) ASSERT_EQ(got[i], same[i - first]) << i;
    }
    u.spans[2].elements = 256;
    u.spans.insert(u.spans.begin() + 3, {2, u.spans[2].group, u.spans[2].offset + 256, 39744});
    expect_error(ErrorCode::unsupported,
                 {"whole parameters for ", name, "parameter 2 in pieces",
                  "a store made from the optimizer's states()"},
                 [&] { run_on_plan_and_cpu({}, u.body()); });
  }
}

TEST(NoMaster, KeepsWhatIsNotFinite) {
  for (const uint32_t draw : {0u, 0x8000u, 0xffffu}) {
    EXPECT_EQ(bf16_at_random(0x7f800000u, draw), 0x7f80);
    EXPECT_EQ(bf16_at_random(0xff800000u, draw), 0xff80);
    for (const uint32_t nan : {0x7fffffffu, 0xffffffffu, 0x7f800001u})
      EXPECT_TRUE(std::isnan(to_f32(bf16{bf16_at_random(nan, draw)})));
    EXPECT_EQ(bf16_at_random(0x3f800000u, draw), 0x3f80);
    EXPECT_EQ(bf16_at_random(0x80000000u, draw), 0x8000);
  }
}

TEST_P(OptimUpdate, AppliesLossScaleAndClipFactor) {
  const ParamTable table = table_of({300});
  UpdateCase u = periodic_case(GetParam(), table);
  const Outputs want = run_on_plan_and_cpu({}, u.body());
  for (double& g : u.gradients) g *= 1024.0 / 0.25;
  u.state.loss_scale = 1024;
  u.state.clip_factor = 0.25;
  const Outputs got = run_on_plan_and_cpu({}, u.body());
  // The states too: a step of lion does not depend on what it leaves there.
  for (const Output& o : want.all)
    if (o.name != "gradients" && o.name != "step_state") {
      EXPECT_EQ(got[o.name], o.values()) << o.name;
    }
}

// The group chooses the rate, and only group 0 decays.
TEST_P(OptimUpdate, TakesRateAndDecayFromTheGroup) {
  UpdateCase u = periodic_case(GetParam(), table_of({50, 50, 50}));  // groups 0, 0, 1
  u.state.learning_rate[kGroupDecay] = 0.5f;
  u.state.learning_rate[kGroupNoDecay] = 0.25f;
  const Values got = run_on_plan_and_cpu({}, u.body())["master"];

  UpdateCase decayed = u;
  for (StateSpan& s : decayed.spans) s.group = kGroupDecay;
  const Values all_decayed = run_on_plan_and_cpu({}, decayed.body())["master"];
  UpdateCase plain = decayed;
  plain.config.weight_decay = 0;
  plain.state.learning_rate[kGroupDecay] = 0.25f;
  const Values not_decayed = run_on_plan_and_cpu({}, plain.body())["master"];
  const int64_t third = u.spans[2].offset;
  for (int64_t i = 0; i < 50; ++i) {
    EXPECT_EQ(got[i], all_decayed[i]);
    EXPECT_EQ(got[256 + i], all_decayed[256 + i]);
    EXPECT_EQ(got[third + i], not_decayed[third + i]);
    EXPECT_NE(got[third + i], all_decayed[third + i]);
  }
}

// A parameter of a group of the configuration: its rate is a share of the step's, and its decay the
// group's or, left out, that of the table's group.
TEST_P(OptimUpdate, TakesRateAndDecayOfAGroupOfTheConfiguration) {
  UpdateCase u = periodic_case(GetParam(), table_of({50, 50, 50}));  // groups 0, 0, 1
  u.state.learning_rate[kGroupDecay] = 0.5f;
  u.state.learning_rate[kGroupNoDecay] = 0.25f;
  const Values plain = run_on_plan_and_cpu({}, u.body())["master"];
  u.config.groups = {{.rate = 0.5, .weight_decay = 0.3}, {.rate = 0.25, .weight_decay = -1}};
  u.config.group_of = {1, 0, 2};
  const Values got = run_in_all_modes(u.body())["master"];
  UpdateCase first = u;
  first.config.groups = {};
  first.config.group_of = {};
  first.config.weight_decay = 0.3;
  first.state.learning_rate[kGroupDecay] = 0.25f;
  first.state.learning_rate[kGroupNoDecay] = 0.0625f;
  const Values want = run_on_plan_and_cpu({}, first.body())["master"];
  const int64_t second = u.spans[1].offset, third = u.spans[2].offset;
  for (int64_t i = 0; i < 50; ++i) {
    EXPECT_EQ(got[i], want[i]);
    EXPECT_EQ(got[second + i], plain[second + i]);
    EXPECT_EQ(got[third + i], want[third + i]);
    EXPECT_NE(got[third + i], plain[third + i]);
  }
}

// A decay of 0 is a decay that was named, and one that was named holds for what the table excepts too.
TEST_P(OptimUpdate, TakesADecayOfZeroAndOneForWhatHasNone) {
  UpdateCase u = periodic_case(GetParam(), table_of({50, 50, 50}));  // groups 0, 0, 1
  for (float& rate : u.state.learning_rate) rate = 0.5f;
  UpdateCase none = u, much = u;
  none.config.weight_decay = 0, much.config.weight_decay = 0.3;
  u.config.groups = {{.rate = 1, .weight_decay = 0}, {.rate = 1, .weight_decay = 0.3}};
  u.config.group_of = {1, 0, 2};
  const Values got = run_in_all_modes(u.body())["master"],
               without = run_on_plan_and_cpu({}, none.body())["master"],
               with = run_on_plan_and_cpu({}, much.body())["master"];
  const int64_t third = u.spans[2].offset;
  for (int64_t i = 0; i < 50; ++i) {
    EXPECT_EQ(got[i], without[i]);
    EXPECT_EQ(got[third + i], with[i]) << "periodic: as of the first, which decays";
  }
}

// At rate zero the states move and the parameters do not.
TEST_P(OptimUpdate, KeepsParametersAtRateZero) {
  // What is between the points and their average moves without a rate, as the average does.
  if (find_optimizer(GetParam())->keeps_others) return;
  UpdateCase u = periodic_case(GetParam(), table_of({1000}));
  for (float& rate : u.state.learning_rate) rate = 0;
  EXPECT_EQ(run_on_plan_and_cpu({}, u.body())["master"], u.master);
}

// At the first update the states count as zero, whatever is in them.
TEST_P(OptimUpdate, StartsFromZeroStates) {
  UpdateCase u = periodic_case(GetParam(), table_of(kSizes));
  u.state.updates = 0;
  for (Values& v : u.states) v.assign(v.size(), 0);
  const Outputs want = run_on_plan_and_cpu({}, u.body());
  for (Values& v : u.states) v.assign(v.size(), std::nan(""));
  const Outputs got = run_in_all_modes(u.body());
  EXPECT_EQ(got["master"], want["master"]);
  for (const Name& state : std::vector<Name>(make_optimizer(u.config)->state_names()))
    // The average begins where the first step leads.
    EXPECT_EQ(got[state.c_str()][0] == 0, state == Name("z_minus_y")) << state.c_str();
}

// There and back on every place, of parameters and differences of all sizes, whatever a step leaves of
// them: every bit is had again. Weights of 16 bits are those of what is kept. The average, by hand:
// x = y - (1 / beta - 1) d.
TEST_P(OptimUpdate, GoesToTheWeightsToKeepAndBack) {
  if (!find_optimizer(GetParam())->keeps_others) return;
  const ParamTable table = table_of(kSizes);
  const auto n = static_cast<int64_t>(table.flat_elements());
  Values master = normal_values(n, 1), apart = normal_values(n, 2), gradients = normal_values(n, 3);
  for (size_t i = 0; i < master.size(); ++i) {
    master[i] = std::ldexp(master[i], static_cast<int>(i % 29) - 14);
    apart[i] = std::ldexp(apart[i], static_cast<int>(i % 37) - 18);
  }
  OptimizerConfig config;
  config.name = GetParam();
  for (const WeightsMove last : {WeightsMove::to_kept, WeightsMove::to_trained}) {
    const auto body = [&](bool moves) {
      return [&, moves](Case& c) {
        const auto optimizer = make_optimizer(config);
        const UpdateTargets t{c.inout("master", {n}, DType::f32, as_f32(master)),
                              c.inout("weights", {n}, DType::bf16, Values(master.size(), 7.0)),
                              c.input("gradients", {n}, DType::f32, gradients)};
        std::vector<View> states;
        for (const Name& name : std::vector<Name>(optimizer->state_names()))
          states.push_back(
              c.inout(name.c_str(), {n}, DType::f32,
                      holds_squares(name) ? Values(apart.size(), 1.0) : as_f32(apart)));
        StepState s = plain_state();
        s.updates = 4;
        optimizer->prepare_step(s);
        const View v = c.step_state(s);
        CaseStore store(whole_parameter_spans(table), states);
        optimizer->update(c.ctx(), t, store, v);
        if (!moves) return;
        optimizer->move(c.ctx(), t, store, v, WeightsMove::to_kept);
        if (last == WeightsMove::to_trained)
          optimizer->move(c.ctx(), t, store, v, WeightsMove::to_trained);
      };
    };
    const Outputs trained = run_on_plan_and_cpu({}, body(false));
    const Outputs out = run_in_all_modes(body(true));
    EXPECT_EQ(out["z_minus_y"], trained["z_minus_y"]);
    if (last == WeightsMove::to_trained) {
      EXPECT_EQ(out["master"], trained["master"]);
      EXPECT_EQ(out["weights"], trained["weights"]);
      continue;
    }
    const Values difference = trained["z_minus_y"], y = trained["master"], kept = out["master"],
                 rounded_ones = out["weights"];
    const Values bf = rounded(kept, DType::bf16);
    for (const StateSpan& span : whole_parameter_spans(table))
      for (int64_t i = span.offset; i < span.offset + span.elements; ++i) {
        const auto at = static_cast<size_t>(i);
        const double s = difference[at] / 9, want = y[at] - s;
        ASSERT_NEAR(kept[at], want, 0x1p-23 * (std::fabs(want) + 2 * std::fabs(s))) << i;
        ASSERT_EQ(rounded_ones[at], bf[at]) << i;
      }
  }
}

TEST_P(OptimUpdate, WorksOnThePlainStore) {
  const ParamTable table = table_of({600, 1, 20000});
  const UpdateCase u = periodic_case(GetParam(), table);
  UpdateCase zero = u;
  for (Values& v : zero.states) v.assign(v.size(), 0);
  zero.state.updates = 0;
  const Values want = run_on_plan_and_cpu({}, zero.body())["master"];
  const Outputs got = run_in_all_modes([&](Case& c) {
    const auto optimizer = make_optimizer(u.config);
    PlainStateStore store(c.ctx(), table, optimizer->state_names());
    const View master = c.inout("master", {table.flat_elements()}, DType::f32, u.master);
    const View gradients = c.input("gradients", {table.flat_elements()}, DType::f32, u.gradients);
    StepState s = zero.state;
    optimizer->prepare_step(s);
    optimizer->update(c.ctx(), {master, {}, gradients}, store, c.step_state(s));
  });
  EXPECT_EQ(got["master"], want);
}

// Looks, at its first passing, whether anything of the parameter has changed already.
class WatchingGate final : public UpdateGate {
 public:
  WatchingGate(const ParamTable& table, const Values& before, std::vector<View> views)
      : table_(table),
        before_(before),
        views_(std::move(views)),
        passed(static_cast<size_t>(table.size())) {}
  void pass(int64_t param) override {
    const auto p = static_cast<size_t>(param);
    if (passed[p]++ > 0) return;
    const ParamInfo& info = table_[static_cast<int>(param)];
    for (const View& view : views_)
      for (int64_t i = info.offset; i < info.offset + info.elements(); ++i)
        EXPECT_EQ(view.as<float>()[i], static_cast<float>(before_[static_cast<size_t>(i)]))
            << "parameter " << param;
  }

 private:
  const ParamTable& table_;
  const Values& before_;
  std::vector<View> views_;

 public:
  std::vector<int> passed;
};

TEST_P(OptimUpdate, PassesTheGateBeforeItChangesAParameterOrItsStates) {
  const ParamTable table = table_of({600, 1, 40000, 20000});
  const UpdateCase u = periodic_case(GetParam(), table);
  const Values ones(u.master.size(), 1.0);
  for (const bool skipped : {false, true}) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      const auto optimizer = make_optimizer(u.config);
      const int64_t n = table.flat_elements();
      const View master = c.inout("master", {n}, DType::f32, ones);
      const View gradients = c.input("gradients", {n}, DType::f32, u.gradients);
      std::vector<View> states;
      for (const Name& name : optimizer->state_names())
        states.push_back(c.inout(name.c_str(), {n}, DType::f32, ones));
      std::vector<View> watched = states;
      watched.push_back(master);
      WatchingGate gate(table, ones, watched);
      CaseStore store(u.spans, states);
      StepState s = u.state;
      s.found_inf = skipped;
      optimizer->prepare_step(s);
      optimizer->update(c.ctx(), {master, {}, gradients, 0, &gate}, store, c.step_state(s));
      // Once for every chunk of 16384; none on plan, and none where nothing is changed.
      const bool changes = !c.ctx().planning() && !skipped;
      EXPECT_EQ(gate.passed, changes ? (std::vector<int>{1, 1, 3, 2}) : std::vector<int>(4, 0));
    });
  }
}

TEST_P(OptimUpdate, AcceptsNoSpansAndEmptyOnes) {
  UpdateCase u = periodic_case(GetParam(), table_of({256, 256}));
  u.spans[0].elements = 0;
  const Values v = run_in_all_modes(u.body())["master"];
  EXPECT_EQ(v[0], u.master[0]);
  EXPECT_NE(v[256], u.master[256]);
  u.spans.clear();
  EXPECT_EQ(run_in_all_modes(u.body())["master"], u.master);
}

TEST(OptimUpdateErrors, NameWhatDoesNotFit) {
  const ParamTable table = table_of({256});
  const UpdateCase good = periodic_case("adamw", table);
  const auto run = [&](const UpdateCase& u) { run_on_plan_and_cpu({}, u.body()); };

  UpdateCase u = good;
  u.spans[0].elements = 257;
  expect_error(ErrorCode::shape, {"flat range of 256 elements", "parameter 0", "0 to 257"},
               [&] { run(u); });
  u = good;
  u.spans[0].group = kMaxGroups;
  expect_error(ErrorCode::shape, {"groups below 4", "group 4"}, [&] { run(u); });
  u = good;
  u.gradients.resize(255);
  expect_error(ErrorCode::internal, {"as many values"}, [&] { run(u); });
  u = good;
  u.weights = DType::i32;
  expect_error(ErrorCode::unsupported, {"weights", "bf16"}, [&] { run(u); });
  u = good;
  u.state.loss_scale = 0;
  expect_error(ErrorCode::internal, {"loss scale above 0"}, [&] { run(u); });

  const auto with = [&](int64_t gradients, int states) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      const View m = c.output("master", {256}, DType::f32);
      const View g = c.output("gradients", {gradients}, DType::f32);
      CaseStore store(good.spans, std::vector<View>(static_cast<size_t>(states), m));
      make_optimizer({})->update(c.ctx(), {m, {}, g}, store, c.step_state(plain_state()));
    });
  };
  expect_error(ErrorCode::shape, {"gradients", "256", "255"}, [&] { with(255, 2); });
  expect_error(ErrorCode::shape, {"2 states for adamw", "one with 1", "state_names()"},
               [&] { with(256, 1); });
}

}  // namespace
}  // namespace snug::test
