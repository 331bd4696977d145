// The plan: what is chosen under a budget, that the budget holds to the byte, and what is said when
// nothing fits.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "engine/blas/matmul_cpu.h"
#include "tests/support/errors.h"
#include "tests/tools/plan_case.h"
#include "tests/tools/session_case.h"
#include "tools/planner/plan.h"

namespace snug {
namespace {

const std::vector<std::string> kLadder = {"none", "norms", "norms+mlp", "norms+mlp+attention",
                                          "block"};

PlanRequest request_of(const Model& model) {
  PlanRequest r;
  r.model = &model;
  r.T = 32;
  r.global_batch = 12;
  r.max_grad_norm = 1.0;
  return r;
}

Model& small_model() {
  static Model model(test::tiny_spec({.V = 300, .P = 64, .C = 32, .L = 4, .H = 2, .F = 128}),
                     parse_precision("fp32"));
  return model;
}

// The arena of fixed decisions, without the planner.
int64_t arena_of(const PlanRequest& r, int64_t micro, const std::string& recompute, int64_t rows,
                 WeightPacking packing = WeightPacking::none) {
  test::RunOptions o;
  o.decisions.T = r.T;
  o.decisions.micro_batch = micro;
  o.decisions.head_rows = std::min(rows, micro * r.T);
  o.decisions.recompute = recompute;
  o.decisions.packed_weights = packing;
  o.decisions.max_grad_norm = r.max_grad_norm;
  o.decisions.eval_batch = r.evaluate ? micro : 0;
  o.optimizer = r.optimizer;
  o.settings = r.settings;
  return test::plan_schedule(*r.model, o).arena_bytes();
}

TEST(Plan, WithoutABudgetKeepsEverythingAndCutsNothing) {
  const Plan p = make_plan(request_of(small_model()));
  EXPECT_TRUE(p.fits);
  EXPECT_EQ(p.decisions.micro_batch, 12);
  EXPECT_EQ(p.accumulation, 1);
  EXPECT_EQ(p.decisions.recompute, "none");
  EXPECT_EQ(p.decisions.head_rows, 12 * 32);
  EXPECT_EQ(p.engine_bytes, arena_of(request_of(small_model()), 12, "none", 1024));
  EXPECT_EQ(p.engine_bytes % 4096, 0);
}

// Packed copies of the weights: none in training unless asked for, with exactly their bytes; for
// generation where they fit, and never at the cost of what the user asked.
TEST(Plan, PacksWeightsWhereItPays) {
  if (matmul_packed_bytes(64, 64, matmul_best(DType::f32, DType::f32)) == 0)
    GTEST_SKIP() << "no kernel of this machine has a packed form";
  PlanRequest r = request_of(small_model());
  EXPECT_EQ(make_plan(r).decisions.packed_weights, WeightPacking::none);
  for (const WeightPacking w : {WeightPacking::none, WeightPacking::forward, WeightPacking::both}) {
    r.packed_weights = w;
    const Plan p = make_plan(r);
    EXPECT_EQ(p.decisions.packed_weights, w);
    EXPECT_EQ(p.engine_bytes, arena_of(r, 12, "none", 1024, w)) << to_string(w);
  }

  PlanRequest g = request_of(small_model());
  g.global_batch = 0;
  g.micro_batch = 0;
  g.evaluate = false;
  g.kv_length = 32;
  const Plan packed = make_plan(g);
  EXPECT_EQ(packed.decisions.packed_weights, WeightPacking::forward);
  g.budget = packed.engine_bytes + packed.runtime_bytes;
  EXPECT_EQ(make_plan(g).decisions.packed_weights, WeightPacking::forward);
  g.budget -= 4096;
  const Plan plain = make_plan(g);
  EXPECT_TRUE(plain.fits);
  EXPECT_EQ(plain.decisions.packed_weights, WeightPacking::none);
  EXPECT_LT(plain.engine_bytes, packed.engine_bytes);
  EXPECT_EQ(plain.minimum_bytes, packed.minimum_bytes);
}

TEST(Plan, TakesTheLargestDivisorThatFits) {
  PlanRequest r = request_of(small_model());
  r.recompute = "none";
  r.head_rows = 64;
  const int64_t runtime = declared_runtime_bytes(r.settings.threads, r.model->spec().V);
  int64_t above = 0;
  for (const int64_t micro : {12, 6, 4, 3, 2, 1}) {
    const int64_t needed = arena_of(r, micro, "none", 64) + runtime;
    r.budget = needed;
    const Plan exact = make_plan(r);
    EXPECT_TRUE(exact.fits);
    EXPECT_EQ(exact.decisions.micro_batch, micro);
    EXPECT_EQ(exact.accumulation, 12 / micro);
    EXPECT_EQ(exact.engine_bytes + exact.runtime_bytes, r.budget);
    if (above > 0) {  // just below what the next larger one needs it is still this one
      r.budget = above - 1;
      EXPECT_EQ(make_plan(r).decisions.micro_batch, micro);
    }
    above = needed;
  }
  // Below the last there is nothing.
  r.budget = above - 1;
  EXPECT_FALSE(make_plan(r).fits);
}

TEST(Plan, AFixedMicroBatchStaysAndNeedNotDivideTheBatch) {
  PlanRequest r = request_of(small_model());
  r.micro_batch = 5;
  const Plan p = make_plan(r);
  EXPECT_EQ(p.decisions.micro_batch, 5);
  EXPECT_EQ(p.accumulation, 3);
  r.micro_batch = 50;  // more than there are
  EXPECT_EQ(make_plan(r).decisions.micro_batch, 12);
}

TEST(Plan, TheMinimumWorksAndOneByteLessDoesNot) {
  for (const std::string policy : {"auto", "none", "norms", "block", "{0-1: block}"})
    for (const int64_t micro : {0, 4}) {
      PlanRequest r = request_of(small_model());
      r.recompute = policy;
      r.micro_batch = micro;
      r.evaluate = true;
      r.save = true;
      r.kv_length = 40;
      const int64_t minimum = make_plan(r).minimum_bytes;
      r.budget = minimum;
      const Plan fits = make_plan(r);
      EXPECT_TRUE(fits.fits) << policy;
      EXPECT_EQ(fits.minimum_bytes, minimum);
      EXPECT_LE(fits.engine_bytes + fits.runtime_bytes, minimum);
      r.budget = minimum - 1;
      const Plan refused = make_plan(r);
      EXPECT_FALSE(refused.fits) << policy;
      EXPECT_EQ(refused.minimum_bytes, minimum);
    }
}

// No combination of what was left to choose is below the minimum: a user who fixes one by hand
// cannot get below it.
TEST(Plan, TheMinimumIsTheLeastOfAllChoices) {
  const test::Tiny tinies[] = {{},
                               {.V = 3000},
                               {.C = 16, .L = 1, .H = 1, .F = 64},
                               {.V = 130, .C = 64, .L = 6, .H = 4, .F = 32},
                               {.tied = false, .dropout = 0.1}};
  for (const test::Tiny& tiny : tinies)
    for (const char* precision : {"fp32", "bf16"}) {
      const Model model(test::tiny_spec(tiny), parse_precision(precision));
      for (const bool evaluate : {false, true}) {
        PlanRequest r = request_of(model);
        r.evaluate = evaluate;
        const Plan p = make_plan(r);
        for (const std::string& policy : kLadder)
          for (const int64_t micro : {12, 4, 2, 1})
            for (const int64_t rows : {1024, 256, 64})
              EXPECT_GE(arena_of(r, micro, policy, rows) + p.runtime_bytes, p.minimum_bytes)
                  << policy << ", micro-batch " << micro << ", chunks of " << rows << ", "
                  << precision << ", V " << tiny.V << ", L " << tiny.L;
      }
    }
}

TEST(Plan, HashNamesTheDecisionsAndNothingElse) {
  PlanRequest r = request_of(small_model());
  const Plan plan = make_plan(r);
  EXPECT_EQ(plan_hash(make_plan(r)), plan_hash(plan));
  EXPECT_EQ(plan_hash(plan).size(), 16u);
  r.budget = int64_t{1} << 40;  // changes no decision
  EXPECT_EQ(plan_hash(make_plan(r)), plan_hash(plan));
  std::set<std::string> hashes = {plan_hash(plan)};
  size_t different = 1;
  const auto another = [&](auto&& change) {
    PlanRequest changed = request_of(small_model());
    change(changed);
    hashes.insert(plan_hash(make_plan(changed)));
    EXPECT_EQ(hashes.size(), ++different);
  };
  another([](PlanRequest& q) { q.micro_batch = 6; });
  another([](PlanRequest& q) { q.recompute = "block"; });
  another([](PlanRequest& q) { q.head_rows = 64; });
  another([](PlanRequest& q) { q.T = 31; });
  another([](PlanRequest& q) { q.settings.threads = 2; });
  another([](PlanRequest& q) { q.optimizer.name = "sgd"; });
  another([](PlanRequest& q) { q.evaluate = true; });
  another([](PlanRequest& q) { q.kv_length = 8; });
  another([](PlanRequest& q) { q.kv_length = 9; });
  another([](PlanRequest& q) {
    q.kv_length = 9;
    q.kv_rows = 2;
  });
}

// What a plan's file is sealed by: all that it says but how long planning took, and the seal.
TEST(Plan, TheSealIsOfAllButTheSecondsOfPlanning) {
  const nlohmann::json plan = plan_json(make_plan(request_of(small_model())));
  const std::string seal = plan_seal(plan);
  for (const char* free : {"planning_seconds", "seal"}) {
    nlohmann::json other = plan;
    other[free] = 77.25;
    EXPECT_EQ(plan_seal(other), seal) << free;
    other.erase(free);
    EXPECT_EQ(plan_seal(other), seal) << free;
  }
  int sealed = 0;
  for (const auto& [key, value] : plan.items()) {
    if (key == "planning_seconds" || key == "seal") continue;
    nlohmann::json other = plan;
    other[key] = "another";
    EXPECT_NE(plan_seal(other), seal) << key;
    ++sealed;
  }
  EXPECT_GT(sealed, 20);
}

// That some of a model is frozen is said of one that has frozen some.
TEST(Plan, SaysHowMuchIsTrainedWhereNotAllIs) {
  const ModelSpec spec = small_model().spec();
  PlanRequest r = request_of(small_model());
  EXPECT_EQ(make_plan(r).model_text.find("trained"), std::string::npos);
  const Model frozen(spec, parse_precision("fp32"),
                     [](std::string_view name) { return name.starts_with("h.1."); });
  r.model = &frozen;
  const std::string text = make_plan(r).model_text;
  const auto whole = static_cast<double>(frozen.params().real_elements()),
             part = static_cast<double>(frozen.params().real_trained_elements());
  ASSERT_LT(part, whole);
  EXPECT_NE(text.find(fmt::format("({:.2f} %) of them trained", 100 * part / whole)),
            std::string::npos)
      << text;
}

TEST(Plan, JsonHasTheKeysOfTheContract) {
  PlanRequest r = request_of(small_model());
  r.evaluate = true;
  r.kv_length = 40;
  r.budget = int64_t{1} << 30;
  const Plan p = make_plan(r);
  const nlohmann::json j = nlohmann::json::parse(plan_json(p).dump());
  EXPECT_TRUE(j.at("fits").is_boolean());
  for (const char* key :
       {"budget_bytes", "engine_bytes", "runtime_bytes", "host_bytes", "minimum_bytes"})
    EXPECT_TRUE(j.at(key).is_number_integer()) << key;
  EXPECT_EQ(j.at("budget_bytes"), int64_t{1} << 30);
  EXPECT_EQ(j.at("engine_bytes"), p.engine_bytes);
  EXPECT_EQ(j.at("engine_bytes").get<int64_t>() % 4096, 0);
  EXPECT_DOUBLE_EQ(j.at("predicted_tokens_per_second").get<double>(),
                   12 * 32 / j.at("predicted_step_seconds").get<double>());
  EXPECT_NE(j.at("prediction").get<std::string>().find("uncalibrated"), std::string::npos);
  EXPECT_TRUE(j.at("packing").at("height").is_number_integer());
  EXPECT_TRUE(j.at("packing").at("lower_bound").is_number_integer());
  EXPECT_LE(j["packing"]["lower_bound"], j["packing"]["height"]);
  int64_t sum = 0;
  for (const char* key :
       {"weights", "gradients", "optimizer", "activations", "logits", "workspace", "offload"})
    EXPECT_TRUE(j.at("categories").at(key).is_number_integer()) << key;
  for (const auto& [key, bytes] : j["categories"].items()) {
    EXPECT_TRUE(bytes.is_number_integer()) << key;
    EXPECT_GE(bytes.get<int64_t>(), 0) << key;
    sum += bytes.get<int64_t>();
  }
  EXPECT_EQ(sum, p.engine_bytes) << "categories and padding are the engine";
  EXPECT_TRUE(j.at("decisions").is_object());
  EXPECT_EQ(j["decisions"].at("micro_batch"), 12);
  EXPECT_EQ(j["decisions"].at("threads"), 1);
  EXPECT_FALSE(j["decisions"].at("instruction_set").get<std::string>().empty());
  EXPECT_FALSE(j.at("sentence").get<std::string>().empty());
  EXPECT_EQ(j.at("hash"), plan_hash(p));
  // What is not known is null, not absent.
  r.budget = 0;
  EXPECT_TRUE(plan_json(make_plan(r)).at("budget_bytes").is_null());
}

// Weights, gradients and states of a plan are what the parameters say.
TEST(Plan, CategoriesAreTheModelsBytes) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    const Model model(test::tiny_spec({.C = 32, .H = 2}), parse_precision(precision));
    PlanRequest r = request_of(model);
    const int64_t flat = model.params().flat_elements();
    const bool wide = std::string(precision) == "fp32";
    for (const auto& [optimizer, states] : {std::pair{"adamw", 2},
                                            {"lion", 1},
                                            {"sgd", 0},
                                            {"rmsprop", 1},
                                            {"adagrad", 1},
                                            {"ademamix", 3}}) {
      r.optimizer.name = optimizer;
      const Plan p = make_plan(r);
      const auto bytes = [&](Category c) { return p.categories[static_cast<size_t>(c)]; };
      EXPECT_EQ(bytes(Category::weights), flat * (wide ? 4 : 2));
      EXPECT_EQ(bytes(Category::master), wide ? 0 : flat * 4);
      EXPECT_EQ(bytes(Category::gradients), flat * 4);
      EXPECT_EQ(bytes(Category::optimizer), flat * 4 * states);
      EXPECT_EQ(bytes(Category::batch), 12 * 32 * 4 * 2);
      EXPECT_GE(p.padding, 0);
    }
  }
}

