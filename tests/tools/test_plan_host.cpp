// Plans with a second arena: what they say of it, and what is refused where the host's memory does
// not suffice.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "layers/models/recompute.h"
#include "tests/support/errors.h"
#include "tests/tools/plan_case.h"
#include "tests/tools/session_case.h"
#include "tools/costs/block_options.h"
#include "tools/planner/ladder.h"
#include "tools/planner/plan.h"
#include "tools/planner/plan_search.h"

namespace snug {
namespace {

using test::expect_error;

Model& small_model() {
  static Model model(test::tiny_spec({.V = 300, .P = 64, .C = 32, .L = 4, .H = 2, .F = 128}),
                     parse_precision("fp32"));
  return model;
}

PlanRequest request_of(const std::string& recompute, const std::string& offload) {
  PlanRequest r;
  r.model = &small_model();
  r.T = 32;
  r.global_batch = 12;
  r.recompute = recompute;
  r.offload = offload;
  r.max_grad_norm = 1.0;  // or gradients might be consumed in backward
  return r;
}

// The inputs of four blocks of 12 x 32 rows of 32 floats.
constexpr int64_t kInputs = 4 * 12 * 32 * 32 * 4;

// A layer goes on beside what the one before still sends until the last of that is through.
TEST(PlanHost, ALayerWaitsForTheLastOfWhatIsSent) {
  StackOption before, own;
  before.sent = {{.slot = 1, .bytes = 8}, {.slot = 2, .bytes = 8}};
  own.sent = {{.slot = 1, .bytes = 8, .seconds_left = 5},
              {.slot = 2, .bytes = 8, .seconds_left = 3}};
  own.forward_seconds = 9;
  EXPECT_EQ(seconds_after_sent(before, own), 3);
  own.forward_seconds = 2;
  EXPECT_EQ(seconds_after_sent(before, own), 2);
  own.sent.pop_back();
  EXPECT_EQ(seconds_after_sent(before, own), 0) << "it sends nothing of the kind";
  before.sent.clear();
  EXPECT_EQ(seconds_after_sent(before, own), 0);
}

// Ranks of one machine share what is free of its memory; within what others take meanwhile.
TEST(PlanHost, RanksShareWhatIsFree) {
  PlanRequest r = request_of("none", "none");
  r.runtime_bytes = 0;
  const auto one = static_cast<double>(free_bytes_now(r));
  r.ranks = 8;  // of two machines
  r.ranks_on_machine = 4;
  EXPECT_NEAR(static_cast<double>(free_bytes_now(r)), one / 4, one / 16);
}

TEST(PlanHost, SaysWhatTheHostHolds) {
  const Plan none = make_plan(request_of("block", "none")),
             inputs = make_plan(request_of("block", "inputs"));
  EXPECT_EQ(none.host_bytes, 0);
  EXPECT_EQ(inputs.host_bytes, kInputs);
  EXPECT_EQ(inputs.decisions.offload, "inputs");
  EXPECT_NE(plan_hash(none), plan_hash(inputs));
  const nlohmann::json j = plan_json(inputs);
  EXPECT_EQ(j.at("host_bytes"), kInputs);
  EXPECT_EQ(j.at("categories").at("offload"), kInputs);
  EXPECT_EQ(j.at("decisions").at("offload"), "inputs");
  int64_t sum = 0;
  for (const auto& [key, bytes] : j.at("categories").items())
    if (key != "offload") sum += bytes.get<int64_t>();
  EXPECT_EQ(sum, inputs.engine_bytes) << "all others and padding are the device's";
  for (const auto& p : j.at("programs")) {
    const bool micro = p.at("name").get<std::string>().starts_with("micro");
    EXPECT_EQ(p.at("bytes_to_host"), micro ? kInputs : 0) << p.dump();
    EXPECT_EQ(p.at("bytes_to_device"), micro ? kInputs : 0);
    EXPECT_EQ(p.at("host_height"), micro ? kInputs : 0);
    EXPECT_EQ(p.at("host_lower_bound"), p.at("host_height"));
  }
  EXPECT_NE(plan_sentence(inputs).find(", offloading inputs"), std::string::npos);
  EXPECT_EQ(plan_sentence(none).find("offloading"), std::string::npos);
  EXPECT_NE(plan_text(inputs).find("in the host's memory: what is offloaded"), std::string::npos);
  EXPECT_EQ(plan_text(none).find("host"), std::string::npos);
}

TEST(PlanHost, HostMemoryBoundsTheHostArena) {
  PlanRequest r = request_of("block", "inputs");
  r.micro_batch = 12;
  r.host_budget = kInputs;
  const Plan fits = make_plan(r);
  EXPECT_TRUE(fits.fits);
  EXPECT_NE(plan_text(fits).find("host_memory allows"), std::string::npos);
  r.host_budget = kInputs - 1;
  const Plan refused = make_plan(r);
  EXPECT_FALSE(refused.fits);
  EXPECT_FALSE(host_fits(refused));
  const std::string needed = std::to_string(kInputs), given = std::to_string(kInputs - 1);
  expect_error(ErrorCode::out_of_memory,
               {("host_memory of " + needed + " B").c_str(), "what is offloaded",
                ("host_memory of " + given + " B").c_str(), "offload: inputs",
                ("host_memory=" + needed + " (").c_str(), "offload=none (then memory of"},
               [&] { refuse_plan(refused); });
  // Where the micro-batch is free, a smaller one sends less.
  r.micro_batch = 0;
  const Plan smaller = make_plan(r);
  EXPECT_TRUE(smaller.fits);
  EXPECT_EQ(smaller.decisions.micro_batch, 6);
  EXPECT_EQ(smaller.host_bytes, kInputs / 2);
  // What is named as needed does it, and is the least of all micro-batches.
  r.host_budget = 1;
  EXPECT_EQ(make_plan(r).host_bytes, kInputs / 12);
  r.host_budget = kInputs / 12;
  EXPECT_TRUE(make_plan(r).fits);
  // A device that is too small is said first.
  r.host_budget = 1;
  r.budget = 1000;
  expect_error(ErrorCode::out_of_memory, {"memory of at least", "memory of 1000 B"},
               [&] { refuse_plan(make_plan(r)); });
}

// The least memory is no help where the host has no room for what it takes there.
TEST(PlanHost, TheLeastMemoryIsNamedWithWhatItTakesOfTheHost) {
  PlanRequest r = request_of("auto", "none");
  r.offload_optimizer = "cpu";
  r.use_host = true;
  r.budget = 1 << 20;
  r.host_budget = 4096;
  const Plan refused = make_plan(r);
  ASSERT_FALSE(refused.fits);
  ASSERT_GT(refused.minimum_bytes, r.budget);
  const std::string least = std::to_string(refused.minimum_bytes),
                    host = std::to_string(refused.host_bytes);
  expect_error(ErrorCode::out_of_memory,
               {("memory of at least " + least + " B (").c_str(),
                (" and host_memory of " + host + " B (").c_str(),
                "found: memory of 1048576 B (1.00 MiB), host_memory of 4096 B (4.00 KiB); ",
                ("try:   memory=" + least + " (").c_str(), (" host_memory=" + host + " (").c_str()},
               [&] { refuse_plan(refused); });
  EXPECT_EQ(plan_sentence(refused).find("works"), std::string::npos) << plan_sentence(refused);
  EXPECT_NE(plan_sentence(refused).find(" of host_memory."), std::string::npos);
  const std::string text = ladder_text(make_ladder(r, {r.budget}));
  EXPECT_NE(text.find(" is the smallest that works, with host_memory of " + host + " B ("),
            std::string::npos)
      << text;
  r.budget = refused.minimum_bytes;
  r.host_budget = refused.host_bytes;
  EXPECT_TRUE(make_plan(r).fits);
  EXPECT_EQ(ladder_text(make_ladder(r, {r.budget})).find("host_memory"), std::string::npos);
}

// On the CPU both arenas are RAM.
TEST(PlanHost, BothArenasTogetherAreWithinWhatIsFree) {
  PlanRequest r = request_of("block", "inputs");
  r.micro_batch = 12;
  const Plan plan = make_plan(r);
  r.free_bytes = plan.engine_bytes + plan.host_bytes;
  EXPECT_TRUE(make_plan(r).fits);
  --r.free_bytes;
  const Plan refused = make_plan(r);
  EXPECT_FALSE(refused.fits);
  expect_error(
      ErrorCode::out_of_memory,
      {(std::to_string(plan.engine_bytes + plan.host_bytes + plan.runtime_bytes) + " B").c_str(),
       "of free memory: ", "B of the host's arena, which is RAM too, and ",
       (std::to_string(r.free_bytes + plan.runtime_bytes) + " B").c_str(),
       "free now, offload: inputs", "to close other programs, or ", "offload=none (then memory of"},
      [&] { refuse_plan(refused); });
  r.offload = "none";
  EXPECT_TRUE(make_plan(r).fits) << "asked of nothing but a second arena";
}

// Without a second arena the engine is RAM all the same: a budget of more than is free is one of
// what is free, and where that is enough it decides nothing.
TEST(PlanHost, ABudgetOfMoreThanIsFreeIsHeldToWhatIs) {
  PlanRequest r = request_of("auto", "none");
  const int64_t budgets[] = {0, int64_t{1} << 40};
  for (const int64_t budget : budgets) {
    r.budget = budget;
    r.free_bytes = 0;
    const Plan wide = make_plan(r);
    r.free_bytes = wide.engine_bytes;
    const Plan same = make_plan(r);
    EXPECT_TRUE(same.fits);
    EXPECT_FALSE(same.held_to_free);
    EXPECT_EQ(plan_hash(same), plan_hash(wide));
    EXPECT_TRUE(plan_json(same).at("free_bytes").is_null());
    r.free_bytes -= 4096;
    const Plan held = make_plan(r);
    ASSERT_TRUE(held.fits);
    EXPECT_TRUE(held.held_to_free);
    EXPECT_LE(held.engine_bytes, r.free_bytes);
    EXPECT_EQ(plan_json(held).at("free_bytes"), r.free_bytes + held.runtime_bytes);
    EXPECT_NE(plan_text(held).find("of this machine's RAM now"), std::string::npos);
    // As a budget of so much.
    PlanRequest small = r;
    small.budget = r.free_bytes + held.runtime_bytes;
    EXPECT_EQ(plan_hash(make_plan(small)), plan_hash(held));
    r.free_bytes = held.minimum_bytes - held.runtime_bytes;
    EXPECT_TRUE(make_plan(r).fits);
    --r.free_bytes;
    const Plan refused = make_plan(r);
    EXPECT_FALSE(refused.fits);
    for (const Offer& o : refused.offers)
      EXPECT_LE(o.minimum_bytes + o.host_bytes, r.free_bytes + held.runtime_bytes) << o.keys;
    expect_error(ErrorCode::out_of_memory,
                 {(std::to_string(held.minimum_bytes) + " B").c_str(), "of free memory: ",
                  (std::to_string(r.free_bytes + held.runtime_bytes) + " B").c_str(), "free now",
                  "to close other programs, or "},
                 [&] { refuse_plan(refused); });
  }
  // A described device's memory is not this machine's, of which then nothing is said.
  r.free_bytes = 0;
  EXPECT_TRUE(make_plan(r).fits);
}

// The planner's own ladder of recompute goes over what the two keys cannot share.
TEST(PlanHost, AutoRecomputeLeavesOutWhatIsOffloaded) {
  PlanRequest r = request_of("auto", "attention");
  r.micro_batch = 12;
  const Plan wide = make_plan(r);
  EXPECT_EQ(wide.decisions.recompute, "none");
  r.budget = wide.minimum_bytes;
  EXPECT_TRUE(make_plan(r).fits);
  r.offload = "inputs";
  r.budget = 0;
  r.budget = make_plan(r).minimum_bytes;
  const Plan tight = make_plan(r);
  EXPECT_TRUE(tight.fits);
  EXPECT_NE(tight.decisions.recompute, "none");
  EXPECT_EQ(tight.decisions.offload, "inputs");
}

// One layer is no stack of layers that offload, and may offload all the same.
TEST(PlanHost, ALoneLayerLeavesWithTheHostWhatPays) {
  const Model model(test::tiny_spec({.V = 100, .P = 64, .C = 64, .L = 1, .H = 2, .F = 64}),
                    parse_precision("fp32"));
  const CostModel fast_link = test::described_device(1e9, 1e11);
  PlanRequest r = test::host_request(model, fast_link, 32, 8);
  r.micro_batch = 8;
  r.offload_optimizer = "none";
  PlanSearch search(r);
  int offloads = 0;
  for (const char* offload : {"none", "inputs", "block"})
    for (const LayerWords& recompute : presets()) {
      if (!policies_combine(recompute, offload, model)) continue;
      SCOPED_TRACE(recompute.text() + " | " + offload);
      PlanRequest fixed = r, ask = r;
      fixed.recompute = recompute;
      fixed.offload = offload;
      const Plan named = make_plan(fixed);
      ask.budget = named.engine_bytes + named.runtime_bytes;
      const Plan plan = make_plan(ask, search);
      ASSERT_TRUE(plan.fits);
      EXPECT_LE(plan.minimum_bytes, named.minimum_bytes);
      EXPECT_LE(plan.step_seconds, named.step_seconds * (1 + 1e-9));
      if (plan.decisions.offload == "none") continue;
      ++offloads;
      EXPECT_EQ(plan.optimality, "the fastest of the presets");
      EXPECT_GT(plan.host_bytes, 0);
    }
  EXPECT_GT(offloads, 0);
}

}  // namespace
}  // namespace snug
