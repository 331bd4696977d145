// What collectives of ranks take in a plan: bytes by the formulas of each stage, seconds by the link.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "layers/models/family.h"
#include "tests/support/errors.h"
#include "tools/costs/links.h"
#include "tools/planner/comparison.h"
#include "tools/planner/rank_words.h"
#include "tools/report/scale.h"

namespace snug {
namespace {

using test::expect_error;

Plan plan_of(int ranks, int zero, int64_t micro, int64_t batch, double link = 0) {
  const ModelSpec spec = resolve_model("", R"({"type": "gpt2", "vocab_size": 128, "n_positions": 16,
      "n_embd": 64, "n_layer": 2, "n_head": 2})")
                             .spec;
  const Model model(spec, parse_precision("bf16"), {}, {}, ranks);
  const CostModel cost = CostModel::described("a device", {.fp32_matrix = 1e12,
                                                           .bf16_matrix = 1e12,
                                                           .fp32_attention = 1e12,
                                                           .bf16_attention = 1e12,
                                                           .vector = 1e12,
                                                           .memory = 1e12,
                                                           .op = 0,
                                                           .rank_link = link,
                                                           .rank_latency = 1e-3,
                                                           .ranks = ranks});
  PlanRequest r;
  r.model = &model;
  r.T = 16;
  r.global_batch = batch;
  r.micro_batch = micro;
  r.recompute = "none";
  r.cost = &cost;
  r.ranks = ranks;
  r.zero = zero;
  Plan plan = make_plan(r);
  EXPECT_EQ(plan.accumulation, batch / micro / ranks);
  plan.parameters = model.params().flat_elements();
  return plan;
}

// Stages 0 and 1 read two, and gradients and weights once; later ones gradients in every micro-step, and
// stage 3 weights twice. Gradients are f32 here, weights bf16.
TEST(Collectives, BytesAreThoseOfTheStages) {
  for (const int ranks : {2, 4, 7}) {
    const int64_t A = 2;
    const auto bytes = [&](int zero) {
      const Plan p = plan_of(ranks, zero, 1, ranks * A);
      const int64_t step = 3 * 8 * (ranks - 1);  // a handful of numbers beside them
      const double share = static_cast<double>(ranks - 1) / ranks;
      const double gradients = 4.0 * static_cast<double>(p.parameters) * share,
                   weights = 2.0 * static_cast<double>(p.parameters) * share;
      const double all = zero == 0   ? 2 * gradients
                         : zero == 1 ? gradients + weights
                         : zero == 2 ? A * gradients + weights
                                     : A * (gradients + 2 * weights);
      EXPECT_GE(static_cast<double>(p.collective_bytes), all - 64) << ranks << " " << zero;
      EXPECT_LE(static_cast<double>(p.collective_bytes), all + static_cast<double>(40 * step))
          << ranks << " " << zero;
    };
    // What is of no block is gathered once a micro-step in stage 3, so its bytes are fewer.
    for (const int zero : {0, 1, 2}) bytes(zero);
    const Plan three = plan_of(ranks, 3, 1, ranks * A), two = plan_of(ranks, 2, 1, ranks * A);
    EXPECT_GT(three.collective_bytes, two.collective_bytes);
  }
}

TEST(Collectives, SecondsAreThoseOfTheLink) {
  const Plan p = plan_of(4, 0, 1, 4, 1e6);
  // Four runs of parameters and the sums: each two doublings of latency.
  const double latency = 2 * 1e-3 * 5;
  EXPECT_NEAR(p.collective_seconds, static_cast<double>(p.collective_bytes) / 1e6 + latency,
              1e-6 * p.collective_seconds);
  EXPECT_GE(p.step_seconds, p.collective_seconds);
}

TEST(Scale, IsOfPowersOfTwo) {
  EXPECT_EQ(parse_scale("1..8"), (std::vector<int64_t>{1, 2, 4, 8}));
  EXPECT_EQ(parse_scale("3..12"), (std::vector<int64_t>{3, 4, 8, 12}));
  EXPECT_EQ(parse_scale("5..5"), (std::vector<int64_t>{5}));
  for (const char* text : {"", "4", "8..4", "0..4", "1..5000", "a..b"})
    expect_error(ErrorCode::usage, {"--scale as FROM..TO, ranks from 1 to 4096", "--scale 1..64"},
                 [&] { parse_scale(text); });
  Scale scale;
  for (const int ranks : {1, 2})
    scale.plans.push_back(
        {ranks, plan_of(ranks, ranks == 1 ? 0 : 1, 1, ranks, ranks == 1 ? 0 : 1e6)});
  settle_scale(scale);
  EXPECT_EQ(scale.plans[0].efficiency, 1);
  EXPECT_LT(scale.plans[1].efficiency, 1);
  EXPECT_NE(scale_text(scale).find("efficiency"), std::string::npos);
  // The first has all of what it is compared with, of however many ranks it is.
  Scale of_two;
  for (const int ranks : {2, 4}) of_two.plans.push_back({ranks, plan_of(ranks, 1, 1, ranks, 1e6)});
  settle_scale(of_two);
  EXPECT_DOUBLE_EQ(of_two.plans[0].efficiency, 1);
  EXPECT_NEAR(
      of_two.plans[1].efficiency,
      of_two.plans[1].plan.tokens_per_second() / of_two.plans[0].plan.tokens_per_second() / 2,
      1e-12);
  EXPECT_NE(scale_svg(scale).find(kScaleMark), std::string::npos);
}

// Every figure of the table and of the JSON is the one that its name says.
TEST(Scale, RowsHoldThePlansOwnFigures) {
  Scale scale;
  for (int k = 1; k <= 2; ++k) {
    ScaledPlan s{3 * k, {}};
    s.plan.fits = k == 1;
    s.plan.decisions.zero = k;
    s.plan.decisions.micro_batch = 5 * k;
    s.plan.decisions.T = 100;
    s.plan.global_batch = 10 * k;
    s.plan.engine_bytes = k << 21;
    s.plan.runtime_bytes = k << 20;
    s.plan.collective_bytes = k << 13;
    s.plan.collective_seconds = 0.002 * k;
    s.plan.step_seconds = 0.5 * k;
    s.efficiency = 0.75 * k;
    scale.plans.push_back(std::move(s));
  }
  scale.cost = "the cost";
  const nlohmann::json j = scale_json(scale);
  EXPECT_EQ(j["cost"], "the cost");
  ASSERT_EQ(j["plans"].size(), 2u);
  for (int k = 1; k <= 2; ++k)
    EXPECT_EQ(j["plans"][static_cast<size_t>(k - 1)],
              (nlohmann::json{{"ranks", 3 * k},
                              {"zero", k},
                              {"fits", k == 1},
                              {"global_batch_size", 10 * k},
                              {"engine_bytes", k << 21},
                              {"runtime_bytes", k << 20},
                              {"collective_bytes", k << 13},
                              {"collective_seconds", 0.002 * k},
                              {"step_seconds", 0.5 * k},
                              {"predicted_tokens_per_second", 2000.0},
                              {"efficiency", 0.75 * k}}));
  const std::string text = scale_text(scale);
  EXPECT_NE(
      text.find("\n     3     1     3.00 MiB       8.00 KiB       2.0 ms     500.0 ms           "
                "2000      75.0 %\n     6     2 does not fit\n"),
      std::string::npos)
      << text;
  EXPECT_TRUE(text.ends_with("Nothing overlaps.\nthe cost\n")) << text;
}

// One rank shares nothing, whatever its stage.
TEST(Scale, StagesAreSaidOfSeveralRanks) {
  Decisions d;
  for (d.zero = 0; d.zero <= 3; ++d.zero) {
    d.ranks = 1;
    EXPECT_STREQ(zero_words(d), "") << d.zero;
    d.ranks = 2;
    const std::string words = zero_words(d),
                      each = ", each with its piece of the optimizer's states";
    EXPECT_EQ(words, d.zero == 0   ? ", each with all states"
                     : d.zero == 1 ? each
                     : d.zero == 2
                         ? each + " and gradients"
                         : ", each with its piece of the optimizer's states, gradients and "
                           "weights");
  }
}

// Beside the first plan, with the sign of what differs: states at the peak, more than states, and states that
// rest elsewhere.
TEST(Comparison, SaysWhyAPlanTakesLessOrMore) {
  constexpr int64_t kKiB = 1024;
  Comparison all = parse_comparison("optim=adamw,lion,,sgd,");
  ASSERT_EQ(all.plans.size(), 3u);
  EXPECT_EQ(all.plans[2].value, "sgd");
  all.plans.pop_back();
  Plan &a = all.plans[0].plan, &b = all.plans[1].plan;
  const auto set = [](Plan& p, Category c, int64_t kib) {
    p.categories[static_cast<size_t>(c)] = kib * kKiB;
  };
  a.engine_bytes = 1000 * kKiB;
  b.engine_bytes = 600 * kKiB;
  set(a, Category::optimizer, 800);
  set(b, Category::optimizer, 400);
  const auto said = [&](size_t i) { return saving_text(all, all.plans[i]); };
  EXPECT_EQ(
      said(1),
      "state 400.00 KiB less, peak 400.00 KiB less: states are at the peak, so all of it shows");
  set(a, Category::activations, 100);
  set(a, Category::logits, 20);
  set(a, Category::recomputed, 3);
  set(a, Category::workspace, 50);
  EXPECT_EQ(said(0),
            "state is 80 % of the peak, which is what another optimizer can save; the batch's "
            "activations, logits and workspace are 17 %");
  set(b, Category::activations, 100);
  set(b, Category::logits, 20);
  set(b, Category::recomputed, 3);
  set(b, Category::workspace, 77);
  a.padding = 2 * kKiB;
  b.padding = 5 * kKiB;
  b.engine_bytes = 630 * kKiB;
  EXPECT_EQ(
      said(1),
      "state 400.00 KiB less, peak 370.00 KiB less: beside the state workspace 27.00 KiB more, "
      "padding 3.00 KiB more");
  std::swap(a, b);
  EXPECT_EQ(
      said(1),
      "state 400.00 KiB more, peak 370.00 KiB more: beside the state workspace 27.00 KiB less, "
      "padding 3.00 KiB less");
  b = a;
  EXPECT_EQ(said(1), "state as much, peak as much");
  a.decisions.offload_optimizer = b.decisions.offload_optimizer = true;
  a.host_bytes = 9 * kKiB;
  b.host_bytes = 4 * kKiB;
  EXPECT_EQ(said(1),
            "state as much, peak as much: states rest with the host, which has 5.00 KiB less");
  EXPECT_EQ(said(0),
            "its states rest with the host: of 9.00 KiB there, less state saves nothing here");
  a.decisions.states_on_disk = b.decisions.states_on_disk = true;
  a.disk.bytes = 7 * kKiB;
  b.disk.bytes = 8 * kKiB;
  EXPECT_EQ(said(1), "state as much, peak as much: states rest on disk, which has 1.00 KiB more");
  EXPECT_EQ(said(0),
            "its states rest on disk: of 7.00 KiB there, less state saves nothing in memory");
  b.decisions.micro_batch = 2;
  EXPECT_NE(said(1).find(": the room goes to "), std::string::npos) << said(1);
  // Refused ones are passed over: the first that has a plan is what the others are beside.
  all.plans[0].refused = "no such optimizer";
  EXPECT_TRUE(said(1).starts_with("its states rest on disk: of 8.00 KiB")) << said(1);
}

TEST(Links, AreKnownByName) {
  for (const RankLink& link : known_links()) EXPECT_EQ(&find_link(link.name, "x"), &link);
  expect_error(ErrorCode::usage, {"link as one of nvlink", "\"pcie\" (command line)", "pcie"},
               [] { find_link("pcie", "command line"); });
}

}  // namespace
}  // namespace snug
