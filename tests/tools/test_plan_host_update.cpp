// What the planner does with updates by the host: by the rates of both, only where it pays, never slower
// with more memory, with the bytes and seconds of the record.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/tools/plan_case.h"
#include "tests/tools/session_case.h"
#include "tools/planner/ladder.h"
#include "tools/planner/plan_search.h"
#include "tools/planner/residence.h"
#include "tools/setup/targets.h"

namespace snug {
namespace {

const test::Tiny kTiny{.V = 200, .P = 32, .C = 64, .L = 8, .H = 2, .F = 256};

PlanRequest request_of(const Model& model, const CostModel& cost) {
  PlanRequest r = test::host_request(model, cost, 32, 8);
  r.save = true;
  r.settings.target = Place::cuda;
  r.offload_params = r.offload_gradients = r.offload_update = "auto";
  return r;
}

// Over a link that is slow beside the host's memory it updates; where it is the slower one, never.
TEST(SlowPlanHostUpdate, IsTakenWhereItPaysAndMoreMemoryIsNeverSlower) {
  for (const char* precision : {"fp32", "bf16"})
    for (const double host : {1e8, 5e9}) {
      SCOPED_TRACE(fmt::format("{}, host {}", precision, host));
      const Model model(test::tiny_spec(kTiny), parse_precision(precision));
      const CostModel cost = test::device_with_host(1e9, host);
      const PlanRequest r = request_of(model, cost);
      PlanSearch search(r);
      PlanRequest ask = r;
      ask.budget = 1;
      const Plan refused = make_plan(ask, search);
      double before = INFINITY;
      int64_t taken = 0, resident = 0;
      for (int step = 0; step <= 14; ++step) {
        ask.budget = refused.runtime_bytes + 4095 +
                     static_cast<int64_t>(
                         static_cast<double>(refused.minimum_bytes - refused.runtime_bytes) *
                         std::pow(1.25, step));
        const Plan plan = make_plan(ask, search);
        ASSERT_TRUE(plan.fits) << ask.budget;
        EXPECT_LE(plan.engine_bytes + plan.runtime_bytes, ask.budget);
        EXPECT_LE(plan.step_seconds, before * (1 + 1e-9));
        before = plan.step_seconds;
        const Decisions& d = plan.decisions;
        taken += d.update_on_host;
        resident += !d.offload_optimizer;
        const auto session = search.record(d);
        EXPECT_DOUBLE_EQ(search.step_seconds(session->schedule(), d), plan.step_seconds);
      }
      EXPECT_GT(resident, 0);
      if (host > 1e9)
        EXPECT_GT(taken, 0);
      else
        EXPECT_EQ(taken, 0);
    }
}

// What bounds say before a record is never above it.
TEST(SlowPlanHostUpdate, BoundsHold) {
  const Model model(test::tiny_spec(kTiny), parse_precision("bf16"));
  const CostModel cost = test::device_with_host(1e9, 1e10);
  PlanRequest r = request_of(model, cost);
  r.stale_update = true;
  PlanSearch search(r);
  int64_t seen = 0, late = 0;
  for (const PlanSearch::Bounded& b : search.bounded()) {
    seen += b.decisions.update_on_host;
    late += b.decisions.delayed_update;
    EXPECT_LE(b.before, b.seconds * (1 + 1e-9));
    EXPECT_LE(b.behind, b.seconds * (1 + 1e-9));
  }
  EXPECT_GT(late, 0);
  EXPECT_GT(seen, late);
}

// The same of ranks, whatever each keeps its piece of.
PlanRequest of_ranks(const Model& model, const CostModel& cost, int zero) {
  PlanRequest r = request_of(model, cost);
  r.ranks = 4;
  r.zero = zero;
  r.offload = {};
  r.packed_weights = WeightPacking::none;
  return r;
}

CostModel ranks_with_hosts(double link, double host) {
  const CostModel alone = test::device_with_host(link, host);
  Rates rates = alone.rates();
  rates.ranks = 4;
  rates.rank_link = 5e9;
  CostModel cost = CostModel::described("devices that a network joins", rates);
  cost.set_host(*alone.host());
  return cost;
}

TEST(SlowPlanHostUpdate, BoundsHoldOfRanks) {
  const Model model(test::tiny_spec(kTiny), parse_precision("bf16"), {}, {}, 4);
  const CostModel cost = ranks_with_hosts(1e9, 1e10);
  for (const int zero : {0, 1, 2, 3}) {
    SCOPED_TRACE(zero);
    PlanRequest r = of_ranks(model, cost, zero);
    r.stale_update = true;
    r.max_grad_norm = 0;
    PlanSearch search(r);
    int64_t updates = 0, weights = 0, gradients = 0, late = 0;
    for (const PlanSearch::Bounded& b : search.bounded()) {
      updates += b.decisions.update_on_host;
      weights += b.decisions.offload_params;
      gradients += b.decisions.offload_gradients;
      late += b.decisions.delayed_update;
      EXPECT_LE(b.before, b.seconds * (1 + 1e-9));
      EXPECT_LE(b.behind, b.seconds * (1 + 1e-9));
    }
    EXPECT_GT(updates, late);
    EXPECT_GT(weights * gradients * late, 0);
  }
}

// Where nothing else fits each host has its piece of what can rest with it; where its memory is fast, it
// updates.
TEST(PlanHostUpdate, RanksLeaveToTheirHostsWhatTheyMust) {
  test::Tiny tiny = kTiny;
  tiny.L = 3;
  const Model model(test::tiny_spec(tiny), parse_precision("bf16"), {}, {}, 4);
  const CostModel cost = ranks_with_hosts(1e9, 1e10);
  for (const int zero : {0, 1, 2, 3}) {
    SCOPED_TRACE(zero);
    PlanRequest r = of_ranks(model, cost, zero);
    PlanSearch search(r);
    r.budget = 1;
    r.budget = make_plan(r, search).minimum_bytes;
    const Plan least = make_plan(r, search);
    ASSERT_TRUE(least.fits);
    EXPECT_TRUE(least.decisions.offload_params && least.decisions.offload_optimizer);
    r.offload_params = "none";
    PlanSearch resident(r);
    r.budget = 1;
    r.budget = make_plan(r, resident).minimum_bytes;
    EXPECT_GT(r.budget, least.engine_bytes + least.runtime_bytes);
    int taken = 0;
    const auto own = static_cast<double>(r.budget - least.runtime_bytes);
    for (double more = 1; more < 2; more += 0.1) {
      r.budget = least.runtime_bytes + static_cast<int64_t>(more * own);
      taken += make_plan(r, resident).decisions.update_on_host;
    }
    EXPECT_GT(taken, 0);
  }
}

// Words, JSON and ladder of a plan that was asked for it; its seconds are bytes over the host's rate.
TEST(PlanHostUpdate, SaysWhatTheHostTakes) {
  const Model model(test::tiny_spec(kTiny), parse_precision("bf16"));
  const CostModel cost = test::device_with_host(1e9, 1e10);
  PlanRequest r = request_of(model, cost);
  r.offload_optimizer = r.offload_gradients = r.offload_update = "cpu";
  const Plan plan = make_plan(r);
  ASSERT_TRUE(plan.decisions.update_on_host);
  // 30 bytes a parameter: a gradient, master and two moments read and written, a weight.
  const auto elements = static_cast<double>(model.params().real_trained_elements());
  EXPECT_NEAR(static_cast<double>(plan.host_update.bytes), 30 * elements, 0.02 * 30 * elements);
  int64_t ops = 0;
  for (const OpRecord& op : plan.schedule.at(plan.schedule.find("update")).ops) ops += op.on_host;
  EXPECT_NEAR(plan.host_update.seconds,
              static_cast<double>(plan.host_update.bytes) / 1e10 + static_cast<double>(ops) * 1e-8,
              1e-9);
  const nlohmann::json j = plan_json(plan);
  EXPECT_EQ(j.at("decisions").at("offload_update"), "cpu");
  EXPECT_EQ(j.at("host_update").at("bytes"), plan.host_update.bytes);
  EXPECT_EQ(j.at("host_update").at("prediction"), "described: its host");
  EXPECT_NE(plan_text(plan).find("the host updates: "), std::string::npos) << plan_text(plan);
  EXPECT_NE(plan_sentence(plan).find("with the host, which updates them"), std::string::npos);
  const Ladder ladder = make_ladder(r, {int64_t{1} << 30});
  EXPECT_EQ(ladder_json(ladder).at(0).at("offload_update"), "cpu");
  EXPECT_NE(ladder_text(ladder).find("optimizer with the host, which updates"), std::string::npos)
      << ladder_text(ladder);
}

// Of products, on the CPU, and where nothing is known of the host, auto does not look at it.
TEST(PlanHostUpdate, IsLookedAtWhereItsBitsAndRateAreKnown) {
  const Model model(test::tiny_spec(kTiny), parse_precision("fp32"));
  const CostModel known = test::device_with_host(1e9, 1e11), unknown = test::even_device(1e11, 1e9);
  PlanRequest r = request_of(model, known);
  EXPECT_TRUE(looks_at_host_updates(r, known));
  EXPECT_FALSE(looks_at_host_updates(r, unknown));
  r.optimizer.name = "muon";
  EXPECT_FALSE(looks_at_host_updates(r, known));
  r.optimizer.name = "adam_mini";
  EXPECT_TRUE(looks_at_host_updates(r, known));
  r.settings.target = Place::cpu;
  EXPECT_FALSE(looks_at_host_updates(r, known));
}

// 16 Ki tokens a step of GPT-2 on a described RTX 4090 whose host moves 40 GB/s.
struct Gpt2OnRtx4090 {
  Target target = find_target("rtx4090");
  CostModel cost = CostModel::described(target.title, target.rates(DType::bf16));
  Model model = Model(resolve_model("gpt2", "").spec, parse_precision("bf16"));

