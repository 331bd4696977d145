// An update as a test case: flat tensors of a parameter table, a state store on them, the ops of a
// step; and the fixtures computed by PyTorch and transformers.
#pragma once

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/io/json.h"
#include "engine/io/safetensors.h"
#include "optim/clip.h"
#include "optim/optimizer.h"
#include "optim/settings.h"
#include "tests/support/case.h"
#include "tests/support/errors.h"
#include "tests/support/folders.h"

namespace snug::test {

class Fixture {
 public:
  explicit Fixture(const std::string& name)
      : reader_(source_folder() + "/tests/golden/" + name + ".safetensors"),
        cases_(parse_json(reader_.metadata().at("cases"), name)) {}

  const nlohmann::json& cases() const { return cases_; }
  Values values(const std::string& name) const {
    const SafeTensor& t = reader_.at(name);
    Values v(static_cast<size_t>(t.elements()));
    if (t.dtype == SafeDType::F64) {
      std::memcpy(v.data(), t.data, static_cast<size_t>(t.bytes));
    } else {
      std::vector<float> f(v.size());
      convert(t.dtype, t.data, t.elements(), f.data());
      v.assign(f.begin(), f.end());
    }
    return v;
  }
  double scalar(const std::string& name) const { return values(name).at(0); }

 private:
  SafetensorsReader reader_;
  nlohmann::json cases_;
};

// States in tensors of the case, so that they are filled and read back.
class CaseStore final : public StateStore {
 public:
  CaseStore(std::vector<StateSpan> spans, std::vector<View> states)
      : spans_(std::move(spans)), states_(std::move(states)) {}
  const std::vector<StateSpan>& spans() const override { return spans_; }
  int states() const override { return static_cast<int>(states_.size()); }
  View acquire(Context&, int k, const StateSpan& span) override {
    ++acquired;
    return states_.at(static_cast<size_t>(k)).rows(span.offset, numbers(k, span));
  }
  void release(Context&, int, const StateSpan&) override { ++released; }
  View stored(int k, int64_t first) const override {
    const View& all = states_.at(static_cast<size_t>(k));
    return all.rows(first, all.elements() - first);
  }

  int64_t rows(const StateSpan&) const override { return matrix_rows; }
  int64_t numbers(int k, const StateSpan& s) const override {
    return k == 1 && seconds >= 0 ? seconds : StateStore::numbers(k, s);
  }

  int acquired = 0, released = 0;
  int64_t matrix_rows = 0;  // of all spans, where states are factored
  int64_t seconds = -1;     // numbers of the second state of every span; -1: one an element

 private:
  std::vector<StateSpan> spans_;
  std::vector<View> states_;
};

// A step that changes nothing but what the test sets.
inline StepState plain_state(double learning_rate = 0.01) {
  StepState s{};
  for (float& rate : s.learning_rate) rate = static_cast<float>(learning_rate);
  s.loss_scale = s.clip_factor = 1.0f;
  s.first_bad_element = -1;
  return s;
}

// Values as a float tensor holds them. Through memory: GCC 12 may drop a pair of conversions from
// double to float and back.
inline Values as_f32(const Values& v) {
  std::vector<float> f(v.size());
  store_values(f.data(), DType::f32, v);
  return load_values(f.data(), DType::f32, static_cast<int64_t>(f.size()));
}

// Parameters of the given sizes; every third is not decayed.
inline ParamTable table_of(const std::vector<int64_t>& sizes) {
  ParamTable table;
  for (size_t i = 0; i < sizes.size(); ++i) {
    ParamInfo info;
    info.name = Name("p" + std::to_string(i));
    info.shape = {sizes[i]};
    info.group = i % 3 == 2 ? kGroupNoDecay : kGroupDecay;
    table.add(info);
  }
  return table;
}

// Every optimizer with all the states it may have.
inline bool has_momentum(const std::string& name) {
  return (optim_name(name).facts->uses & kUsesMomentum) != 0;
}

// Whether it sums up over whole parameters before it updates them.
inline bool measures(const std::string& name) {
  const OptimReach reach = find_optimizer(name)->reach;
  return reach == OptimReach::parameter || reach == OptimReach::factored;
}
// Whether its states rest in fp32 alone.
inline bool rests_in_f32(const std::string& name) {
  const OptimFacts& facts = *find_optimizer(name);
  return facts.keeps_others ||
         (facts.reach != OptimReach::element && facts.reach != OptimReach::parameter);
}

// States that are no negative numbers: squares, or sums of them.
inline bool holds_squares(Name state) {
  return state.str().find("sq") != std::string::npos || state.str() == "sum";
}

// Everything an update is given. Names of the outputs: master, weights, exp_avg ..., step_state.
struct UpdateCase {
  OptimizerConfig config;
  std::vector<StateSpan> spans;
  Values master, gradients;
  std::vector<Values> states;
  StepState state = plain_state();
  DType weights = DType::f32;  // f32: the master is the weights
  DType held = DType::f32;     // what it rests in
  DType gradient = DType::f32;
  std::function<void()> before_update, after_update;

  Body body() const {
    return [this](Case& c) {
      const auto optimizer = make_optimizer(config);
      const auto n = static_cast<int64_t>(master.size());
      UpdateTargets t;
      t.master = c.inout("master", {n}, held, master);
      t.gradients = c.inout("gradients", {n}, gradient, gradients);
      if (weights != DType::f32)
        t.weights = c.inout("weights", {n}, weights, Values(master.size(), 7.0));
      std::vector<View> views;
      for (size_t k = 0; k < optimizer->state_names().size(); ++k)
        views.push_back(
            c.inout(optimizer->state_names()[k].c_str(), {n}, DType::f32, states.at(k)));
      StepState s = state;
      optimizer->prepare_step(s);
      const View v = c.step_state(s);
      CaseStore store(spans, views);
      if (before_update) before_update();
      optimizer->update(c.ctx(), t, store, v);
      if (after_update) after_update();
      EXPECT_EQ(store.released, static_cast<int>(spans.size() * views.size()));
      // Kernels ask once more where everything lies.
      const int times = c.ctx().by_kernels() && !c.ctx().planning() ? 2 : 1;
      EXPECT_EQ(store.acquired, times * store.released);
    };
  }
};

}  // namespace snug::test
