// The ways to run a block that are recorded: how many, and what is lost where they are not all.
#include <gtest/gtest.h>

#include <algorithm>

#include "layers/models/peft.h"
#include "tests/tools/plan_case.h"
#include "tests/tools/session_case.h"
#include "tools/costs/block_options.h"

namespace snug {
namespace {

Decisions decisions_of() {
  Decisions d;
  d.T = 32;
  d.micro_batch = 4;
  d.head_rows = 64;
  return d;
}

ModelOptions options_of(const Model& model, const CostModel& cost, size_t most_groups) {
  Settings settings;
  settings.threads = 1;
  return record_block_options(model, decisions_of(), {}, settings, cost, most_groups);
}

// With wide adapters beside each of its linear layers a block has more stages than sets can be recorded
// of.
TEST(BlockOptions, OfManyStagesFewSetsAreRecorded) {
  const ModelSpec spec = resolve_model("", test::kTwoKinds).spec;
  PeftConfig config;
  config.lora_r = 32;
  config.use_dora = true;
  config.target_modules = {"all-linear"};
  const PeftModel peft = resolve_peft(spec, config);
  const Model model(spec, parse_precision("fp32"), peft.frozen, peft.adapters);
  const Body& body = model.block(0).body();
  const auto stages = static_cast<int64_t>(body.stages().size());
  ASSERT_GE(stages, 16);
  const CostModel cost = test::even_device(1e11, 1e10);
  for (const size_t most : {size_t{0}, size_t{6}}) {
    const ModelOptions options = options_of(model, cost, most);
    for (const BlockOptions& kind : options.kinds) {
      const auto all = int64_t{1} << most;
      EXPECT_LE(kind.recorded, all + static_cast<int64_t>(kMostSets) * stages + 1);
      EXPECT_GT(kind.recorded, 2 * stages) << "sets of several stages are among them";
      EXPECT_EQ(kind.names.front(), "none");
    }
  }
}

// Where all sets can be recorded, those that grow from the best are nearly as good: of every limit of
// bytes the layers they make are at most a hundredth slower.
TEST(BlockOptions, SetsThatGrowAreNearlyAsGoodAsAll) {
  const Model model(resolve_model("", test::kTwoKinds).spec, parse_precision("fp32"));
  const CostModel cost = test::even_device(1e11, 1e10);
  const ModelOptions all = options_of(model, cost, kMostGroups), grown = options_of(model, cost, 0);
  ASSERT_LT(grown.kinds[0].recorded, all.kinds[0].recorded);
  LayerProblem truth = all.problem(), few = grown.problem();
  const int64_t least = least_peak(truth).peak;
  truth.limit = few.limit = kNoLimit;
  const int64_t most = solve_layers(truth, {.two_group_tolerance = 0}).peak;
  double worst = 1;
  for (int i = 0; i <= 60; ++i) {
    truth.limit = few.limit = least + (most - least) * i / 60;
    const LayerSolution best = solve_layers(truth, {.two_group_tolerance = 0}),
                        found = solve_layers(few, {.two_group_tolerance = 0});
    ASSERT_TRUE(best.feasible);
    ASSERT_TRUE(found.feasible) << "the preset block is there";
    worst = std::max(worst, found.seconds / best.seconds);
  }
  EXPECT_LE(worst, 1.01);
  std::printf("%zu of %zu ways recorded, at most %.3f %% slower\n",
              static_cast<size_t>(grown.kinds[0].recorded),
              static_cast<size_t>(all.kinds[0].recorded), 100 * (worst - 1));
}

}  // namespace
}  // namespace snug
