// Recompute changes memory, never numbers: every policy against keeping everything, bit for bit,
// with proof that the programs differ in the way the policy says.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/tools/session_case.h"

namespace snug {
namespace {

// Larger than the temporaries of the head, so that the peak is among the blocks.
const test::Tiny kModel{.V = 97, .P = 32, .C = 32, .L = 4, .H = 2, .F = 128};

test::RunOptions options_of(const std::string& recompute) {
  test::RunOptions o;
  o.decisions.T = 32;
  o.decisions.micro_batch = 2;
  o.decisions.head_rows = 16;
  o.decisions.recompute = recompute;
  o.decisions.max_grad_norm = 1.0;
  o.decisions.loss_scaling.init_scale = 64;  // a step that is skipped would show nothing
  o.optimizer.learning_rate = 1e-2;
  o.global_batch = 4;
  return o;
}

// What a policy does to one layer: the ops of the stages that run again, and the bytes a row that
// stay from forward to backward, both counted by hand from the stages of a block:
//   norm1 1 op, qkv 1, attention 1, projection to the residual 1, norm2 1, fc 1, activation 1
// where the projection with norm2, and fc with the activation, are one op if both run. (In 16 bits
// the last two are one op only where fc is not kept: two ops in backward then, and one less in
// forward.)
// and the slots x C, norm1 C, qkv 3C, att C, lse H, mid C, norm2 C, fc F, act F, four statistics,
// of e bytes each but for lse and the statistics, which are f32.
struct Effect {
  int64_t ops;
  int64_t tensors;  // slots made again
  int64_t kept;     // bytes a row
};
Effect effect_of(const std::string& policy, int64_t e) {
  const int64_t C = kModel.C, F = kModel.F, H = kModel.H;
  const int64_t all = e * (8 * C + 2 * F) + 4 * H + 16;
  const int64_t norms = e * 2 * C, mlp = e * (C + 2 * F), attention = e * 5 * C + 4 * H;
  if (policy == "none") return {0, 0, all};
  if (policy == "norms") return {2, 2, all - norms};
  if (policy == "mlp") return {2, 3, all - mlp};
  if (policy == "attention") return {3, 4, all - attention};
  if (policy == "norms+mlp") return {3, 4, all - mlp - e * C};  // norm2 is in both
  if (policy == "norms+mlp+attention") return {5, 7, all - mlp - attention};
  if (policy == "block") return {5, 12, e * C};
  ADD_FAILURE() << policy;
  return {};
}

struct Case {
  const char* name;
  const char* text;
  std::array<const char*, 4> layers;  // what it means for each layer
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}
const Case kCases[] = {
    {"norms", "norms", {"norms", "norms", "norms", "norms"}},
    {"mlp", "mlp", {"mlp", "mlp", "mlp", "mlp"}},
    {"attention", "attention", {"attention", "attention", "attention", "attention"}},
    {"block", "block", {"block", "block", "block", "block"}},
    {"norms_mlp", "norms+mlp", {"norms+mlp", "norms+mlp", "norms+mlp", "norms+mlp"}},
    {"norms_mlp_attention",
     "norms+mlp+attention",
     {"norms+mlp+attention", "norms+mlp+attention", "norms+mlp+attention", "norms+mlp+attention"}},
    {"map", "{0-1: block, 3: norms+mlp}", {"block", "block", "none", "norms+mlp"}},
    {"map_of_one_layer", "2: attention", {"none", "none", "attention", "none"}},
};

// Bytes of layer `scope` that were made before the head and end after it.
int64_t kept_bytes(const Program& p, const std::string& scope) {
  int64_t head = -1;
  for (const OpRecord& op : p.ops)
    if (head < 0 && op.scope.view() == "head") head = op.time;
  EXPECT_GE(head, 0);
  int64_t bytes = 0;
  for (const TensorRecord& t : p.tensors)
    if (t.scope.view() == scope && t.born < head && t.died > head) bytes += t.bytes;
  return bytes;
}

int64_t recomputed_tensors(const Program& p) {
  return std::count_if(p.tensors.begin(), p.tensors.end(),
                       [](const TensorRecord& t) { return t.category == Category::recomputed; });
}

class Recompute : public testing::TestWithParam<Case> {};

TEST_P(Recompute, TakesTheOtherPathThePolicyNames) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    const Model model(test::tiny_spec(kModel), parse_precision(precision));
    const Schedule none = test::plan_schedule(model, options_of("none"));
    const Schedule some = test::plan_schedule(model, options_of(GetParam().text));
    const int64_t e = std::string(precision) == "fp32" ? 4 : 2;
    for (const char* name : {"micro_first", "micro_next"}) {
      const Program& a = none.at(none.find(name));
      const Program& b = some.at(some.find(name));
      int64_t ops = 0, tensors = 0;
      for (size_t l = 0; l < 4; ++l) {
        const Effect effect = effect_of(GetParam().layers[l], e);
        ops += effect.ops;
        tensors += effect.tensors;
        // x of layer l was made in layer l - 1, of layer 0 in the embedding; the layer's own
        // output, of the same size, takes its place here.
        EXPECT_EQ(kept_bytes(b, "h." + std::to_string(l)), 64 * effect.kept) << "layer " << l;
      }
      EXPECT_EQ(static_cast<int64_t>(b.ops.size() - a.ops.size()), ops);
      EXPECT_GT(b.flops(), a.flops());
      EXPECT_EQ(recomputed_tensors(a), 0);
      EXPECT_EQ(recomputed_tensors(b), tensors) << "what was kept is written in its place";
      EXPECT_LT(b.packing.lower_bound, a.packing.lower_bound);
      EXPECT_LT(b.packing.height, a.packing.height);
    }
    EXPECT_LT(some.arena_bytes(), none.arena_bytes());
  }
}

