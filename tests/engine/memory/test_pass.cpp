// Bodies and passes on a toy part of five stages (toy_part.h).
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "engine/memory/pass.h"
#include "tests/engine/memory/program_run.h"
#include "tests/engine/memory/toy_part.h"
#include "tests/support/errors.h"

namespace snug {
namespace {

using test::Environment;
using test::expect_error;
using test::Toy;

constexpr Dims kDims{2, 3};

struct Result {
  std::map<std::string, std::vector<float>> values;  // of y and of every slot backward asked for
  Program program;
  std::vector<std::string> forward, backward;  // stages run
  int recomputed = 0;
};

// Forward, then a backward that asks for the slots of `wanted` in turn and drops each.
Result train(const Toy& toy, const std::vector<SlotPolicy>& policies,
             const std::vector<int>& wanted) {
  Result r;
  Pass pass(toy.body, policies);
  const auto steps = [&](Context& ctx) {
    Environment e;
    pass.begin(kDims, PassMode::train, e);
    Tensor x = ctx.tensor(Name("x"), {kDims.N(), 10}, DType::f32, Category::activations);
    if (!ctx.planning())
      for (int64_t i = 0; i < 60; ++i)
        x.view().as<float>()[i] = 0.3f * static_cast<float>(i) - 5.1f;
    pass.give(toy.x, std::move(x));
    pass.forward(ctx);
    r.forward = e.ran;
    const auto keep = [&](const View& v) {
      if (v.data) r.values[v.name.str()].assign(v.as<float>(), v.as<float>() + v.elements());
    };
    {
      const Tensor y = pass.take(toy.y);
      EXPECT_FALSE(pass.present(toy.y));
      keep(y);
    }
    e.ran.clear();
    for (const int s : wanted) {
      keep(pass.need(ctx, s));
      pass.drop(s);
    }
    r.backward = e.ran;
    r.recomputed = pass.stages_recomputed();
    pass.clear();
  };
  Settings settings;
  settings.guard_bytes = 64;
  settings.poison = true;
  test::Recorded recorded(steps, settings);
  recorded.run(steps);
  r.program = recorded.program();
  return r;
}

using Names = std::vector<std::string>;

const Names kAllStages = {"stage_a", "stage_b", "stage_c", "stage_d", "stage_y"};

std::vector<int> backward_order(const Toy& t) {
  return {t.d, t.c, t.b, t.stat, t.a, t.x};
}

TEST(Pass, EveryPolicyGivesTheSameBits) {
  const Toy toy;
  const Result kept = train(toy, toy.all(SlotPolicy::keep), backward_order(toy));
  EXPECT_EQ(kept.recomputed, 0);
  EXPECT_EQ(kept.forward, kAllStages);
  EXPECT_TRUE(kept.backward.empty());
  ASSERT_EQ(kept.values.size(), 7u);
  EXPECT_EQ(kept.values.at("toy.y")[0],
            0.5f * (((2 * -5.1f + 1) * (2 * -5.1f + 1) + 0.7f) / 3 + (2 * -5.1f + 1)));
  // All 2^6 policies of a, stat, b, c, d (y is the result).
  const int slots[] = {toy.a, toy.stat, toy.b, toy.c, toy.d, toy.y};
  for (int mask = 0; mask < 64; ++mask) {
    std::vector<int> keep;
    for (int k = 0; k < 6; ++k)
      if (mask >> k & 1) keep.push_back(slots[k]);
    const Result r = train(toy, toy.keep_only(keep), backward_order(toy));
    EXPECT_EQ(r.values, kept.values) << "policies " << mask;
    EXPECT_EQ(r.forward, kAllStages);
  }
}

TEST(Pass, NeedRunsExactlyTheMissingStagesInOrder) {
  const Toy toy;
  const struct {
    const char* what;
    std::vector<int> keep, wanted;
    Names runs;
  } rows[] = {
      {"a chain from the input", {}, {toy.d}, {"stage_a", "stage_b", "stage_c", "stage_d"}},
      {"each only once",
       {},
       {toy.d, toy.c, toy.b, toy.a},
       {"stage_a", "stage_b", "stage_c", "stage_d"}},
      {"from a kept one on", {toy.b}, {toy.c}, {"stage_c"}},
      {"two inputs, one kept", {toy.c}, {toy.d}, {"stage_a", "stage_d"}},
      {"both inputs kept", {toy.a, toy.c}, {toy.d}, {"stage_d"}},
      {"the side output brings its stage back",
       {toy.a, toy.b, toy.c, toy.d},
       {toy.stat},
       {"stage_a"}},
      {"a side output that is there", {toy.stat}, {toy.stat}, {}},
      {"a dropped one again", {}, {toy.a, toy.a}, {"stage_a", "stage_a"}},
      {"all kept", {toy.a, toy.stat, toy.b, toy.c, toy.d}, {toy.d, toy.stat, toy.a}, {}},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.what);
    const Result r = train(toy, toy.keep_only(row.keep), row.wanted);
    EXPECT_EQ(r.backward, row.runs);
    EXPECT_EQ(r.recomputed, static_cast<int>(row.runs.size()));
  }
}

// Which tensors lived when: "name:category:first op-last op".
Names lives(const Program& p) {
  Names out;
  for (const TensorRecord& t : p.tensors)
    out.push_back(t.name.str() + ":" + to_string(t.category) + ":" + std::to_string(t.first_op) +
                  "-" + std::to_string(t.last_op));
  return out;
}

TEST(Pass, LivesUnderKeep) {
  const Toy toy;
  const Result r = train(toy, toy.all(SlotPolicy::keep), {toy.d, toy.c});
  EXPECT_EQ(lives(r.program),
            (Names{"x:activations:0-5", "toy.a:activations:0-5", "toy.stat:workspace:0-5",
                   "toy.b:activations:1-5", "toy.c:activations:2-5", "toy.d:activations:3-5",
                   "toy.y:activations:4-5"}));
}

TEST(Pass, LivesUnderRecompute) {
  const Toy toy;
  const Result r = train(toy, toy.all(SlotPolicy::recompute), {toy.c});
  EXPECT_EQ(lives(r.program),
            (Names{"x:activations:0-8", "toy.a:activations:0-4", "toy.stat:workspace:0-1",
                   "toy.b:activations:1-3", "toy.c:activations:2-4", "toy.d:activations:3-5",
                   "toy.y:activations:4-5",
                   // need(c): a and its side output, b, c
                   "toy.a:recomputed:5-8", "toy.stat:workspace:5-8", "toy.b:recomputed:6-8",
                   "toy.c:recomputed:7-8"}));
}

// A kept output of a stage that runs again for its side output is written in place: no new tensor.
TEST(Pass, AKeptOutputIsNotMadeTwice) {
  const Toy toy;
  const Result r = train(toy, toy.keep_only({toy.a}), {toy.stat});
  int made = 0;
  for (const TensorRecord& t : r.program.tensors) made += t.name.view() == "toy.a";
  EXPECT_EQ(made, 1);
}

// b and c in one: b is stored where it is present.
void fuse_b_and_c(Toy& t) {
  t.body.fuse(1, [&t](Context& ctx, Pass& p) {
    auto& e = p.environment<Environment>();
    e.ran.push_back("fused_bc");
    const Op op(ctx, "fused_bc", {});
    if (!op.run()) return;
    for (int64_t i = 0; i < p.view(t.c).elements(); ++i) {
      const float b = Toy::at(p, t.a, i) * Toy::at(p, t.a, i) + e.s;
      if (p.present(t.b)) p.view(t.b).as<float>()[i] = b;
      p.view(t.c).as<float>()[i] = b / 3;
    }
  });
}

TEST(FusedPass, EveryPolicyGivesTheSameBits) {
  const Toy plain;
  Toy toy;
  fuse_b_and_c(toy);
  const Result truth = train(plain, plain.all(SlotPolicy::keep), backward_order(plain));
  const int slots[] = {toy.a, toy.stat, toy.b, toy.c, toy.d, toy.y};
  for (int mask = 0; mask < 64; ++mask) {
    std::vector<int> keep;
    for (int k = 0; k < 6; ++k)
      if (mask >> k & 1) keep.push_back(slots[k]);
    const Result r = train(toy, toy.keep_only(keep), backward_order(toy));
    EXPECT_EQ(r.values, truth.values) << "policies " << mask;
    EXPECT_EQ(r.forward, (Names{"stage_a", "fused_bc", "stage_d", "stage_y"}));
  }
}

TEST(FusedPass, NeedRunsThePairWhereBothAreMissing) {
  Toy toy;
  fuse_b_and_c(toy);
  const struct {
    const char* what;
    std::vector<int> keep, wanted;
    Names runs;
    int stages;
  } rows[] = {
      {"both", {}, {toy.d}, {"stage_a", "fused_bc", "stage_d"}, 4},
      {"both, the first afterwards", {}, {toy.c, toy.b}, {"stage_a", "fused_bc"}, 3},
      {"the first alone", {}, {toy.b}, {"stage_a", "stage_b"}, 2},
      {"the first, dropped again", {}, {toy.b, toy.c}, {"stage_a", "stage_b", "fused_bc"}, 4},
      {"the second from a kept first", {toy.b}, {toy.c}, {"stage_c"}, 1},
      {"the first beside a kept second", {toy.a, toy.c}, {toy.b}, {"stage_b"}, 1},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.what);
    const Result r = train(toy, toy.keep_only(row.keep), row.wanted);
    EXPECT_EQ(r.backward, row.runs);
    EXPECT_EQ(r.recomputed, row.stages);
  }
}

