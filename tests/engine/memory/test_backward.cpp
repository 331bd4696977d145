// Backward as a body derives it: order, assignment, hand-over in place, what ends when, and what frozen
// parameters leave out.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "engine/memory/pass.h"
#include "tests/engine/memory/program_run.h"

namespace snug {
namespace {

struct Nothing {};

// x -> first -> a -> second -> b; third adds x to what it makes of b: c. Parameters 0, 1 and 2; each
// stage's parameter gradient reads its input.
struct Chain {
  // `third_reads`: what the gradient of parameter 2 reads; -1: b.
  explicit Chain(int third_reads = -1) {
    const auto slot = [&](const char* name) {
      return body.add_slot(
          {Name(name), DType::f32, Category::activations, [](Dims d) -> Shape { return {d.N()}; }});
    };
    x = slot("t.x");
    a = slot("t.a");
    b = slot("t.b");
    c = slot("t.c");
    stage("first", 0, x, a, -1);
    stage("second", 1, a, b, -1);
    stage("third", 2, b, c, x, third_reads);
  }
  void stage(const char* name, int param, int in, int out, int residual, int reads = -1) {
    if (reads < 0) reads = in;
    Stage s;
    s.name = Name(name);
    s.inputs = {in};
    if (residual >= 0) s.inputs.push_back(residual);
    s.outputs = {out};
    s.run = [](Context&, Pass&) {};
    s.params = {param};
    s.for_params = {reads};
    s.gradients = s.inputs;
    s.backward = [this, name, param, in, out, residual, reads](Context& ctx, Pass& p) {
      log.push_back(name);
      if (trained.count(param)) p.need(ctx, reads);
      p.done(reads);
      if (p.present(reads)) log.push_back(std::string(name) + " leaves what it read");
      if (p.wants_gradient(in)) log.push_back(p.open_gradient(ctx, in).add ? "adds" : "assigns");
      if (residual >= 0 && p.wants_gradient(residual)) p.hand_gradient(out, residual);
    };
    body.add_stage(std::move(s));
  }
  void freeze_all_but(std::set<int> params, bool x_wanted) {
    trained = std::move(params);
    body.derive([this](int param) { return trained.count(param) > 0; }, x_wanted);
  }
  // Forward, which slots it leaves, backward; whether there is a gradient of x.
  void run(std::vector<SlotPolicy> policies = std::vector<SlotPolicy>(4, SlotPolicy::keep)) {
    Pass pass(body, std::move(policies));
    Nothing nothing;
    const auto steps = [&](Context& ctx) {
      log.clear();
      pass.begin({1, 8}, PassMode::train, nothing);
      pass.give(x, ctx.tensor(Name("x"), {8}, DType::f32, Category::activations));
      pass.forward(ctx);
      pass.take(c);
      left.clear();
      for (const int s : {x, a, b})
        if (pass.present(s)) left.insert(s);
      Tensor dc = ctx.tensor(Name("dc"), {8}, DType::f32, Category::activations);
      const Tensor dx = pass.backward(ctx, c, std::move(dc), x);
      has_dx = dx.defined();
      for (const int s : {x, a, b, c}) EXPECT_FALSE(pass.present(s) || pass.has_gradient(s));
    };
    test::Recorded r(steps);
    r.run(steps);
  }

  Body body;
  int x, a, b, c;
  std::set<int> trained = {0, 1, 2};
  std::vector<std::string> log;
  std::set<int> left;
  bool has_dx = false;
};

using Log = std::vector<std::string>;

TEST(Backward, RunsFromTheLastStageAndAddsToWhatWasHandedOn) {
  Chain t;
  t.run();
  // third hands dc to dx before first adds to it.
  EXPECT_EQ(t.log, (Log{"third", "assigns", "second", "assigns", "first", "adds"}));
  EXPECT_EQ(t.left, (std::set<int>{t.x, t.a, t.b}));
  EXPECT_TRUE(t.has_dx);
}

TEST(Backward, ARecomputedSlotKeepsWhatMakesIt) {
  Chain t;
  t.run({SlotPolicy::keep, SlotPolicy::keep, SlotPolicy::recompute, SlotPolicy::recompute});
  EXPECT_EQ(t.left, (std::set<int>{t.x, t.a}));
  EXPECT_EQ(t.log, (Log{"third", "assigns", "second", "assigns", "first", "adds"}));
}

TEST(Backward, AGivenSlotLastsAsLongAsWhatIsMadeOfIt) {
  Chain t(0);  // third reads x, of which a is made again for second
  t.freeze_all_but({1, 2}, true);
  t.run({SlotPolicy::keep, SlotPolicy::recompute, SlotPolicy::keep, SlotPolicy::keep});
  EXPECT_EQ(t.left, (std::set<int>{t.x}));
  EXPECT_EQ(t.log, (Log{"third", "third leaves what it read", "assigns", "second", "assigns",
                        "first", "adds"}));
}

TEST(Backward, StopsWhereNothingBeforeIsTrained) {
  Chain t;
  t.freeze_all_but({2}, false);
  t.run();
  EXPECT_EQ(t.log, (Log{"third"}));
  EXPECT_EQ(t.left, (std::set<int>{t.b})) << "the one input that a gradient reads";
  EXPECT_FALSE(t.has_dx);
  EXPECT_FALSE(t.body.runs_backward(0));
  EXPECT_FALSE(t.body.runs_backward(1));
}

TEST(Backward, AFrozenParameterSavesNoInput) {
  Chain t;
  t.freeze_all_but({0}, false);
  t.run();
  // The gradient passes second and third, whose inputs nobody reads; x is needed for parameter 0.
  EXPECT_EQ(t.log, (Log{"third", "assigns", "second", "assigns", "first"}));
  EXPECT_EQ(t.left, (std::set<int>{t.x}));
  EXPECT_FALSE(t.has_dx);
  // What makes a slot again is read only as long as that is.
  t.freeze_all_but({1}, true);
  t.run({SlotPolicy::keep, SlotPolicy::recompute, SlotPolicy::keep, SlotPolicy::keep});
  EXPECT_EQ(t.left, (std::set<int>{t.x})) << "a is made of it";
  EXPECT_EQ(t.log, (Log{"third", "assigns", "second", "assigns", "first", "adds"}));
  EXPECT_TRUE(t.has_dx);
}

}  // namespace
}  // namespace snug
