// Seconds of ops: what was measured, between sizes and beyond them, and rates for the rest.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/support/errors.h"
#include "tools/trainer/calibration.h"
#include "tools/trainer/cost_model.h"

namespace snug {
namespace {

OpRecord op(const char* name, int64_t flops, int64_t bytes, const char* variant = "") {
  return {name, {}, flops, bytes, 0, Name(variant)};
}

TEST(CostModel, MeasuredOpsAreInterpolated) {
  OpRates rates;
  rates.add("norm", {100, 1});
  rates.add("norm", {10000, 4});
  rates.add("reset", {0, 3});
  EXPECT_EQ(rates.seconds(op("other", 1, 1)), -1);
  EXPECT_EQ(rates.seconds(op("reset", 5, 5)), 3);
  EXPECT_DOUBLE_EQ(rates.seconds(op("norm", 7, 100)), 1);
  EXPECT_DOUBLE_EQ(rates.seconds(op("norm", 7, 1000)), 2);  // half way, in logarithms
  EXPECT_DOUBLE_EQ(rates.seconds(op("norm", 7, 30000)), 12);
  EXPECT_DOUBLE_EQ(rates.seconds(op("norm", 7, 50)), 0.5);
  EXPECT_DOUBLE_EQ(rates.seconds(op("norm", 7, 1)), 0.1);
  // Products and attention are counted in FLOPs, and by how they compute.
  rates.add("linear nt wide long, f32 f32, avx2", {1000, 2});
  EXPECT_DOUBLE_EQ(rates.seconds(op("linear", 2000, 1, "nt wide long, f32 f32, avx2")), 4);
  EXPECT_EQ(rates.seconds(op("linear", 2000, 1, "nt wide long, f32 f32, avx512")), -1);
}

TEST(CostModel, RatesAreReadAsTheyWereWritten) {
  OpRates rates;
  rates.add("a", {1, 0.5});
  rates.add("a", {4, 0.25});
  rates.add("b x", {3, 1e-6});
  const nlohmann::json j = rates.json();
  EXPECT_EQ(OpRates::parse(nlohmann::json::parse(j.dump()), "file").json(), j);
  for (const char* wrong : {"{\"a\": 3}", "{\"a\": []}", "{\"a\": [[1]]}", "{\"a\": [[1, -1]]}",
                            "{\"a\": [[1, \"x\"]]}", "{\"a\": [[1e40, 1]]}"})
    test::expect_error(ErrorCode::data, {"pairs of work and seconds in file"},
                       [&] { OpRates::parse(nlohmann::json::parse(wrong), "file"); });
}

TEST(CostModel, WhatWasNotMeasuredHasRates) {
  const CostModel m = CostModel::uncalibrated("avx2", 2);
  EXPECT_EQ(m.source(), CostModel::Source::uncalibrated);
  EXPECT_EQ(m.text(), "uncalibrated: assumed rates of avx2");
  const Rates& r = m.rates();
  const double product =
      m.seconds(op("linear", int64_t{1} << 40, 8, "nt wide long, f32 f32, avx2"), 1);
  EXPECT_NEAR(product, static_cast<double>(int64_t{1} << 40) / r.fp32_matrix, 1e-4);
  EXPECT_NEAR(m.seconds(op("add", 8, int64_t{1} << 40), 1),
              static_cast<double>(int64_t{1} << 40) / r.memory, 1e-4);
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
}

TEST(CostModel, ProgramsAreSums) {
  const CostModel m = CostModel::uncalibrated("avx2", 1);
  Program p;
  p.ops = {op("a", 1000, 10), op("b", 10, 1 << 20)};
  EXPECT_DOUBLE_EQ(m.seconds(p, 1), m.seconds(p.ops[0], 1) + m.seconds(p.ops[1], 1));
}

// The measurement itself: every op of a step has a time.
TEST(CostModel, MeasuresTheOpsOfAStep) {
  const OpRates rates = measure_ops(DType::f32, 1, KernelTable(), 0);
  for (const char* name :
       {"attention_forward", "layernorm_backward", "activation_forward", "adamw"}) {
    bool found = false;
    for (const auto& [key, list] : rates.samples()) found |= key.starts_with(name);
    EXPECT_TRUE(found) << name;
  }
  for (const auto& [key, list] : rates.samples())
    for (const OpSample& s : list) EXPECT_GT(s.seconds, 0) << key;
}

}  // namespace
}  // namespace snug