  Gpt2OnRtx4090() { cost.set_host(target.host_cost()); }
  PlanRequest request() const {
    PlanRequest r;
    r.model = &model;
    r.T = 1024;
    r.global_batch = 16;
    r.max_grad_norm = 1;
    r.use_host = true;
    r.settings.target = Place::cuda;
    r.cost = &cost;
    r.budget = target.memory_bytes;
    r.runtime_bytes = target.runtime_bytes;
    r.recompute = "none";
    return r;
  }
};

// Beside the resident step it takes what the host computes, less what the device no longer does, and of
// copies what nothing hides: the first window's gradients of no layer and the last window's weights. The
// norm and the layers' gradients are hidden by backward.
TEST(SlowPlanHostUpdate, AllButTheHostsOwnWorkIsHidden) {
  const Gpt2OnRtx4090 at;
  const CostModel& cost = at.cost;
  PlanRequest r = at.request();
  const Plan resident = make_plan(r);
  r.offload_optimizer = r.offload_gradients = r.offload_update = "cpu";
  const Plan host = make_plan(r);
  ASSERT_TRUE(resident.fits && host.fits && host.decisions.update_on_host);
  RecordProperty("resident_seconds", std::to_string(resident.step_seconds));
  RecordProperty("host_seconds", std::to_string(host.step_seconds));
  RecordProperty("of_them_the_host", std::to_string(host.host_update.seconds));
  const double margin = 1 + PlanSearch::kHostMargin;
  const double window = 4.0 * (8 << 20) / cost.rates().link;
  EXPECT_LT(host.step_seconds,
            margin * (resident.step_seconds + host.host_update.seconds + window));
}

// The same one step late: what the host computes is beside forward and backward, and of copies weights come
// once and gradients of no layer leave meanwhile. So it is within a tenth of the resident step.
TEST(SlowPlanHostUpdate, ALateOneIsHidden) {
  const Gpt2OnRtx4090 at;
  PlanRequest r = at.request();
  const Plan resident = make_plan(r);
  r.offload_optimizer = r.offload_gradients = r.offload_update = "cpu";
  const Plan at_once = make_plan(r);
  r.stale_update = true;
  const Plan late = make_plan(r);
  ASSERT_TRUE(resident.fits && at_once.fits && late.fits);
  EXPECT_FALSE(at_once.decisions.delayed_update);
  ASSERT_TRUE(late.decisions.delayed_update);
  RecordProperty("resident_seconds", std::to_string(resident.step_seconds));
  RecordProperty("late_seconds", std::to_string(late.step_seconds));
  // 30 bytes a parameter; at once windows with rows of padding are rounded whole before.
  const auto bytes = static_cast<double>(30 * at.model.params().real_trained_elements());
  EXPECT_NEAR(static_cast<double>(late.host_update.bytes), bytes, 0.01 * bytes);
  EXPECT_LE(late.host_update.bytes, at_once.host_update.bytes);
  EXPECT_LT(late.step_seconds, 1.1 * resident.step_seconds);
  EXPECT_GT(at_once.step_seconds, 1.5 * resident.step_seconds);
  for (const std::string& text : {plan_sentence(late), plan_text(late)})
    EXPECT_NE(text.find("one step late"), std::string::npos) << text;
  EXPECT_NE(plan_text(late).find("that changes numbers (allow: stale_update)"), std::string::npos);
  EXPECT_EQ(plan_json(late).at("decisions").at("update_delay"), "one step late");
}

// Permitted is not asked for: where the link is slow, or weights rest with the host, nothing is late.
TEST(PlanHostUpdate, IsLateWhereThatIsPermittedAndCanBe) {
  const Model model(test::tiny_spec(kTiny), parse_precision("bf16"));
  const CostModel cost = test::device_with_host(1e8, 1e10);
  PlanRequest r = request_of(model, cost);
  r.stale_update = true;
  EXPECT_FALSE(make_plan(r).decisions.delayed_update);  // all fits the device
  r.offload_params = "none";
  r.offload_optimizer = r.offload_gradients = r.offload_update = "cpu";
  EXPECT_TRUE(make_plan(r).decisions.delayed_update);
  r.delayed_update = false;
  EXPECT_FALSE(make_plan(r).decisions.delayed_update);
  r.delayed_update.reset();
  r.offload_params = "cpu";
  EXPECT_FALSE(make_plan(r).decisions.delayed_update);
  r.offload_params = "none";
  r.optimizer.name = "schedule_free_adamw";
  EXPECT_FALSE(may_delay_updates(r));
  EXPECT_FALSE(make_plan(r).decisions.delayed_update);
}

}  // namespace
}  // namespace snug
