// Packed copies of the weights are memory for speed: the run with them has the same bits as the run
// without, in training, evaluation and generation, and its programs really use them.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/blas/matmul_cpu.h"
#include "tests/tools/session_case.h"

namespace snug {
namespace {

const test::Tiny kModel{.V = 97, .P = 32, .C = 40, .L = 2, .H = 2, .F = 72};

test::RunOptions options_of(WeightPacking packing, const char* recompute) {
  test::RunOptions o;
  o.decisions.T = 32;
  o.decisions.micro_batch = 2;
  o.decisions.head_rows = 24;
  o.decisions.recompute = recompute;
  o.decisions.max_grad_norm = 1.0;
  o.decisions.packed_weights = packing;
  o.decisions.loss_scaling.init_scale = 64;  // a step that is skipped would show nothing
  o.optimizer.learning_rate = 1e-2;
  o.global_batch = 4;
  return o;
}

int64_t ops_named(const Program& p, const std::string& name) {
  return std::count_if(p.ops.begin(), p.ops.end(),
                       [&](const OpRecord& op) { return op.name == name; });
}

bool machine_packs(const char* precision) {
  const DType compute = parse_precision(precision).compute;
  return matmul_packed_bytes(64, 64, matmul_best(compute, compute)) > 0;
}

TEST(WeightPackingSession, ChangesNoBitOfTraining) {
  for (const bool tied : {true, false})
    for (const char* precision : {"fp32", "bf16", "fp16"})
      for (const char* recompute : {"none", "block"}) {
        test::Tiny tiny = kModel;
        tiny.tied = tied;
        const Model model(test::tiny_spec(tiny), parse_precision(precision));
        const test::Trace plain = test::trace_of(model, options_of(WeightPacking::none, recompute));
        EXPECT_TRUE(plain.finite());
        for (const WeightPacking packing : {WeightPacking::forward, WeightPacking::both})
          EXPECT_TRUE(same_bits(test::trace_of(model, options_of(packing, recompute)), plain))
              << precision << " " << recompute << " " << to_string(packing) << " tied " << tied;
      }
}

// One copy a linear weight and direction, made where weights change: after loading and after the
// update. Four linears a layer and the head.
TEST(WeightPackingSession, CopiesAreMadeInLoadAndUpdate) {
  if (!machine_packs("bf16")) GTEST_SKIP() << "no kernel of this machine has a packed form";
  const Model model(test::tiny_spec(kModel), parse_precision("bf16"));
  const int64_t linears = 4 * kModel.L + 1;
  for (const auto& [packing, each] :
       {std::pair{WeightPacking::none, 0}, {WeightPacking::forward, 1}, {WeightPacking::both, 2}}) {
    const Schedule s = test::plan_schedule(model, options_of(packing, "none"));
    for (const char* name : {"load", "update"})
      EXPECT_EQ(ops_named(s.at(s.find(name)), "matmul_pack"), each * linears) << name;
    EXPECT_EQ(ops_named(s.at(s.find("micro_first")), "matmul_pack"), 0);
  }
}

// What the copies take: at least every linear weight once for each direction, and nothing else of
// the residents changes.
TEST(WeightPackingSession, CopiesAreCountedAsWhatTheyAre) {
  if (!machine_packs("bf16")) GTEST_SKIP() << "no kernel of this machine has a packed form";
  const Model model(test::tiny_spec(kModel), parse_precision("bf16"));
  int64_t weights = 0;
  for (int i = 0; i < model.params().size(); ++i)
    if (model.params()[i].linear) weights += model.params()[i].elements() * 2;
  const auto packed = [&](WeightPacking packing) {
    const Schedule s = test::plan_schedule(model, options_of(packing, "none"));
    int64_t bytes = 0;
    for (const TensorRecord& t : s.at(s.find("root")).tensors)
      if (t.category == Category::packed_weights) bytes += t.bytes;
    return bytes;
  };
  EXPECT_EQ(packed(WeightPacking::none), 0);
  EXPECT_GE(packed(WeightPacking::forward), weights);
  EXPECT_GE(packed(WeightPacking::both), packed(WeightPacking::forward) + weights);
}

}  // namespace
}  // namespace snug