// Forward makes the slot between only for those who keep it.
TEST(FusedPass, TheSlotBetweenIsNotMadeForNobody) {
  Toy toy;
  fuse_b_and_c(toy);
  const auto made = [&](std::vector<int> keep) {
    const Result r = train(toy, toy.keep_only(std::move(keep)), {});
    int b = 0;
    for (const TensorRecord& t : r.program.tensors) b += t.name.view() == "toy.b";
    return b;
  };
  EXPECT_EQ(made({}), 0);
  EXPECT_EQ(made({toy.b}), 1);
}

TEST(FusedPass, AStageHasOnePartner) {
  for (const int again : {0, 1, 2}) {
    Toy toy;
    fuse_b_and_c(toy);
    expect_error(ErrorCode::internal, {"a stage to be fused with one neighbour"},
                 [&] { toy.body.fuse(again, [](Context&, Pass&) {}); });
  }
  Toy toy;
  expect_error(ErrorCode::internal, {"two stages to fuse"},
               [&] { toy.body.fuse(4, [](Context&, Pass&) {}); });
}

TEST(Pass, RecomputeNeedsLessMemory) {
  const Toy toy;
  const auto peak = [&](SlotPolicy policy) {
    return train(toy, toy.all(policy), {}).program.packing.lower_bound;
  };
  EXPECT_LT(peak(SlotPolicy::recompute), peak(SlotPolicy::keep));
}