TEST(Plan, RefusalHasThreePartsAndTheMinimumItNamesWorks) {
  PlanRequest r = request_of(small_model());
  r.recompute = "none";
  r.budget = 1000;
  const Plan p = make_plan(r);
  ASSERT_FALSE(p.fits);
  const std::string minimum = std::to_string(p.minimum_bytes);
  const std::string text = test::expect_error(
      ErrorCode::out_of_memory,
      {"memory of at least", minimum.c_str(), "memory of 1000 B", "holds at its peak", "MiB",
       ("memory=" + minimum).c_str(), "recompute=auto (then memory of"},
      [&] { refuse_plan(p); });
  EXPECT_NE(text.find(std::to_string(p.minimum_bytes - p.runtime_bytes) + " B of engine"),
            std::string::npos);
  // The largest holder of a tiny model is one of its flat ranges.
  EXPECT_TRUE(text.find("exp_avg") != std::string::npos ||
              text.find("gradients") != std::string::npos)
      << text;
  try {
    refuse_plan(p);
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 3);
  }
  EXPECT_NE(plan_sentence(p).find("Does not fit"), std::string::npos);
  EXPECT_FALSE(plan_json(p).at("fits").get<bool>());
  r.budget = p.minimum_bytes;
  EXPECT_TRUE(make_plan(r).fits);
  // Where everything is recomputed already there is nothing of that kind to offer.
  r.recompute = "auto";
  r.budget = 1000;
  const Plan all = make_plan(r);
  try {
    refuse_plan(all);
    ADD_FAILURE() << "not refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.advice().find("recompute="), std::string::npos) << e.what();
  }
}

