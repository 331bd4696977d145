// What the planner does with gradients that may rest with the host: only where it pays or alone
// fits, never slower with more memory, with the bytes and seconds of the record.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/tools/plan_case.h"
#include "tests/tools/session_case.h"
#include "tools/planner/ladder.h"
#include "tools/planner/plan_search.h"
#include "tools/setup/targets.h"

namespace snug {
namespace {

const test::Tiny kTiny{.V = 200, .P = 32, .C = 64, .L = 8, .H = 2, .F = 256};

PlanRequest request_of(const Model& model, const CostModel& cost) {
  PlanRequest r = test::host_request(model, cost, 32, 8);
  r.save = true;
  r.offload_params = r.offload_gradients = "auto";
  return r;
}

// Budgets from below the minimum to plenty, over a fast and a slow link: what is planned fits, its
// seconds are the record's, and more memory is never predicted slower, from where gradients and
// weights rest with the host to where all stays.
TEST(SlowPlanHostGradients, MoreMemoryIsNeverSlower) {
  for (const char* precision : {"fp32", "bf16"})
    for (const double link : {1e8, 1e10, 1e12})
      for (const char* params : {"none", "auto"}) {
        SCOPED_TRACE(fmt::format("{}, link {}, params {}", precision, link, params));
        const Model model(test::tiny_spec(kTiny), parse_precision(precision));
        const CostModel cost = test::even_device(1e11, link);
        PlanRequest r = request_of(model, cost);
        r.offload_params = params;
        PlanSearch search(r);
        PlanRequest ask = r;
        ask.budget = 1;
        const Plan refused = make_plan(ask, search);
        EXPECT_FALSE(refused.fits);
        const int64_t least = refused.minimum_bytes;
        double before = INFINITY;
        bool away = false, resident = false;
        for (int step = 0; step <= 14; ++step) {
          ask.budget = refused.runtime_bytes +
                       static_cast<int64_t>(static_cast<double>(least - refused.runtime_bytes) *
                                            std::pow(1.25, step)) +
                       4095;
          const Plan plan = make_plan(ask, search);
          ASSERT_TRUE(plan.fits) << ask.budget;
          EXPECT_LE(plan.engine_bytes + plan.runtime_bytes, ask.budget);
          EXPECT_LE(plan.step_seconds, before * (1 + 1e-9));
          before = plan.step_seconds;
          (plan.decisions.offload_gradients ? away : resident) = true;
          const auto session = search.record(plan.decisions);
          EXPECT_DOUBLE_EQ(search.step_seconds(session->schedule(), plan.decisions),
                           plan.step_seconds);
          EXPECT_TRUE(plan.moved || !plan.decisions.offload_gradients);
        }
        EXPECT_TRUE(away && resident);
        ask.budget = least - 4096;
        EXPECT_FALSE(make_plan(ask, search).fits);
      }
}

// Without the permission of the host's memory nothing goes there, and told to all does; with
// updates in backward there are none to keep, and told to keep them there is no such update.
TEST(PlanHostGradients, FollowWhatTheUserFixed) {
  const Model model(test::tiny_spec(kTiny), parse_precision("fp32"));
  const CostModel cost = test::even_device(1e11, 1e10);
  PlanRequest r = request_of(model, cost);
  r.use_host = false;
  const Plan alone = make_plan(r);
  EXPECT_FALSE(alone.decisions.offload_gradients);
  r.offload_gradients = "cpu";
  const Plan fixed = make_plan(r);
  EXPECT_TRUE(fixed.fits);
  EXPECT_TRUE(fixed.decisions.offload_gradients);
  EXPECT_FALSE(fixed.decisions.offload_optimizer || fixed.decisions.offload_params);
  EXPECT_FALSE(fixed.moved) << "it was not the planner's choice";
  EXPECT_LT(fixed.minimum_bytes, alone.minimum_bytes);
  r = request_of(model, cost);
  r.max_grad_norm = 0;
  r.micro_batch = r.global_batch;
  r.budget = 1;
  EXPECT_TRUE(make_plan(r).decisions.update_in_backward);
  r.offload_gradients = "cpu";
  r.budget = 0;
  const Plan kept = make_plan(r);
  EXPECT_TRUE(kept.decisions.offload_gradients);
  EXPECT_FALSE(kept.decisions.update_in_backward);
  for (const char* optimizer : {"none", "cpu"})
    for (const char* params : {"none", "cpu"}) {
      if (params == std::string("cpu") && optimizer == std::string("none")) continue;
      r.offload_optimizer = optimizer;
      r.offload_params = params;
      const Plan plan = make_plan(r);
      EXPECT_TRUE(plan.decisions.offload_gradients);
      EXPECT_EQ(plan.decisions.offload_optimizer, optimizer == std::string("cpu"));
      EXPECT_EQ(plan.decisions.offload_params, params == std::string("cpu"));
      EXPECT_FALSE(plan.moved);
    }
}

// The smallest memory: less than with the states and the weights with the host alone, and said.
TEST(PlanHostGradients, AreWhatTheSmallestMemoryNeeds) {
  const Model model(test::tiny_spec(kTiny), parse_precision("bf16"));
  const CostModel cost = test::even_device(1e11, 1e10);
  PlanRequest r = request_of(model, cost);
  PlanRequest without = r;
  without.offload_gradients = "none";
  without.budget = make_plan(r).minimum_bytes;
  const Plan refused = make_plan(without);
  EXPECT_FALSE(refused.fits);
  EXPECT_GT(refused.minimum_bytes, without.budget);
  bool offered = false;
  for (const Offer& o : refused.offers)
    offered = offered || (o.keys.starts_with("offload_gradients=cpu host_memory=") && o.enough);
  EXPECT_TRUE(offered);
  r.budget = without.budget;
  const Plan plan = make_plan(r);
  ASSERT_TRUE(plan.decisions.offload_gradients);
  EXPECT_NE(
      plan_sentence(plan).find(
          "the layers' weights, the layers' gradients and the optimizer's state with the host"),
      std::string::npos)
      << plan_sentence(plan);
  EXPECT_NE(plan_text(plan).find("come back; without it nothing fits"), std::string::npos)
      << plan_text(plan);
  EXPECT_EQ(plan_json(plan).at("decisions").at("offload_gradients"), "cpu");
  EXPECT_EQ(plan_json(plan).at("categories").at("offload"), plan.host_bytes);
  const Ladder ladder = make_ladder(r, {r.budget});
  EXPECT_EQ(ladder_json(ladder).at(0).at("offload_gradients"), "cpu");
  EXPECT_NE(ladder_text(ladder).find("weights, gradients and optimizer with the host"),
            std::string::npos)
      << ladder_text(ladder);
}

// Without the states there, gradients alone: what the ladder and the sentence call it.
TEST(PlanHostGradients, AloneAreCalledSo) {
  const Model model(test::tiny_spec(kTiny), parse_precision("fp32"));
  const CostModel cost = test::even_device(1e11, 1e10);
  PlanRequest r = request_of(model, cost);
  r.offload = r.offload_params = r.offload_optimizer = "none";
  r.budget = make_plan(r).minimum_bytes;
  const Plan plan = make_plan(r);
  ASSERT_TRUE(plan.decisions.offload_gradients);
  EXPECT_NE(plan_sentence(plan).find(", the layers' gradients with the host,"), std::string::npos)
      << plan_sentence(plan);
  EXPECT_NE(ladder_text(make_ladder(r, {r.budget})).find(", gradients with the host"),
            std::string::npos);
  PlanRequest both = r;
  both.offload_optimizer = "cpu";
  both.budget = make_plan(both).minimum_bytes;
  EXPECT_NE(
      ladder_text(make_ladder(both, {both.budget})).find(", gradients and optimizer with the"),
      std::string::npos);
}

}  // namespace
}  // namespace snug