TEST(Pass, InferenceDropsEverythingButTheResult) {
  const Toy toy;
  Pass pass(toy.body, toy.all(SlotPolicy::keep));
  std::vector<float> y;
  const auto steps = [&](Context& ctx) {
    Environment e;
    pass.begin(kDims, PassMode::inference, e);
    Tensor x = ctx.tensor(Name("x"), {kDims.N(), 10}, DType::f32, Category::activations);
    if (!ctx.planning())
      for (int64_t i = 0; i < 60; ++i)
        x.view().as<float>()[i] = 0.3f * static_cast<float>(i) - 5.1f;
    pass.give(toy.x, std::move(x));
    pass.forward(ctx);
    for (const int s : {toy.x, toy.a, toy.stat, toy.b, toy.c, toy.d})
      EXPECT_FALSE(pass.present(s)) << toy.body.slot(s).name.view();
    EXPECT_TRUE(pass.present(toy.y));
    const Tensor out = pass.take(toy.y);
    if (out.view().data) y.assign(out.view().as<float>(), out.view().as<float>() + 60);
  };
  test::Recorded r(steps);
  r.run(steps);
  EXPECT_EQ(lives(r.program()),
            (Names{"x:activations:0-1", "toy.a:activations:0-4", "toy.stat:workspace:0-1",
                   "toy.b:activations:1-3", "toy.c:activations:2-4", "toy.d:activations:3-5",
                   "toy.y:activations:4-5"}));
  EXPECT_EQ(y, train(toy, toy.all(SlotPolicy::keep), {}).values.at("toy.y"));
}

TEST(Pass, TwoPassesThroughOneBodyDoNotMeet) {
  const Toy toy;
  Pass first(toy.body, toy.all(SlotPolicy::keep)), second(toy.body, toy.all(SlotPolicy::recompute));
  std::vector<float> results[2];
  const auto steps = [&](Context& ctx) {
    Environment one, two;
    two.s = 0.0f;
    const auto start = [&](Pass& pass, Environment& e) {
      pass.begin(kDims, PassMode::train, e);
      Tensor x = ctx.tensor(Name("x"), {kDims.N(), 10}, DType::f32, Category::activations);
      if (!ctx.planning()) std::fill_n(x.view().as<float>(), 60, 1.0f);
      pass.give(toy.x, std::move(x));
      pass.forward(ctx);
    };
    start(first, one);
    start(second, two);
    for (Pass* p : {&first, &second}) {
      const View& v = p->need(ctx, toy.b);
      if (v.data) results[p == &second].assign(v.as<float>(), v.as<float>() + 60);
    }
    EXPECT_EQ(first.stages_recomputed(), 0);
    EXPECT_EQ(second.stages_recomputed(), 2);
    first.clear();
    second.clear();
  };
  test::Recorded r(steps);
  r.run(steps);
  EXPECT_EQ(results[0], std::vector<float>(60, 9.0f + 0.7f));
  EXPECT_EQ(results[1], std::vector<float>(60, 9.0f));
}