TEST(Plan, TextShowsTheSumsThatMatter) {
  PlanRequest r = request_of(small_model());
  r.budget = int64_t{1} << 30;
  const Plan p = make_plan(r);
  const std::string text = plan_text(p);
  for (const int64_t bytes : {p.engine_bytes, p.runtime_bytes, p.engine_bytes + p.runtime_bytes,
                              p.minimum_bytes, p.budget})
    EXPECT_NE(text.find(std::to_string(bytes) + " B"), std::string::npos) << bytes << "\n" << text;
  EXPECT_NE(text.find(plan_hash(p)), std::string::npos);
  EXPECT_NE(text.find("12 sequences of 32 tokens"), std::string::npos) << text;
}

TEST(Plan, EvaluationAndGenerationAlone) {
  PlanRequest r;
  r.model = &small_model();
  r.T = 32;
  r.evaluate = true;
  r.eval_batch = 3;
  r.kv_length = 50;
  const Plan p = make_plan(r);
  EXPECT_TRUE(p.fits);
  EXPECT_EQ(p.decisions.micro_batch, 0);
  EXPECT_EQ(p.decisions.eval_batch, 3);
  EXPECT_EQ(p.decisions.prefill, 32);
  EXPECT_EQ(p.categories[static_cast<size_t>(Category::gradients)], 0);
  EXPECT_EQ(p.categories[static_cast<size_t>(Category::optimizer)], 0);
  EXPECT_NE(plan_sentence(p).find("Inference"), std::string::npos);
  r.budget = p.minimum_bytes - 1;
  EXPECT_FALSE(make_plan(r).fits);
  // Rows of the cache: keys and values of every layer, for each as many.
  const auto cache = [&](int64_t rows) {
    PlanRequest q = r;
    q.budget = 0;
    q.kv_rows = rows;
    const Plan plan = make_plan(q);
    EXPECT_EQ(plan.decisions.kv_rows, rows);
    int64_t bytes = 0;
    for (const TensorRecord& t : plan.schedule.at(plan.schedule.find("generate")).tensors)
      if (t.category == Category::kv_cache) bytes += t.bytes;
    return bytes;
  };
  const ModelSpec& spec = small_model().spec();
  EXPECT_EQ(cache(1), 2 * spec.L * 50 * spec.G * spec.D * 4);
  EXPECT_EQ(cache(5), 5 * cache(1));
}

