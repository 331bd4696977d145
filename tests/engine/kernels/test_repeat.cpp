// Context::repeat on the place emu: the second run is captured, later ones are the graph.
#include <gtest/gtest.h>

#include <stdexcept>

#include "engine/kernels/kernels.h"
#include "engine/memory/context.h"

namespace snug {
namespace {

class Repeated {
 public:
  explicit Repeated(Settings settings) : emu_(Place::emu, with_target(settings)) {
    root_ = schedule_.add(Name("root"), -1, true);
    scale_ = schedule_.add(Name("scale"), root_, false);
    {
      Context plan(Place::plan, with_target(settings));
      const Tensor x = make(plan);
      plan.repeat(schedule_, scale_, [&] { scale(plan, x, 1.0f); });
      EXPECT_EQ(plan.graphs(), 0);
    }
    schedule_.pack();
    emu_.reserve(schedule_);
    x_ = make(emu_);
    const float ones[4] = {1, 1, 1, 1};
    emu_.write(x_, ones);
  }
  void step(float factor, bool broken = false) {
    emu_.repeat(schedule_, scale_, [&] {
      ++bodies;
      scale(emu_, x_, factor);
      if (broken) throw std::runtime_error("broken");
    });
  }
  float value() {
    float v[4];
    emu_.read(v, x_);
    return v[3];
  }
  Context& context() { return emu_; }
  int bodies = 0;

 private:
  static Settings with_target(Settings s) {
    s.target = Place::emu;
    return s;
  }
  Tensor make(Context& ctx) {
    Tensor t;
    ctx.program(schedule_, root_,
                [&] { t = ctx.tensor(Name("x"), {4}, DType::f32, Category::batch); });
    return t;
  }
  Schedule schedule_;
  int root_ = -1, scale_ = -1;
  Context emu_;
  Tensor x_;
};

TEST(Repeat, TheSecondRunIsCapturedAndLaterOnesAreTheGraph) {
  Repeated run({.graphs = true, .device_private = true});
  for (const float expected : {2.0f, 4.0f, 8.0f, 16.0f}) {
    run.step(2);
    EXPECT_EQ(run.value(), expected);
  }
  EXPECT_EQ(run.bodies, 2);
  EXPECT_EQ(run.context().graphs(), 1);
  // What a body takes by value is what it was: why ops read a step's numbers from the StepState.
  run.step(100);
  EXPECT_EQ(run.value(), 32.0f);
}

TEST(Repeat, RunsTheBodyWithoutTheSettingAndForTests) {
  for (const Settings& s : {Settings{}, Settings{.graphs = true, .guard_bytes = 64},
                            Settings{.graphs = true, .poison = true}}) {
    Repeated run(s);
    for (const float expected : {2.0f, 4.0f, 8.0f}) {
      run.step(2);
      EXPECT_EQ(run.value(), expected);
    }
    EXPECT_EQ(run.bodies, 3);
    EXPECT_EQ(run.context().graphs(), 0);
  }
}

class Listener : public OpListener {
 public:
  void op_done(const Program&, int32_t, double) override { ++ops; }
  int ops = 0;
};

TEST(Repeat, AListenerHearsEveryOp) {
  Repeated run({.graphs = true});
  for (int i = 0; i < 3; ++i) run.step(2);
  Listener listener;
  run.context().set_listener(&listener);
  run.step(2);
  run.context().set_listener(nullptr);
  run.step(2);
  EXPECT_EQ(listener.ops, 1);
  EXPECT_EQ(run.bodies, 3);
  EXPECT_EQ(run.value(), 32.0f);
}

// Nothing of what was captured is done, and the next run captures again.
TEST(Repeat, AnErrorWhileItIsCapturedPassesThrough) {
  Repeated run({.graphs = true});
  run.step(2);
  EXPECT_THROW(run.step(2, true), std::runtime_error);
  EXPECT_EQ(run.value(), 2.0f);
  EXPECT_EQ(run.context().graphs(), 0);
  for (const float expected : {4.0f, 8.0f}) {
    run.step(2);
    EXPECT_EQ(run.value(), expected);
  }
  EXPECT_EQ(run.bodies, 3);
  EXPECT_EQ(run.context().graphs(), 1);
}

}  // namespace
}  // namespace snug
