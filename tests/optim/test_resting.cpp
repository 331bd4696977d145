// States that rest in codes or in bf16: the bits of decode, update, encode on every place; the
// parameters of bitsandbytes and torchao; and how far they stray from those of fp32 states.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "engine/stores/state_places.h"
#include "optim/kahan.h"
#include "optim/percentile.h"
#include "optim/resting.h"
#include "optim/settings.h"
#include "tests/optim/optim_case.h"
#include "tests/support/emu.h"

namespace snug::test {
namespace {

constexpr StateForm kForms[] = {StateForm::codes8, StateForm::codes4, StateForm::bf16};

// States of any form in tensors of the case.
class RestingStore final : public StateStore {
 public:
  RestingStore(Case& c, const ParamTable& table, StateSet set, const std::vector<Values>* before)
      : set_(std::move(set)), spans_(whole_parameter_spans(table)), places_(spans_, set_) {
    const bool flat = lie_flat(set_);
    const DType dtype = flat ? set_.form.dtype : DType::u8;
    for (size_t k = 0; k < set_.names.size(); ++k) {
      const int64_t n = flat ? table.flat_elements() : places_.of(static_cast<int>(k)).bytes();
      pieces_.push_back(c.inout(set_.names[k].c_str(), {n}, dtype,
                                before ? before->at(k) : Values(static_cast<size_t>(n), 201)));
    }
  }
  const std::vector<StateSpan>& spans() const override { return spans_; }
  int states() const override { return static_cast<int>(pieces_.size()); }
  RestForm form(int k, const StateSpan& s) const override { return set_.form_of(k, s.param); }
  int64_t numbers(int k, const StateSpan& s) const override {
    return set_.numbers(k, s.param, s.elements);
  }
  View acquire(Context&, int k, const StateSpan& s) override {
    const View& piece = pieces_.at(static_cast<size_t>(k));
    if (lie_flat(set_)) return piece.rows(s.offset, s.elements);
    return places_.of(k).values(piece, form(k, s), s.offset, numbers(k, s));
  }
  View acquire_scales(Context&, int k, const StateSpan& s) override {
    if (lie_flat(set_)) return {};
    return places_.of(k).scales(pieces_.at(static_cast<size_t>(k)), form(k, s), s.offset,
                                s.elements);
  }
  void release(Context&, int, const StateSpan&) override {}
  View stored(int, int64_t) const override { return {}; }

 private:
  StateSet set_;
  std::vector<StateSpan> spans_;
  AllPlaces places_;
  std::vector<View> pieces_;
};

struct Steps {
  std::vector<int64_t> sizes;
  std::string name = "adamw";
  StateForm form = StateForm::codes8;
  DType weights = DType::f32;
  int64_t first = 0, count = 3;  // updates
  bool found_inf = false;
  std::vector<char> in_f32 = {};
  std::vector<Values> states = {};  // before; empty: rubbish
  Values master = {};
  DType held = DType::f32;  // what parameters rest in
  bool kahan = false;       // those in bf16, with a compensation
  int percentile = kNoPercentile;
  double odd_gradient = 0;  // of element 700 in the last update

