// Adafactor's matrices: the bits of every place, home of parameters and thread count; what of them is
// kept, and what is refused.
#include "engine/stores/plain_states.h"
#include "tests/optim/optim_case.h"
#include "tests/support/emu.h"

namespace snug::test {
namespace {

// More rows than a run of sums has, fewer columns than lanes, and the reverse; padded rows; vectors.
ParamTable matrices() {
  ParamTable table;
  table.add({.name = Name("wte"), .shape = {1152, 24}, .rows = 1100});
  table.add({.name = Name("b"), .shape = {300}, .group = kGroupNoDecay});
  table.add({.name = Name("wide"), .shape = {3, 700}});
  table.add({.name = Name("one"), .shape = {1, 5}});
  table.add({.name = Name("w"), .shape = {130, 129}});
  return table;
}

struct Updates {
  DType held = DType::f32, weights = DType::f32, gradient = DType::f32;
  bool found_inf = false;

  Body body() const {
    return [this](Case& c) {
      const ParamTable table = matrices();
      OptimizerConfig config;
      config.name = "adafactor";
      config.weight_decay = 0.1;
      const auto optimizer = make_optimizer(config);
      const int64_t n = table.flat_elements();
      UpdateTargets t;
      t.master = c.inout("master", {n}, held, rounded(normal_values(n, 1), held));
      if (weights != DType::f32)
        t.weights = c.inout("weights", {n}, weights, Values(static_cast<size_t>(n), 7.0));
      PlainStateStore store(c.ctx(), table, optimizer->states(table));
      for (int64_t i = 0; i < 3; ++i) {
        t.gradients = c.input("gradients", {n}, gradient,
                              rounded(normal_values(n, static_cast<uint32_t>(10 + i)), gradient));
        StepState s = plain_state();
        s.seed = 42;
        s.step = s.updates = i;
        s.loss_scale = 4;
        s.found_inf = found_inf && i == 1;
        optimizer->prepare_step(s);
        optimizer->update(c.ctx(), t, store, c.step_state(s));
      }
    };
  }
};

TEST(Factored, HasTheSameBitsOnEveryPlace) {
  for (const auto& [held, weights] :
       {std::pair(DType::f32, DType::f32), std::pair(DType::f32, DType::bf16),
        std::pair(DType::bf16, DType::f32)})
    for (const bool found_inf : {false, true}) {
      const Updates run{.held = held, .weights = weights, .found_inf = found_inf};
      expect_equal_bits(run_on_emu(run.body()), run_in_all_modes(run.body()));
    }
}

// bf16 gradients are widened, which is exact.
TEST(Factored, ReadsGradientsInBf16) {
  const Updates rounded_ones{.gradient = DType::bf16};
  EXPECT_NE(run_in_all_modes(rounded_ones.body())["master"],
            run_on_plan_and_cpu({}, Updates{}.body())["master"]);
}

TEST(Factored, KeepsARowAndAColumn) {
  const ParamTable table = matrices();
  OptimizerConfig config;
  config.name = "adafactor";
  const StateSet set = make_optimizer(config)->states(table);
  EXPECT_TRUE(set.whole);
  EXPECT_EQ(set.bytes_of(0, table[0].real_elements()), 4 * (1100 + 24));
  EXPECT_EQ(set.bytes_of(1, 300), 4 * 300);
  EXPECT_EQ(set.bytes_of(4, 130 * 129), 4 * (130 + 129));
  for (const char* name : {"adafactor_8bit", "adafactor_bf16"}) {
    config.name = name;
    expect_error(ErrorCode::usage,
                 {"adafactor with states in fp32, a row and a column of each matrix",
                  "optim: adafactor, states in ", "optim=adafactor"},
                 [&] { make_optimizer(config); });
  }
}

}  // namespace
}  // namespace snug::test