// A model of 1.5 billion parameters is planned while a person waits: no budget, and budgets from
// ample to hopeless.
TEST(SlowPlan, Gpt2XlIsPlanned) {
  const ModelSource source = resolve_model("gpt2-xl", "");
  const Model model(source.spec, parse_precision("bf16"));
  EXPECT_NEAR(static_cast<double>(model.params().real_elements()), 1557.6e6, 1e5);
  PlanRequest r = request_of(model);
  r.T = 1024;
  r.global_batch = 32;
  r.evaluate = true;
  r.save = true;
  r.kv_length = 1024;
  const Plan open = make_plan(r);
  const int64_t least = open.minimum_bytes, most = open.engine_bytes + open.runtime_bytes;
  const int64_t rung_bytes = (int64_t{1} << 28);
  for (const int64_t budget :
       {int64_t{0}, most / 2, most / 3, least + 8 * rung_bytes, least + 4 * rung_bytes,
        least + 2 * rung_bytes, least + rung_bytes, least, least - 1}) {
    r.budget = budget;
    const Plan p = make_plan(r);
    const nlohmann::json j = plan_json(p);
    printf(
        "gpt2-xl, budget %lld: fits %d, recompute %s, micro-batch %lld, %.3f s, height %lld, "
        "lower bound %lld (%s)\n",
        static_cast<long long>(budget), p.fits, p.decisions.recompute.text().c_str(),
        static_cast<long long>(p.decisions.micro_batch), p.seconds,
        j["packing"]["height"].get<long long>(), j["packing"]["lower_bound"].get<long long>(),
        j["packing"]["proof"].get<std::string>().c_str());
    EXPECT_EQ(p.fits, budget != least - 1);
    EXPECT_EQ(j["packing"]["height"], j["packing"]["lower_bound"]);
  }
}