TEST_P(Recompute, ChangesNoBitOfLossGradientsAndWeights) {
  for (const double dropout : {0.0, 0.1})
    for (const char* precision : {"fp32", "bf16", "fp16"}) {
      test::Tiny tiny = kModel;
      tiny.dropout = dropout;
      const Model model(test::tiny_spec(tiny), parse_precision(precision));
      const test::Trace none = test::trace_of(model, options_of("none"));
      EXPECT_TRUE(none.finite());
      EXPECT_TRUE(same_bits(test::trace_of(model, options_of(GetParam().text)), none))
          << precision << ", dropout " << dropout;
    }
}

INSTANTIATE_TEST_SUITE_P(All, Recompute, testing::ValuesIn(kCases),
                         [](const auto& c) { return c.param.name; });

// Traces are told apart at all: dropout, precision and the number of steps each change them.
TEST(RecomputeTrace, OtherRunsHaveOtherBits) {
  test::Tiny tiny = kModel;
  const Model plain(test::tiny_spec(tiny), parse_precision("fp32"));
  const Model narrow(test::tiny_spec(tiny), parse_precision("bf16"));
  tiny.dropout = 0.1;
  const Model dropping(test::tiny_spec(tiny), parse_precision("fp32"));
  const test::Trace a = test::trace_of(plain, options_of("none"));
  EXPECT_FALSE(same_bits(test::trace_of(narrow, options_of("none")), a));
  EXPECT_FALSE(same_bits(test::trace_of(dropping, options_of("none")), a));
  EXPECT_TRUE(same_bits(test::trace_of(plain, options_of("none")), a));
}

// More recompute, less memory: each policy of the planner's ladder is below the one before.
TEST(RecomputeLadder, EachStepIsSmaller) {
  const Model model(test::tiny_spec(kModel), parse_precision("bf16"));
  int64_t before = INT64_MAX;
  for (const char* policy : {"none", "norms", "norms+mlp", "norms+mlp+attention", "block"}) {
    const int64_t bytes = test::plan_schedule(model, options_of(policy)).arena_bytes();
    EXPECT_LT(bytes, before) << policy;
    before = bytes;
  }
}

// Evaluation and generation keep nothing of a block, whatever the policy.
TEST(RecomputeInference, ProgramsAreTheSameUnderEveryPolicy) {
  const Model model(test::tiny_spec(kModel), parse_precision("fp32"));
  test::RunOptions o = options_of("none");
  o.decisions.eval_batch = 2;
  o.decisions.kv_length = 16;
  o.decisions.prefill = 8;
  const Schedule none = test::plan_schedule(model, o);
  o.decisions.recompute = "block";
  const Schedule block = test::plan_schedule(model, o);
  for (const char* name : {"eval", "prefill", "decode", "update"}) {
    EXPECT_EQ(none.at(none.find(name)).packing.height, block.at(block.find(name)).packing.height);
    EXPECT_EQ(none.at(none.find(name)).ops.size(), block.at(block.find(name)).ops.size());
    EXPECT_EQ(recomputed_tensors(block.at(block.find(name))), 0);
  }
  // Four layers need no more than two: a layer's slots end before the next one's begin.
  const Program& eval = none.at(none.find("eval"));
  test::Tiny shallow = kModel;
  shallow.L = 2;
  const Model half(test::tiny_spec(shallow), parse_precision("fp32"));
  const Schedule two = test::plan_schedule(half, o);
  EXPECT_EQ(two.at(two.find("eval")).packing.height, eval.packing.height);
}

}  // namespace
}  // namespace snug
