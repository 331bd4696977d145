// Seconds of ops: what was measured, between sizes and beyond them, and rates for the rest.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/blas/matmul_cpu.h"
#include "tests/support/errors.h"
#include "tests/tools/session_case.h"
#include "tools/calibrate/calibrated_cost.h"
#include "tools/calibrate/calibration.h"
#include "tools/calibrate/measure_ops.h"
#include "tools/costs/cost_model.h"
#include "tools/planner/plan.h"
#include "tools/setup/targets.h"

namespace snug {
namespace {

OpRecord op(const char* name, int64_t flops, int64_t bytes, const char* variant = "") {
  return {name, {}, flops, bytes, 0, Name(variant)};
}

TEST(CostModel, ACurveIsExactAtItsSamplesAndAsFittedBetween) {
  // 1 ms a call, 100 GFLOP/s, 10 GB/s: any three samples that are not alike say so.
  const auto truth = [](double flops, double bytes) { return 1e-3 + flops / 1e11 + bytes / 1e10; };
  OpCurve curve;
  for (const double flops : {1e6, 1e8, 1e10})
    for (const double bytes : {1e5, 1e7}) curve.add({flops, bytes, truth(flops, bytes)});
  EXPECT_NEAR(curve.base()[0], 1e-3, 1e-9);
  EXPECT_NEAR(curve.base()[1], 1e-11, 1e-16);
  EXPECT_NEAR(curve.base()[2], 1e-10, 1e-15);
  EXPECT_NEAR(curve.seconds(3e9, 2e6), truth(3e9, 2e6), 1e-6);
  EXPECT_NEAR(curve.seconds(0, 0), 1e-3, 1e-6);
  EXPECT_EQ(curve.beyond(1e10, 1e7), 1);
  EXPECT_DOUBLE_EQ(curve.beyond(4e10, 1e7), 4);
  EXPECT_NEAR(curve.seconds(4e10, 4e7), 4 * truth(1e10, 1e7), 1e-3 * truth(1e10, 1e7));
  // A sample that no rates explain: exact there, felt near by, gone far away.
  curve.add({1e8, 1e9, 5.0});
  EXPECT_NEAR(curve.seconds(1e8, 1e9), 5.0, 0.01);
  EXPECT_NEAR(curve.seconds(1e6, 1e5), truth(1e6, 1e5), 0.01 * truth(1e6, 1e5));
  // No coefficient is below zero, however the samples lie.
  OpCurve odd;
  odd.add({100, 10, 5});
  odd.add({200, 20, 4});
  odd.add({400, 10, 3});
  for (const double c : odd.base()) EXPECT_GE(c, 0);
  EXPECT_GT(odd.seconds(1e9, 1e9), 0);
}

TEST(CostModel, OfEqualWorkTheMeanCounts) {
  OpCurve curve;
  for (const double seconds : {1.0, 2.0, 9.0}) curve.add({100, 10, seconds});
  ASSERT_EQ(curve.samples().size(), 1u);
  EXPECT_DOUBLE_EQ(curve.samples()[0].seconds, 4);
  curve.add({100, 10, 0, 4});  // four of them in one
  EXPECT_NEAR(curve.samples()[0].seconds, 12.0 / 7, 1e-8);
}

TEST(CostModel, MeasuredOpsAreFoundByNameThenByWhatIsAlike) {
  OpRates rates;
  rates.add("norm", {100, 100, 1});
  rates.add("norm", {10000, 10000, 4});
  rates.add("reset", {0, 0, 3});
  EXPECT_EQ(rates.seconds(op("other", 1, 1)), -1);
  EXPECT_NEAR(rates.seconds(op("reset", 5, 5)), 3, 1e-9);
  EXPECT_NEAR(rates.seconds(op("norm", 100, 100)), 1, 1e-3);
  EXPECT_NEAR(rates.seconds(op("norm", 10000, 10000)), 4, 1e-3);
  EXPECT_NEAR(rates.seconds(op("norm", 30000, 30000)), 12, 1e-2);
  const double between = rates.seconds(op("norm", 1000, 1000));
  EXPECT_TRUE(between > 1 && between < 4) << between;
  // Products are told apart by how they compute ...
  rates.add("linear nt wide long, f32 f32, avx2", {1000, 10, 2});
  EXPECT_NEAR(rates.seconds(op("linear", 2000, 10, "nt wide long, f32 f32, avx2")), 4, 1e-2);
  EXPECT_EQ(rates.seconds(op("linear", 2000, 1, "nt wide long, f32 f32, avx512")), -1);
  // ... and what is fused to them, or layouts that were not measured, go by those that were.
  EXPECT_NEAR(rates.seconds(op("fused", 1000, 10, "nt wide long, f32 f32, avx2")), 2, 1e-2);
  EXPECT_NEAR(rates.seconds(op("linear", 1000, 10, "tn narrow short, f32 f32, avx2")), 2, 1e-2);
  // Where one of them ends, a wider class goes on: twice the rate there is twice the rate here.
  rates.add("other nt wide long, f32 f32, avx2", {1000, 10, 1});
  rates.add("other nt wide long, f32 f32, avx2", {64000, 640, 32});
  EXPECT_NEAR(rates.seconds(op("linear", 64000, 640, "nt wide long, f32 f32, avx2")) /
                  rates.seconds(op("linear", 1000, 10, "nt wide long, f32 f32, avx2")),
              32 / 1.5, 2);
}

TEST(CostModel, RatesAreReadAsTheyWereWritten) {
  OpRates rates;
  rates.add("a", {1, 2, 0.5});
  rates.add("a", {4, 2, 0.25});
  rates.add("b x", {3, 0, 1e-6});
  rates.set_between(2e-6);
  const nlohmann::json j = rates.json();
  const OpRates read = OpRates::parse(nlohmann::json::parse(j.dump()), "file");
  EXPECT_EQ(read.json(), j);
  EXPECT_EQ(read.between(), 2e-6);
  for (const char* wrong :
       {"{\"a\": 3}", "{\"a\": []}", "{\"a\": [[1, 1]]}", "{\"a\": [[1, 1, -1]]}",
        "{\"a\": [[1, 1, \"x\"]]}", "{\"a\": [[1e40, 1, 1]]}"})
    test::expect_error(ErrorCode::data, {"triples of FLOPs, bytes and seconds in file"},
                       [&] { OpRates::parse(nlohmann::json::parse(wrong), "file"); });
}

TEST(CostModel, WhatWasNotMeasuredHasRates) {
  const CostModel m = CostModel::uncalibrated("avx2", 2);
  EXPECT_EQ(m.source(), CostModel::Source::uncalibrated);
  EXPECT_EQ(m.text(), "uncalibrated: assumed rates of avx2; snug calibrate, once, measures them");
  const Rates& r = m.rates();
  const double product =
      m.seconds(op("linear", int64_t{1} << 40, 8, "nt wide long, f32 f32, avx2"), 1);
  EXPECT_NEAR(product, static_cast<double>(int64_t{1} << 40) / r.fp32_matrix, 1e-4);
  EXPECT_NEAR(m.seconds(op("add", 8, int64_t{1} << 40), 1),
              static_cast<double>(int64_t{1} << 40) / r.memory, 1e-4);
  // What a product of few rows moves takes time beside its sums, on a processor alone.
  const OpRecord few =
      op("linear", int64_t{1} << 36, int64_t{1} << 36, "tn wide short, f32 f32, avx2");
  const double sums = static_cast<double>(int64_t{1} << 36) / r.fp32_matrix;
  EXPECT_NEAR(m.seconds(few, 1), sums + static_cast<double>(int64_t{1} << 36) / r.memory, 1e-4);
  EXPECT_GT(m.seconds(op("attention_forward", 1 << 30, 8, "attention f32 f32 avx2"), 1),
            m.seconds(op("linear", 1 << 30, 8, "nt wide long, f32 f32, avx2"), 1));
  const CostModel wide = CostModel::uncalibrated("amx_bf16", 2);
  EXPECT_GT(wide.rates().bf16_matrix, 2 * wide.rates().fp32_matrix);
  EXPECT_GT(m.rates().fp32_matrix, CostModel::uncalibrated("generic", 2).rates().fp32_matrix);
  // Few rows do not fill a wide device.
  Rates device = r;
  device.half_rate_rows = 256;
  const CostModel described = CostModel::described("box", device);
  EXPECT_EQ(described.text(), "described: box");
  EXPECT_NEAR(
      described.seconds(op("linear", int64_t{1} << 40, 8, "nt wide long, f32 f32, avx2"), 256),
      2 * product, 1e-3 * product);
  device.product_traffic_adds = false;
  EXPECT_NEAR(CostModel::described("box", device).seconds(few, int64_t{1} << 40),
              static_cast<double>(int64_t{1} << 36) / r.memory, 1e-4);
}

// Attention by a GPU's kernels says nothing of a dtype: it multiplies in the model's.
TEST(CostModel, AttentionOfAGpuRunsAtTheRateOfItsDtype) {
  const auto seconds = [](const CostModel& m, const char* variant) {
    return m.seconds(op("attention_forward", int64_t{1} << 40, 8, variant), 1 << 20);
  };
  const auto model = [](DType compute) {
    return CostModel::described("h100", find_target("h100").rates(compute));
  };
  const CostModel bf16 = model(DType::bf16), f16 = model(DType::f16), f32 = model(DType::f32);
  for (const char* variant : {"attention cuda", "attention cudnn"}) {
    EXPECT_GT(seconds(f32, variant), 5 * seconds(bf16, variant)) << variant;
    EXPECT_NEAR(seconds(f16, variant), seconds(bf16, variant), 1e-9) << variant;
    const CostModel assumed = CostModel::uncalibrated_gpu("a GPU", 100, 90, DType::bf16);
    EXPECT_NEAR(seconds(assumed, variant),
                static_cast<double>(int64_t{1} << 40) / assumed.rates().bf16_attention *
                    (1 + assumed.rates().half_rate_rows / (1 << 20)),
                1e-4);
  }
  // On a CPU the op says it.
  EXPECT_GT(seconds(bf16, "attention f32 f32"), 5 * seconds(bf16, "attention bf16 bf16 x"));
}

// Measured ops and others take what lies between them too; copies beside them do not.
TEST(CostModel, WhatLiesBetweenOpsCounts) {
  Calibration c;
  c.key.instruction_set = "avx2";
  c.key.threads = 1;
  c.roofs.fp32_flops = c.roofs.bf16_flops = c.roofs.copy_bytes = 1e9;
  c.fp32_ops.add("norm", {100, 100, 1});
  const CostModel bare = calibrated_cost(c, DType::f32);
  c.fp32_ops.set_between(0.25);
  const CostModel model = calibrated_cost(c, DType::f32);
  EXPECT_EQ(bare.between(), 0);
  EXPECT_EQ(model.between(), 0.25);
  for (const OpRecord& o : {op("norm", 100, 100), op("other", 100, 100)})
    EXPECT_NEAR(model.seconds(o, 1), bare.seconds(o, 1) + 0.25, 1e-9);
  OpRecord copy = op("copy_to_host", 0, 1000);
  copy.stream = kToHost;
  EXPECT_EQ(model.seconds(copy, 1), bare.seconds(copy, 1));
  // Of 1e9 bytes a second read and written, 5e8 are copied.
  EXPECT_DOUBLE_EQ(model.rates().link, 5e8);
  EXPECT_DOUBLE_EQ(model.seconds(copy, 1), 1000 / 5e8 + model.rates().op);
  EXPECT_DOUBLE_EQ(model.copies_seconds(1000), 1000 / 5e8);
  Program p;
  p.ops = {op("norm", 100, 100), op("norm", 100, 100)};
  EXPECT_NEAR(model.seconds(p, 1), bare.seconds(p, 1) + 0.5, 1e-9);
}

TEST(CostModel, ProgramsAreSums) {
  const CostModel m = CostModel::uncalibrated("avx2", 1);
  Program p;
  p.ops = {op("a", 1000, 10), op("b", 10, 1 << 20)};
  EXPECT_DOUBLE_EQ(m.seconds(p, 1), m.seconds(p.ops[0], 1) + m.seconds(p.ops[1], 1));
}

// The measurement itself: every op of a step has a time, without dropout and with it.
TEST(CostModel, MeasuresTheOpsOfAStep) {
  const OpRates rates = measure_ops(DType::f32, {}, 0);
  std::set<std::string> names;
  for (const auto& [key, curve] : rates.curves()) names.insert(key.substr(0, key.find(' ')));
  for (const double dropout : {0.0, 0.1}) {
    const ModelSpec spec = test::tiny_spec({.dropout = dropout});
    const Model model(spec, parse_precision("fp32"));
    PlanRequest r;
    r.model = &model;
    r.T = 32;
    r.global_batch = 4;
    r.recompute = "none";
    r.max_grad_norm = 1.0;
    const Plan plan = make_plan(r);
    for (const char* program : {"micro_first", "update"})
      for (const OpRecord& o : plan.schedule.at(plan.schedule.find(program)).ops)
        EXPECT_TRUE(names.contains(o.name)) << o.name << " with dropout " << dropout;
  }
  for (const auto& [key, curve] : rates.curves())
    for (const OpSample& s : curve.samples()) EXPECT_GT(s.seconds, 0) << key;
  // With packed weights too, and the packing.
  EXPECT_EQ(rates.packing(), matmul_packed_bytes(64, 64, matmul_best(DType::f32, DType::f32)) > 0);
}

}  // namespace
}  // namespace snug
