// Offload changes memory, never numbers: every policy against keeping everything, bit for bit, in
// every mode of the streams, with proof that the programs differ in the way the policy says.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/core/units.h"
#include "tests/tools/session_case.h"

namespace snug {
namespace {

const test::Tiny kModel{.V = 97, .P = 32, .C = 32, .L = 4, .H = 2, .F = 128};

test::RunOptions options_of(const std::string& recompute, const std::string& offload) {
  test::RunOptions o;
  o.decisions.T = 32;
  o.decisions.micro_batch = 2;
  o.decisions.head_rows = 16;
  o.decisions.recompute = recompute;
  o.decisions.offload = offload;
  o.decisions.max_grad_norm = 1.0;
  o.optimizer.learning_rate = 1e-2;
  o.global_batch = 4;
  return o;
}

struct Case {
  const char* name;
  const char *recompute, *offload;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}
const Case kCases[] = {
    {"attention_mlp", "mlp", "attention"},
    {"block", "none", "block"},
    {"block_norms", "norms", "block"},
    {"slots", "norm2+act", "mid+qkv+lse+rstd1"},
    {"map", "{0-1: block, 3: mlp}", "{0: inputs, 2: block, 3: attention}"},
};
const Case kMoreCases[] = {
    {"inputs", "none", "inputs"},
    {"inputs_block", "block", "inputs"},
    {"attention", "none", "attention"},
    {"mlp_attention", "attention", "mlp"},
    {"mlp_norm1", "norm1", "inputs+mlp"},
    {"block_block", "block", "block"},
    {"one_slot", "norms+act", "fc"},
    {"last_layer", "none", "3: inputs+fc"},
    {"first_layer", "block", "{0: inputs}"},
};

class SessionOffload : public testing::TestWithParam<Case> {};

TEST_P(SessionOffload, ChangesNoBitOfLossGradientsAndWeights) {
  for (const double dropout : {0.0, 0.1})
    for (const char* precision : {"fp32", "bf16"}) {
      test::Tiny tiny = kModel;
      tiny.dropout = dropout;
      const Model model(test::tiny_spec(tiny), parse_precision(precision));
      const test::Trace kept = test::trace_of(model, options_of("none", "none"));
      EXPECT_TRUE(kept.finite());
      for (const StreamMode mode :
           {StreamMode::immediate, StreamMode::deferred, StreamMode::worker}) {
        test::RunOptions o = options_of(GetParam().recompute, GetParam().offload);
        o.settings.streams = mode;
        EXPECT_TRUE(same_bits(test::trace_of(model, o), kept))
            << precision << ", dropout " << dropout << ", " << to_string(mode);
        o.settings.poison = true;
        o.settings.guard_bytes = 256;
        o.shuffle = 5;
        EXPECT_TRUE(same_bits(test::trace_of(model, o), kept))
            << precision << ", dropout " << dropout << ", " << to_string(mode)
            << ", poison at random places";
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Some, SessionOffload, testing::ValuesIn(kCases),
                         [](const auto& c) { return c.param.name; });
INSTANTIATE_TEST_SUITE_P(SlowMore, SessionOffload, testing::ValuesIn(kMoreCases),
                         [](const auto& c) { return c.param.name; });

// What crosses, by hand: e bytes an element of x, norm1, att, mid, norm2 (C), qkv (3C), fc and act
// (F), and 4 bytes of lse (H a row) and of four statistics.
TEST(OffloadBytes, WhatCrossesIsWhatThePolicyNames) {
  const int64_t C = kModel.C, F = kModel.F, H = kModel.H, N = 64;
  for (const char* precision : {"fp32", "bf16"}) {
    const Model model(test::tiny_spec(kModel), parse_precision(precision));
    const int64_t e = std::string(precision) == "bf16" ? 2 : 4;
    const struct {
      const char *recompute, *offload;
      int64_t row;  // bytes of one layer
      int64_t layers;
    } rows[] = {{"none", "inputs", e * C, 4},
                {"block", "inputs", e * C, 4},
                {"block", "block", e * C, 4},
                {"none", "attention", e * 5 * C + 4 * H, 4},
                {"attention", "mlp", e * (C + 2 * F), 4},
                {"norms", "block", e * (6 * C + 2 * F) + 4 * H + 16, 4},
                {"none", "1: mid+fc", e * (C + F), 1},
                {"none", "none", 0, 0}};
    for (const auto& row : rows) {
      SCOPED_TRACE(row.offload);
      const Schedule s = test::plan_schedule(model, options_of(row.recompute, row.offload));
      for (const char* name : {"micro_first", "micro_next"}) {
        const Program& p = s.at(s.find(name));
        EXPECT_EQ(p.bytes_copied(kToHost), row.layers * N * row.row);
        EXPECT_EQ(p.bytes_copied(kToDevice), row.layers * N * row.row);
        // All of it is there at once, each tensor rounded to pages.
        int64_t host = 0;
        for (const TensorRecord& t : p.tensors)
          if (t.residence == Residence::host) host += round_up(t.bytes, kHostAlignment);
        EXPECT_EQ(p.host_packing.height, host);
        EXPECT_EQ(s.host_bytes(), host);
      }
      for (const char* name : {"root", "update"})
        EXPECT_EQ(s.at(s.find(name)).host_packing.height, 0);
    }
  }
}

// The inputs of the blocks are what remains of a deep model under recompute=block: offloaded, the
// device no longer grows with the layers.
TEST(OffloadBytes, TheDeviceHoldsTwoLayersWhateverTheDepth) {
  const auto step = [](int64_t L, const char* offload) {
    test::Tiny tiny = kModel;
    tiny.L = L;
    const Model model(test::tiny_spec(tiny), parse_precision("fp32"));
    const Schedule s = test::plan_schedule(model, options_of("block", offload));
    return std::max(s.at(s.find("micro_first")).packing.height,
                    s.at(s.find("micro_next")).packing.height);
  };
  EXPECT_EQ(step(12, "inputs"), step(24, "inputs"));
  EXPECT_EQ(step(24, "none") - step(12, "none"), 12 * 64 * kModel.C * 4);
  EXPECT_LT(step(12, "inputs"), step(12, "none"));
}

// In flight: of every offloaded slot at most two layers' tensors are on the device at a time, but
// for x, which is the output of the layer before until its own layer has read it.
TEST(OffloadBytes, AtMostTwoLayersAreInFlight) {
  test::Tiny tiny = kModel;
  tiny.L = 8;
  const Model model(test::tiny_spec(tiny), parse_precision("fp32"));
  const Schedule s = test::plan_schedule(model, options_of("none", "block"));
  const Program& p = s.at(s.find("micro_first"));
  for (const char* slot : {"out", "norm1", "qkv", "mid", "fc", "act", "rstd2"}) {
    std::vector<std::pair<int64_t, int>> changes;
    for (const TensorRecord& t : p.tensors) {
      const std::string_view name = t.name.view();
      if (t.residence == Residence::host || name.substr(name.rfind('.') + 1) != slot) continue;
      changes.emplace_back(t.born, 1);
      changes.emplace_back(t.died, -1);
    }
    ASSERT_FALSE(changes.empty()) << slot;
    std::sort(changes.begin(), changes.end());
    int live = 0, most = 0;
    for (const auto& [time, change] : changes) most = std::max(most, live += change);
    EXPECT_LE(most, std::string(slot) == "out" ? 3 : 2) << slot;
  }
}

// Bits of a step do not depend on how often windows are cut, offloaded or not.
TEST(OffloadAccumulation, ManyMicroStepsInEveryMode) {
  const Model model(test::tiny_spec(kModel), parse_precision("bf16"));
  test::RunOptions o = options_of("none", "none");
  o.global_batch = 7;
  o.decisions.micro_batch = 1;
  o.decisions.eval_batch = 2;
  const test::Trace kept = test::trace_of(model, o);
  o.decisions.recompute = "norms";
  o.decisions.offload = "block";
  for (const StreamMode mode : {StreamMode::immediate, StreamMode::deferred, StreamMode::worker}) {
    o.settings.streams = mode;
    EXPECT_TRUE(same_bits(test::trace_of(model, o), kept)) << to_string(mode);
  }
}

// The same by kernels: what they wait for is what the streams say, however late copies come.
TEST(OffloadByKernels, ChangesNoBitInAnyModeOfTheStreams) {
  const test::Tiny tiny{.V = 33, .P = 16, .C = 16, .L = 3, .H = 2, .F = 32, .dropout = 0.1};
  const Model model(test::tiny_spec(tiny), parse_precision("bf16"));
  test::RunOptions o = options_of("none", "none");
  o.decisions.T = 16;
  o.decisions.micro_batch = 1;
  o.global_batch = 2;
  o.settings.target = Place::emu;
  const test::Trace kept = test::trace_of(model, o);
  EXPECT_TRUE(kept.finite());
  o.decisions.recompute = "norms";
  o.decisions.offload = "block";
  for (const bool all : {false, true}) {
    o.decisions.offload_optimizer = o.decisions.offload_params = o.decisions.offload_gradients =
        all;
    for (const StreamMode mode :
         {StreamMode::immediate, StreamMode::deferred, StreamMode::worker}) {
      if (!all && mode != StreamMode::deferred) continue;
      o.settings.streams = mode;
      EXPECT_TRUE(same_bits(test::trace_of(model, o), kept)) << to_string(mode) << ", all " << all;
    }
  }
}

// Evaluation and generation keep nothing for backward, and so send nothing.
TEST(OffloadInference, ProgramsAreTheSame) {
  const Model model(test::tiny_spec(kModel), parse_precision("fp32"));
  test::RunOptions o = options_of("none", "none");
  o.decisions.eval_batch = 2;
  o.decisions.kv_length = 16;
  o.decisions.prefill = 8;
  const Schedule none = test::plan_schedule(model, o);
  o.decisions.offload = "block";
  const Schedule block = test::plan_schedule(model, o);
  for (const char* name : {"eval", "prefill", "decode", "update"}) {
    const Program &a = none.at(none.find(name)), &b = block.at(block.find(name));
    EXPECT_EQ(a.packing.height, b.packing.height);
    EXPECT_EQ(a.ops.size(), b.ops.size());
    EXPECT_TRUE(b.syncs.empty());
    EXPECT_EQ(b.host_packing.height, 0);
  }
}

}  // namespace
}  // namespace snug