// Eighty layers as wide as a model of 70 billion parameters. Its times are printed, not asserted:
// each is meant to stay under five seconds on one core.
TEST(SlowPlan, SeventyBillionParametersArePlanned) {
  const ModelSource source =
      resolve_model("",
                    "{\"type\":\"gpt2\",\"vocab_size\":128256,\"n_positions\":4096,\"n_embd\":8192,"
                    "\"n_layer\":80,\"n_head\":64,\"n_inner\":36864}");
  const Model model(source.spec, parse_precision("bf16"));
  EXPECT_NEAR(static_cast<double>(model.params().real_elements()), 70.9e9, 1e9);
  PlanRequest r = request_of(model);
  r.T = 4096;
  r.global_batch = 64;
  r.evaluate = true;
  r.save = true;
  const int64_t least = make_plan(r).minimum_bytes;
  for (const int64_t gib : {0, 2, 10, 40, 200, -1}) {
    r.budget = least + gib * (int64_t{1} << 30);
    const Plan p = make_plan(r);
    printf("70B, budget %lld: fits %d, recompute %s, micro-batch %lld, %.3f s\n",
           static_cast<long long>(r.budget), p.fits, p.decisions.recompute.text().c_str(),
           static_cast<long long>(p.decisions.micro_batch), p.seconds);
    EXPECT_EQ(p.fits, gib >= 0);
  }
}

