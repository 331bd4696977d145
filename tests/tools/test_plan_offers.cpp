// What a run that does not fit is offered: each is what a plan with its keys needs, to the byte,
// and where one change is not enough the cheapest of several together.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "tests/support/errors.h"
#include "tests/tools/plan_case.h"
#include "tests/tools/session_case.h"
#include "tools/planner/offers.h"

namespace snug {
namespace {

const test::Tiny kTiny{.V = 300, .P = 64, .C = 32, .L = 4, .H = 2, .F = 128};

void expect_works(const PlanRequest& refused, const Offer& offer) {
  PlanRequest q = test::with_keys(refused, offer);
  q.budget = offer.minimum_bytes;
  EXPECT_TRUE(make_plan(q).fits) << offer.keys;
  --q.budget;
  EXPECT_FALSE(make_plan(q).fits) << offer.keys;
}

// Where the host's memory is the device's nothing is won by moving, so the numbers have to change:
// in both ways that the smallest memory needs, and in none that it does not.
TEST(SlowPlanOffers, SeveralTogetherWhereNoneIsEnough) {
  const Model model(test::tiny_spec({.V = 97, .P = 64, .C = 64, .L = 8, .H = 2, .F = 256}),
                    parse_precision("fp32"));
  const CostModel cost = test::described_device(1e11, 1e10);
  PlanRequest r = test::host_request(model, cost, 32, 4);
  r.use_host = false;
  r.allow = {"kernels"};
  r.micro_batch = r.keys.micro = 1;
  PlanRequest both = r;
  both.bf16_gradients = true;
  both.max_grad_norm = 0;
  both.micro_batch = both.keys.micro = 0;
  const Plan least = make_plan(both);
  r.budget = least.minimum_bytes;
  r.free_bytes = least.minimum_bytes - least.runtime_bytes;
  const Plan refused = make_plan(r);
  ASSERT_FALSE(refused.fits);
  ASSERT_FALSE(refused.offers.empty());
  const Offer& best = refused.offers.front();
  EXPECT_EQ(best.keys,
            "allow=[kernels,bf16_gradients] max_grad_norm=0 per_device_train_batch_size=null");
  EXPECT_TRUE(best.enough);
  EXPECT_EQ(best.effect, "another order of sums, gradients rounded to bf16, gradients not clipped");
  EXPECT_EQ(best.minimum_bytes, least.minimum_bytes);
  expect_works(r, best);
  for (const Offer& o : refused.offers)
    if (&o != &best) {
      EXPECT_FALSE(o.enough) << o.keys;
      expect_works(r, o);
    }
  test::expect_error(
      ErrorCode::out_of_memory,
      {(best.keys + " (then memory of " + std::to_string(best.minimum_bytes) + " B, ").c_str(),
       "is enough; another order of sums, gradients rounded to bf16, gradients not "
       "clipped)"},
      [&] { refuse_plan(refused); });
  // One byte less is too little for all of it: what comes nearest is said to be so.
  r.budget = least.minimum_bytes - 1;
  r.free_bytes = least.minimum_bytes;
  const Plan nothing = make_plan(r);
  for (const Offer& o : nothing.offers) EXPECT_FALSE(o.enough && o.keys == best.keys) << o.keys;
  // With one of them given the other is enough, and stands alone.
  both.micro_batch = 0;
  both.max_grad_norm = 1;
  both.budget = r.budget = least.minimum_bytes;
  both.free_bytes = least.minimum_bytes - least.runtime_bytes;
  const Plan given = make_plan(both);
  ASSERT_FALSE(given.fits);
  EXPECT_EQ(given.offers.front().keys, "max_grad_norm=0");
  for (size_t i = 1; i < given.offers.size(); ++i) EXPECT_FALSE(given.offers[i].enough);
}

// States with the host, where host and device share their memory: both arenas count.
TEST(SlowPlanOffers, SeveralTogetherWhereTheHostIsShort) {
  const Model model(test::tiny_spec({.V = 97, .P = 64, .C = 64, .L = 8, .H = 2, .F = 256}),
                    parse_precision("fp32"));
  const CostModel cost = test::described_device(1e11, 1e10);
  PlanRequest r = test::host_request(model, cost, 32, 1);
  r.offload_optimizer = "cpu";
  r.offload = "none";
  // The device has room for no state.
  r.budget = 1;
  r.budget = make_plan(r).minimum_bytes;
  PlanRequest both = r;
  both.bf16_gradients = true;
  both.max_grad_norm = 0;
  both.free_bytes = 1;
  const Plan least = make_plan(both);
  r.free_bytes = least.engine_bytes + least.host_bytes;
  const Plan refused = make_plan(r);
  ASSERT_FALSE(refused.fits);
  ASSERT_FALSE(refused.offers.empty());
  const Offer& best = refused.offers.front();
  EXPECT_EQ(best.keys, "allow=[bf16_gradients] max_grad_norm=0");
  EXPECT_TRUE(best.enough);
  PlanRequest q = test::with_keys(r, best);
  EXPECT_TRUE(make_plan(q).fits);
  q.free_bytes -= 4096;
  EXPECT_FALSE(make_plan(q).fits);
}

// A model of bf16 weights alone, as the permission would have it: where its master is what is too much,
// with the bytes that its plan has; not beside ranks, a checkpoint's choices or bitwise.
TEST(SlowPlanOffers, WeightsWithoutAMaster) {
  const ModelSpec spec = test::tiny_spec(kTiny);
  const Model model(spec, parse_precision("bf16"));
  Precision bare = parse_precision("bf16");
  bare.master = bare.compute;
  const Model other(spec, bare);
  const CostModel cost = test::described_device(1e11, 1e10);
  PlanRequest r = test::host_request(model, cost, 32, 1);
  r.use_host = false;
  r.bf16_gradients = true;
  r.max_grad_norm = 0;
  r.allow = {"bf16_gradients"};
  PlanRequest without = r;
  without.model = &other;
  without.allow.emplace_back("no_master");
  const Plan least = make_plan(without);
  r.without_master = [&] { return &other; };
  r.budget = r.free_bytes = make_plan(r).minimum_bytes - 1;
  const auto found = [](const Plan& plan) {
    const auto at = std::find_if(plan.offers.begin(), plan.offers.end(), [](const Offer& o) {
      return o.keys == "allow=[bf16_gradients,no_master]";
    });
    return at == plan.offers.end() ? std::nullopt : std::optional(*at);
  };
  const auto offer = found(make_plan(r));
  ASSERT_TRUE(offer.has_value());
  EXPECT_EQ(offer->minimum_bytes, least.minimum_bytes);
  EXPECT_EQ(offer->effect, "weights rounded to bf16 at random");
  EXPECT_TRUE(offer->enough);
  expect_works(r, *offer);
  for (const auto& close : std::initializer_list<void (*)(PlanRequest&)>{
           [](PlanRequest& q) { q.bitwise = true; }, [](PlanRequest& q) { q.pinned = true; },
           [](PlanRequest& q) { q.without_master = nullptr; }}) {
    PlanRequest q = r;
    close(q);
    EXPECT_FALSE(found(make_plan(q)).has_value());
  }
}

// What changes no number comes before what does, together as alone.
TEST(SlowPlanOffers, TogetherTheyChangeNoMoreThanTheyMust) {
  const Model model(test::tiny_spec(kTiny), parse_precision("fp32"));
  const CostModel cost = test::described_device(1e11, 1e10);
  PlanRequest r = test::host_request(model, cost, 32, 4);
  r.use_host = false;
  r.recompute = "none";
  r.micro_batch = 4;
  r.evaluate = true;
  r.eval_batch = 4;
  PlanRequest all = r;
  all.recompute = "auto";
  all.eval_batch = 1;
  all.use_host = true;
  all.offload_params = "cpu";
  r.budget = make_plan(all).minimum_bytes;
  const Plan refused = make_plan(r);
  ASSERT_FALSE(refused.fits);
  ASSERT_FALSE(refused.offers.empty());
  const Offer& best = refused.offers.front();
  EXPECT_TRUE(best.enough);
  EXPECT_EQ(best.effect, "the same numbers") << best.keys;
  EXPECT_NE(best.keys.find(' '), std::string::npos) << best.keys;
  EXPECT_NE(best.keys.find("host_memory=" + std::to_string(best.host_bytes)), std::string::npos);
  PlanRequest q = test::with_keys(r, best);
  q.budget = best.minimum_bytes;
  EXPECT_TRUE(make_plan(q).fits) << best.keys;
}

// Every offer is what a plan with its keys needs, and one that is said to be enough is.
TEST(SlowPlanOffers, AreThePlansOfTheirKeys) {
  const Model model(test::tiny_spec(kTiny), parse_precision("fp32"));
  const CostModel cost = test::described_device(1e11, 1e10);
  PlanRequest r = test::host_request(model, cost, 32, 12);
  r.use_host = false;
  r.micro_batch = 6;
  r.head_rows = 128;
  r.recompute = "none";
  r.T = 64;
  r.global_batch = 12;
  r.save = true;
  r.save_buffer = -1;
  const int64_t least = make_plan(r).minimum_bytes;
  r.budget = least - 1;
  const Plan refused = make_plan(r);
  ASSERT_FALSE(refused.fits);
  std::set<std::string> seen;
  for (const Offer& o : refused.offers) {
    PlanRequest q = test::with_keys(r, o);
    q.budget = o.minimum_bytes;
    EXPECT_TRUE(make_plan(q).fits) << o.keys;
    --q.budget;
    EXPECT_FALSE(make_plan(q).fits) << o.keys;
    EXPECT_LT(o.minimum_bytes, least) << o.keys;
    EXPECT_TRUE(o.enough) << o.keys;
    seen.insert(o.keys.substr(0, o.keys.find('=')));
  }
  for (const char* key : {"recompute", "per_device_train_batch_size", "offload_optimizer",
                          "offload", "offload_params", "offload_gradients"})
    EXPECT_TRUE(seen.contains(key)) << key;
  test::expect_error(
      ErrorCode::out_of_memory,
      {("memory=" + std::to_string(least) + " (").c_str(),
       "), or with the memory that is given:\n           recompute=auto (then memory of",
       " MiB, is enough; another order of sums)", "\n         or a smaller model"},
      [&] { refuse_plan(refused); });
  EXPECT_EQ(plan_json(refused).at("offers").size(), refused.offers.size());
  // Those that do not suffice come last, and a checkpoint's choices are unpinned, not changed.
  r.budget = 1000;
  for (const Offer& o : make_plan(r).offers) EXPECT_FALSE(o.enough);
  test::expect_error(ErrorCode::out_of_memory,
                     {", or what comes nearer, but takes more than is given:\n           "},
                     [&] { refuse_plan(make_plan(r)); });
  r.pinned = true;
  bool allowed = false;
  for (const Offer& o : make_plan(r).offers) {
    allowed = allowed || o.keys == "allow=[micro_batch,head_rows]";
    EXPECT_EQ(o.keys.find("per_device"), std::string::npos);
  }
  EXPECT_TRUE(allowed);
  r.allow = {"head_rows", "kernels"};
  bool joined = false;
  for (const Offer& o : make_plan(r).offers)
    joined = joined || o.keys == "allow=[head_rows,kernels,micro_batch]";
  EXPECT_TRUE(joined) << "each once, and what was given";
  r.allow.clear();
  r.recompute = "block";
  r.offload = "inputs";
  r.host_budget = 32768;
  r.budget = 0;
  test::expect_error(
      ErrorCode::out_of_memory,
      {"which is enough, for what is offloaded for micro-batches of 6, which run/c pins",
       "host_memory of 32768 B", "offload=none (then memory of", "allow=[micro_batch,head_rows]"},
      [&] { refuse_plan(make_plan(r), "micro-batches of 6, which run/c pins"); });
}

// Both arenas of one RAM: what only moves from one to the other is not offered.
TEST(PlanOffers, OneRamIsNotSavedByMovingWithinIt) {
  const Model model(test::tiny_spec(kTiny), parse_precision("fp32"));
  const CostModel cost = test::described_device(1e11, 1e10);
  PlanRequest r = test::host_request(model, cost, 32, 4);
  r.offload_params = r.offload_gradients = "auto";
  r.use_host = false;
  r.budget = make_plan(r).minimum_bytes - 4096;
  const auto moved = [&] {
    int count = 0;
    for (const Offer& o : make_plan(r).offers) count += o.host_bytes > 0;
    return count;
  };
  EXPECT_GT(moved(), 0);
  r.free_bytes = int64_t{1} << 40;
  EXPECT_EQ(moved(), 0);
}

// Half a length is offered where the tokens of a global batch are whole sequences of it: 2 x 66 are 4 x
// 33, of 3 x 67 that is not so.
TEST(PlanOffers, HalfALengthDividesTheBatchInTokens) {
  const Model model(test::tiny_spec({.V = 300, .P = 128, .C = 32, .L = 2, .H = 2, .F = 128}),
                    parse_precision("fp32"));
  const CostModel cost = test::described_device(1e11, 1e10);
  const auto offered = [&](int64_t T, int64_t batch) {
    PlanRequest r = test::host_request(model, cost, T, batch);
    r.use_host = false;
    r.keys.global_tokens = T * batch;
    r.budget = 4096;
    r.budget = make_plan(r).minimum_bytes - 4096;
    const Plan plan = make_plan(r);
    return std::any_of(plan.offers.begin(), plan.offers.end(), [](const Offer& o) {
      return o.keys.find("max_length=33") != std::string::npos;
    });
  };
  EXPECT_TRUE(offered(66, 2));
  EXPECT_FALSE(offered(67, 3));
}

// What is left to the planner and was not planned with is closed by the keys: host_memory would
// open it, and less would be enough than is said.
TEST(PlanOffers, NameWhatStaysWhereItWas) {
  const Model model(test::tiny_spec(kTiny), parse_precision("fp32"));
  const CostModel cost = test::described_device(1e11, 1e10);
  PlanRequest r = test::host_request(model, cost, 32, 4);
  r.offload_params = r.offload_gradients = "auto";
  r.use_host = false;
  r.budget = make_plan(r).minimum_bytes - 4096;
  bool seen = false;
  for (const Offer& o : make_plan(r).offers) {
    seen = seen || o.keys.starts_with(
                       "offload_optimizer=cpu offload=none offload_params=none "
                       "offload_gradients=none host_memory=");
    if (o.host_bytes > 0) expect_works(r, o);
  }
  EXPECT_TRUE(seen);
}

}  // namespace
}  // namespace snug
