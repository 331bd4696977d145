// A small program for the tests of Context: recorded on plan, packed, run on cpu.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "engine/memory/context.h"

namespace snug::test {

inline Tensor floats(Context& ctx, const char* name, int64_t n,
                     Category category = Category::workspace) {
  return ctx.tensor(Name(name), {n}, DType::f32, category);
}

// y[i] = value, as an op.
inline void set_op(Context& ctx, const View& y, float value, const char* name = "set") {
  const Op op(ctx, name, {.flops = 0, .bytes = y.bytes()});
  if (!op.run()) return;
  for (int64_t i = 0; i < y.elements(); ++i) y.as<float>()[i] = value;
}
// y[i] = a[i % na] * 3 + b[i % nb] + i % 7, as an op.
inline void mix_op(Context& ctx, const View& y, const View& a, const View& b,
                   const char* name = "mix") {
  const Op op(ctx, name, {.flops = 3 * y.elements(), .bytes = y.bytes() + a.bytes() + b.bytes()});
  if (!op.run()) return;
  const float *pa = a.as<float>(), *pb = b.as<float>();
  for (int64_t i = 0; i < y.elements(); ++i)
    y.as<float>()[i] = pa[i % a.elements()] * 3 + pb[i % b.elements()] + static_cast<float>(i % 7);
}

using Steps = std::function<void(Context&)>;

// One program: recorded, packed, and a context with its arena reserved.
class Recorded {
 public:
  explicit Recorded(const Steps& steps, const Settings& settings = {}, uint64_t shuffle = 0)
      : cpu_(Place::cpu, settings) {
    schedule_.add(Name("step"), -1, false);
    Context plan(Place::plan, settings);
    plan.program(schedule_, 0, [&] { steps(plan); });
    schedule_.pack({}, shuffle);
  }
  Schedule& schedule() { return schedule_; }
  Program& program() { return schedule_.at(0); }
  Context& cpu() { return cpu_; }
  void run(const Steps& steps) {
    if (cpu_.arena_bytes() == 0) cpu_.reserve(schedule_);
    cpu_.program(schedule_, 0, [&] { steps(cpu_); });
  }

 private:
  Schedule schedule_;
  Context cpu_;
};

}  // namespace snug::test
