// The planner and the host's memory: what it may take, that its bytes are those of the record, that
// more memory is never slower, and that nothing that fits was passed over.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/core/units.h"
#include "engine/device/tier_file.h"
#include "tests/support/errors.h"
#include "tests/tools/plan_case.h"
#include "tests/tools/session_case.h"
#include "tools/planner/plan_search.h"

namespace snug {
namespace {

struct Case {
  test::Tiny tiny;
  const char* precision;
  bool evaluate;
  const char* map = nullptr;  // instead of `tiny`

  ModelSpec spec() const { return map ? resolve_model("", map).spec : test::tiny_spec(tiny); }
};
const Case kCases[] = {
    {{.V = 300, .P = 64, .C = 32, .L = 4, .H = 2, .F = 128}, "fp32", false},
    {{.V = 97, .P = 64, .C = 48, .L = 2, .H = 3, .F = 192, .dropout = 0.1}, "fp32", true},
    {{.V = 130, .P = 64, .C = 64, .L = 7, .H = 4, .F = 256, .tied = false}, "bf16", true},
    {{}, "fp32", false, test::kTwoKinds}};

PlanRequest request_of(const Model& model, const Case& c, const CostModel& cost) {
  PlanRequest r = test::host_request(model, cost, 32, 12);
  r.evaluate = c.evaluate;
  return r;
}

// Every plan of two groups, recorded whole.
TEST(SlowPlanResidence, TheStacksBytesAreTheRecordsAndTheirSecondsABound) {
  for (const Case& c : kCases) {
    const Model model(c.spec(), parse_precision(c.precision));
    for (const double link : {1e9, 1e11}) {
      const CostModel cost = test::described_device(1e11, link);
      const PlanRequest r = request_of(model, c, cost);
      PlanSearch search(r);
      double loosest = 1;
      for (const bool states : {false, true}) {
        const std::vector<PlanSearch::Choice> stacks = search.stacks(4, 64, states);
        ASSERT_GT(stacks.size(), 50u);
        const size_t stride = stacks.size() / 150 + 1;
        for (size_t i = 0; i < stacks.size(); i += stride) {
          const PlanSearch::Choice& choice = stacks[i];
          const auto session = search.record(choice.decisions);
          const std::string what =
              choice.decisions.recompute.text() + " | " + choice.decisions.offload.text();
          ASSERT_EQ(session->schedule().lower_bound(), choice.engine_bytes) << what;
          ASSERT_EQ(session->schedule().lower_bound(Residence::host), choice.host_bytes) << what;
          const double seconds = search.step_seconds(session->schedule(), choice.decisions);
          EXPECT_LE(choice.step_seconds, seconds * (1 + 1e-9)) << what;
          loosest = std::min(loosest, choice.step_seconds / seconds);
        }
      }
      printf("bound / record, at worst: %.4f\n", loosest);
    }
  }
}

TEST(SlowPlanResidence, EveryBudgetHoldsAndMoreMemoryIsNeverSlower) {
  int64_t repairs = 0;
  for (const Case& c : kCases) {
    const Model model(c.spec(), parse_precision(c.precision));
    for (const double link : {3e9, 1e11}) {
      const CostModel cost = test::described_device(1e11, link);
      PlanRequest r = request_of(model, c, cost);
      PlanRequest alone = r;
      alone.offload = alone.offload_optimizer = "none";
      const Plan open = make_plan(r);
      EXPECT_EQ(open.host_bytes, 0) << "with all the memory there is nothing is moved";
      const int64_t least = open.minimum_bytes, most = open.engine_bytes + open.runtime_bytes;
      ASSERT_LT(least, make_plan(alone).minimum_bytes);
      PlanSearch search(r), search_alone(alone);
      double before = 0;
      std::set<std::string> seen;
      int moved = 0;
      for (int i = -1; i <= 12; ++i) {
        r.budget = alone.budget = least + (most - least) * i / 12;
        const Plan p = make_plan(r, search), q = make_plan(alone, search_alone);
        ASSERT_EQ(p.fits, i >= 0) << r.budget;
        if (!p.fits) continue;
        EXPECT_LE(p.engine_bytes + p.runtime_bytes, r.budget);
        // Copies make lives that the packer cannot always stack without a gap.
        EXPECT_LE(p.repairs, 1) << p.decisions.recompute.text() << " | "
                                << p.decisions.offload.text();
        repairs += p.repairs;
        EXPECT_GE(p.tokens_per_second(), before * (1 - 1e-9)) << r.budget;
        EXPECT_EQ(p.minimum_bytes, least);
        before = p.tokens_per_second();
        if (q.fits) {
          EXPECT_GE(p.tokens_per_second(), q.tokens_per_second() * (1 - 1e-9));
          EXPECT_NEAR(p.moved ? p.unmoved_seconds : p.step_seconds, q.step_seconds,
                      1e-9 * q.step_seconds);
        } else {
          EXPECT_EQ(p.unmoved_seconds, 0);
        }
        EXPECT_EQ(p.moved, p.host_bytes > 0);
        moved += p.moved;
        seen.insert(p.decisions.offload.text());
        if (i == 4) {
          EXPECT_EQ(plan_hash(make_plan(r)), plan_hash(p)) << "other budgets changed the plan";
        }
      }
      EXPECT_GE(moved, 2) << link;  // the smallest: a gain below the margin moves nothing
    }
  }
  EXPECT_LE(repairs, 2);
}

// What was recorded for one batch serves another with the same micro-batches: how many of them a
// step has is no part of it.
TEST(PlanResidence, WhatWasRecordedServesAnotherBatch) {
  const Case& c = kCases[0];
  const Model model(c.spec(), parse_precision(c.precision));
  const CostModel cost = test::described_device(1e11, 1e11);
  PlanRequest r = request_of(model, c, cost);
  r.micro_batch = 2;
  r.head_rows = 64;
  PlanRequest half = r;
  half.global_batch = r.global_batch / 2;
  PlanSearch search(r), fresh(half), shared(half, search.recordings());
  const int64_t least = search.least().front().engine_bytes;
  int moved = 0;
  for (int i = 0; i < 8; ++i) {
    const int64_t room = least + i * (32 << 10);
    const PlanSearch::Choice whole = search.best(room), a = fresh.best(room), b = shared.best(room);
    ASSERT_TRUE(whole.feasible && a.feasible && b.feasible);
    EXPECT_EQ(a.decisions, b.decisions) << i;
    EXPECT_DOUBLE_EQ(a.step_seconds, b.step_seconds) << i;
    EXPECT_LT(b.step_seconds, whole.step_seconds);
    moved += a.decisions.offload != "none";
  }
  EXPECT_GT(moved, 0) << "steps that are recorded whole";
}

// Outside truth: uniform choices with every residence, recorded whole.
TEST(SlowPlanResidence, NoUniformChoiceThatFitsIsFaster) {
  const Case& c = kCases[0];
  const Model model(c.spec(), parse_precision(c.precision));
  const CostModel cost = test::described_device(1e11, 2e10);
  PlanRequest r = request_of(model, c, cost);
  PlanSearch search(r);
  for (const int64_t micro : {12, 4, 1})
    for (const char* recompute : {"none", "norms", "block"})
      for (const char* offload : {"none", "inputs", "{0-1: inputs}"})
        for (const char* states : {"none", "cpu"}) {
          PlanRequest fixed = r;
          fixed.micro_batch = micro;
          fixed.recompute = recompute;
          fixed.offload = offload;
          fixed.offload_optimizer = states;
          const Plan u = make_plan(fixed);
          EXPECT_EQ(u.decisions.offload, offload);
          EXPECT_FALSE(u.moved) << "what the user says is not the planner's choice";
          r.budget = u.engine_bytes + u.runtime_bytes;
          const Plan p = make_plan(r, search);
          ASSERT_TRUE(p.fits);
          EXPECT_LE(p.step_seconds, u.step_seconds * (1 + 1e-9))
              << recompute << " | " << offload << " | " << states << " | " << micro;
        }
}

TEST(SlowPlanResidence, TheHostsBudgetHolds) {
  const Case& c = kCases[0];
  const Model model(c.spec(), parse_precision(c.precision));
  const CostModel cost = test::described_device(1e11, 1e10);
  PlanRequest r = request_of(model, c, cost);
  r.budget = make_plan(r).minimum_bytes;
  const Plan all = make_plan(r);
  ASSERT_GT(all.host_bytes, 0);
  int64_t before = kNoLimit;
  for (int i = 6; i >= 1; --i) {
    r.host_budget = all.host_bytes * i / 6;
    r.budget = 1;
    r.budget = make_plan(r).minimum_bytes;
    const Plan p = make_plan(r);
    EXPECT_TRUE(p.fits) << "the minimum works under this host_memory too";
    EXPECT_LE(p.host_bytes, r.host_budget);
    EXPECT_LE(p.host_bytes, before);
    before = p.host_bytes;
    --r.budget;
    EXPECT_FALSE(make_plan(r).fits);
  }
  // Both arenas together, where the host's memory is the device's.
  r.host_budget = 0;
  r.budget = all.budget;
  r.free_bytes = all.engine_bytes + all.host_bytes;
  EXPECT_TRUE(make_plan(r).fits);
  r.free_bytes -= 1;
  const Plan p = make_plan(r);
  EXPECT_TRUE(!p.fits || p.engine_bytes + p.host_bytes <= r.free_bytes);
}

// Where the host has room for a part of what could be sent, the smallest memory is that of the most
// that it holds: a budget between that and what needs no host is not refused.
TEST(SlowPlanResidence, TheMinimumTakesWhatTheHostHas) {
  const Case& c = kCases[2];
  const Model model(c.spec(), parse_precision(c.precision));
  const CostModel cost = test::described_device(1e11, 1e10);
  for (const Place place : {Place::cpu, Place::cuda}) {
    PlanRequest r = request_of(model, c, cost);
    r.settings.target = place;
    r.offload_optimizer = "none";
    r.evaluate = false;
    r.micro_batch = 12;
    r.head_rows = 64;
    PlanRequest alone = r;
    alone.offload = "none";
    const Plan kept = make_plan(alone), open = make_plan(r);
    ASSERT_LT(open.minimum_bytes, kept.minimum_bytes);
    PlanSearch search(r);
    const std::vector<PlanSearch::Choice> stacks = search.stacks(12, 64, false);
    // On a device of its own the host's bytes alone are counted.
    const auto taken = [&](int64_t engine, int64_t host) {
      return (place == Place::cpu ? engine : 0) + host;
    };
    const int64_t without = kept.minimum_bytes - kept.runtime_bytes,
                  with = open.minimum_bytes - open.runtime_bytes;
    int64_t most = kNoLimit, fewest = kNoLimit;  // of the host, for the smallest of them
    for (const PlanSearch::Choice& s : stacks)
      if (std::pair(s.engine_bytes, s.host_bytes) < std::pair(fewest, most))
        std::tie(fewest, most) = std::pair(s.engine_bytes, s.host_bytes);
    int between = 0;
    for (int i = 1; i < 8; ++i) {
      const int64_t from = taken(without, kept.host_bytes), to = taken(fewest, most);
      r.free_bytes = from + (to - from) * i / 8;
      int64_t least = without;
      for (const PlanSearch::Choice& s : stacks)
        if (taken(s.engine_bytes, s.host_bytes) <= r.free_bytes)
          least = std::min(least, s.engine_bytes);
      r.budget = 0;
      const Plan plan = make_plan(r);
      EXPECT_LE(plan.minimum_bytes - plan.runtime_bytes, least) << r.free_bytes;
      between += least < without && least > with;
      r.budget = plan.minimum_bytes;
      EXPECT_TRUE(make_plan(r).fits) << r.free_bytes;
      r.budget = plan.minimum_bytes - 4096;
      EXPECT_FALSE(make_plan(r).fits) << r.free_bytes;
    }
    EXPECT_GT(between, 2) << to_string(place);
  }
}

TEST(PlanResidence, NothingIsMovedUnasked) {
  const Case& c = kCases[0];
  const Model model(c.spec(), parse_precision(c.precision));
  const CostModel cost = test::described_device(1e11, 1e11);
  PlanRequest r = request_of(model, c, cost);
  r.budget = make_plan(r).minimum_bytes;
  EXPECT_TRUE(make_plan(r).fits);
  r.use_host = false;
  const Plan kept = make_plan(r);
  EXPECT_FALSE(kept.fits);
  EXPECT_EQ(kept.host_bytes, 0);
  // One of the two forbidden, the other still open.
  r.use_host = true;
  r.micro_batch = 12;
  r.offload = "none";
  const int64_t states = make_plan(r).minimum_bytes;
  r.offload = "auto";
  r.offload_optimizer = "none";
  const int64_t slots = make_plan(r).minimum_bytes;
  r.offload_optimizer = "auto";
  const int64_t both = make_plan(r).minimum_bytes;
  EXPECT_LT(both, states);
  EXPECT_LT(both, slots);
  r.micro_batch = 0;
  // An optimizer without states has nothing to move.
  r.optimizer.name = "sgd";
  EXPECT_FALSE(make_plan(r).decisions.offload_optimizer);
  // With recompute fixed whole presets are tried.
  r = request_of(model, c, cost);
  r.recompute = "norms";
  r.budget = make_plan(r).minimum_bytes;
  const Plan fixed = make_plan(r);
  EXPECT_TRUE(fixed.fits);
  EXPECT_EQ(fixed.decisions.recompute, "norms");
  EXPECT_NE(fixed.decisions.offload, "none");
  EXPECT_TRUE(fixed.moved);
}

TEST(PlanResidence, SaysWhatWasChosenAndWhatItCosts) {
  const Case& c = kCases[0];
  const Model model(c.spec(), parse_precision(c.precision));
  const CostModel cost = test::described_device(1e11, 1e10);
  PlanRequest r = request_of(model, c, cost);
  PlanRequest alone = r;
  alone.offload = alone.offload_optimizer = "none";
  const int64_t least = make_plan(r).minimum_bytes;
  r.budget = least;
  const Plan only = make_plan(r);
  ASSERT_TRUE(only.moved);
  EXPECT_NE(plan_text(only).find("without it nothing fits"), std::string::npos);
  EXPECT_TRUE(plan_json(only).at("residence").at("seconds_without").is_null());
  EXPECT_NE(plan_sentence(only).find("the optimizer's state with the host"), std::string::npos);
  r.budget = make_plan(alone).minimum_bytes;
  const Plan faster = make_plan(r);
  ASSERT_TRUE(faster.moved);
  const double without = plan_json(faster).at("residence").at("seconds_without").get<double>();
  EXPECT_GT(without, faster.step_seconds);
  EXPECT_NE(plan_text(faster).find("without it tokens/s would be fewer by"), std::string::npos);
  // What crosses the link, by hand: the states once a step, slots once a micro-step.
  int64_t sent = 0;
  for (const char* name : {"micro_first", "micro_next", "update"})
    sent += faster.schedule.at(faster.schedule.find(name)).bytes_copied(kToHost) *
            (std::string(name) == "micro_next" ? faster.accumulation - 1 : 1);
  EXPECT_NE(plan_text(faster).find(human_bytes(sent) + " cross the link"), std::string::npos)
      << plan_text(faster);
  r.budget = 0;
  EXPECT_TRUE(plan_json(make_plan(r)).at("residence").is_null());
}

// Where packing misses the bound of what is chosen, a larger budget is not worse off than a smaller
// one for which it does not: updates in backward beside copies are lives that often do not stack.
TEST(SlowPlanResidence, WhatPackingMissesMakesNoBudgetSlower) {
  const test::Tiny tiny{.V = 130, .P = 64, .C = 64, .L = 5, .H = 4, .F = 256, .tied = false};
  const Model model(test::tiny_spec(tiny), parse_precision("bf16"));
  const CostModel cost = test::described_device(1e11, 1e11);
  PlanRequest r = test::host_request(model, cost, 32, 12);
  r.max_grad_norm = 0;
  r.save = r.evaluate = true;
  PlanSearch search(r);
  const Plan open = make_plan(r, search);
  const int64_t least = open.minimum_bytes, most = open.engine_bytes + open.runtime_bytes;
  int repaired = 0;
  double before = INFINITY;
  for (int i = 0; i <= 120; ++i) {
    r.budget = least + (most - least) * i / 120;
    const Plan p = make_plan(r, search);
    ASSERT_TRUE(p.fits) << r.budget;
    EXPECT_LE(p.engine_bytes + p.runtime_bytes, r.budget);
    EXPECT_LE(p.step_seconds, before * (1 + 1e-9)) << r.budget << ", repairs " << p.repairs;
    before = p.step_seconds;
    repaired += p.repairs > 0;
    if (p.repairs > 0 && i % 4 == 0) {
      EXPECT_EQ(plan_hash(make_plan(r)), plan_hash(p)) << "other budgets changed the plan";
    }
  }
  EXPECT_GT(repaired, 2) << "nothing was missed";
}

// The host's memory is taken for a gain above the margin alone: of what its streams say, some steps
// that would leave a little with it are faster than the one that is planned, but not by more.
TEST(PlanResidence, TheHostIsNotTakenForNextToNothing) {
  const test::Tiny tiny{.V = 97, .P = 64, .C = 48, .L = 7, .H = 3, .F = 192};
  const Model model(test::tiny_spec(tiny), parse_precision("fp32"));
  const CostModel cost = test::even_device(1e11, 1e12);
  PlanRequest r = test::host_request(model, cost, 64, 4);
  r.offload_optimizer = "none";
  r.micro_batch = 4;
  r.head_rows = 64;
  const Plan open = make_plan(r);
  PlanSearch search(r);
  int left = 0, taken = 0;
  for (int i = 1; i <= 60; ++i) {
    r.budget =
        open.minimum_bytes + (open.engine_bytes + open.runtime_bytes - open.minimum_bytes) * i / 60;
    const Plan p = make_plan(r, search);
    ASSERT_TRUE(p.fits);
    if (p.moved && p.unmoved_seconds > 0) {
      ++taken;
      EXPECT_GT(p.unmoved_seconds, p.step_seconds);
      EXPECT_NE(plan_text(p).find("counts as 0.5 % slower"), std::string::npos) << plan_text(p);
    }
    if (p.moved) continue;
    for (const PlanSearch::Choice& c : search.stacks(4, 64, false)) {
      if (c.engine_bytes > r.budget - p.runtime_bytes || c.step_seconds >= p.step_seconds) continue;
      const auto session = search.record(c.decisions);
      const double judged = search.step_seconds(session->schedule(), c.decisions);
      if (judged < p.step_seconds * (1 - 1e-9) &&  // or packing takes more than the layers' sum
          search.packed(c.decisions).engine > r.budget - p.runtime_bytes)
        continue;
      EXPECT_GE(judged * (1 + 1e-9), p.step_seconds);
      left += judged / (1 + PlanSearch::kHostMargin) < p.step_seconds;
    }
  }
  EXPECT_GT(taken, 0);
  EXPECT_GT(left, 0) << "budgets at which the margin decides";
}

// By hand: all of the file comes and goes in a step, at the rate that was said, and nothing else of a step
// hides what a slow disk takes. It is asked for, never chosen.
TEST(PlanDisk, SaysWhatTheDiskHasAndWhatAStepTakesOfIt) {
  const Model model(test::tiny_spec({.P = 64}), parse_precision("fp32"));
  CostModel cost = test::described_device(1e11, 1e9);
  PlanRequest r = test::host_request(model, cost, 32, 12);
  r.offload_optimizer = "disk";
  r.max_grad_norm = 0;  // an update in backward would do
  const Plan assumed = make_plan(r);
  int64_t padded = 0;
  for (const StateSpan& s : whole_parameter_spans(model.params()))
    padded += round_up(s.elements, 256);
  ASSERT_LE(padded, 64 << 10) << "one window";
  const int64_t bytes = round_up(8 * padded, TierFile::kBlock);
  EXPECT_TRUE(assumed.decisions.states_on_disk);
  EXPECT_FALSE(assumed.decisions.offload_optimizer || assumed.decisions.update_in_backward);
  EXPECT_EQ(assumed.schedule.disk_bytes(), bytes);
  EXPECT_EQ(assumed.disk.bytes, bytes);
  EXPECT_EQ(assumed.disk.moved, 2 * bytes);
  EXPECT_DOUBLE_EQ(assumed.disk.seconds, 2 * (static_cast<double>(bytes) / 500e6 + 1e-8));
  EXPECT_GE(assumed.step_seconds, assumed.disk.seconds) << "one window overlaps with nothing";
  cost.state_disk(1e6, "disk_bandwidth");
  const Plan said = make_plan(r);
  EXPECT_DOUBLE_EQ(said.disk.seconds, 2 * (static_cast<double>(bytes) / 1e6 + 1e-8));
  EXPECT_NEAR(said.step_seconds - assumed.step_seconds, said.disk.seconds - assumed.disk.seconds,
              1e-9);
  const nlohmann::json j = plan_json(said);
  EXPECT_EQ(j.at("disk_bytes"), bytes);
  EXPECT_EQ(j.at("disk").at("bytes"), bytes);
  EXPECT_EQ(j.at("disk").at("bytes_a_step"), 2 * bytes);
  EXPECT_EQ(j.at("disk").at("bytes_per_second"), 1e6);
  EXPECT_EQ(j.at("disk").at("rate"), "disk_bandwidth");
  EXPECT_EQ(plan_json(assumed).at("disk").at("rate"), "assumed");
  EXPECT_EQ(j.at("decisions").at("offload_optimizer"), "disk");
  EXPECT_NE(plan_text(said).find("  disk "), std::string::npos);
  EXPECT_NE(plan_text(said).find("read and written in "), std::string::npos);
  EXPECT_NE(plan_text(assumed).find("(assumed; disk_bandwidth= says another, snug calibrate disk="),
            std::string::npos);

  r.offload_optimizer = "none";
  const Plan kept = make_plan(r);
  EXPECT_EQ(kept.disk.bytes, 0);
  EXPECT_TRUE(plan_json(kept).at("disk").is_null());
  // However little memory there is.
  r.offload_optimizer = "auto";
  for (const int64_t budget : {kept.minimum_bytes, int64_t{1}}) {
    r.budget = budget;
    EXPECT_FALSE(make_plan(r).decisions.states_on_disk);
  }
  // Of a model of more windows than are at hand it is memory that is saved.
  const Model large(test::tiny_spec({.V = 500, .P = 64, .C = 192, .L = 4, .H = 4, .F = 768}),
                    parse_precision("fp32"));
  PlanRequest more = test::host_request(large, cost, 32, 12);
  more.offload_optimizer = "none";
  const int64_t resident = make_plan(more).minimum_bytes;
  more.offload_optimizer = "disk";
  const Plan away = make_plan(more);
  EXPECT_LT(away.minimum_bytes, resident - away.disk.bytes / 2);
}

}  // namespace
}  // namespace snug
