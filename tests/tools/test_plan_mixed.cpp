// Stacks in which any layer may go any way: their bytes are those of the record, their seconds a
// bound of it; on a described device they beat every plan of two groups, and more memory is never
// slower.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/tools/plan_case.h"
#include "tests/tools/session_case.h"
#include "tools/planner/plan_search.h"
#include "tools/setup/targets.h"

namespace snug {
namespace {

// Layers are neighbours of layers that do something else in nearly all of these.
TEST(SlowPlanMixed, BytesAreTheRecordsAndSecondsABound) {
  const test::Tiny tinies[] = {
      {.V = 300, .P = 64, .C = 32, .L = 4, .H = 2, .F = 128},
      {.V = 97, .P = 64, .C = 48, .L = 7, .H = 3, .F = 192, .dropout = 0.1},
      {.V = 130, .P = 64, .C = 64, .L = 5, .H = 4, .F = 256, .tied = false}};
  std::vector<ModelSpec> specs = {resolve_model("", test::kTwoKinds).spec};
  for (const test::Tiny& tiny : tinies) specs.push_back(test::tiny_spec(tiny));
  for (const ModelSpec& spec : specs)
    for (const char* precision : {"fp32", "bf16"})
      for (const double link : {1e9, 1e11}) {
        const Model model(spec, parse_precision(precision));
        const CostModel cost = test::described_device(1e11, link);
        PlanRequest r = test::host_request(model, cost, 32, 12);
        double loosest = 1;
        // Behind backward, and, where nothing is clipped, in it.
        for (const bool update : {false, true}) {
          r.max_grad_norm = update ? 0 : 1;
          PlanSearch search(r);
          for (const bool states : {false, true})
            for (const PlanSearch::Choice& c :
                 search.mixed_stacks(update ? 12 : 4, 64, states, 25, 7, {DType::f32, update})) {
              ASSERT_EQ(c.decisions.update_in_backward, update);
              const auto session = search.record(c.decisions);
              const std::string what =
                  c.decisions.recompute.text() + " | " + c.decisions.offload.text();
              ASSERT_EQ(session->schedule().lower_bound(), c.engine_bytes) << what;
              ASSERT_EQ(session->schedule().lower_bound(Residence::host), c.host_bytes) << what;
              const double seconds = search.step_seconds(session->schedule(), c.decisions);
              EXPECT_LE(c.step_seconds, seconds * (1 + 1e-9)) << what;
              loosest = std::min(loosest, c.step_seconds / seconds);
            }
        }
        printf("bound / record, at worst: %.4f\n", loosest);
        EXPECT_GT(loosest, 0.5);
      }
}

// The smallest memory is that of any way for any layer: none of a random sort is smaller, and what
// is said is the record's.
TEST(PlanMixed, NoStackIsSmallerThanTheMinimum) {
  const test::Tiny tiny{.V = 97, .P = 64, .C = 48, .L = 5, .H = 3, .F = 192};
  for (const char* precision : {"fp32", "bf16"})
    for (const double clip : {0.0, 1.0}) {
      const Model model(test::tiny_spec(tiny), parse_precision(precision));
      const CostModel cost = test::described_device(1e11, 1e10);
      PlanRequest r = test::host_request(model, cost, 32, 4);
      r.max_grad_norm = clip;
      r.micro_batch = 4;
      PlanSearch search(r);
      const PlanSearch::Choice least = search.least().front();
      EXPECT_EQ(search.record(least.decisions)->schedule().lower_bound(), least.engine_bytes);
      for (const bool states : {false, true})
        for (const bool update : {false, true}) {
          if (update && clip > 0) continue;
          for (const PlanSearch::Choice& c :
               search.mixed_stacks(4, 64, states, 1000, 3, {DType::f32, update}))
            ASSERT_GE(c.engine_bytes, least.engine_bytes)
                << c.decisions.recompute.text() << " | " << c.decisions.offload.text();
        }
    }
}

TEST(PlanMixed, ManyGroupsAreSaidInBrief) {
  EXPECT_EQ(LayerWords("norms").brief(), "norms");
  EXPECT_EQ(LayerWords("0-3: fc, 4: none").brief(), "0-3: fc, 4: none");
  EXPECT_EQ(LayerWords("0: fc, 1: none, 2: fc, 3: none, 4-7: act").brief(),
            "by layer (act, fc, none in 5 groups)");
}

int groups_of(const std::string& words) {
  return 1 + static_cast<int>(std::count(words.begin(), words.end(), ','));
}

// GPT-2 medium on an H100, by published figures: the link takes longer for what a layer could send
// than the layer computes, so that layers that send are best kept apart.
TEST(SlowPlanMixed, BeatsEveryPlanOfTwoGroupsOnADescribedDevice) {
  const Model model(resolve_model("gpt2-medium", "").spec, parse_precision("bf16"));
  const Target target = find_target("h100");
  const CostModel cost = CostModel::described(target.title, target.rates(DType::bf16));
  PlanRequest r = test::host_request(model, cost, 1024, 32);
  r.runtime_bytes = target.runtime_bytes;
  // For kernels: the workspace of products would follow this CPU's instructions.
  r.settings.target = Place::cuda;
  PlanSearch search(r);
  int mixed = 0;
  double before = 0;
  for (const double gib : {5.0, 6.0, 8.0, 8.5}) {
    const auto budget = static_cast<int64_t>(gib * 1073741824.0);
    r.budget = budget;
    const Plan p = make_plan(r, search);
    ASSERT_TRUE(p.fits);
    EXPECT_GE(p.tokens_per_second(), before * (1 - 1e-9)) << budget;
    before = p.tokens_per_second();
    EXPECT_LE(p.engine_bytes + p.runtime_bytes, budget);
    EXPECT_GT(p.bound_seconds, 0.9 * p.step_seconds);
    EXPECT_LE(p.bound_seconds, p.step_seconds * (1 + 1e-9));
    EXPECT_NEAR(plan_json(p).at("solver").at("gap").get<double>(), p.gap(), 1e-12);
    const int64_t room = budget - p.runtime_bytes;
    const PlanSearch::Choice two = search.best_of_groups(room);
    EXPECT_LE(p.step_seconds, two.step_seconds * (1 + 1e-9));
    EXPECT_GE(two.step_seconds * (1 + 1e-9), p.bound_seconds);
    printf("%.2f GiB: %d groups, gap %.2f %%, %.2f %% faster than two groups\n", gib,
           groups_of(p.decisions.offload.text()), 100 * p.gap(),
           100 * (two.step_seconds / p.step_seconds - 1));
    if (groups_of(p.decisions.offload.text()) <= 2 && groups_of(p.decisions.recompute.text()) <= 2)
      continue;
    if (p.decisions.offload == "none") continue;
    ++mixed;
    EXPECT_GT(two.step_seconds, p.step_seconds);
    EXPECT_EQ(p.optimality, "a way for each layer");
    EXPECT_EQ(plan_hash(make_plan(r)), plan_hash(p)) << "other budgets changed the plan";
    // Outside truth: every plan of two groups of this micro-batch and chunk that fits is slower, by
    // its bound or, where that does not say, by its record.
    int recorded = 0;
    for (const bool states : {false, true})
      for (const PlanSearch::Choice& c :
           search.stacks(p.decisions.micro_batch, p.decisions.head_rows, states)) {
        if (c.engine_bytes > room || c.step_seconds > p.step_seconds) continue;
        const auto session = search.record(c.decisions);
        EXPECT_GT(search.step_seconds(session->schedule(), c.decisions), p.step_seconds)
            << c.decisions.recompute.text() << " | " << c.decisions.offload.text();
        ++recorded;
      }
    printf("  %d plans of two groups recorded\n", recorded);
  }
  EXPECT_GT(mixed, 0);
}

}  // namespace
}  // namespace snug
