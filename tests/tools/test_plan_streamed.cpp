// What the planner does with weights that may rest with the host: only where it pays or alone fits,
// never slower with more memory, with the bytes and seconds of the record.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "layers/models/freeze.h"
#include "tests/tools/plan_case.h"
#include "tests/tools/session_case.h"
#include "tools/calibrate/calibrated_cost.h"
#include "tools/calibrate/calibration.h"
#include "tools/planner/plan_search.h"
#include "tools/setup/targets.h"

namespace snug {
namespace {

const test::Tiny kTiny{.V = 200, .P = 32, .C = 64, .L = 8, .H = 2, .F = 256};

PlanRequest request_of(const Model& model, const CostModel& cost) {
  PlanRequest r = test::host_request(model, cost, 32, 8);
  r.max_grad_norm = 0;
  r.evaluate = true;
  r.save = true;
  r.offload_params = "auto";
  return r;
}

// Budgets from below the minimum to plenty, over a fast and a slow link: what is planned fits, its
// seconds are the record's, and more memory is never predicted slower, across the point where the
// weights come to stay on the device.
TEST(SlowPlanStreamed, MoreMemoryIsNeverSlower) {
  for (const char* precision : {"fp32", "bf16"})
    for (const double link : {1e8, 1e10, 1e12})
      for (const double clip : {0.0, 1.0}) {
        const Model model(test::tiny_spec(kTiny), parse_precision(precision));
        const CostModel cost = test::even_device(1e11, link);
        PlanRequest r = request_of(model, cost);
        r.max_grad_norm = clip;
        PlanSearch search(r);
        PlanRequest ask = r;
        ask.budget = 1;
        const Plan refused = make_plan(ask, search);
        EXPECT_FALSE(refused.fits);
        const int64_t least = refused.minimum_bytes;
        double before = INFINITY;
        bool streamed = false, resident = false;
        for (int step = 0; step <= 12; ++step) {
          ask.budget = refused.runtime_bytes +
                       static_cast<int64_t>(static_cast<double>(least - refused.runtime_bytes) *
                                            std::pow(1.35, step)) +
                       4095;
          const Plan plan = make_plan(ask, search);
          ASSERT_TRUE(plan.fits) << ask.budget;
          EXPECT_LE(plan.engine_bytes + plan.runtime_bytes, ask.budget);
          EXPECT_LE(plan.step_seconds, before * (1 + 1e-9)) << precision << link;
          before = plan.step_seconds;
          (plan.decisions.offload_params ? streamed : resident) = true;
          const auto session = search.record(plan.decisions);
          EXPECT_DOUBLE_EQ(search.step_seconds(session->schedule(), plan.decisions),
                           plan.step_seconds);
          if (plan.decisions.offload_params) {
            EXPECT_TRUE(plan.moved);
            EXPECT_TRUE(plan.decisions.offload_optimizer);
          }
        }
        EXPECT_TRUE(streamed && resident) << precision << ", link " << link << ", clip " << clip;
        ask.budget = least - 4096;
        EXPECT_FALSE(make_plan(ask, search).fits);
      }
}

// Without the permission of the host's memory nothing is streamed, and told to stream all is.
TEST(SlowPlanStreamed, FollowsWhatTheUserFixed) {
  const Model model(test::tiny_spec(kTiny), parse_precision("fp32"));
  const CostModel cost = test::even_device(1e11, 1e10);
  PlanRequest r = request_of(model, cost);
  r.use_host = false;
  EXPECT_FALSE(make_plan(r).decisions.offload_params);
  const int64_t alone = make_plan(r).minimum_bytes;
  r.offload_params = "cpu";
  const Plan fixed = make_plan(r);
  EXPECT_TRUE(fixed.fits);
  EXPECT_TRUE(fixed.decisions.offload_params);
  EXPECT_TRUE(fixed.decisions.offload_optimizer);
  EXPECT_FALSE(fixed.moved) << "it was not the planner's choice";
  EXPECT_LT(fixed.minimum_bytes, alone);
  r = request_of(model, cost);
  r.offload_optimizer = "none";
  r.budget = 1;
  EXPECT_FALSE(make_plan(r).decisions.offload_params) << "the state has to be there too";
  r.offload_optimizer = "auto";
  EXPECT_TRUE(make_plan(r).decisions.offload_params);
  r.packed_weights = WeightPacking::both;
  EXPECT_FALSE(make_plan(r).decisions.offload_params);
  r.packed_weights.reset();
  // A host without room for all that: the smallest is one that leaves the weights.
  r.host_budget = 3 * 4 * model.params().flat_elements() / 4;
  EXPECT_FALSE(make_plan(r).decisions.offload_params);
}

// A frozen embedding rests with the host where its bytes are missing, and only there; more memory is
// never slower across the point where it comes to stay, and what is planned is what the record says.
TEST(PlanStreamed, AFrozenEmbeddingGoesWhereItPays) {
  test::Tiny tiny = kTiny;
  tiny.V = 20000;  // 2.4 MiB in bf16, beside blocks of 0.1
  tiny.tied = false;
  const ModelSpec spec = test::tiny_spec(tiny);
  const Model model(spec, parse_precision("bf16"), resolve_freeze(spec, {".", "h.7.|ln_f"}).says);
  const CostModel cost = test::even_device(1e11, 1e10);
  PlanRequest r = request_of(model, cost);
  r.offload = r.offload_params = "none";
  r.offload_embedding = "auto";
  PlanSearch search(r);
  PlanRequest ask = r;
  ask.budget = 1;
  const Plan refused = make_plan(ask, search);
  EXPECT_FALSE(refused.fits);
  EXPECT_TRUE(refused.decisions.offload_tables);
  PlanRequest here = ask;
  here.offload_embedding = "none";
  const int64_t table = 2 * 20096 * 64;  // rows are padded to whole 128
  EXPECT_NEAR(static_cast<double>(make_plan(here).minimum_bytes - refused.minimum_bytes),
              static_cast<double>(table), 65536);
  double before = INFINITY;
  bool away = false, resident = false;
  for (int64_t more = 0; more <= 3 * table; more += table / 4) {
    ask.budget = refused.minimum_bytes + more;
    const Plan plan = make_plan(ask, search);
    ASSERT_TRUE(plan.fits) << ask.budget;
    EXPECT_LE(plan.engine_bytes + plan.runtime_bytes, ask.budget);
    EXPECT_LE(plan.step_seconds, before * (1 + 1e-9)) << more;
    before = plan.step_seconds;
    (plan.decisions.offload_tables ? away : resident) = true;
    if (plan.decisions.offload_tables) {
      EXPECT_TRUE(plan.moved);
    }
    const auto session = search.record(plan.decisions);
    EXPECT_DOUBLE_EQ(search.step_seconds(session->schedule(), plan.decisions), plan.step_seconds);
  }
  EXPECT_TRUE(away && resident);
  // Fixed either way, and where nobody said that the host's memory may be taken.
  r.offload_embedding = "cpu";
  const Plan fixed = make_plan(r);
  EXPECT_TRUE(fixed.decisions.offload_tables);
  EXPECT_FALSE(fixed.moved);
  EXPECT_EQ(plan_json(fixed).at("decisions").at("offload_embedding"), "cpu");
  r.offload_embedding = "auto";
  r.use_host = false;
  EXPECT_FALSE(make_plan(r).decisions.offload_tables);
  // A head that shares it reads all of it.
  tiny.tied = true;
  const ModelSpec shared = test::tiny_spec(tiny);
  const Model both(shared, parse_precision("bf16"),
                   resolve_freeze(shared, {".", "h.7.|ln_f"}).says);
  PlanRequest other = request_of(both, cost);
  other.offload_embedding = "auto";
  other.budget = 1;
  EXPECT_FALSE(make_plan(other).decisions.offload_tables);
}

// Outside truth: every preset with all that may rest with the host, recorded whole. Which of them
// is faster is not to be told from what they compute: some recompute and are done sooner.
TEST(SlowPlanStreamed, NoUniformChoiceThatFitsIsFaster) {
  struct Shape {
    test::Tiny tiny;
    int64_t T, batch, micro;
    const char *gradients, *params;
  };
  const Shape shapes[] = {
      {{.V = 350, .P = 64, .C = 48, .L = 2, .H = 2, .F = 192}, 48, 11, 1, "cpu", "auto"},
      {{.V = 135, .P = 64, .C = 32, .L = 6, .H = 2, .F = 256}, 48, 7, 1, "cpu", "none"},
      {{.V = 76, .P = 64, .C = 32, .L = 6, .H = 2, .F = 192}, 16, 3, 0, "auto", "auto"}};
  for (const Shape& s : shapes)
    for (const double link : {1e8, 3e9, 1e11}) {
      const Model model(test::tiny_spec(s.tiny), parse_precision("bf16"));
      const CostModel cost = test::described_device(1e11, link);
      PlanRequest r = test::host_request(model, cost, s.T, s.batch);
      r.micro_batch = s.micro;
      r.offload_gradients = s.gradients;
      r.offload_params = s.params;
      PlanSearch search(r);
      for (const char* preset : {"none", "norms", "norms+mlp", "mlp+attention+norms", "block"})
        for (const char* offload : {"none", "inputs"})
          for (const bool states : {false, true})
            for (const bool params : {false, true}) {
              PlanRequest fixed = r;
              fixed.recompute = preset;
              fixed.offload = offload;
              fixed.offload_optimizer = states ? "cpu" : "none";
              fixed.offload_params = params ? "cpu" : "none";
              if ((params && !states) || (params && std::string(s.params) == "none")) continue;
              fixed.offload_gradients = "cpu";
              const Plan u = make_plan(fixed);
              r.budget = u.engine_bytes + u.runtime_bytes;
              const Plan p = make_plan(r, search);
              ASSERT_TRUE(p.fits);
              EXPECT_LE(p.step_seconds, u.step_seconds * (1 + 1e-9))
                  << preset << " | " << offload << " | " << states << params << ", link " << link;
            }
    }
}

// Beside weights that were told to go the planner may send gradients and inputs: that is its
// choice, and what the step would take without is that of the plan without.
TEST(PlanStreamed, WhatItAddsToWhatWasSetIsItsChoice) {
  const Model model(test::tiny_spec(kTiny), parse_precision("fp32"));
  const CostModel cost = test::even_device(1e11, 1e10);
  int added = 0, needed = 0;
  for (const char* gradients : {"none", "auto"}) {
    PlanRequest r = request_of(model, cost);
    r.max_grad_norm = 1;
    r.offload_params = "cpu";
    r.offload_gradients = gradients;
    PlanRequest alone = r;
    alone.offload = alone.offload_gradients = "none";
    PlanSearch search(r), search_alone(alone);
    const Plan open = make_plan(r, search);
    EXPECT_FALSE(open.moved);
    const int64_t least = open.minimum_bytes, most = open.engine_bytes + open.runtime_bytes;
    for (int i = 0; i <= 12; ++i) {
      r.budget = alone.budget = least + (most - least) * i / 12;
      const Plan p = make_plan(r, search), q = make_plan(alone, search_alone);
      ASSERT_TRUE(p.fits);
      const Decisions& d = p.decisions;
      EXPECT_EQ(p.moved, d.offload != "none" || d.offload_gradients) << d.offload.text();
      if (q.fits) {
        EXPECT_NEAR(p.moved ? p.unmoved_seconds : p.step_seconds, q.step_seconds,
                    1e-9 * q.step_seconds);
        added += p.moved;
      } else {
        EXPECT_EQ(p.unmoved_seconds, 0);
        needed += p.moved;
      }
      EXPECT_EQ(plan_text(p).find("without it nothing fits") != std::string::npos,
                p.moved && !q.fits)
          << plan_text(p);
    }
  }
  EXPECT_GT(added, 0);
  EXPECT_GT(needed, 0);
}

TEST(PlanStreamed, SaysWhatItChose) {
  const Model model(test::tiny_spec(kTiny), parse_precision("bf16"));
  const CostModel cost = test::even_device(1e11, 1e10);
  PlanRequest r = request_of(model, cost);
  r.budget = make_plan(r).minimum_bytes;
  const Plan plan = make_plan(r);
  ASSERT_TRUE(plan.decisions.offload_params);
  EXPECT_NE(plan_sentence(plan).find("the layers' weights and the optimizer's state with the host"),
            std::string::npos);
  EXPECT_NE(plan_text(plan).find("come back; without it nothing fits"), std::string::npos)
      << plan_text(plan);
  EXPECT_EQ(plan_json(plan).at("decisions").at("offload_params"), "cpu");
  EXPECT_EQ(plan_json(plan).at("categories").at("offload"), plan.host_bytes);
}

// 12 GiB of weights on a device of 8: layers come from the host, their gradients are consumed.
TEST(SlowPlanStreamed, AModelWhoseWeightsAloneExceedTheDevice) {
  const Model model(
      test::tiny_spec(
          {.V = 32000, .P = 512, .C = 4096, .L = 32, .H = 32, .F = 16384, .tied = true}),
      parse_precision("bf16"));
  const Target target = find_target("rtx4090");
  const CostModel cost = CostModel::described("rtx4090", target.rates(DType::bf16));
  PlanRequest r = request_of(model, cost);
  r.T = 512;
  r.global_batch = 4;
  r.micro_batch = 4;
  r.evaluate = false;
  r.runtime_bytes = target.runtime_bytes;
  r.budget = int64_t{8} << 30;
  const int64_t weights = 2 * model.params().real_elements();
  ASSERT_GT(weights, r.budget);
  const Plan plan = make_plan(r);
  ASSERT_TRUE(plan.fits) << plan.minimum_bytes;
  EXPECT_TRUE(plan.decisions.offload_params);
  EXPECT_TRUE(plan.decisions.update_in_backward);
  EXPECT_GT(plan.step_seconds, 0);
  EXPECT_GE(plan.host_bytes, 7 * weights - (int64_t{1} << 30));
  PlanRequest without = r;
  without.offload_params = "none";
  const Plan refused = make_plan(without);
  EXPECT_FALSE(refused.fits);
  EXPECT_GT(refused.minimum_bytes, weights);
  bool offered = false;
  for (const Offer& o : refused.offers)
    offered = offered || (o.keys.starts_with("offload_params=cpu") && o.enough);
  EXPECT_TRUE(offered);
}

// A calibrated machine on which an update is done in a thousandth of the time where its op is of
// few bytes, as one that keeps to a cache might be, and copies cost little: what rests with the
// host is then updated faster, in pieces, than what stays.
CostModel cheap_in_pieces(const PlanRequest& r) {
  Calibration c;
  c.key.instruction_set = "avx2";
  c.key.threads = 1;
  c.roofs.fp32_flops = c.roofs.bf16_flops = 1e11;
  c.roofs.copy_bytes = 1e12;
  const CostModel any = test::even_device(1e11, 1e11);
  PlanRequest ask = r;
  ask.cost = &any;
  PlanSearch search(ask);
  for (const bool away : {false, true}) {
    Decisions d;
    d.T = r.T;
    d.micro_batch = d.head_rows = 1;
    d.offload_optimizer = away;
    for (const bool in_backward : {false, true}) {
      d.update_in_backward = in_backward;
      const auto session = search.record(d);
      for (int i = 0; i < session->schedule().size(); ++i)
        for (const OpRecord& op : session->schedule().at(i).ops) {
          if (std::string_view(op.name) != "adamw_update") continue;
          const auto bytes = static_cast<double>(op.bytes);
          c.fp32_ops.add(OpRates::key(op), {static_cast<double>(op.flops), bytes,
                                            op.bytes < (1 << 20) ? bytes * 1e-12 : bytes * 1e-8});
        }
    }
  }
  c.bf16_ops = c.fp32_ops;
  return calibrated_cost(c, DType::f32);
}

// Nothing is left out of the search for a bound that is none.
TEST(SlowPlanStreamed, NoBoundIsAboveWhatAStepTakes) {
  const test::Tiny tiny{.V = 200, .P = 32, .C = 64, .L = 4, .H = 2, .F = 256};
  for (const char* precision : {"fp32", "bf16"})
    for (const int machine : {0, 1, 2})
      for (const double clip : {0.0, 1.0}) {
        const Model model(test::tiny_spec(tiny), parse_precision(precision));
        const CostModel even = test::even_device(1e11, 1e11);
        PlanRequest r = request_of(model, even);
        r.offload_gradients = "auto";
        r.max_grad_norm = clip;
        r.evaluate = false;
        const CostModel cost = machine == 0   ? cheap_in_pieces(r)
                               : machine == 1 ? test::even_device(1e11, 3e9)
                                              : test::even_device(1e11, 1e11);
        r.cost = &cost;
        PlanSearch search(r);
        double closest = 0, farthest = 1;
        int64_t count = 0;
        for (const PlanSearch::Bounded& b : search.bounded()) {
          const Decisions& d = b.decisions;
          const std::string what = d.recompute.text() + " | " + d.offload.text() +
                                   (d.offload_params ? " params" : "") +
                                   (d.offload_gradients ? " gradients" : "") +
                                   (d.update_in_backward ? " in backward" : "");
          EXPECT_LE(b.before, b.seconds * (1 + 1e-9)) << what << " machine " << machine;
          EXPECT_LE(b.behind, b.seconds * (1 + 1e-9)) << what << " machine " << machine;
          EXPECT_LE(b.before, b.behind * (1 + 1e-9)) << what << " machine " << machine;
          closest = std::max(closest, b.behind / b.seconds);
          farthest = std::min(farthest, b.behind / b.seconds);
          ++count;
        }
        EXPECT_GT(count, 100);
        EXPECT_GT(closest, 0.9) << "a bound that says something";
        printf("%s, machine %d: bounds are %.3f to %.3f of %lld steps\n", precision, machine,
               farthest, closest, static_cast<long long>(count));
      }
}

// A link so slow that copies are all of a step: it takes as long as the busier direction at least,
// which is the bound, and as both one after the other at most, which is twice that.
TEST(PlanStreamed, OnASlowLinkABoundIsHalfTheStepAtLeast) {
  const Model model(test::tiny_spec({.V = 200, .P = 32, .C = 64, .L = 4, .H = 2, .F = 256}),
                    parse_precision("fp32"));
  const CostModel cost = test::even_device(1e13, 1e7);
  PlanRequest r = request_of(model, cost);
  r.offload_gradients = "auto";
  r.evaluate = false;
  PlanSearch search(r);
  int64_t count = 0;
  for (const PlanSearch::Bounded& b : search.bounded()) {
    const Decisions& d = b.decisions;
    const std::string what =
        d.recompute.text() + " | " + d.offload.text() + (d.offload_params ? " params" : "") +
        (d.offload_gradients ? " gradients" : "") + (d.update_in_backward ? " in backward" : "");
    EXPECT_LE(b.behind, b.seconds * (1 + 1e-9)) << what;
    if (!d.offload_params && !d.offload_gradients) continue;
    EXPECT_GE(b.before, 0.5 * b.seconds) << what << ", micro-batch " << d.micro_batch;
    ++count;
  }
  EXPECT_GT(count, 50);
}

}  // namespace
}  // namespace snug