  OptimizerConfig config() const {
    OptimizerConfig c;
    c.name = name;
    c.state = form;
    c.state_in_f32 = in_f32;
    c.weight_decay = 0.1;
    if (has_momentum(name)) c.sgd_momentum = 0.9;
    if (kahan) c.args = {{kKahanArgument, 1}};
    if (percentile != kNoPercentile) c.args.emplace_back(kPercentileArgument, percentile);
    return c;
  }
  ParamTable table() const { return table_of(sizes); }
  Body body() const {
    return [this, table = table()](Case& c) {
      const auto optimizer = make_optimizer(config());
      const int64_t n = table.flat_elements();
      UpdateTargets t;
      t.master = c.inout("master", {n}, held,
                         master.empty() ? rounded(normal_values(n, 1), held) : master);
      if (weights != DType::f32)
        t.weights = c.inout("weights", {n}, weights, Values(static_cast<size_t>(n), 7.0));
      RestingStore store(c, table, optimizer->states(table), states.empty() ? nullptr : &states);
      for (int64_t i = 0; i < count; ++i) {
        const auto seed = static_cast<uint32_t>(10 + first + i);
        Values g = normal_values(n, seed);
        if (odd_gradient != 0 && i + 1 == count) g.at(700) = odd_gradient;
        t.gradients = c.input("gradients", {n}, DType::f32, g);
        StepState s = plain_state();
        s.seed = 42;
        s.step = s.updates = first + i;
        s.found_inf = found_inf;
        optimizer->prepare_step(s);
        optimizer->update(c.ctx(), t, store, c.step_state(s));
      }
    };
  }
};

std::vector<uint8_t> bytes_of(const Outputs& out, const std::string& name) {
  for (const Output& o : out.all)
    if (o.name == name) {
      const auto* first = reinterpret_cast<const uint8_t*>(o.bytes.data());
      return {first, first + o.bytes.size()};
    }
  ADD_FAILURE() << name;
  return {};
}
Values as_values(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

// Rows and columns rest in fp32, and what goes to an average and back.
std::vector<std::string> names_with_forms() {
  std::vector<std::string> names = optimizer_names();
  std::erase_if(names, rests_in_f32);
  return names;
}

class RestingStates : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, RestingStates, testing::ValuesIn(names_with_forms()),
                         [](const auto& i) { return i.param; });

TEST_P(RestingStates, HaveTheSameBitsOnEveryPlace) {
  for (const StateForm form : kForms)
    for (const auto& [held, weights] :
         {std::pair(DType::f32, DType::f32), std::pair(DType::f32, DType::bf16),
          std::pair(DType::bf16, DType::f32)}) {
      SCOPED_TRACE(fmt::format("{} {} {}", to_string(form), to_string(held), to_string(weights)));
      const Steps s{.sizes = {5000, 300, 4096 + 131, 8192},
                    .name = GetParam(),
                    .form = form,
                    .weights = weights,
                    .held = held};
      const Outputs cpu = run_in_all_modes(s.body());
      expect_equal_bits(run_on_emu(s.body()), cpu);
      const Steps skipped{.sizes = {4500, 3},
                          .name = GetParam(),
                          .form = form,
                          .weights = weights,
                          .first = 2,
                          .count = 1,
                          .found_inf = true,
                          .held = held};
      expect_equal_bits(run_on_emu(skipped.body()), run_on_plan_and_cpu({}, skipped.body()));
    }
}

// A number that is not finite and that nothing has found, or one whose square is not: its block comes
// to what the kernels make of it, the others stay as they are.
TEST_P(RestingStates, KeepABlockThatIsNotFiniteToItself) {
  for (const double odd : {1e30, std::numeric_limits<double>::infinity(), std::nan("")}) {
    SCOPED_TRACE(odd);
    const Steps s{.sizes = {5000, 4500}, .name = GetParam(), .odd_gradient = odd};
    const Outputs cpu = run_in_all_modes(s.body());
    expect_equal_bits(run_on_emu(s.body()), cpu);
  }
}

// With a compensation: every place has the bits, and the sums of both numbers are what weights in fp32
// come to; a step loses half a unit of the compensation.
TEST_P(RestingStates, SumWithACompensationOnEveryPlace) {
  for (const bool found_inf : {false, true}) {
    const Steps s{.sizes = {5000, 300, 4096 + 131, 7},
                  .name = GetParam(),
                  .form = StateForm::bf16,
                  .found_inf = found_inf,
                  .held = DType::bf16,
                  .kahan = true};
    const Outputs cpu = run_in_all_modes(s.body());
    expect_equal_bits(run_on_emu(s.body()), cpu);
    const Values before = rounded(normal_values(s.table().flat_elements(), 1), DType::bf16);
    EXPECT_EQ(cpu["master"] == before, found_inf);
    if (found_inf) continue;
    Steps wide = s;
    wide.held = DType::f32;
    wide.kahan = false;
    wide.master = before;
    const Values got = cpu["master"], rest = cpu[kCompensation],
                 want = run_on_plan_and_cpu({}, wide.body())["master"];
    for (size_t i = 0; i < want.size(); ++i)
      if (want[i] != before[i]) {
        ASSERT_NEAR(got[i] + rest[i], want[i],
                    static_cast<double>(s.count) * 0x1p-17 * std::max(1.0, std::fabs(want[i])))
            << i;
      }
  }
}

// Gradients clipped by the norms of their parameters before: every place has the bits, in all forms, of
// parameters of several chunks and of one without an element that may be coded.
TEST_P(RestingStates, ClipByPercentilesOnEveryPlace) {
  for (const StateForm form :
       {StateForm::f32, StateForm::codes8, StateForm::codes4, StateForm::bf16})
    for (const bool kahan : {false, true}) {
      if (kahan && form != StateForm::bf16) continue;
      SCOPED_TRACE(fmt::format("{} {}", to_string(form), kahan));
      Steps s{.sizes = {5000, 300, 33000, 7},
              .name = GetParam(),
              .form = form,
              .count = 4,
              .held = kahan ? DType::bf16 : DType::f32,
              .kahan = kahan,
              .percentile = 1};
      const Outputs cpu = run_in_all_modes(s.body());
      // Four updates: gradients are read once, and of each of four parameters 100 norms, read and written.
      const Outputs recorded = run_on_plan_and_cpu({}, s.body());
      EXPECT_EQ(recorded.costs.at("percentile_clip"),
                std::pair(int64_t{4 * 2 * 38307}, int64_t{4 * (4 * 38307 + 4 * 2 * 4 * 100)}));
      expect_equal_bits(run_on_emu(s.body()), cpu);
      s.found_inf = true;
      expect_equal_bits(run_on_emu(s.body()), run_on_plan_and_cpu({}, s.body()));
      s.found_inf = false;
      s.percentile = kNoPercentile;  // and it does something
      EXPECT_NE(run_on_plan_and_cpu({}, s.body())["master"], cpu["master"]);
    }
}

// Plain steps as PyTorch does them in two bf16 numbers a weight, bit for bit, and the sum of both beside
// doubles. A step loses half a unit of the compensation, 2^-18 of the weight; one rounded to the
// nearest alone, 2^-9.
TEST(Kahan, HasTheBitsOfTwoNumbersInPyTorch) {
  const Fixture fixture("optim_long");
  const Values p0 = fixture.values("p0"), gradients = fixture.values("grads");
  const Values want = fixture.values("kahan.params"), want_rest = fixture.values("kahan.rest"),
               exact = fixture.values("kahan.exact");
  const auto n = static_cast<int64_t>(p0.size());
  const int64_t steps = static_cast<int64_t>(gradients.size()) / n;
  const ParamTable table = table_of({n});
  OptimizerConfig config;
  config.name = "sgd_bf16";
  config.weight_decay = 0.1;
  config.args = {{kKahanArgument, 1}};
  run_on_plan_and_cpu({}, [&](Case& c) {
    const auto optimizer = make_optimizer(config);
    EXPECT_EQ(optimizer->state_names(), std::vector<Name>{Name(kCompensation)});
    Values start = p0;
    start.resize(static_cast<size_t>(table.flat_elements()));
    const View master =
        c.inout("master", {table.flat_elements()}, DType::bf16, rounded(start, DType::bf16));
    const View gradient = c.output("gradients", {table.flat_elements()}, DType::f32);
    RestingStore store(c, table, optimizer->states(table), nullptr);
    const View state = c.step_state(plain_state());
    double worst = 0, largest = 0;
    for (int64_t step = 0; step < steps; ++step) {
      if (!c.ctx().planning()) {
        const auto* row = gradients.data() + step * n;
        store_values(gradient.data, DType::f32, Values(row, row + n));
        step_state(state)->updates = step_state(state)->step = step;
        optimizer->prepare_step(*step_state(state));
      }
      optimizer->update(c.ctx(), {master, {}, gradient}, store, state);
      if (c.ctx().planning() || (step + 1) % 10 != 0) continue;
      const View rest = store.acquire(c.ctx(), 0, store.spans()[0]);
      const Values p = load_values(master.data, DType::bf16, n),
                   r = load_values(rest.data, DType::bf16, n);
      const int64_t at = (step + 1) / 10 - 1;
      for (int64_t i = 0; i < n; ++i) {
        const auto k = static_cast<size_t>(at * n + i);
        ASSERT_EQ(p[static_cast<size_t>(i)], want[k]) << "step " << step << " element " << i;
        ASSERT_EQ(r[static_cast<size_t>(i)], want_rest[k]) << "step " << step << " element " << i;
        worst = std::max(worst, std::fabs(want[k] + want_rest[k] - exact[k]));
        largest = std::max(largest, std::fabs(exact[k]));
      }
    }
    if (!c.ctx().planning()) {
      EXPECT_LE(worst, static_cast<double>(steps) * 0x1p-18 * largest);
    }
  });
}

TEST(Kahan, ErrorTexts) {
  const auto refused = [](const char* name, double value, const char* expected,
                          const char* advice) {
    OptimizerConfig c;
    c.name = name;
    c.args = {{kKahanArgument, value}};
    expect_error(ErrorCode::usage, {expected, advice}, [&] { make_optimizer(c); });
  };
  refused("adamw_8bit", 1, "states in bf16 for use_kahan_summation", "optim=adamw_bf16");
  for (const char* name : {"adafactor", "muon", "adam_mini", "schedule_free_sgd"})
    refused(name, 1, "an optimizer without matrices and averages", "optim=adamw_bf16");
  refused("adamw_bf16", 2, "use_kahan_summation of optim_args as 0 or 1",
          "optim_args=use_kahan_summation=1");
  OptimizerConfig off;
  off.args = {{kKahanArgument, 0}};
  EXPECT_EQ(make_optimizer(off)->state_names().size(), 2u);
}

// A gradient that is not finite: no bit of parameters and states.
TEST_P(RestingStates, KeepEveryBitInASkippedStep) {
  for (const StateForm form : kForms) {
    Steps s{.sizes = {5000, 300},
            .name = GetParam(),
            .form = form,
            .first = 5,
            .count = 1,
            .found_inf = true};
    const Outputs out = run_in_all_modes(s.body());
    EXPECT_EQ(out["master"], normal_values(s.table().flat_elements(), 1));
    for (const Name& name : std::vector<Name>(make_optimizer(s.config())->state_names()))
      for (const double x : out[name.c_str()]) ASSERT_EQ(x, 201);
  }
}

// The update of fp32 states on what the codes stand for, encoded block by block: quant/ is held to
// bitsandbytes and torchao, the rules to PyTorch.
TEST_P(RestingStates, AreDecodedUpdatedAndEncoded) {
  for (const StateForm form : {StateForm::codes8, StateForm::codes4}) {
    Steps s{.sizes = {4096 + 131}, .name = GetParam(), .form = form};
    const Outputs before = run_on_plan_and_cpu({}, s.body());
    const auto optimizer = make_optimizer(s.config());
    const ParamTable table = s.table();
    const StateSet set = optimizer->states(table);
    const StatePlaces places(whole_parameter_spans(table), set);
    const int64_t n = s.sizes[0], flat = table.flat_elements();
    const auto piece = [&](std::vector<uint8_t>& bytes) {
      return View{
          bytes.data(), {static_cast<int64_t>(bytes.size())}, DType::u8, Place::cpu, Name("piece")};
    };
    Steps plain = s;
    plain.form = StateForm::f32;
    plain.first = s.first = 3;
    plain.count = s.count = 1;
    plain.master = s.master = before["master"];
    for (size_t k = 0; k < set.names.size(); ++k) {
      std::vector<uint8_t> bytes = bytes_of(before, set.names[k].str());
      s.states.push_back(as_values(bytes));
      const RestForm f = set.form_of(static_cast<int>(k), 0);
      const View values = places.values(piece(bytes), f, 0, n),
                 scales = places.scales(piece(bytes), f, 0, n);
      std::vector<float> y(static_cast<size_t>(flat));
      codes_decode(CodeSpec(codec(f.codec)), y.data(), values.as<uint8_t>(), scales.as<float>(), n);
      plain.states.emplace_back(y.begin(), y.end());
    }
    const Outputs got = run_on_plan_and_cpu({}, s.body());
    const Outputs want = run_on_plan_and_cpu({}, plain.body());
    EXPECT_EQ(got["master"], want["master"]);
    for (size_t k = 0; k < set.names.size(); ++k) {
      const RestForm f = set.form_of(static_cast<int>(k), 0);
      std::vector<uint8_t> mine = bytes_of(got, set.names[k].str()), theirs = mine;
      const Values x = want[set.names[k].str()];
      const std::vector<float> floats(x.begin(), x.begin() + n);
      codes_encode(CodeSpec(codec(f.codec)), floats.data(), n,
                   places.values(piece(theirs), f, 0, n).as<uint8_t>(),
                   places.scales(piece(theirs), f, 0, n).as<float>());
      EXPECT_TRUE(mine == theirs) << set.names[k].str();
    }
  }
}

float noise(uint64_t salt, int64_t i, float size) {
  if (salt > 0 && i % 7 == 0) return 0;
  const auto bits = static_cast<uint32_t>(mix64(static_cast<uint64_t>(i) * 977 + salt));
  return (uniform_from(bits) - 0.5f) * size;
}

// Parameters after some of 500 updates with the gradients of make_state_golden.py.
std::vector<Values> long_run(const OptimizerConfig& config, double rate,
                             const std::vector<int64_t>& kept, int64_t n) {
  std::vector<Values> rows;
  const ParamTable table = table_of({n});
  run_on_plan_and_cpu({}, [&](Case& c) {
    const auto optimizer = make_optimizer(config);
    Values start;
    for (int64_t i = 0; i < n; ++i) start.push_back(noise(0, i, 0.35f));
    const View master = c.inout("master", {n}, DType::f32, start);
    const View gradients = c.output("gradients", {n}, DType::f32);
    RestingStore store(c, table, optimizer->states(table), nullptr);
    const View state = c.step_state(plain_state(rate));
    for (int64_t step = 1; step <= kept.back(); ++step) {
      if (!c.ctx().planning()) {
        for (int64_t i = 0; i < n; ++i)
          gradients.as<float>()[i] = noise(static_cast<uint64_t>(step), i, 0.035f);
        step_state(state)->updates = step_state(state)->step = step - 1;
        optimizer->prepare_step(*step_state(state));
      }
      optimizer->update(c.ctx(), {master, {}, gradients}, store, state);
      if (!c.ctx().planning() && std::find(kept.begin(), kept.end(), step) != kept.end())
        rows.push_back(load_values(master.data, DType::f32, n));
    }
  });
  return rows;
}

double rms(const Values& a, const Values& b, int64_t each = 1) {
  double sum = 0, count = 0;
  for (size_t i = 0; i < a.size(); i += static_cast<size_t>(each), ++count)
    sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum / count);
}

// One update is theirs to the rounding; two, within the gates of bitsandbytes' own tests (mean of
// |difference| 6e-5, relative 6e-4); 500 without looking at each other, and beside fp32 states, within
// a share of the movement, 4 % for Adam in 8 bits. Rmsprop and adagrad of bitsandbytes keep squares in
// the signed map, half as fine as ours.
TEST(RestingGolden, StaysWithBitsandbytesAndTorchao) {
  const Fixture fixture("optim_states");
  constexpr int64_t kSize = 4352, kEach = 4;
  ASSERT_EQ(fixture.cases().size(), 7u);
  for (const auto& [name, described] : fixture.cases().items()) {
    SCOPED_TRACE(name);
    OptimizerConfig config;
    config.name = described.at("optimizer");
    config.weight_decay = described.at("weight_decay");
    if (name.starts_with("lion")) config.adam_beta2 = 0.99;
    if (name.starts_with("sgd")) config.sgd_momentum = 0.9;
    const std::vector<int64_t> kept = described.at("steps");
    const double rate = described.at("lr");
    const std::vector<Values> got = long_run(config, rate, kept, kSize);
    OptimizerConfig plain = config;
    plain.name = name.substr(0, name.find('_'));
    const std::vector<Values> exact = long_run(plain, rate, kept, kSize);
    const Values all = fixture.values(name);
    const size_t row = kSize / kEach;
    Values start;
    for (int64_t i = 0; i < kSize; ++i) start.push_back(noise(0, i, 0.35f));
    for (size_t k = 0; k < kept.size(); ++k) {
      SCOPED_TRACE(kept[k]);
      Values mine;
      double worst = 0, mean = 0, relative = 0;
      const double* theirs = all.data() + k * row;
      for (size_t i = 0; i < row; ++i) {
        mine.push_back(got[k][i * kEach]);
        const double error = std::fabs(mine[i] - theirs[i]);
        worst = std::max(worst, error);
        mean += error / static_cast<double>(row);
        relative += error / (std::fabs(theirs[i]) + 1e-9) / static_cast<double>(row);
      }
      const double moved = rms(got[k], start), off = rms(got[k], exact[k]),
                   apart = rms(mine, Values(theirs, theirs + row));
      RecordProperty(
          fmt::format("{}_{}", name, kept[k]),
          fmt::format("worst {:.2e} mean {:.2e} relative {:.2e}; of the movement {:.2e}: "
                      "from fp32 {:.4f}, from theirs {:.4f}",
                      worst, mean, relative, moved, off / moved, apart / moved));
      const bool own = name.starts_with("rmsprop") || name.starts_with("adagrad");
      const bool four = name.ends_with("4bit"), lion = name.starts_with("lion");
      if (kept[k] == 1) {
        EXPECT_LE(worst, 2 * 0.175 * 0x1p-23);  // two roundings of the largest parameter
      } else if (kept[k] == 2) {
        EXPECT_LT(mean, 6e-5);
        EXPECT_LT(relative, 6e-4);
      }
      // From theirs: codes on the other side of a tie. From fp32: a sign of lion near 0 turns, and in
      // 4 bits the smallest of 16 squares stands for all below it.
      EXPECT_LT(apart / moved, own ? 0.02 : 0.003);
      EXPECT_LT(off / moved, four ? 0.35 : lion ? 0.08 : 0.04);
      // No gradient: what decay alone does, with the bits of fp32.
      for (size_t i = 0; i < got[k].size(); i += 7) ASSERT_EQ(got[k][i], exact[k][i]) << i;
    }
  }
}

}  // namespace
}  // namespace snug::test
