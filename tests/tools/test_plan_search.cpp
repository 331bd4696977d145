// The planner as a whole: budgets hold, more memory is never predicted slower, no uniform choice
// that fits is faster, and what the layers' model says is what the recorded session has.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "layers/models/recompute.h"
#include "tests/support/errors.h"
#include "tests/tools/plan_case.h"
#include "tests/tools/session_case.h"
#include "tools/planner/batch_room.h"
#include "tools/planner/ladder.h"
#include "tools/planner/plan_search.h"
#include "tools/report/ladder_svg.h"

namespace snug {
namespace {

const char* const kPresets[] = {"none", "norms", "mlp", "attention", "norms+mlp+attention",
                                "block"};

struct Case {
  test::Tiny tiny;
  const char* precision;
  bool evaluate;
  bool bf16_gradients = false;
  double max_grad_norm = 1.0;
  const char* map = nullptr;  // instead of `tiny`

  ModelSpec spec() const { return map ? resolve_model("", map).spec : test::tiny_spec(tiny); }
};
const Case kCases[] = {
    {{.V = 300, .P = 64, .C = 32, .L = 4, .H = 2, .F = 128}, "fp32", false},
    {{.V = 1500, .P = 64, .C = 64, .L = 7, .H = 4, .F = 96}, "bf16", true},
    {{.V = 97, .P = 64, .C = 48, .L = 12, .H = 3, .F = 192, .dropout = 0.1}, "fp32", true},
    {{.V = 300, .P = 64, .C = 32, .L = 4, .H = 2, .F = 128}, "bf16", true, true},
    {{.V = 97, .P = 64, .C = 48, .L = 6, .H = 3, .F = 192}, "fp32", false, false, 0.0},
    {{}, "fp32", true, false, 1.0, test::kTwoKinds}};

PlanRequest request_of(const Model& model, const Case& c) {
  PlanRequest r;
  r.model = &model;
  r.T = 32;
  r.global_batch = 12;
  r.max_grad_norm = c.max_grad_norm;
  r.evaluate = c.evaluate;
  r.bf16_gradients = c.bf16_gradients;
  r.save = true;
  return r;
}

TEST(SlowPlanSearch, EveryBudgetHoldsAndMoreMemoryIsNeverSlower) {
  for (const Case& c : kCases) {
    const Model model(c.spec(), parse_precision(c.precision));
    PlanRequest r = request_of(model, c);
    const Plan open = make_plan(r);
    const int64_t least = open.minimum_bytes, most = open.engine_bytes + open.runtime_bytes;
    ASSERT_LT(least, most);
    PlanSearch search(r);
    double before = 0;
    std::set<std::string> seen;
    for (int i = -2; i <= 25; ++i) {
      r.budget = least + (most - least) * i / 24;
      const Plan p = make_plan(r, search);
      ASSERT_EQ(p.fits, i >= 0) << r.budget;
      EXPECT_EQ(p.minimum_bytes, least);
      if (!p.fits) continue;
      EXPECT_LE(p.engine_bytes + p.runtime_bytes, r.budget);
      // A layer's gradients are one long tensor among short ones: packing may miss the bound.
      EXPECT_LE(p.repairs, p.decisions.update_in_backward ? 2 : 0)
          << "the layers' model or the packing missed the record";
      EXPECT_GE(p.tokens_per_second(), before * (1 - 1e-9)) << r.budget;
      before = p.tokens_per_second();
      seen.insert(p.decisions.recompute.text() + std::to_string(p.decisions.micro_batch));
      EXPECT_EQ(plan_hash(make_plan(r)), plan_hash(p)) << "other budgets changed the plan";
      EXPECT_EQ(nlohmann::json::parse(plan_json(p).dump()), plan_json(p));
    }
    EXPECT_GE(seen.size(), 4u) << "nothing had to be given up";
    EXPECT_NEAR(before, open.tokens_per_second(), 1e-9 * before);
  }
}

// Outside truth: every uniform preset with every micro-batch and chunk, recorded whole.
TEST(SlowPlanSearch, NoUniformChoiceThatFitsIsFaster) {
  for (const Case& c : kCases) {
    const Model model(c.spec(), parse_precision(c.precision));
    PlanRequest r = request_of(model, c);
    PlanSearch search(r);
    struct Uniform {
      int64_t bytes;
      double seconds;
    };
    std::vector<Uniform> all;
    for (const int64_t micro : {12, 6, 4, 3, 2, 1})
      for (const int64_t rows : {384, 256, 64})
        for (const char* preset : kPresets) {
          PlanRequest fixed = r;
          fixed.micro_batch = micro;
          fixed.head_rows = rows;
          fixed.recompute = preset;
          const Plan p = make_plan(fixed);
          all.push_back({p.engine_bytes + p.runtime_bytes, p.step_seconds});
        }
    for (const Uniform& u : all) {
      r.budget = u.bytes;
      const Plan p = make_plan(r, search);
      ASSERT_TRUE(p.fits);
      EXPECT_LE(p.step_seconds, u.seconds * (1 + 1e-9)) << u.bytes;
    }
  }
}

TEST(PlanSearch, TheLayersModelIsTheRecord) {
  for (const Case& c : kCases) {
    const Model model(c.spec(), parse_precision(c.precision));
    const PlanRequest r = request_of(model, c);
    PlanSearch search(r);
    const int64_t least = search.least().front().engine_bytes;
    for (int i = 0; i < 12; ++i) {
      const PlanSearch::Choice choice = search.best(least + i * (96 << 10));
      ASSERT_TRUE(choice.feasible);
      const auto session = search.record(choice.decisions);
      EXPECT_EQ(session->schedule().lower_bound(), choice.engine_bytes)
          << choice.decisions.recompute.text();
      EXPECT_NEAR(search.step_seconds(session->schedule(), choice.decisions), choice.step_seconds,
                  1e-9 * choice.step_seconds)
          << choice.decisions.recompute.text() << ", micro-batch " << choice.decisions.micro_batch
          << ", chunks of " << choice.decisions.head_rows;
      EXPECT_NE(choice.optimality.find("optimal"), std::string::npos);
    }
  }
}

// A layer that sees all keys takes longer to be made again than one that has a window: the plan lets
// the layers with windows do it.
TEST(PlanSearch, LayersThatDifferHaveTheirOwnCosts) {
  const Model model(resolve_model("", test::kTwoKinds).spec, parse_precision("fp32"));
  const CostModel cost = test::described_device(1e9, 1e11);
  PlanRequest r = request_of(model, kCases[0]);
  r.cost = &cost;
  r.micro_batch = 4;
  r.head_rows = 64;
  PlanSearch search(r);
  const int64_t least = search.least().front().engine_bytes,
                most = search.best(int64_t{1} << 40).engine_bytes;
  const auto attention = [&](const LayerPolicies& policies, int64_t layer) {
    const Body& body = model.block(layer).body();
    return policies[static_cast<size_t>(layer)][static_cast<size_t>(body.find_slot("att"))];
  };
  int differ = 0;
  for (int i = 0; i < 40; ++i) {
    const PlanSearch::Choice c = search.best(least + (most - least) * i / 40);
    if (!c.feasible) continue;
    const LayerPolicies policies = parse_policies(c.decisions.recompute, "none", model);
    int again[2] = {};  // of the two kinds: layer 2 sees all
    for (int64_t l = 0; l < 5; ++l)
      again[l == 2] += attention(policies, l) == SlotPolicy::recompute;
    if (again[0] == 4 || again[0] + again[1] == 0) continue;
    EXPECT_EQ(again[1], 0) << c.decisions.recompute.text();
    ++differ;
  }
  EXPECT_GT(differ, 0) << "no budget had some layers make attention again";
}

// A schedule is packed once for all plans that have it, and lies as if it had been packed then.
TEST(PlanSearch, WhatWasPackedBeforeLiesTheSame) {
  const Model model(test::tiny_spec(kCases[1].tiny), parse_precision(kCases[1].precision));
  const PlanRequest r = request_of(model, kCases[1]);
  PlanSearch search(r);
  const Decisions least = search.least().front().decisions;
  const Decisions fastest = search.best(int64_t{1} << 40).decisions;
  ASSERT_NE(least, fastest);
  for (int round = 0; round < 2; ++round)
    for (const Decisions& d : {least, fastest}) {
      const auto session = search.record(d), fresh = search.record(d);
      search.pack(session->schedule(), d);
      fresh->schedule().pack();
      ASSERT_EQ(session->schedule().size(), fresh->schedule().size());
      for (int i = 0; i < fresh->schedule().size(); ++i) {
        const Program &a = session->schedule().at(i), &b = fresh->schedule().at(i);
        EXPECT_EQ(a.packing.offsets, b.packing.offsets) << a.name.view();
        EXPECT_EQ(a.host_packing.offsets, b.host_packing.offsets);
        EXPECT_EQ(a.end(), b.end());
        EXPECT_EQ(a.host_end(), b.host_end());
      }
      EXPECT_EQ(session->schedule().arena_bytes(), search.packed(d).engine);
    }
  // What other decisions were packed to is a bound where programs are the same.
  Decisions like = least, unlike = least;
  like.recompute = like.recompute == "none" ? "norms" : "none";
  unlike.micro_batch = 2 * least.micro_batch;
  EXPECT_GT(search.packed_at_least(like), 0);
  EXPECT_EQ(search.packed_at_least(unlike), 0);
  EXPECT_LE(search.packed_at_least(like), search.packed(like).engine);
  // Another schedule under these decisions is a defect, and is noticed.
  Schedule other = search.record(fastest)->schedule();
  other.at(0).tensors.pop_back();
  test::expect_error(ErrorCode::internal, {"the tensors that were packed before"},
                     [&] { search.pack(other, fastest); });
}

// What no budget bounds, the time and memory that planning takes, is bounded by rows.
TEST(PlanSearch, MicroBatchesOfMoreThanAMillionRowsAreForWhoAsks) {
  const Model model(test::tiny_spec(kCases[0].tiny), parse_precision("fp32"));
  PlanRequest r = request_of(model, kCases[0]);
  constexpr int64_t kMost = PlanSearch::kMostRows / 32;
  r.head_rows = PlanSearch::kMostRows;  // few chunks
  r.recompute = "none";
  for (const int64_t batch : {kMost, 2 * kMost}) {
    r.global_batch = batch;
    EXPECT_EQ(make_plan(r).decisions.micro_batch, kMost) << batch;
  }
  r.global_batch = 2 * kMost + 1;  // no divisor of which is a power of 2
  EXPECT_LT(make_plan(r).decisions.micro_batch, kMost);
  r.micro_batch = r.global_batch = 2 * kMost;
  EXPECT_EQ(make_plan(r).decisions.micro_batch, 2 * kMost);
}

// Who asks for more of them than there is room for is told so at once, and never wrongly: the
// smallest plan takes more.
TEST(PlanSearch, AFixedBatchWithoutRoomIsRefusedBeforeItIsRecorded) {
  const Model model(test::tiny_spec(kCases[0].tiny), parse_precision("fp32"));
  PlanRequest r = request_of(model, kCases[0]);
  constexpr int64_t kMost = PlanSearch::kMostRows / 32, kSequence = 32 * 32 * 4;
  r.head_rows = PlanSearch::kMostRows;  // few chunks
  const auto refused = [&](const char* batch, const char* found, const char* advice) {
    test::expect_error(ErrorCode::out_of_memory, {batch, found, advice},
                       [&] { check_batch_room(r); });
  };
  r.micro_batch = r.global_batch = r.keys.micro = kMost + 1;
  for (const auto& [offload, layers] : {std::pair<const char*, int>{"none", 4}, {"inputs", 1}}) {
    r.offload = offload;
    const int64_t bytes = r.micro_batch * kSequence * layers;
    r.budget = 0;
    check_batch_room(r);  // no limit
    EXPECT_GT(make_plan(r).minimum_bytes - make_plan(r).runtime_bytes, bytes) << offload;
    r.budget = bytes;
    check_batch_room(r);
    r.budget = bytes - 1;
    refused(" of a micro-batch of 32769 sequences of 32 tokens", "memory of ",
            "per_device_train_batch_size: 32768 sequences have room between the layers");
  }
  r.offload = "none";
  r.budget = int64_t{1} << 50;
  r.free_bytes = 1 << 20;
  refused("a micro-batch", "1048576 B (1.00 MiB) free now", "per_device_train_batch_size: 64");
  r.budget = 1 << 20;
  r.reserve = 1 << 28;
  refused("a micro-batch",
          "memory of 1048576 B (1.00 MiB), which is what is free now less a reserve of 256.00 MiB",
          "per_device_train_batch_size: 64");
  r.reserve = r.free_bytes = 0;
  r.keys.micro = 0;
  r.keys.accumulation = 1;
  refused("a micro-batch", "memory of 1048576 B", "a larger gradient_accumulation_steps: 64");
  r.micro_batch = 0;
  r.keys = {};
  check_batch_room(r);  // the planner's to choose
  r.bitwise = true;
  refused("a micro-batch", "memory of 1048576 B", "or bitwise=false: 64");
  r.pinned = true;  // it has run
  check_batch_room(r);
  r.pinned = r.bitwise = false;
  r.micro_batch = kMost;  // recorded soon
  check_batch_room(r);
  r.evaluate = true;
  r.eval_batch = 1 << 20;
  refused("a batch of evaluation of 1048576", "memory of 1048576 B",
          "per_device_eval_batch_size: 256");
  r.global_batch = r.micro_batch = 0;
  refused("a batch of evaluation of 1048576", "memory of 1048576 B", "a smaller --batch-size: 256");
}

TEST(PlanSearch, WhatIsFixedStaysFixed) {
  const Model model(test::tiny_spec(kCases[0].tiny), parse_precision("fp32"));
  PlanRequest r = request_of(model, kCases[0]);
  r.bitwise = true;
  const Plan open = make_plan(r);
  r.budget = open.minimum_bytes;
  const Plan tight = make_plan(r);
  EXPECT_TRUE(tight.fits);
  EXPECT_EQ(tight.decisions.micro_batch, 12);
  EXPECT_EQ(tight.decisions.head_rows, open.decisions.head_rows);
  EXPECT_NE(tight.decisions.recompute, open.decisions.recompute);
  r.bitwise = false;
  r.micro_batch = 3;
  r.head_rows = 64;
  r.budget = 0;
  r.recompute = "0-1: norm1+act, 2: block";
  const Plan fixed = make_plan(r);
  EXPECT_EQ(fixed.decisions.micro_batch, 3);
  EXPECT_EQ(fixed.decisions.head_rows, 64);
  EXPECT_EQ(fixed.decisions.recompute, r.recompute);
}

// Without the permission nothing is held in bf16. With it gradients have half the bytes where that
// is needed or faster, the plan says which, and a refusal without it names what it would do.
TEST(PlanSearch, GradientsAreInBf16WithThePermissionAlone) {
  const Model model(test::tiny_spec(kCases[0].tiny), parse_precision("fp32"));
  PlanRequest r = request_of(model, kCases[0]);
  const int64_t gradients = model.params().flat_elements() * 4;
  const Plan open = make_plan(r);
  EXPECT_EQ(plan_json(open)["decisions"]["gradients"], "f32");
  EXPECT_EQ(plan_json(open)["categories"]["gradients"], gradients);
  EXPECT_EQ(plan_sentence(open).find("gradients"), std::string::npos);

  PlanRequest allowed = r;
  allowed.bf16_gradients = true;
  const Plan wide = make_plan(allowed);
  EXPECT_LE(wide.step_seconds, open.step_seconds);
  EXPECT_NEAR(static_cast<double>(wide.minimum_bytes),
              static_cast<double>(open.minimum_bytes - gradients / 2), 4096);
  allowed.budget = wide.minimum_bytes;
  const Plan least = make_plan(allowed);
  ASSERT_TRUE(least.fits);
  EXPECT_EQ(least.decisions.gradients, DType::bf16);
  EXPECT_EQ(plan_json(least)["decisions"]["gradients"], "bf16");
  EXPECT_EQ(plan_json(least)["categories"]["gradients"], gradients / 2);
  EXPECT_NE(plan_sentence(least).find(", gradients held in bf16"), std::string::npos);

  // The offer is what the permission makes of the same request, to the byte.
  r.budget = wide.minimum_bytes;
  const std::string offer =
      "allow=[bf16_gradients] (then memory of " + std::to_string(wide.minimum_bytes) + " B, ";
  test::expect_error(ErrorCode::out_of_memory, {offer.c_str()}, [&] { refuse_plan(make_plan(r)); });
  const auto offers = [](const PlanRequest& q) {
    const Plan plan = make_plan(q);
    EXPECT_FALSE(plan.fits);
    return std::any_of(plan.offers.begin(), plan.offers.end(),
                       [](const Offer& o) { return o.keys == "allow=[bf16_gradients]"; });
  };
  EXPECT_TRUE(offers(r));
  // A list on the command line takes the place of the file's: what was allowed stays in it.
  PlanRequest given = r;
  given.allow = {"kernels", "micro_batch"};
  test::expect_error(ErrorCode::out_of_memory,
                     {"allow=[kernels,micro_batch,bf16_gradients] (then memory"},
                     [&] { refuse_plan(make_plan(given)); });
  allowed.budget = wide.minimum_bytes - 4096;
  EXPECT_FALSE(offers(allowed)) << "it is given";
  r.bitwise = true;
  EXPECT_FALSE(offers(r)) << "bitwise refuses permissions";
  r.bitwise = false;
  r.gradients = DType::f32;
  EXPECT_FALSE(offers(r)) << "a checkpoint's";
  // What a checkpoint pins is not chosen again, permission or not.
  allowed.gradients = DType::f32;
  allowed.budget = wide.minimum_bytes;
  EXPECT_FALSE(make_plan(allowed).fits);
  allowed.budget = 0;
  EXPECT_EQ(make_plan(allowed).decisions.gradients, DType::f32);
  allowed.gradients = DType::bf16;
  EXPECT_EQ(make_plan(allowed).decisions.gradients, DType::bf16);
}

// Without clipping, and with the whole batch at once, layers may be updated as backward leaves
// them: the same bits, so it takes no permission. It is taken where memory asks for it.
TEST(SlowPlanSearch, UpdatesInBackwardWhereThatFitsMore) {
  const Model model(test::tiny_spec({.V = 97, .P = 64, .C = 64, .L = 8, .H = 2, .F = 256}),
                    parse_precision("fp32"));
  PlanRequest r = request_of(model, kCases[0]);
  r.global_batch = 1;
  const Plan clipped = make_plan(r);
  r.max_grad_norm = 0;
  const Plan open = make_plan(r);
  EXPECT_FALSE(open.decisions.update_in_backward) << "nothing asks for it";
  EXPECT_EQ(plan_json(open)["decisions"]["update"], "behind backward");
  EXPECT_LT(open.minimum_bytes, clipped.minimum_bytes - model.params().flat_elements() * 2);
  // The refusal of clipping says so, to the byte.
  PlanRequest clips = r;
  clips.max_grad_norm = 1.0;
  clips.budget = open.minimum_bytes;
  const std::string offer =
      "max_grad_norm=0 (then memory of " + std::to_string(open.minimum_bytes) + " B, ";
  test::expect_error(ErrorCode::out_of_memory, {offer.c_str()},
                     [&] { refuse_plan(make_plan(clips)); });
  r.budget = open.minimum_bytes;
  const Plan least = make_plan(r);
  ASSERT_TRUE(least.fits);
  EXPECT_TRUE(least.offers.empty());
  EXPECT_TRUE(least.decisions.update_in_backward);
  EXPECT_EQ(least.decisions.gradients, DType::f32);
  EXPECT_EQ(plan_json(least)["decisions"]["update"], "in backward");
  EXPECT_NE(plan_sentence(least).find(", layers updated as backward leaves them"),
            std::string::npos);
  // Of several micro-steps it is not; nor of steps that may have to be skipped.
  r.global_batch = 4;
  r.micro_batch = 2;
  r.budget = 0;
  r.budget = make_plan(r).minimum_bytes;
  EXPECT_FALSE(make_plan(r).decisions.update_in_backward);
  const Model half(model.spec(), parse_precision("fp16"));
  r.model = &half;
  r.micro_batch = 4;
  r.budget = 0;
  r.budget = make_plan(r).minimum_bytes;
  EXPECT_FALSE(make_plan(r).decisions.update_in_backward);
}

// A paged optimizer's states may go to the host without use_host: the least memory is as much lower.
TEST(PlanSearch, StatesThatArePagedLowerTheLeastMemory) {
  const Model model(test::tiny_spec(kCases[0].tiny), parse_precision("fp32"));
  PlanRequest r = request_of(model, kCases[0]);
  r.budget = 1;
  const int64_t whole = make_plan(r).minimum_bytes;
  r.offload_optimizer = "cpu";
  const Plan away = make_plan(r);
  ASSERT_LT(away.minimum_bytes, whole);
  r.offload_optimizer = "auto";
  EXPECT_EQ(make_plan(r).minimum_bytes, whole) << "nothing allows it";
  r.paged_states = true;
  const Plan paged = make_plan(r);
  EXPECT_EQ(paged.minimum_bytes, away.minimum_bytes);
  r.budget = paged.minimum_bytes;
  const Plan fits = make_plan(r);
  EXPECT_TRUE(fits.fits);
  EXPECT_TRUE(fits.decisions.offload_optimizer);
  r.offload_optimizer = "none";
  EXPECT_EQ(make_plan(r).minimum_bytes, whole);
}

// What is proved of a choice, in words: by how much a better one could be faster, rounded up.
TEST(PlanSearch, WhatIsProvedIsSaid) {
  const Model model(test::tiny_spec(kCases[0].tiny), parse_precision("fp32"));
  Plan p = make_plan(request_of(model, kCases[0]));
  const auto says = [&](double share, const std::string& words) {
    p.step_seconds = 1;
    p.bound_seconds = 1 - share;
    const std::string text = plan_text(p);
    EXPECT_NE(text.find("; " + words), std::string::npos) << share << "\n" << text;
  };
  const std::string none = "proved that none of the plans it knows ";
  says(0, none + "is faster");
  says(0.9e-6, none + "is faster");
  says(1.1e-6, none + "has more than 0.01 % more tokens/s (1.0s a step at least)");
  says(0.2, none + "has more than 25.00 % more tokens/s (0.8s a step at least)");
  p.decisions.offload_gradients = true;
  says(0.2, "of gradients with the host the presets alone are looked at");
  p.decisions.offload_params = true;
  says(0.2, "of weights with the host the presets alone are looked at");
}

TEST(PlanSearch, PackedCopiesPayWhereTheyAreNotTwiceTheWeights) {
  constexpr int64_t kMiB = 1 << 20, kWeights = 100 * kMiB;
  EXPECT_FALSE(packed_copies_pay(kWeights, 0));
  EXPECT_TRUE(packed_copies_pay(kWeights, kWeights));
  EXPECT_TRUE(packed_copies_pay(kWeights, kWeights + 49 * kMiB));
  EXPECT_TRUE(packed_copies_pay(kWeights, kWeights + 51 * kMiB - 1));
  EXPECT_FALSE(packed_copies_pay(kWeights, kWeights + 51 * kMiB));
  EXPECT_FALSE(packed_copies_pay(kWeights, 2 * kWeights));
  EXPECT_TRUE(packed_copies_pay(1000, kMiB)) << "tiny weights, most of it padding";
}

// Where both arenas are RAM: what the permission leaves of both.
TEST(PlanSearch, TheOfferCountsBothArenas) {
  const Model model(test::tiny_spec(kCases[0].tiny), parse_precision("fp32"));
  PlanRequest r = request_of(model, kCases[0]);
  r.offload_optimizer = "cpu";
  r.bf16_gradients = true;
  r.free_bytes = 1;
  const Plan least = make_plan(r);
  ASSERT_FALSE(least.fits);
  const int64_t both = least.engine_bytes + least.host_bytes;
  r.free_bytes = both;
  EXPECT_TRUE(make_plan(r).fits);
  r.bf16_gradients = false;
  const std::string offer =
      "allow=[bf16_gradients] (then memory of " + std::to_string(least.minimum_bytes) + " B, ";
  test::expect_error(ErrorCode::out_of_memory, {"of free memory", offer.c_str()},
                     [&] { refuse_plan(make_plan(r)); });
}

TEST(PlanSearch, WordsForSlotsAreReadAsTheyWereMeant) {
  const Model sandwich(resolve_model("", test::kTwoKinds).spec, parse_precision("fp32"));
  for (const char* preset : {"none", "norms", "mlp", "attention", "block", "heads+proj", "down",
                             "norms+rstdq+rstdk+rstd3+rstd4"}) {
    const LayerPolicies policies = parse_policies(preset, "none", sandwich);
    EXPECT_EQ(recompute_text(policies[0], sandwich.block(0).body()), preset);
    EXPECT_EQ(policies[0], policies[4]);
  }
  const Model model(test::tiny_spec({.L = 3}), parse_precision("fp32"));
  const Body& body = model.block(0).body();
  const char* const slots[] = {"norm1", "qkv", "att", "lse", "mid", "norm2", "fc", "act"};
  std::set<std::string> texts;
  for (int set = 0; set < 256; ++set) {
    std::vector<SlotPolicy> policies(static_cast<size_t>(body.slots()), SlotPolicy::keep);
    for (int k = 0; k < 8; ++k)
      if (set >> k & 1)
        policies[static_cast<size_t>(body.find_slot(slots[k]))] = SlotPolicy::recompute;
    const std::string text = recompute_text(policies, body);
    EXPECT_TRUE(texts.insert(text).second) << text;
    for (const auto& layer : parse_policies(text, "none", model))
      EXPECT_EQ(layer, policies) << text;
  }
  EXPECT_EQ(recompute_text(parse_policies("block", "none", model)[0], body), "block");
  EXPECT_TRUE(texts.contains("none") && texts.contains("mlp+attention") && texts.contains("norms"));
  EXPECT_EQ(LayerWords::of(std::vector<LayerWords>{"block", "block", "norms"}),
            "0-1: block, 2: norms");
  EXPECT_EQ(LayerWords::of(std::vector<LayerWords>{"act", "act", "act"}), "act");
  const auto mixed = parse_policies("0-1: block, 2: norm1+act", "none", model);
  EXPECT_EQ(mixed[0], mixed[1]);
  EXPECT_EQ(recompute_text(mixed[2], body), "norm1+act");
  // The input and the output of a block are not to be dropped.
  for (const char* name : {"x", "out", "nothing"})
    test::expect_error(ErrorCode::usage, {"recompute as auto, one of ", name},
                       [&] { parse_policies(name, "none", model); });
}

TEST(Ladder, ClimbsAndMerges) {
  const Model model(test::tiny_spec(kCases[0].tiny), parse_precision("fp32"));
  const PlanRequest r = request_of(model, kCases[0]);
  const Plan open = make_plan(r);
  const int64_t most = open.engine_bytes + open.runtime_bytes;
  std::vector<int64_t> budgets = {most + (8 << 20),       most,    open.minimum_bytes,
                                  open.minimum_bytes - 1, 1 << 20, most};
  const Ladder ladder = make_ladder(r, budgets);
  ASSERT_EQ(ladder.rungs.size(), 5u);
  EXPECT_EQ(ladder.minimum_bytes, open.minimum_bytes);
  EXPECT_FALSE(ladder.rungs[1].fits);
  EXPECT_TRUE(ladder.rungs[2].fits);
  EXPECT_EQ(ladder.rungs[3].engine_bytes, open.engine_bytes);
  for (size_t i = 3; i < 5; ++i)
    EXPECT_GE(ladder.rungs[i].tokens_per_second, ladder.rungs[i - 1].tokens_per_second);
  const Ladder stairs = staircase(ladder);
  ASSERT_EQ(stairs.rungs.size(), 4u);
  EXPECT_EQ(stairs.rungs[0].budget, 1 << 20);  // each that was asked for and does not fit
  EXPECT_EQ(stairs.rungs[1].budget, open.minimum_bytes - 1);
  EXPECT_EQ(stairs.rungs[3].budget, most);
  EXPECT_EQ(stairs.left_out, 1);
  EXPECT_NE(ladder_text(stairs).find("1 more budget has the plan of a smaller one"),
            std::string::npos);
  const std::string text = ladder_text(stairs);
  EXPECT_NE(text.find("1.00 MiB  does not fit, needs at least "), std::string::npos) << text;
  EXPECT_NE(text.find(std::to_string(open.minimum_bytes) + " B"), std::string::npos) << text;
  const nlohmann::json j = ladder_json(stairs);
  ASSERT_EQ(j.size(), 4u);
  EXPECT_EQ(j[3]["budget_bytes"], most);
  EXPECT_EQ(j[3]["engine_bytes"], open.engine_bytes);
  for (const int i : {0, 1}) EXPECT_FALSE(j[i]["fits"].get<bool>());
  const std::string svg = ladder_svg(stairs);
  EXPECT_EQ(svg.rfind("<svg", 0), 0u);
  EXPECT_NE(svg.find("</svg>"), std::string::npos);
  // The last plan's rate goes on to the right edge, where the lines of the grid end.
  const size_t curve = svg.find("<path d=\"M"), grid = svg.find(" x2=\"");
  ASSERT_NE(curve, std::string::npos);
  ASSERT_NE(grid, std::string::npos);
  const std::string path = svg.substr(curve, svg.find("\" fill", curve) - curve);
  EXPECT_EQ(std::stod(path.substr(path.rfind('H') + 1)), std::stod(svg.substr(grid + 5))) << path;
  EXPECT_LT(path.rfind('V'), path.rfind('H'));
  EXPECT_NE(ladder_svg(make_ladder(r, {1 << 20})).find("No budget"), std::string::npos);
}

TEST(Ladder, SweepsAreRead) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  EXPECT_EQ(parse_sweep("2GiB,4GiB,1GiB").size(), 3u);
  const std::vector<int64_t> nine = parse_sweep("2GiB..24GiB/9");
  ASSERT_EQ(nine.size(), 9u);
  EXPECT_EQ(nine.front(), 2 * kGiB);
  EXPECT_EQ(nine.back(), 24 * kGiB);
  for (size_t i = 1; i < nine.size(); ++i) EXPECT_GT(nine[i], nine[i - 1]);
  EXPECT_EQ(parse_sweep("2GiB..24GiB").size(), 33u);
  EXPECT_EQ(parse_sweep("2GiB..2GiB").size(), 1u);
  EXPECT_EQ(parse_sweep("2..4GiB").front(), 2 * kGiB) << "the unit is that of both";
  EXPECT_EQ(parse_sweep("1.5..4GiB/5").front(), 3 * kGiB / 2);
  EXPECT_EQ(parse_sweep("1073741824..4294967296").front(), kGiB);
  for (const char* wrong :
       {"4GiB..2GiB", "2GiB..4GiB/1", "2GiB..4GiB/x", "2GiB..4GiB/9999", "0..4GiB", "2GiB..4GiB/"})
    test::expect_error(ErrorCode::usage, {"--sweep as FROM..TO", wrong},
                       [&] { parse_sweep(wrong); });
  for (const char* wrong : {"", "2GiB..", "many", "2GiB,,4GiB"})
    test::expect_error(ErrorCode::usage, {"--sweep"}, [&] { parse_sweep(wrong); });
  // What is shown of too many ends between characters.
  std::string many, shown = "1GiB,";
  for (int i = 0; i < 1001; ++i) many += shown;
  for (int i = 0; i < 30; ++i) many += "\u00E9";
  for (int i = 0; i < 17; ++i) shown += "\u00E9";
  test::expect_error(ErrorCode::usage, {"--sweep as FROM..TO", ("\"" + shown + "\"").c_str()},
                     [&] { parse_sweep(many); });
}

}  // namespace
}  // namespace snug
