// Packed weights in training, where the request leaves them open: taken where a calibration that
// measured them says that a step gains more than the margin, and where there is room.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/blas/kernel_table.h"
#include "engine/blas/matmul_cpu.h"
#include "tests/tools/session_case.h"
#include "tools/calibrate/calibrated_cost.h"
#include "tools/calibrate/calibration.h"
#include "tools/planner/plan.h"
#include "tools/planner/plan_search.h"

namespace snug {
namespace {

const Model& model() {
  static const Model model(test::tiny_spec({.V = 300, .P = 64, .C = 64, .L = 4, .H = 2, .F = 256}),
                           parse_precision("fp32"));
  return model;
}

PlanRequest request_of(const CostModel& cost) {
  PlanRequest r;
  r.model = &model();
  r.T = 32;
  r.global_batch = 12;
  r.max_grad_norm = 1.0;
  r.cost = &cost;
  // As a run has them; without the host's memory they are none.
  r.offload = r.offload_optimizer = r.offload_params = r.offload_gradients = "auto";
  return r;
}

bool machine_packs() {
  return matmul_packed_bytes(64, 64, matmul_best(DType::f32, DType::f32)) > 0;
}

// A machine whose steps are products, and these so many times as fast where a weight comes packed;
// 0: of which that was not measured.
CostModel packing_machine(double faster) {
  constexpr double kRate = 1e8;
  Calibration c;
  c.key.instruction_set = "avx2";
  c.key.threads = 1;
  c.roofs.fp32_flops = c.roofs.bf16_flops = c.roofs.copy_bytes = 1e12;
  const auto add = [&](const std::string& key, double rate) {
    c.fp32_ops.add(key, {1e6, 1e4, 1e6 / rate});
  };
  for (const ProductClass& shapes : product_classes())
    for (const char* name : {"matmul", "linear_activation_forward", "linear_residual_forward"}) {
      const KernelChoice choice{shapes, DType::f32, DType::f32,
                                matmul_best(DType::f32, DType::f32)};
      const std::string key = std::string(name) + " " + to_string(choice);
      add(key, kRate);
      if (faster > 0 && !shapes.a_transposed) add(key + " packed", kRate * faster);
    }
  if (faster > 0) c.fp32_ops.add("matmul_pack", {0, 1e6, 1e-6});
  return calibrated_cost(c, DType::f32);
}

Plan with(PlanRequest r, WeightPacking packing) {
  r.packed_weights = packing;
  return make_plan(r);
}

int64_t arena_of(const PlanRequest& r, const Decisions& d) {
  test::RunOptions o;
  o.decisions = d;
  o.optimizer = r.optimizer;
  o.settings = r.settings;
  return test::plan_schedule(*r.model, o).arena_bytes();
}

TEST(PlanPacking, TakesWhatWasMeasuredFaster) {
  if (!machine_packs()) GTEST_SKIP() << "no kernel of this machine has a packed form";
  const CostModel cost = packing_machine(1.2);
  PlanRequest r = request_of(cost);
  const Plan p = make_plan(r), plain = with(r, WeightPacking::none),
             both = with(r, WeightPacking::both);
  EXPECT_EQ(p.decisions.packed_weights, WeightPacking::both);
  EXPECT_EQ(p.step_seconds, both.step_seconds);
  EXPECT_EQ(p.engine_bytes, arena_of(r, p.decisions));
  EXPECT_EQ(p.minimum_bytes, plain.minimum_bytes);
  // Two of three products are a sixth shorter, and the margin is counted in.
  EXPECT_NEAR(p.step_seconds / plain.step_seconds,
              (1 - 2.0 / 3 / 6) * (1 + PlanSearch::kPackingMargin), 0.01);
  // A run resumes by what a checkpoint pins: the kernels, which are the same.
  EXPECT_EQ(p.kernels, plain.kernels);
  EXPECT_FALSE(p.kernels.empty());

  // To the byte.
  r.budget = p.engine_bytes + p.runtime_bytes;
  const Plan exact = make_plan(r);
  EXPECT_EQ(exact.engine_bytes, p.engine_bytes);
  EXPECT_EQ(exact.decisions, p.decisions);
  EXPECT_NEAR(exact.unlimited_seconds, p.step_seconds, 1e-9 * p.step_seconds);
  EXPECT_NEAR(exact.more_seconds, p.step_seconds, 1e-9 * p.step_seconds);
  r.budget -= 4096;
  const Plan less = make_plan(r);
  EXPECT_TRUE(less.fits);
  EXPECT_LT(less.engine_bytes, p.engine_bytes);
  EXPECT_GT(less.step_seconds, p.step_seconds);
  EXPECT_NEAR(less.unlimited_seconds, p.step_seconds, 1e-9 * p.step_seconds);
  // There is no room for them in the smallest.
  r.budget = p.minimum_bytes;
  const Plan least = make_plan(r);
  EXPECT_TRUE(least.fits);
  EXPECT_EQ(least.decisions.packed_weights, WeightPacking::none);
  r.budget -= 1;
  EXPECT_FALSE(make_plan(r).fits);
}

TEST(SlowPlanPacking, IsNotTakenForLessThanTheMargin) {
  for (const double faster : {0.0, 0.8, 1.0, 1.01}) {
    const CostModel cost = packing_machine(faster);
    PlanRequest r = request_of(cost);
    const Plan full = make_plan(r);
    for (int64_t budget = full.minimum_bytes; budget < full.minimum_bytes + (8 << 20);
         budget += 1 << 19) {
      r.budget = budget;
      const Plan p = make_plan(r), plain = with(r, WeightPacking::none);
      EXPECT_EQ(p.decisions, plain.decisions) << faster << ", " << budget;
      EXPECT_EQ(p.engine_bytes, plain.engine_bytes);
      EXPECT_EQ(p.step_seconds, plain.step_seconds);
      EXPECT_EQ(p.bound_seconds, plain.bound_seconds);
    }
  }
}

// What the search leaves out is not faster: it has what the fastest of all three ways has, whatever
// the budget, and a larger one is never slower.
TEST(SlowPlanPacking, IsTheFastestOfAllWaysUnderEveryBudget) {
  if (!machine_packs()) GTEST_SKIP() << "no kernel of this machine has a packed form";
  for (const double faster : {1.03, 1.2, 2.0}) {
    const CostModel cost = packing_machine(faster);
    PlanRequest r = request_of(cost);
    const Plan most = make_plan(r);
    PlanSearch search(r);
    std::set<WeightPacking> seen;
    double before = INFINITY;
    const int64_t least = most.minimum_bytes, step = (most.engine_bytes + (1 << 20)) / 40;
    for (r.budget = least; r.budget < most.engine_bytes + most.runtime_bytes + step;
         r.budget += step) {
      const Plan p = make_plan(r, search);
      EXPECT_TRUE(p.fits);
      EXPECT_LE(p.engine_bytes + p.runtime_bytes, r.budget);
      EXPECT_EQ(p.engine_bytes, arena_of(r, p.decisions));
      EXPECT_LE(p.step_seconds, before) << faster << ", " << r.budget;
      before = p.step_seconds;
      EXPECT_LE(p.more_seconds, p.step_seconds * (1 + 1e-9));
      EXPECT_LE(p.unlimited_seconds, p.more_seconds);
      double fastest = INFINITY;
      for (const WeightPacking w :
           {WeightPacking::none, WeightPacking::forward, WeightPacking::both})
        if (const Plan fixed = with(r, w); fixed.fits)
          fastest = std::min(fastest, fixed.step_seconds);
      EXPECT_NEAR(p.step_seconds, fastest, 1e-9 * fastest) << faster << ", " << r.budget;
      EXPECT_EQ(p.minimum_bytes, least);
      seen.insert(p.decisions.packed_weights);
    }
    EXPECT_TRUE(seen.contains(WeightPacking::none)) << faster;
    EXPECT_TRUE(seen.contains(WeightPacking::both)) << faster;
  }
}

TEST(PlanPacking, IsNotLookedAtBesideTheHostNorOnAnotherPlace) {
  const CostModel cost = packing_machine(1.5);
  PlanRequest r = request_of(cost);
  r.use_host = true;
  EXPECT_EQ(make_plan(r).decisions.packed_weights, WeightPacking::none);
  r = request_of(cost);
  r.offload_optimizer = "cpu";
  EXPECT_EQ(make_plan(r).decisions.packed_weights, WeightPacking::none);
  r = request_of(cost);
  r.settings.target = Place::emu;
  EXPECT_EQ(make_plan(r).decisions.packed_weights, WeightPacking::none);
}

OpRecord product(const char* name, const char* variant, int64_t flops, int64_t bytes) {
  return {name, {}, flops, bytes, 0, Name(variant)};
}

TEST(PlanPacking, APackedProductIsWhatPackingMadeOfTheSame) {
  constexpr const char* kPlain = "nt wide long, f32 f32, avx2";
  constexpr const char* kPacked = "nt wide long, f32 f32, avx2 packed";
  OpRates rates;
  rates.add(std::string("matmul ") + kPlain, {1e6, 1e4, 1});
  rates.add(std::string("fused ") + kPlain, {1e6, 1e4, 3});
  rates.add("matmul nn wide long, f32 f32, avx2", {1e6, 1e4, 2});
  EXPECT_FALSE(rates.packing());
  const double plain = rates.seconds(product("fused", kPlain, 1000000, 10000));
  EXPECT_NEAR(plain, 3, 1e-9);
  EXPECT_EQ(rates.seconds(product("fused", kPacked, 1000000, 10000)), plain);

  const double alike = rates.seconds(product("unknown", kPlain, 1000000, 10000));
  rates.add(std::string("matmul ") + kPacked, {1e6, 1e4, 0.75});
  rates.add("matmul_pack", {0, 1e4, 0.1});
  EXPECT_TRUE(rates.packing());
  EXPECT_EQ(rates.seconds(product("unknown", kPlain, 1000000, 10000)), alike);
  EXPECT_NEAR(rates.seconds(product("matmul", kPacked, 1000000, 10000)), 0.75, 1e-9);
  // Not by name: what packing made of one that computes alike, of other layouts too.
  EXPECT_NEAR(rates.seconds(product("fused", kPacked, 1000000, 10000)), 0.75 * plain, 1e-9);
  EXPECT_NEAR(
      rates.seconds(product("matmul", "nn wide long, f32 f32, avx2 packed", 1000000, 10000)), 1.5,
      1e-9);
  // Another kernel says nothing; and beyond what was measured it is in proportion.
  const OpRecord other = product("matmul", "nt wide long, f32 f32, avx512", 1000000, 10000);
  OpRecord other_packed = other;
  other_packed.variant = Name("nt wide long, f32 f32, avx512 packed");
  EXPECT_EQ(rates.seconds(other_packed), rates.seconds(other));
  EXPECT_NEAR(rates.seconds(product("matmul", kPacked, 4000000, 40000)), 3, 1e-9);
  EXPECT_EQ(rates.seconds(product("matmul", kPlain, 1000000, 10000)), 1);
  // A file keeps it.
  const OpRates read = OpRates::parse(rates.json(), "a file");
  EXPECT_EQ(read.seconds(product("fused", kPacked, 1000000, 10000)),
            rates.seconds(product("fused", kPacked, 1000000, 10000)));
}

}  // namespace
}  // namespace snug