// A checkpoint that is written while training goes on: what is beyond the ring waits for the disk, less
// the arithmetic of all micro-steps meanwhile.
TEST(PlanSaving, TheStallIsWhatAStepDoesNotCover) {
  const Model model(test::tiny_spec({.L = 3}), parse_precision("fp32"));
  const CostModel cost = test::even_device(1e11, 1e9);
  for (const int64_t accumulation : {1, 4}) {
    PlanRequest r = test::host_request(model, cost, 8, 4);
    r.micro_batch = 4 / accumulation;
    r.update_in_backward = false;
    r.save = true;
    r.save_buffer = 4096;
    const Plan idle = make_plan(r);
    ASSERT_EQ(idle.accumulation, accumulation);
    ASSERT_GT(idle.save_stall, 0);
    EXPECT_DOUBLE_EQ(
        idle.save_stall,
        static_cast<double>(idle.checkpoint_bytes - idle.decisions.save_ring) / kSaveRate);
    const auto flops = [&](const char* name) {
      return static_cast<double>(idle.schedule.at(idle.schedule.find(name)).flops());
    };
    const double all =
        flops("micro_first") + flops("micro_next") * static_cast<double>(accumulation - 1);
    r.step_flops_rate = 2 * all / idle.save_stall;
    EXPECT_DOUBLE_EQ(make_plan(r).save_stall, idle.save_stall / 2);
    r.step_flops_rate = all / idle.save_stall / 2;
    EXPECT_EQ(make_plan(r).save_stall, 0);
  }
}

}  // namespace
}  // namespace snug