TEST(Pass, AnErrorInAStageLeavesAUsablePass) {
  Toy toy;
  bool broken = true;
  Body body;
  const auto shape = [](Dims) -> Shape { return {4}; };
  const int in = body.add_slot({Name("in"), DType::f32, Category::activations, shape});
  const int out = body.add_slot({Name("out"), DType::f32, Category::activations, shape});
  body.add_stage({Name("s"), {in}, {out}, [&](Context& ctx, Pass&) {
                    const Op op(ctx, "s", {});
                    if (op.run() && broken) throw std::runtime_error("stage");
                  }});
  Pass pass(body, {SlotPolicy::keep, SlotPolicy::keep});
  const auto steps = [&](Context& ctx) {
    Environment e;
    pass.begin({1, 1}, PassMode::train, e);
    pass.give(in, ctx.tensor(Name("in"), {4}, DType::f32, Category::activations));
    pass.forward(ctx);
    pass.clear();
  };
  test::Recorded r(steps);
  EXPECT_THROW(r.run(steps), std::runtime_error);
  broken = false;
  EXPECT_NO_THROW(r.run(steps)) << "what the broken pass held must not end inside this one";
}

TEST(Pass, PoliciesFitTheBody) {
  const Toy toy;
  std::vector<SlotPolicy> policies = toy.all(SlotPolicy::keep);
  policies[2] = SlotPolicy::offload;
  expect_error(ErrorCode::internal, {"a place for what is in flight, to offload slots"},
               [&] { Pass pass(toy.body, policies); });
  policies.pop_back();
  expect_error(ErrorCode::internal, {"one policy per slot"},
               [&] { Pass pass(toy.body, policies); });
}

TEST(Pass, MissingSlotsAreDefects) {
  const Toy toy;
  Pass pass(toy.body, toy.all(SlotPolicy::recompute));
  expect_error(ErrorCode::internal, {"a stage to list every slot it reads", "slot toy.b absent"},
               [&] { pass.view(toy.b); });
  const auto steps = [&](Context& ctx) {
    Environment e;
    pass.begin(kDims, PassMode::train, e);
    pass.need(ctx, toy.b);
  };
  expect_error(ErrorCode::internal, {"a given slot to be present until it is no longer needed"},
               [&] { test::Recorded r(steps); });
}

TEST(Body, KnowsProducersAndLastReaders) {
  const Toy t;
  EXPECT_EQ(t.body.slots(), 7);
  EXPECT_EQ(t.body.producer(t.x), -1);
  EXPECT_EQ(t.body.producer(t.stat), 0);
  EXPECT_EQ(t.body.producer(t.y), 4);
  EXPECT_EQ(t.body.last_reader(t.x), 0);
  EXPECT_EQ(t.body.last_reader(t.a), 3);
  EXPECT_EQ(t.body.last_reader(t.stat), -1);
  EXPECT_EQ(t.body.last_reader(t.y), -1);
  EXPECT_EQ(t.body.find_slot("stat"), t.stat);
  EXPECT_EQ(t.body.find_slot("tat"), -1);
  EXPECT_EQ(t.body.find_slot("toy.stat"), -1);
}

TEST(Body, RefusesTwoWritersAndReadingBeforeWriting) {
  Body body;
  const auto shape = [](Dims) -> Shape { return {4}; };
  const int p = body.add_slot({Name("p"), DType::f32, Category::activations, shape});
  const int q = body.add_slot({Name("q"), DType::f32, Category::activations, shape});
  body.add_stage({Name("s"), {p}, {q}, nullptr});
  expect_error(ErrorCode::internal, {"one stage to write each slot"}, [&] {
    body.add_stage({Name("t"), {}, {q}, nullptr});
  });
  expect_error(ErrorCode::internal, {"slots to be written before they are read"}, [&] {
    body.add_stage({Name("t"), {}, {p}, nullptr});
  });
}

TEST(SlotPolicy, Names) {
  EXPECT_STREQ(to_string(SlotPolicy::keep), "keep");
  EXPECT_STREQ(to_string(SlotPolicy::recompute), "recompute");
  EXPECT_STREQ(to_string(SlotPolicy::offload), "offload");
}

}  // namespace
}  // namespace snug
