// Twenty steps of optimizers against PyTorch (Lion: lion-pytorch) in float64, and a hundred of all
// against their references.
#include <algorithm>
#include <cmath>
#include <set>

#include "tests/optim/optim_case.h"

namespace snug::test {
namespace {

constexpr int64_t kSteps = 20, kSize = 50;
constexpr int64_t kLongSteps = 100, kLongSize = 60, kEvery = 10;

OptimizerConfig config_of(const nlohmann::json& j) {
  OptimizerConfig c;
  c.name = j.at("optimizer").get<std::string>();
  std::transform(c.name.begin(), c.name.end(), c.name.begin(), ::tolower);
  c.learning_rate = j.at("lr");
  c.weight_decay = j.at("weight_decay");
  if (c.name == "sgd") {
    c.sgd_momentum = j.at("momentum");
    c.sgd_dampening = j.at("dampening");
    c.sgd_nesterov = j.at("nesterov");
  } else {
    c.adam_beta1 = j.at("betas").at(0);
    c.adam_beta2 = j.at("betas").at(1);
    if (c.name != "lion") c.adam_epsilon = j.at("eps");
  }
  return c;
}

// The parameters after each step, flat (steps, size). The states start as rubbish: the first update
// must not read them. kept: those to keep of optimizers whose are others, from which every bit is had again.
Values run_steps(const OptimizerConfig& config, const Values& p0, const Values& gradients,
                 const Values& rates, int64_t rows = 0, Values* kept = nullptr,
                 int64_t seconds = -1) {
  const auto size = static_cast<int64_t>(p0.size()), steps = static_cast<int64_t>(rates.size());
  Values all;
  run_on_plan_and_cpu({}, [&](Case& c) {
    const auto optimizer = make_optimizer(config);
    const View master = c.inout("master", {size}, DType::f32, p0);
    const View gradient = c.output("gradient", {size}, DType::f32);
    std::vector<View> states;
    for (const Name name : optimizer->state_names())
      states.push_back(c.inout(name.c_str(), {size}, DType::f32, Values(p0.size(), 1e30)));
    const View state = c.step_state(plain_state());
    CaseStore store({{0, kGroupDecay, 0, size}}, states);
    store.matrix_rows = rows;
    store.seconds = seconds;
    for (int64_t step = 0; step < steps; ++step) {
      if (!c.ctx().planning()) {
        const auto* row = gradients.data() + step * size;
        store_values(gradient.data, DType::f32, Values(row, row + size));
        StepState& s = *step_state(state);
        s.updates = step;
        s.learning_rate[kGroupDecay] = static_cast<float>(rates.at(step));
        optimizer->prepare_step(s);
      }
      optimizer->update(c.ctx(), {master, {}, gradient}, store, state);
      if (c.ctx().planning() && optimizer->keeps_others() && kept != nullptr)
        for (const WeightsMove where : {WeightsMove::to_kept, WeightsMove::to_trained})
          optimizer->move(c.ctx(), {master, {}, gradient}, store, state, where);
      if (c.ctx().planning()) continue;
      const Values now = load_values(master.data, DType::f32, size);
      all.insert(all.end(), now.begin(), now.end());
      if (!optimizer->keeps_others() || kept == nullptr) continue;
      StepState& s = *step_state(state);
      s.updates = step + 1;
      const std::vector<Values> had = {load_values(states[0].data, DType::f32, size), now};
      optimizer->move(c.ctx(), {master, {}, gradient}, store, state, WeightsMove::to_kept);
      const Values there = load_values(master.data, DType::f32, size);
      kept->insert(kept->end(), there.begin(), there.end());
      optimizer->move(c.ctx(), {master, {}, gradient}, store, state, WeightsMove::to_trained);
      EXPECT_EQ(load_values(states[0].data, DType::f32, size), had[0]) << "step " << step;
      EXPECT_EQ(load_values(master.data, DType::f32, size), had[1]) << "step " << step;
    }
  });
  return all;
}

// What fp32 may be off by after s steps, u = 2^-24.
//   Parameter: each step rounds the decayed and the new value and carries the rounding of the decay
//     factor: 3 u |p|.
//   SGD: the error of the buffer settles below 2 u |buffer| / (1 - 0.9), of which each step takes
//   lr;
//     with the roundings of gradient, rate and product that is below 24 u times the largest step.
//   Adam: the error of m is at most 14 u max|g|, that of sqrt(v) s u; max|g| / sqrt(v / bc2) is at
//     most sqrt(s) since v holds g^2 (1 - beta2): a step errs by at most 40 sqrt(s) u lr.
//   Lion: the sign is exact, as long as what it is of is not within roundings of zero, and rate and
//     step are rounded.
// The steps add up.
double bound(const OptimizerConfig& c, const Values& want, const Values& p0, int64_t i,
             int64_t step, double max_rate) {
  double size = std::fabs(p0[i]), move = 0, before = p0[i];
  for (int64_t s = 0; s <= step; ++s) {
    const double now = want[s * kSize + i];
    size = std::max(size, std::fabs(now));
    move = std::max(move, std::fabs(now - before));
    before = now;
  }
  const auto s = static_cast<double>(step + 1);
  const double per_step = c.name == "sgd"    ? 24 * move
                          : c.name == "lion" ? 2 * max_rate
                                             : 40 * std::sqrt(s) * max_rate;
  return unit_roundoff(DType::f32) * s * (3 * size + per_step);
}

TEST(OptimTrajectory, EqualsPyTorch) {
  const Fixture fixture("optim_steps");
  const Values p0 = fixture.values("p0"), gradients = fixture.values("grads");
  ASSERT_EQ(fixture.cases().size(), 15u);
  for (const auto& [name, description] : fixture.cases().items()) {
    SCOPED_TRACE(name);
    const OptimizerConfig config = config_of(description);
    const Values want = fixture.values(name + ".params"), rates = fixture.values(name + ".lr");
    const Values got = run_steps(config, p0, gradients, rates);
    ASSERT_EQ(got.size(), want.size());
    const double max_rate = *std::max_element(rates.begin(), rates.end());
    double worst = 0;
    for (int64_t step = 0; step < kSteps; ++step)
      for (int64_t i = 0; i < kSize; ++i) {
        const int64_t at = step * kSize + i;
        const double b = bound(config, want, p0, i, step, max_rate);
        const double error = std::fabs(got[at] - want[at]);
        EXPECT_LE(error, b) << "step " << step << " element " << i;
        if (b > 0) worst = std::max(worst, error / b);
      }
    RecordProperty(name + "_worst_error_over_bound", std::to_string(worst));
    // The bound is not so wide that the moments' rules could hide in it.
    EXPECT_LT(bound(config, want, p0, 10, kSteps - 1, max_rate),
              0.01 * std::max(max_rate, std::fabs(want[(kSteps - 1) * kSize + 10] - p0[10])));
  }
}

// Of the tensor: the largest difference over the largest value, after every tenth update. An element
// without a gradient keeps its bits where nothing decays it.
TEST(OptimTrajectory, StaysWithItsReferenceOverAHundredSteps) {
  const Fixture fixture("optim_long");
  const Values p0 = fixture.values("p0"), gradients = fixture.values("grads");
  ASSERT_EQ(p0.size(), static_cast<size_t>(kLongSize));
  std::set<std::string> seen;
  for (const auto& [name, description] : fixture.cases().items()) {
    SCOPED_TRACE(name);
    OptimizerConfig config;
    config.name = description.at("optimizer");
    config.weight_decay = description.at("weight_decay");
    if (find_optimizer(config.name)->uses & kUsesMomentum) {
      config.sgd_momentum = description.at("momentum");
      config.sgd_nesterov = description.at("nesterov");
      config.sgd_dampening = description.at("dampening");
    }
    for (const auto& [key, value] : description.at("args").items())
      config.args.emplace_back(key, value.get<double>());
    seen.insert(config.name);
    config.learning_rate = 0.01;
    for (const auto& piece : description.at("pieces")) {
      config.pieces.resize(1);
      config.pieces[0].push_back({piece.at(0), piece.at(1)});
    }
    Values kept;
    const Values trained = run_steps(config, p0, gradients, Values(kLongSteps, 0.01),
                                     description.at("rows"), &kept, description.at("seconds"));
    // Products of bf16: each of 15 rounds a direction, whose numbers are at most 1, by 2^-9; torch sums in
    // another order, and so rounds some of them the other way. Steps of 0.01 add that up.
    const bool coarse = name == "muon_bf16";
    double worst = 0;
    for (const auto& [got, what] :
         {std::pair<const Values*, const char*>(&trained, ".params"), {&kept, ".kept"}}) {
      if (got->empty()) continue;
      const Values want = fixture.values(name + what);
      for (int64_t k = 0; k < kLongSteps / kEvery; ++k) {
        double largest = 0, error = 0;
        const int64_t row = (k + 1) * kEvery - 1;
        for (int64_t i = 0; i < kLongSize; ++i) {
          const double reference = want[k * kLongSize + i], value = (*got)[row * kLongSize + i];
          largest = std::max(largest, std::fabs(reference));
          error = std::max(error, std::fabs(value - reference));
        }
        const double most =
            coarse ? 15 * 0x1p-9 * 0.01 * static_cast<double>(row + 1) : 1e-6 * largest;
        EXPECT_LE(error, most) << what << " after update " << row + 1;
        worst = std::max(worst, error / largest);
        if (config.weight_decay == 0) {
          EXPECT_EQ((*got)[row * kLongSize], p0[0]);
        }
      }
    }
    RecordProperty(name + "_worst_relative_error", std::to_string(worst));
  }
  for (const std::string& name : optimizer_names())
    EXPECT_TRUE(seen.contains(name)) << name << " has no case in optim_long";
}

}  // namespace
}  // namespace snug::test
